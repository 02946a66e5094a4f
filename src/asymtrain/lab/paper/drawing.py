"""Figures of the paper's recipes as SVG text, in the look of `report.drawing`: `draw` is what recipes are given."""

from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from asymtrain.lab.instruments.attention.figures import maps_over_images
from asymtrain.lab.paper.effect_drawing import effects
from asymtrain.lab.paper.panels import Line, Panel, Panels
from asymtrain.lab.report.drawing import INK, VARIANTS, figure_style, svg_text

COLOURS = {"plain": VARIANTS["plain"][0], "asymmetric": VARIANTS["asymmetric"][0],
           "mlp": VARIANTS["plain"][0], "cnn": VARIANTS["asymmetric"][0], "vit": "#009e73"}  # fmt: skip
DASHES: dict[str, Any] = {"solid": "-", "dashed": (0, (4, 1.5)), "dotted": (0, (1, 1.5))}


def draw(kind: str, name: str, data: Any) -> str:
    """The figure of a recipe: panels of lines, effects with intervals, loss surfaces, or attention maps."""
    if kind == "panels":
        return panels(data, name)
    if kind == "effects":
        return effects(data, name, COLOURS)
    if kind == "surfaces":
        return surfaces(data, name)
    if kind == "maps":
        return maps_over_images(data, name)
    raise AssertionError(f"no figure is called {kind!r}")


def panels(data: Panels, name: str) -> str:
    """Small axes in rows of `data.columns`, one legend for all of them."""
    rows = -(-len(data.panels) // data.columns)
    width = 4.6 if data.columns == 1 else 2.7 * data.columns
    with figure_style():
        figure = Figure(figsize=(width, 0.4 + (2.6 if data.columns == 1 else 2.0) * rows), layout="constrained")
        figure.patch.set_visible(False)
        grid = figure.subplots(rows, data.columns, squeeze=False)
        handles: dict[str, Any] = {}
        for axes, panel in zip(grid.flat, data.panels, strict=False):
            _panel(axes, panel, handles)
        for axes in grid.flat[len(data.panels) :]:
            axes.set_visible(False)
        # Six lines are three pairs: a pair stands in one column.
        columns = 3 if len(handles) in (5, 6) else min(4, len(handles))
        figure.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=columns, fontsize=9)
        return svg_text(figure, name, data.title)


def surfaces(data: Mapping[str, Any], name: str) -> str:
    """Contours of losses: a row for each scaling of the directions, a column for each redundancy."""
    scalings = {"variance": "unit variance", "norm": "unit norm"}
    shown = {(one["scaling"], one["redundancy"]): np.array(one["losses"], float) for one in data["surfaces"]}
    levels = sorted({level for _, level in shown})
    at = data["settings"].grid // 2
    with figure_style(), matplotlib.rc_context({"axes.grid": False}):
        figure = Figure(figsize=(2.0 * len(levels) + 0.8, 2.2 * len(scalings) + 0.3), layout="constrained")
        figure.patch.set_visible(False)
        grid = figure.subplots(len(scalings), len(levels), squeeze=False, sharex=True, sharey=True)
        for row, (scaling, words) in zip(grid, scalings.items(), strict=True):
            # Each scaling has an extent of its own, so its row has a scale of its own.
            # As differences from the middle: the loss there is the same for all, and much larger.
            losses = [shown[scaling, level] - shown[scaling, level][at][at] for level in levels]
            low, high = min(map(np.nanmin, losses)), max(map(np.nanmax, losses))
            steps = np.linspace(low, high if high > low else low + 1e-9, 11)
            for axes, level, values in zip(row, levels, losses, strict=True):
                half = len(values) // 2
                ticks = np.arange(len(values)) - half
                drawn = axes.contourf(ticks, ticks, values.T, steps, cmap="viridis")
                axes.set_title(f"{'Plain' if level == 0 else f'{level}x'}, {words}", fontsize=9)
                axes.set_aspect("equal")
                axes.set_xticks([-half, 0, half])
                axes.set_yticks([-half, 0, half])
            figure.colorbar(drawn, ax=list(row), label="main loss - that in the middle", format="%.1e")
        return svg_text(figure, name, data["title"])


def _panel(axes: Axes, panel: Panel, handles: dict[str, Any]) -> None:
    axes.patch.set_visible(False)
    if panel.title:
        axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    if panel.x_label == "epoch":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if panel.zero:
        axes.axhline(0, color=INK, linewidth=0.8)
    for x in panel.marks:
        axes.axvline(x, color=INK, linewidth=0.8, linestyle=DASHES["dotted"])
    for line in panel.lines:
        handles.setdefault(line.label, _line(axes, line))
    if panel.ticks:
        axes.set_xticks(panel.ticks)
    seen = [value for line in panel.lines for value in line.y if value is not None]
    # A logarithmic axis has no place for values of 0, and a band that reaches there must not stretch it.
    if panel.log and seen and min(seen) > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(min(seen) / 1.3, max(seen) * 1.3)


def _line(axes: Axes, line: Line) -> Any:
    colour, dash = COLOURS[line.colour], DASHES[line.dash]
    for seed in line.thin:
        x, y = _points(line.x, seed)
        axes.plot(x, y, color=colour, linewidth=0.8, alpha=0.45, linestyle=dash)
    x, y = _points(line.x, line.y, gaps=line.marker)
    marker = "o" if line.marker or len(x) == 1 else ""  # a line of one point is invisible
    (handle,) = axes.plot(x, y, color=colour, linewidth=2.0, linestyle=dash, marker=marker, markersize=4)
    ends = [
        (at, low, high)
        for at, low, high in zip(line.x, line.low, line.high, strict=False)
        if low is not None and high is not None
    ]
    if line.marker:
        for at, low, high in ends:
            axes.plot([at, at], [low, high], color=colour, linewidth=1.2)
    elif ends:
        places, lows, highs = ([end[i] for end in ends] for i in range(3))
        axes.fill_between(places, lows, highs, color=colour, alpha=0.15, linewidth=0)
    return handle


def _points(x: tuple[float, ...], y: tuple[float | None, ...], gaps: bool = False) -> tuple[list[float], list[float]]:
    """What is there; with `gaps` a line ends at a missing place, since nothing is known of what lies between."""
    pairs = list(zip(x, y, strict=False))
    if gaps:
        return [at for at, _ in pairs], [np.nan if value is None else value for _, value in pairs]
    seen = [(at, value) for at, value in pairs if value is not None]
    return [at for at, _ in seen], [value for _, value in seen]
