"""Figures of loss surfaces: contours and surfaces side by side, and how much flatter they are than Plain's.

All panels of a figure share one scale of colours and of height: what looks flat is flat. Losses are shown as the
difference to the loss in the middle of each surface.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, ScalarFormatter
from mpl_toolkits.mplot3d import Axes3D  # type: ignore[import-untyped]

from asymtrain.lab.report.drawing import GRID, INK, VARIANTS, figure_style, new_axes, svg_text

COLOURS = "viridis"  # even in lightness, and readable with every kind of colour vision
LEVELS = 12  # contours
FACETS = 17  # along each side of a surface; more would only make the file larger
Panels = Mapping[str, npt.NDArray[np.float64]]


class Change(NamedTuple):
    """A change against Plain in percent with its interval, and what the number of parameters predicts."""

    redundancy: int
    measured: float
    low: float | None
    high: float | None
    predicted: float | None


def contours(panels: Panels, name: str, title: str) -> str:
    """Contours of surfaces (n, m), by label, side by side; rows of a surface go up."""
    heights = _heights(panels)
    low, high = _limits(heights)
    with figure_style():
        figure = Figure(figsize=(1.4 + 1.8 * len(panels), 2.5), layout="constrained")
        figure.patch.set_visible(False)
        drawn: Any = None
        every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (label, height) in zip(every, heights.items(), strict=True):
            axes.patch.set_visible(False)
            axes.grid(False)
            rows, columns = (np.arange(n) - (n - 1) / 2 for n in height.shape)
            levels = np.linspace(low, high, LEVELS + 1)
            drawn = axes.contourf(columns, rows, height, levels=levels, cmap=COLOURS, vmin=low, vmax=high)
            axes.contour(columns, rows, height, levels=levels, colors=INK, linewidths=0.3)
            axes.set_title(label, fontsize=10)
            axes.set_xlabel("second direction")
            axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
        every[0].set_ylabel("first direction")
        form = ScalarFormatter()
        form.set_powerlimits((-2, 3))
        bar = figure.colorbar(drawn, ax=list(every), label="loss - middle", ticks=MaxNLocator(5), format=form)
        bar.outline.set_visible(False)
        return svg_text(figure, name, title)


def surfaces(panels: Panels, name: str, title: str) -> str:
    """The same as surfaces in three dimensions, on one scale of height."""
    heights = _heights(panels)
    # One factor for all, named once: matplotlib would print it beside every axis.
    power = int(np.floor(np.log10(max(map(abs, _limits(heights))))))
    heights = {label: height / 10.0**power for label, height in heights.items()}
    low, high = _limits(heights)
    side = _low_side(next(iter(heights.values())))
    with figure_style():
        figure = Figure(figsize=(0.3 + 2.3 * len(panels), 2.6))
        figure.patch.set_visible(False)
        figure.subplots_adjust(left=0.0, right=0.97, bottom=0.06, top=0.9, wspace=0.12)
        for place, (label, height) in enumerate(heights.items(), 1):
            axes = figure.add_subplot(1, len(heights), place, projection="3d")
            assert isinstance(axes, Axes3D)
            axes.patch.set_visible(False)
            chosen = [np.unique(np.linspace(0, n - 1, FACETS + 1).round().astype(int)) for n in height.shape]
            rows, columns = (index - (n - 1) / 2 for index, n in zip(chosen, height.shape, strict=True))
            shown = height[np.ix_(*chosen)]
            across, along = np.meshgrid(columns, rows)
            axes.plot_surface(across, along, shown, cmap=COLOURS, vmin=low, vmax=high, rstride=1, cstride=1,
                              linewidth=0, antialiased=False)  # fmt: skip
            axes.set_zlim(low, high)
            axes.view_init(elev=30, azim=side)
            axes.set_title(label, fontsize=10)
            for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
                axis.set_major_locator(MaxNLocator(3))
                axis.set_tick_params(labelsize=7, pad=-2)
                axis.pane.set_visible(False)
                axis.line.set_color(GRID)
        unit = f" in units of 1e{power}" if power else ""
        figure.text(0.5, 0.01, f"loss - middle{unit}", ha="center", fontsize=8)
        return svg_text(figure, name, title)


def changes(series: Mapping[str, Sequence[Change]], name: str, title: str) -> str:
    """Change of the deviation against Plain by redundancy: measured with its interval, and predicted (open circles)."""
    with figure_style():
        figure, axes = new_axes("redundancy", "change of the deviation (%)")
        axes.axhline(0, color=INK, linewidth=0.8)
        every = sorted({change.redundancy for seen in series.values() for change in seen})
        for number, (label, seen) in enumerate(series.items()):
            colour, _, _ = VARIANTS["plain" if number % 2 else "asymmetric"]
            at = [every.index(change.redundancy) + 0.14 * (number - (len(series) - 1) / 2) for change in seen]
            axes.plot(at, [change.measured for change in seen], "D", color=colour, markersize=5, label=label)
            for x, change in zip(at, seen, strict=True):
                if change.low is not None and change.high is not None:
                    axes.plot([x, x], [change.low, change.high], color=colour, linewidth=2.2)
                if change.predicted is not None:
                    axes.plot([x], [change.predicted], "o", color="none", markeredgecolor=INK, markersize=9)
        axes.set_xticks(range(len(every)), [f"{n}" for n in every])
        axes.set_xlim(-0.5, len(every) - 0.5)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, handletextpad=0.2)
        return svg_text(figure, name, title)


def _heights(panels: Panels) -> dict[str, npt.NDArray[np.float64]]:
    """Losses less the one in the middle; those that are not finite are left blank."""
    found = {}
    for label, losses in panels.items():
        rows, columns = losses.shape
        middle = losses[(rows - 1) // 2 : rows // 2 + 1, (columns - 1) // 2 : columns // 2 + 1].mean()
        found[label] = np.where(np.isfinite(losses), losses - (middle if np.isfinite(middle) else 0.0), np.nan)
    return found


def _low_side(height: npt.NDArray[np.float64]) -> float:
    """The angle, in degrees, of someone who looks up the slope of the first surface, a little from the side."""
    down, up = height[: len(height) // 2], height[-(len(height) // 2) :]
    left, right = height[:, : height.shape[1] // 2], height[:, -(height.shape[1] // 2) :]
    if not np.isfinite(height).all():
        return -60.0
    return float(np.degrees(np.arctan2(up.mean() - down.mean(), right.mean() - left.mean()))) + 200


def _limits(heights: Panels) -> tuple[float, float]:
    """The least and the largest height of all panels, a little apart even for constant ones."""
    seen = np.concatenate([height[np.isfinite(height)] for height in heights.values()])
    low, high = (float(seen.min()), float(seen.max())) if len(seen) else (0.0, 0.0)
    return (low, high) if high > low else (low - 1e-9, high + 1e-9)
