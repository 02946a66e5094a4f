"""Effects with their intervals, below each other: a panel for each backbone."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asymtrain.lab.paper.panels import Bar, BarPanel, Effects
from asymtrain.lab.report.drawing import INK, figure_style, svg_text

CUT = 3.0  # an interval that goes on farther than so many times the largest effect or seed ends in an arrow
ROW = 0.3  # inches


def effects(data: Effects, name: str, colours: dict[str, str]) -> str:
    """The figure as SVG text; each panel has an axis of its own, since backbones differ in how much they move."""
    rows = max(len(panel.bars) for panel in data.panels)
    with figure_style():
        figure = Figure(figsize=(2.1 * len(data.panels) + 2.0, 0.9 + ROW * rows), layout="constrained")
        figure.patch.set_visible(False)
        grid = figure.subplots(1, len(data.panels), squeeze=False, sharey=True)
        for axes, panel in zip(grid.flat, data.panels, strict=True):
            _panel(axes, panel, colours[panel.colour])
        figure.supxlabel(data.x_label, fontsize=10)
        return svg_text(figure, name, data.title)


def reach_of(panel: BarPanel) -> float:
    """How far the axis goes to both sides of 0: as far as the intervals, unless they dwarf what was measured."""
    seen = [abs(value) for bar in panel.bars for value in (*bar.seeds, bar.estimate) if value is not None]
    ends = [abs(end) for bar in panel.bars for end in (bar.low, bar.high) if end is not None]
    largest = max(seen, default=0.0) or 1.0
    return 1.1 * max(largest, min(max(ends, default=0.0), CUT * largest))


def _panel(axes: Axes, panel: BarPanel, colour: str) -> None:
    axes.patch.set_visible(False)
    axes.set_title(panel.title, fontsize=10)
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", pad=8)  # room for an arrow
    axes.axvline(0, color=INK, linewidth=0.8)
    reach = reach_of(panel)
    axes.set_xlim(-reach, reach)
    axes.set_yticks(range(len(panel.bars)), [bar.label for bar in panel.bars])
    axes.set_ylim(len(panel.bars) - 0.5, -0.5)  # the first on top
    for at, bar in enumerate(panel.bars):
        _bar(axes, at, bar, reach, colour)


def _bar(axes: Axes, at: int, bar: Bar, reach: float, colour: str) -> None:
    if bar.estimate is None:
        return
    ends: list[tuple[float, Any]] = []
    if bar.low is not None and bar.high is not None:
        axes.plot([max(bar.low, -reach), min(bar.high, reach)], [at, at], color=colour, linewidth=1.4)
        ends = [(-reach, "<")] * (bar.low < -reach) + [(reach, ">")] * (bar.high > reach)
    for place, marker in ends:
        axes.plot([place], [at], marker=marker, color=colour, markersize=5, clip_on=False)
    axes.plot(bar.seeds, [at] * len(bar.seeds), "o", color=colour, markersize=4.5, alpha=0.45, markeredgewidth=0)
    axes.plot([bar.estimate], [at], "o", color=colour, markersize=5.5)
