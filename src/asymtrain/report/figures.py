"""Figures as SVG text: the same runs give the same bytes, and the page's colours decide how they look.

Lines are drawn in stand-in colours that are then replaced by CSS variables with a fallback, so one figure
serves light and dark pages and still opens on its own.
"""

import html
import io
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import matplotlib.style
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

# Okabe and Ito's blue and vermillion: told apart with every kind of colour vision. Asymmetric is solid, Plain dashed.
VARIANTS: dict[str, tuple[str, str, Any]] = {
    "plain": ("#0072b2", "Plain", (0, (4, 1.5))),
    "asymmetric": ("#d55e00", "Asymmetric", "-"),
}
INK, GRID = "#010203", "#040506"
VARIABLES = {
    INK: "var(--ink, #222)",
    GRID: "var(--rule, #ccc)",
    "#0072b2": "var(--plain, #0072b2)",
    "#d55e00": "var(--asymmetric, #d55e00)",
}
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "asymtrain",
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 10,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "path.simplify": False,
}


def learning_curves(history: pd.DataFrame, name: str, title: str) -> str:
    """Accuracy over training: each seed as a thin line, the mean of a variant as a thick one.

    `history` holds the epochs of one comparison (`tables.history_frame`); `name` makes the ids in the figure unique.
    Validation accuracy where there is one, else training accuracy.
    """
    measure = "validation_accuracy" if history["validation_accuracy"].notna().any() else "train_accuracy"
    with _style():
        figure, axes = _axes("epoch", measure.replace("_", " "))
        for variant in VARIANTS:
            _draw(axes, history[history["variant"] == variant], measure, variant)
        handles = [_handle(variant) for variant in VARIANTS]
        axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)  # above: it hides no line
        return _svg(figure, name, title)


def cosine_over_training(history: pd.DataFrame, name: str, title: str) -> str:
    """Cosine between the gradients of the two objectives: each seed, their mean, and the range within epochs."""
    seen = history[(history["variant"] == "asymmetric") & history["cosine"].notna()]
    with _style():
        figure, axes = _axes("epoch", "gradient cosine")
        axes.axhline(0, color=INK, linewidth=0.8)
        _draw(axes, seen, "cosine", "asymmetric")
        ends = seen.groupby("epoch").agg({"cosine_min": "min", "cosine_max": "max"}).dropna()
        colour = VARIANTS["asymmetric"][0]
        axes.fill_between(ends.index, ends["cosine_min"], ends["cosine_max"], color=colour, alpha=0.15, linewidth=0)
        return _svg(figure, name, title)


def improvements(
    comparisons: Sequence[Mapping[str, Any]], seeds: Sequence[Sequence[float]], name: str, title: str
) -> str:
    """Each comparison's improvement in percent with its interval; the dots are the seeds.

    `comparisons` are records of `statistics.compare` with a `label`; `seeds` holds each one's improvements by seed.
    """
    with _style():
        figure, axes = _axes("improvement over Plain (%)", "", height=0.9 + 0.55 * len(comparisons))
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
        return _svg(figure, name, title)


def _style() -> AbstractContextManager[None]:
    # From matplotlib's own defaults: a user's matplotlibrc must not change the bytes.
    return matplotlib.style.context(STYLE, after_reset=True)


def _axes(x_label: str, y_label: str, height: float = 2.6) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(3.9, height), layout="constrained")
    figure.patch.set_visible(False)
    axes = figure.subplots()
    axes.patch.set_visible(False)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if x_label == "epoch":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure, axes


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


def _handle(variant: str) -> Line2D:
    colour, label, dash = VARIANTS[variant]
    return Line2D([], [], color=colour, linewidth=2.2, linestyle=dash, label=label)


def _svg(figure: Figure, name: str, title: str) -> str:
    out = io.StringIO()
    # No metadata: it would carry the date.
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    # A style sheet inside a figure would apply to the whole page.
    text = re.sub(r"\s*<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title)}" stroke-linejoin="round" ', 1)
    for stand_in, variable in VARIABLES.items():
        text = text.replace(stand_in, variable)
    # Several figures share one page, so each gets ids of its own.
    text = re.sub(r'\bid="', f'id="{name}-', text)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
