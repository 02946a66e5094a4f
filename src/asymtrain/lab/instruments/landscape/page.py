"""The page of a landscape: tables over draws, contours and surfaces of the first draw, the flattening explained."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asymtrain.lab.instruments.landscape import figures
from asymtrain.lab.instruments.landscape.result import Landscape, Summary
from asymtrain.lab.instruments.landscape.settings import Directions, Scaling
from asymtrain.lab.instruments.landscape.statistics import Interval
from asymtrain.lab.report.measurement import Drawn, Listed, write_measurement
from asymtrain.lab.report.summary import MISSING

NAME = "landscape"
VIEWS: dict[tuple[Directions, Scaling], str] = {
    ("all", "variance"): "all parameters, unit variance",
    ("all", "norm"): "all parameters, unit norm",
    ("live", "variance"): "live parameters, unit variance",
    ("live", "norm"): "live parameters, unit norm",
    ("filter", "filter"): "filter-normalised",
}
DEVIATIONS = ("directions", "N", "parameters", "std", "95% interval", "95% of draws")
SHAPES = ("directions", "N", "range", "mean gradient", "plane R2", "left by the plane")
CHANGES = ("directions", "N", "std", "95% interval", "predicted", "range", "mean gradient")
LEAD = (
    "The loss on a sample of training images, on a grid around the state along pairs of random directions. N is the "
    "redundancy, 0 for Plain; all N of a seed are looked at along the same directions, on the same images.\n\n"
    "With directions of unit norm, idle branches are counted in the norm and never enter the loss: the part that moves "
    "the network shrinks, and the surface flattens for that reason alone. What the number of parameters predicts "
    "stands beside what was measured. Along directions of unit variance, and over live parameters, idle branches "
    "change nothing."
)


def write_landscape(
    found: Mapping[str, Landscape], out: Path, facts: Mapping[str, str]
) -> tuple[list[Listed], dict[str, Any], dict[str, Path]]:
    """Write the page, the numbers and the figures of one or more landscapes, by label; what `show_result` takes."""
    tables: list[Listed] = []
    drawn: list[Drawn] = []
    for label, landscape in found.items():
        tables += landscape_tables(label, landscape)
        drawn += landscape_drawings(label, landscape)
    document = {"landscapes": {label: landscape.to_dict() for label, landscape in found.items()}}
    title = f"Loss landscape: {', '.join(found)}"
    files = write_measurement(
        out, NAME, title=title, lead=LEAD, tables=tables, figures=drawn, facts=facts, document=document
    )
    return tables, document, files


def landscape_tables(label: str, landscape: Landscape) -> list[Listed]:
    """Statistics of the surfaces, and their change against Plain."""
    settings, views = landscape.settings, landscape.settings.views()
    summaries = sorted(landscape.summaries(), key=lambda s: (s.epoch, views.index((s.directions, s.scaling))))
    lost = sum(summary.non_finite for summary in summaries)
    over = "draws" if max(summary.seeds for summary in summaries) == 1 else "seeds"
    steps = [f"{settings.step_of(scaling):g} ({scaling})" for scaling in dict.fromkeys(v[1] for v in settings.views())]
    note = (
        f"{settings.loss} loss, {settings.grid} x {settings.grid} points, {settings.sample} images, "
        f"{settings.draws} draws; step {', '.join(steps)}. N: branches at each point, 0 for Plain. "
        f"Intervals are of means over {over}, cut at 0."
    )
    if lost:
        note += f" {lost} surfaces have a loss that is not finite and are left out."
    gradient = (
        f"Means over {over}. The gradient is that between neighbouring grid points; plane R2 is the share of the "
        "variance that the best plane explains, and what it leaves is a deviation too."
    )
    tables = [Listed(f"Deviation of the surface, {label}", DEVIATIONS, [_deviation_row(s) for s in summaries], note)]
    changed = [summary for summary in summaries if summary.changes]
    if changed:
        rows = [_change_row(summary) for summary in changed]
        explained = "Percent of Plain with the same seed and draw; predicted: from the number of parameters alone."
        tables.append(Listed(f"Change against Plain, {label}", CHANGES, rows, explained))
    rows = [_shape_row(s) for s in summaries]
    return [*tables, Listed(f"Shape of the surface, {label}", SHAPES, rows, gradient, detail=True)]


def landscape_drawings(label: str, landscape: Landscape) -> list[Drawn]:
    """The changes of the deviation, and contours and surfaces of each view that differs from those before it."""
    stem = "".join(c if c.isalnum() else "-" for c in label)
    drawn: list[Drawn] = []
    # Over live parameters every redundancy has the surface that redundancy 1 has over all of them.
    every = {key[2:] for key in landscape.surfaces}
    shown = [view for view in VIEWS if view in every and not (view[0] == "live" and ("all", view[1]) in every)]
    for epoch in dict.fromkeys(key[0] for key in landscape.surfaces):
        series = {
            f"{view[0]} parameters": [
                figures.Change(s.redundancy, change.mean, change.low, change.high, s.predicted_change)
                for s in landscape.summaries()
                if (s.directions, s.scaling, s.epoch) == (*view, epoch) and s.changes
                if (change := s.changes["std"]).mean is not None
            ]
            for view in (("all", "norm"), ("live", "norm"))
        }
        series = {name: changes for name, changes in series.items() if changes}
        if series:
            title = f"{label}: change of the deviation against Plain, epoch {epoch}"
            caption = "Diamonds are measured, circles predicted from the number of parameters alone."
            svg = figures.changes(series, f"d{len(drawn)}", title)
            drawn.append(Drawn(f"changes-{stem}-{epoch}", title, svg, caption))
        for view in shown:
            panels = {
                "Plain" if redundancy == 0 else f"N = {redundancy}": losses
                for (at, redundancy, *seen), losses in landscape.surfaces.items()
                if at == epoch and tuple(seen) == view
            }
            name, title = f"{stem}-{epoch}-{'-'.join(dict.fromkeys(view))}", f"{label}, {VIEWS[view]}, epoch {epoch}"
            caption = "First draw of the first seed; axes are grid indices, and all panels share one scale."
            drawn.append(Drawn(f"contours-{name}", title, figures.contours(panels, f"c{len(drawn)}", title), caption))
            drawn.append(Drawn(f"surfaces-{name}", title, figures.surfaces(panels, f"s{len(drawn)}", title), caption))
    return drawn


def _deviation_row(summary: Summary) -> tuple[str, ...]:
    std = summary.statistics["std"]
    counted = summary.live_parameters if summary.directions == "live" else summary.parameters
    return (
        *_name(summary),
        f"{counted:,}",
        _number(std.mean),
        _pair(std.low, std.high, ".2e"),
        _pair(std.percentile_low, std.percentile_high, ".2e"),
    )


def _shape_row(summary: Summary) -> tuple[str, ...]:
    seen = summary.statistics
    return (
        *_name(summary),
        _number(seen["range"].mean),
        _number(seen["mean_gradient"].mean),
        _number(seen["plane_r2"].mean, ".3f"),
        _number(seen["residual_std"].mean),
    )


def _change_row(summary: Summary) -> tuple[str, ...]:
    def percent(change: Interval) -> str:
        return _number(change.mean, "+.1f")

    std = summary.changes["std"]
    return (
        *_name(summary),
        percent(std),
        _pair(std.low, std.high, "+.1f"),
        _number(summary.predicted_change, "+.1f"),
        percent(summary.changes["range"]),
        percent(summary.changes["mean_gradient"]),
    )


def _name(summary: Summary) -> tuple[str, str]:
    return VIEWS[summary.directions, summary.scaling], str(summary.redundancy)


def _number(value: float | None, form: str = ".2e") -> str:
    return MISSING if value is None else f"{value:{form}}" if value else "0"


def _pair(low: float | None, high: float | None, form: str) -> str:
    return MISSING if low is None or high is None else f"{_number(low, form)} to {_number(high, form)}"
