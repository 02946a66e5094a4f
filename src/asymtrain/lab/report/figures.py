"""The report's figures: the same runs give the same bytes, and the page's colours decide how they look."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from asymtrain.lab.report.drawing import INK, VARIANTS, figure_style, legend_handle, new_axes, svg_text


def learning_curves(history: pd.DataFrame, name: str, title: str) -> str:
    """Accuracy over training: each seed as a thin line, the mean of a variant as a thick one.

    `history` holds the epochs of one comparison (`tables.history_frame`); `name` makes the ids in the figure unique.
    Validation accuracy where there is one, else training accuracy.
    """
    measure = "validation_accuracy" if history["validation_accuracy"].notna().any() else "train_accuracy"
    with figure_style():
        figure, axes = new_axes("epoch", measure.replace("_", " "))
        for variant in VARIANTS:
            _draw(axes, history[history["variant"] == variant], measure, variant)
        handles = [legend_handle(variant) for variant in VARIANTS]
        axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)  # above: it hides no line
        return svg_text(figure, name, title)


def cosine_over_training(history: pd.DataFrame, name: str, title: str) -> str:
    """Cosine between the gradients of the two objectives: each seed, their mean, and the range within epochs."""
    seen = history[(history["variant"] == "asymmetric") & history["cosine"].notna()]
    with figure_style():
        figure, axes = new_axes("epoch", "gradient cosine")
        axes.axhline(0, color=INK, linewidth=0.8)
        _draw(axes, seen, "cosine", "asymmetric")
        ends = seen.groupby("epoch").agg({"cosine_min": "min", "cosine_max": "max"}).dropna()
        colour = VARIANTS["asymmetric"][0]
        axes.fill_between(ends.index, ends["cosine_min"], ends["cosine_max"], color=colour, alpha=0.15, linewidth=0)
        return svg_text(figure, name, title)


def improvements(
    comparisons: Sequence[Mapping[str, Any]], seeds: Sequence[Sequence[float]], name: str, title: str
) -> str:
    """Each comparison's improvement in percent with its interval; the dots are the seeds.

    `comparisons` are records of `statistics.compare` with a `label`; `seeds` holds each one's improvements by seed.
    """
    with figure_style():
        figure, axes = new_axes("improvement over Plain (%)", "", height=0.9 + 0.55 * len(comparisons))
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        axes.axvline(0, color=INK, linewidth=0.8)
        colour = VARIANTS["asymmetric"][0]
        for y, (row, dots) in enumerate(zip(comparisons, seeds, strict=True)):
            axes.plot(dots, [y + 0.22] * len(dots), "o", color=colour, markersize=4, alpha=0.45, markeredgewidth=0)
            if row["low"] is not None:
                axes.plot([row["low"], row["high"]], [y, y], color=colour, linewidth=2.2)
            if row["improvement"] is not None:
                axes.plot([row["improvement"]], [y], "D", color=colour, markersize=6, markeredgewidth=0)
        axes.set_yticks(range(len(comparisons)), [str(row["label"]) for row in comparisons])
        axes.set_ylim(len(comparisons) - 0.5, -0.5)
        axes.spines["left"].set_visible(False)
        return svg_text(figure, name, title)


def _draw(axes: Axes, history: pd.DataFrame, measure: str, variant: str) -> None:
    colour, _, dash = VARIANTS[variant]
    runs = [run for _, run in history.groupby("id", sort=False)]
    for run in runs:
        axes.plot(run["epoch"], run[measure], color=colour, linewidth=1.0, alpha=0.5, linestyle=dash)
    # Over the epochs that every run reached: a run that ended early must not move the mean by leaving it.
    full = [epoch for epoch, at in history.groupby("epoch") if len(at) == len(runs)]
    mean = history[history["epoch"].isin(full)].groupby("epoch")[measure].mean()
    marker = "o" if len(mean) == 1 else ""  # a line of one point is invisible
    axes.plot(mean.index, mean, color=colour, linewidth=2.2, linestyle=dash, marker=marker, markersize=5)
