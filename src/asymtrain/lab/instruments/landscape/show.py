"""The page of a landscape: tables over draws, contours and surfaces of the first draw, the flattening explained."""

from collections.abc import Mapping, Sequence

import numpy as np

from asymtrain.lab.instruments.curves import cells
from asymtrain.lab.instruments.instrument import Page
from asymtrain.lab.instruments.landscape.result import Directions, Landscape, Scaling, Summary
from asymtrain.lab.instruments.landscape.surface import Floats
from asymtrain.lab.report.figure import Figure, Line, Lines, Numbers, Surface
from asymtrain.lab.report.table import Cell, Column, Interval, Table, Value
from asymtrain.lab.runs import RunSpec

View = tuple[Directions, Scaling]
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


def landscape_page(landscapes: Mapping[str, Landscape], specs: Sequence[RunSpec], epoch: int) -> Page:
    """Tables, figures and numbers of one or more landscapes, by label."""
    return Page(
        title=f"Loss landscape: {', '.join(landscapes)}",
        lead=LEAD,
        tables=[table for label, landscape in landscapes.items() for table in landscape_tables(label, landscape)],
        figures=[figure for label, landscape in landscapes.items() for figure in landscape_figures(label, landscape)],
        document={"landscapes": {label: landscape.to_dict() for label, landscape in landscapes.items()}},
        specs=specs,
        facts={"Epoch": str(epoch), "Device": next(iter(landscapes.values())).device},
    )


def landscape_tables(label: str, landscape: Landscape) -> list[Table]:
    """Statistics of the surfaces, and their change against Plain."""
    settings, views = landscape.settings, landscape.settings.views()
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
    small = [Column(name, "number", digits=3, significant=True) for name in ("std", "95% interval", "95% of draws")]
    tables = [
        Table(
            f"deviation-{_stem(label)}",
            f"Deviation of the surface, {label}",
            (*HEAD, Column("parameters", "count"), *small),
            tuple(_deviation_row(landscape, summary) for summary in summaries),
            note,
        )
    ]
    if changed := [summary for summary in summaries if summary.changes]:
        percents = ("std", "95% interval", "predicted", "range", "mean gradient")
        tables.append(
            Table(
                f"change-{_stem(label)}",
                f"Change against Plain, {label}",
                (*HEAD, *(Column(name, "number", digits=1, signed=True) for name in percents)),
                tuple(_change_row(landscape, summary) for summary in changed),
                "Percent of Plain with the same seed and draw; predicted: from the number of parameters alone.",
            )
        )
    names = {
        "range": "range",
        "mean_gradient": "mean gradient",
        "plane_r2": "plane R2",
        "residual_std": "left by the plane",
    }
    shapes = [Column(words, "number", significant=name != "plane_r2") for name, words in names.items()]
    explained = (
        f"Means over {over}. The gradient is that between neighbouring grid points; plane R2 is the share of the "
        "variance that the best plane explains, and what it leaves is a deviation too."
    )
    rows = tuple(_row(landscape, s, *(s.statistics[name].mean for name in names)) for s in summaries)
    title = f"Shape of the surface, {label}"
    return [*tables, Table(f"shape-{_stem(label)}", title, (*HEAD, *shapes), rows, explained, detail=True)]


