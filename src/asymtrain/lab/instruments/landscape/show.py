"""The page of a landscape: tables over draws, contours and surfaces of the first draw, the flattening explained."""

from collections.abc import Mapping, Sequence

import numpy as np

from asymtrain.lab.instruments.curves import cells
from asymtrain.lab.instruments.landscape.result import Floats, Landscape, View, ViewSummary, finite_values, middle_loss
from asymtrain.lab.report.figure import PERCENT, Figure, Headline, Line, Lines, Page, Surface
from asymtrain.lab.report.table import Column, Table, interval, value_text
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.texts import listing

VIEWS: dict[View, str] = {
    ("all", "variance"): "all parameters, unit variance",
    ("all", "norm"): "all parameters, unit norm",
    ("live", "variance"): "live parameters, unit variance",
    ("live", "norm"): "live parameters, unit norm",
    ("filter", "filter"): "filter-normalised",
}
LEAD = (
    "The loss on a sample of training images, on a grid around the state along pairs of random directions. N is the "
    "redundancy, 0 for Plain; all N of a seed are looked at along the same directions, on the same images.\n\n"
    "With directions of unit norm, idle branches are counted in the norm and never enter the loss: the part that moves "
    "the network shrinks, and the surface flattens for that reason alone. What the number of parameters predicts "
    "stands beside what was measured. Along directions of unit variance, and over live parameters, idle branches "
    "change nothing."
)
HEAD = (Column("directions"), Column("N", "count"))
SHAPES = {  # statistics, and what their columns are called
    "range": "range",
    "mean_gradient": "mean gradient",
    "plane_r2": "plane R2",
    "residual_std": "left by the plane",
}


def landscape_page(landscapes: Mapping[str, Landscape], specs: Sequence[RunSpec], epoch: int) -> Page:
    """Tables, figures and numbers of one or more landscapes, by label."""
    return Page(
        title=f"Loss landscape: {', '.join(landscapes)}",
        headline=_headline(landscapes),
        lead=LEAD,
        tables=[table for label, landscape in landscapes.items() for table in landscape_tables(label, landscape)],
        figures=[figure for label, landscape in landscapes.items() for figure in landscape_figures(label, landscape)],
        document={"landscapes": {label: landscape.to_dict() for label, landscape in landscapes.items()}},
        specs=specs,
        facts={"Epoch": str(epoch), "Device": next(iter(landscapes.values())).device},
    )


def _headline(landscapes: Mapping[str, Landscape]) -> Headline | None:
    """How the deviation of each surface changes with the most branches, along directions of unit norm."""
    changes = {
        label: f"{value_text(summary.changes['std'].mean, PERCENT)} with N = {summary.redundancy}"
        for label, landscape in landscapes.items()
        for summary in sorted(landscape.summaries(), key=lambda summary: summary.redundancy)
        if (summary.directions, summary.scaling) == ("all", "norm") and summary.changes
    }
    if not changes:
        return None
    words = [f"{change} ({label})" if len(changes) > 1 else change for label, change in changes.items()]
    return "soft", f"Deviation of the loss surface, along directions of unit norm, against Plain's: {listing(words)}"


def landscape_tables(label: str, landscape: Landscape) -> list[Table]:
    """Statistics of the surfaces, and their change against Plain."""
    settings, views, stem = landscape.settings, landscape.settings.views(), _stem(label)
    summaries = sorted(landscape.summaries(), key=lambda s: (s.epoch, views.index((s.directions, s.scaling))))
    lost = sum(summary.non_finite for summary in summaries)
    over = "draws" if max(summary.seeds for summary in summaries) == 1 else "seeds"
    steps = [f"{settings.step_of(scaling):g} ({scaling})" for scaling in dict.fromkeys(scaling for _, scaling in views)]
    note = (
        f"{settings.loss} loss, {settings.grid} x {settings.grid} points, {settings.sample} images, "
        f"{settings.draws} draws; step {', '.join(steps)}. N: branches at each point, 0 for Plain. "
        f"Intervals are of means over {over}, cut at 0."
        + (f" {lost} surfaces have a loss that is not finite and are left out." if lost else "")
    )
    deviations, changes, shapes = [], [], []
    for summary in summaries:
        at = summary.epoch, summary.redundancy
        ids = dict.fromkeys(
            row.level.spec_id for row in landscape.rows if (row.level.epoch, row.level.redundancy) == at
        )
        head = VIEWS[summary.directions, summary.scaling], summary.redundancy
        parameters = summary.live_parameters if summary.directions == "live" else summary.parameters
        std, change = summary.statistics["std"], summary.changes
        of_draws = interval(std.percentile_low, std.percentile_high)
        deviations.append(cells(ids, *head, parameters, std.mean, interval(std.low, std.high), of_draws))
        shapes.append(cells(ids, *head, *(summary.statistics[name].mean for name in SHAPES)))
        if change:
            percents = change["std"].mean, interval(change["std"].low, change["std"].high), summary.predicted_change
            changes.append(cells(ids, *head, *percents, change["range"].mean, change["mean_gradient"].mean))
    small = [Column(name, "number", significant=True) for name in ("std", "95% interval", "95% of draws")]
    columns = (*HEAD, Column("parameters", "count"), *small)
    tables = [Table(f"deviation-{stem}", f"Deviation of the surface, {label}", columns, tuple(deviations), note)]
    if changes:
        names = ("std", "95% interval", "predicted", "range", "mean gradient")
        columns = (*HEAD, *(Column(name, "number", digits=1, signed=True) for name in names))
        note = "Percent of Plain with the same seed and draw; predicted: from the number of parameters alone."
        tables.append(Table(f"change-{stem}", f"Change against Plain, {label}", columns, tuple(changes), note))
    columns = (*HEAD, *(Column(words, "number", significant=name != "plane_r2") for name, words in SHAPES.items()))
    note = (
        f"Means over {over}. The gradient is that between neighbouring grid points; plane R2 is the share of the "
        "variance that the best plane explains, and what it leaves is a deviation too."
    )
    title = f"Shape of the surface, {label}"
    return [*tables, Table(f"shape-{stem}", title, columns, tuple(shapes), note, detail=True)]


