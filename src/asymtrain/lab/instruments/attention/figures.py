"""Figures of attention: maps over images, Plain beside Asymmetric, and metrics over epochs and layers."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from asymtrain.lab.data.arrays import Bytes
from asymtrain.lab.instruments.attention.metrics import LABELS
from asymtrain.lab.instruments.attention.pictures import MapPicture
from asymtrain.lab.instruments.attention.result import Floats
from asymtrain.lab.instruments.attention.spread import patch_grid
from asymtrain.lab.instruments.attention.summary import Summary
from asymtrain.lab.report.drawing import VARIANTS, figure_style, legend_handle, svg_text

COLOURS = "inferno"  # even steps of lightness: readable in grey and with every kind of colour vision
_CELL = 0.82  # inches
_HEAT = 0.65  # share of the colour in an overlay; the rest is the image in grey


def maps_over_images(picture: MapPicture, name: str) -> str:
    """The images, and beside them their maps as colour over grey; one scale of colours for the whole figure."""
    top = _top(picture)
    count = len(picture.columns)
    groups = _gaps(picture)
    with figure_style(), matplotlib.rc_context({"axes.grid": False}):
        size = (_CELL * (count + 1) + 0.14 * max(groups) + 1.3, _CELL * len(picture.rows) + 0.75)
        figure = Figure(figsize=size)
        figure.patch.set_visible(False)
        width, height = _CELL / size[0], _CELL / size[1]
        for r, row in enumerate(picture.rows):
            bottom = 1 - (0.6 + _CELL * (r + 1)) / size[1]
            cells: list[tuple[int, npt.NDArray[np.uint8] | None]] = [(0, row.pixels.transpose(1, 2, 0))]
            for c, one in enumerate(row.maps):
                cells.append(
                    (c + 1, None if one is None or not np.isfinite(one).all() else overlay(row.pixels, one, top))
                )
            for column, pixels in cells:
                left = (0.45 + _CELL * column + 0.14 * groups[column]) / size[0]
                axes = figure.add_axes((left, bottom, width * 0.94, height * 0.94))
                _show(axes, pixels)
                if column == 0:
                    axes.set_ylabel(row.label, fontsize=9)
                elif r == 0:
                    variant, title = picture.columns[column - 1]
                    colour, label, _ = VARIANTS[variant]
                    axes.set_title(f"{label}\n{title}", fontsize=8, color=colour)
        bar = figure.add_axes((1 - 0.62 / size[0], 1 - (0.6 + _CELL * len(picture.rows)) / size[1], 0.1 / size[0],
                               (_CELL * len(picture.rows) - 0.05) / size[1]))  # fmt: skip
        colours = ScalarMappable(Normalize(0, top), COLOURS)
        figure.colorbar(colours, cax=bar).set_label("attention / uniform", fontsize=8)
        bar.tick_params(labelsize=8)
        bar.yaxis.set_major_locator(MaxNLocator(4))
        return svg_text(figure, name, picture.title)


paper_maps = maps_over_images


def metrics_over_epochs(summaries: Sequence[Summary], scope: str, name: str, title: str) -> str:
    """A panel for each metric: means of Plain and Asymmetric over the epochs, with their intervals."""
    lines = [one for one in summaries if one.scope == scope and one.variant != "difference"]
    return _panels(lines, {one.epoch: one.epoch for one in lines}, lambda one: one.epoch, "epoch", name, title)


def metrics_over_layers(summaries: Sequence[Summary], layers: Sequence[str], epoch: int, name: str, title: str) -> str:
    """A panel for each metric: means of Plain and Asymmetric over the layers at one epoch, with their intervals."""
    lines = [one for one in summaries if one.scope in layers and one.epoch == epoch and one.variant != "difference"]
    return _panels(lines, {name: i + 1 for i, name in enumerate(layers)}, lambda one: one.scope, "layer", name, title)


def overlay(pixels: Bytes, one_map: Floats, top: float) -> npt.NDArray[np.uint8]:
    """Image (3, H, W) in grey under the colours of its map (patches,), as (H, W, 3) bytes.

    The scale of colours goes from 0 to `top`, in multiples of the uniform value; more is drawn as `top`.
    """
    height, width = pixels.shape[1:]
    grid = patch_grid(len(one_map), height, width)
    assert grid is not None, "the maps of a picture lie on the grid of its patches"
    level = np.clip(one_map.reshape(grid) * len(one_map) / top, 0, 1)
    level = level.repeat(height // grid[0], 0).repeat(width // grid[1], 1)
    heat = matplotlib.colormaps[COLOURS](level)[..., :3]
    grey = np.array([0.299, 0.587, 0.114]) @ pixels.reshape(3, -1) / 255
    mixed = _HEAT * heat + (1 - _HEAT) * grey.reshape(height, width, 1)
    return np.asarray(np.round(mixed * 255), np.uint8)


def _top(picture: MapPicture) -> float:
    """The end of the scale of colours: so high that one patch in a hundred is beyond it, and at least 2."""
    seen = [one * len(one) for row in picture.rows for one in row.maps if one is not None and np.isfinite(one).all()]
    return max(2.0, float(np.ceil(np.quantile(np.concatenate(seen), 0.99)))) if seen else 2.0


def _gaps(picture: MapPicture) -> list[int]:
    """How many gaps stand before each column: one behind the image, one behind each pair of variants."""
    titles = [title for _, title in picture.columns]
    gaps = [0, 1]
    for before, after in pairwise(titles):
        gaps.append(gaps[-1] + (before != after))
    return gaps[: len(titles) + 1]


def _show(axes: Axes, pixels: npt.NDArray[np.uint8] | None) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.patch.set_visible(False)
    if pixels is None:
        axes.text(0.5, 0.5, "none", ha="center", va="center", fontsize=8)
    else:
        axes.imshow(pixels, interpolation="none", aspect="equal")


def _panels(lines: Sequence[Summary], at: Mapping[Any, int], where: Any, x_label: str, name: str, title: str) -> str:
    metrics = [metric for metric in LABELS if any(one.metric == metric for one in lines)]
    columns = 2 if len(metrics) <= 4 else 3
    rows = -(-len(metrics) // columns)
    with figure_style():
        figure = Figure(figsize=(2.7 * columns, 0.4 + 2.0 * rows), layout="constrained")
        figure.patch.set_visible(False)
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, metric in zip(grid.flat, metrics, strict=False):
            axes.patch.set_visible(False)
            axes.set_xlabel(x_label)
            axes.set_title(LABELS[metric], fontsize=10)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
            _lines(axes, [one for one in lines if one.metric == metric], at, where)
        for axes in grid.flat[len(metrics) :]:
            axes.set_visible(False)
        handles = [legend_handle(variant) for variant in VARIANTS if any(one.variant == variant for one in lines)]
        figure.legend(handles=handles, loc="outside upper left", ncols=2)
        return svg_text(figure, name, title)


def _lines(axes: Axes, found: Sequence[Summary], at: Mapping[Any, int], where: Any) -> None:
    for group in dict.fromkeys(one.group for one in found):
        points = sorted((one for one in found if one.group == group), key=lambda one: at[where(one)])
        colour, _, dash = VARIANTS[points[0].variant]
        seen = [(at[where(one)], one.estimate) for one in points]
        means = [(x, found.mean) for x, found in seen if found.mean is not None]
        if means:
            axes.plot(*_columns(means), color=colour, linewidth=2.0, linestyle=dash, marker="o", markersize=4)
        ends = [(x, found.low, found.high) for x, found in seen if found.low is not None and found.high is not None]
        if ends:
            x, low, high = _columns(ends)
            axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def _columns(rows: Sequence[tuple[float, ...]]) -> Floats:
    return np.array(rows, np.float64).T