def landscape_figures(label: str, landscape: Landscape) -> list[Figure]:
    """The changes of the deviation, and contours and surfaces of each view that differs from those before it."""
    figures = []
    # Over live parameters every redundancy has the surface that redundancy 1 has over all of them.
    measured = {key[2:] for key in landscape.surfaces}
    shown = [view for view in VIEWS if view in measured and not (view[0] == "live" and ("all", view[1]) in measured)]
    for epoch in dict.fromkeys(key[0] for key in landscape.surfaces):
        summaries = [summary for summary in landscape.summaries() if summary.epoch == epoch and summary.changes]
        if lines := _change_lines(summaries):
            levels = sorted({summary.redundancy for summary in summaries})
            panel = Lines("", "redundancy", "change of the deviation (%)", lines, zero=True,
                          ticks=tuple(map(float, range(len(levels)))), tick_labels=tuple(map(str, levels)))  # fmt: skip
            title = f"{label}: change of the deviation against Plain, epoch {epoch}"
            caption = "Diamonds are measured, circles predicted from the number of parameters alone."
            figures.append(Figure(f"changes-{_stem(label)}-{epoch}", title, [panel], caption=caption))
        for view in shown:
            name = f"{_stem(label)}-{epoch}-{'-'.join(dict.fromkeys(view))}"
            title = f"{label}, {VIEWS[view]}, epoch {epoch}"
            caption = "First draw of the first seed; axes are grid indices, and all panels share one scale."
            losses = {
                n: values for (at, n, *seen), values in landscape.surfaces.items() if (at, *seen) == (epoch, *view)
            }
            for kind in ("contours", "surfaces"):
                panels = [_surface(n, values, relief=kind == "surfaces") for n, values in losses.items()]
                figures.append(Figure(f"{kind}-{name}", title, panels, len(panels), caption))
    return figures


def _change_lines(summaries: Sequence[Summary]) -> tuple[Line, ...]:
    """Measured with its interval, and predicted, side by side over all and over live parameters."""
    levels, lines = sorted({summary.redundancy for summary in summaries}), []
    for i, kind in enumerate(("all", "live")):
        chosen = [
            s for s in summaries if (s.directions, s.scaling) == (kind, "norm") and s.changes["std"].mean is not None
        ]
        if chosen:
            x = tuple(levels.index(summary.redundancy) + 0.14 * (i - 0.5) for summary in chosen)
            std, colour = [summary.changes["std"] for summary in chosen], "plain" if i else "asymmetric"
            mean, low, high = (tuple(getattr(change, name) for change in std) for name in ("mean", "low", "high"))
            lines.append(Line(f"{kind} parameters", colour, x, mean, low, high, marker=True, joined=False))
            predicted = tuple(summary.predicted_change for summary in chosen)
            lines.append(Line("predicted", "ink", x, predicted, joined=False, hollow=True))
    return tuple(lines)


def _surface(redundancy: int, losses: Floats, *, relief: bool) -> Surface:
    """Losses less the one in the middle; those that are not finite are left blank."""
    rows, columns = losses.shape
    middle = losses[(rows - 1) // 2 : rows // 2 + 1, (columns - 1) // 2 : columns // 2 + 1].mean()
    heights = losses - (middle if np.isfinite(middle) else 0.0)
    values: tuple[Numbers, ...] = tuple(tuple(float(v) if np.isfinite(v) else None for v in row) for row in heights)
    x, y = (tuple(float(v) for v in np.arange(n) - (n - 1) / 2) for n in (rows, columns))
    title = f"N = {redundancy}" if redundancy else "Plain"
    return Surface(title, x, y, values, "loss - middle", relief, "loss", "first direction", "second direction")


def _deviation_row(landscape: Landscape, summary: Summary) -> tuple[Cell, ...]:
    std = summary.statistics["std"]
    parameters = summary.live_parameters if summary.directions == "live" else summary.parameters
    draws = _interval(std.percentile_low, std.percentile_high)
    return _row(landscape, summary, parameters, std.mean, _interval(std.low, std.high), draws)


def _change_row(landscape: Landscape, summary: Summary) -> tuple[Cell, ...]:
    std, others = summary.changes["std"], [summary.changes[name].mean for name in ("range", "mean_gradient")]
    return _row(landscape, summary, std.mean, _interval(std.low, std.high), summary.predicted_change, *others)


def _row(landscape: Landscape, summary: Summary, *values: Value) -> tuple[Cell, ...]:
    key = summary.epoch, summary.redundancy
    ids = dict.fromkeys(r.level.spec_id for r in landscape.rows if (r.level.epoch, r.level.redundancy) == key)
    return cells(ids, VIEWS[summary.directions, summary.scaling], summary.redundancy, *values)


def _interval(low: float | None, high: float | None) -> Interval | None:
    return None if low is None or high is None else Interval(low, high)


def _stem(label: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in label)