def landscape_figures(label: str, landscape: Landscape) -> list[Figure]:
    """The changes of the deviation, and contours and surfaces of each view that differs from those before it."""
    figures = []
    # Over live parameters, every redundancy has the same surface as redundancy 1 over all parameters.
    measured = {key[2:] for key in landscape.surfaces}
    views = [view for view in VIEWS if view in measured and not (view[0] == "live" and ("all", view[1]) in measured)]
    for epoch in dict.fromkeys(key[0] for key in landscape.surfaces):
        summaries = [summary for summary in landscape.summaries() if summary.epoch == epoch and summary.changes]
        levels = sorted({summary.redundancy for summary in summaries})
        if lines := _change_lines(summaries, levels):
            panel = Lines("", "redundancy", "change of the deviation (%)", lines, zero=True,
                          ticks=tuple(map(float, range(len(levels)))), tick_labels=tuple(map(str, levels)),
                          written=PERCENT)  # fmt: skip
            title = f"{label}: change of the deviation against Plain, epoch {epoch}"
            caption = "Diamonds are measured, circles predicted from the number of parameters alone."
            figures.append(Figure(f"changes-{_stem(label)}-{epoch}", title, [panel], caption=caption))
        for view in views:
            name = f"{_stem(label)}-{epoch}-{'-'.join(dict.fromkeys(view))}"
            title = f"{label}, {VIEWS[view]}, epoch {epoch}"
            caption = "First draw of the first seed; axes are grid indices, and all panels share one scale."
            losses = {
                n: values for (at, n, *rest), values in landscape.surfaces.items() if (at, *rest) == (epoch, *view)
            }
            for kind in ("contours", "surfaces"):
                panels = [_surface(n, values, relief=kind == "surfaces") for n, values in losses.items()]
                figures.append(Figure(f"{kind}-{name}", title, panels, len(panels), caption))
    return figures


def _change_lines(summaries: Sequence[ViewSummary], levels: Sequence[int]) -> tuple[Line, ...]:
    """Measured with its interval, and predicted, side by side over all and over live parameters."""
    lines = []
    for i, (kind, colour) in enumerate({"all": "asymmetric", "live": "plain"}.items()):
        chosen = [
            s for s in summaries if (s.directions, s.scaling) == (kind, "norm") and s.changes["std"].mean is not None
        ]
        if chosen:
            x = tuple(levels.index(summary.redundancy) + 0.14 * (i - 0.5) for summary in chosen)
            std = [summary.changes["std"] for summary in chosen]
            mean, low, high = (tuple(getattr(change, name) for change in std) for name in ("mean", "low", "high"))
            lines.append(Line(f"{kind} parameters", colour, x, mean, low, high, marker=True, joined=False))
            predicted = tuple(summary.predicted_change for summary in chosen)
            lines.append(Line("predicted", "ink", x, predicted, joined=False, hollow=True))
    return tuple(lines)


def _surface(redundancy: int, losses: Floats, *, relief: bool) -> Surface:
    """Losses minus the one in the middle; values that are not finite are left blank."""
    middle = middle_loss(losses)
    values = tuple(map(tuple, finite_values(losses - (middle if np.isfinite(middle) else 0.0))))
    x, y = (tuple(float(v) for v in np.arange(n) - (n - 1) / 2) for n in losses.shape)
    title = f"N = {redundancy}" if redundancy else "Plain"
    return Surface(title, x, y, values, "loss - middle", relief, "loss", "first direction", "second direction")


def _stem(label: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in label)
