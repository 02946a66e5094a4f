"""What all figures share: colours, style, axes, and SVG text whose bytes depend on the figure alone.

Lines are drawn in stand-in colours that are then replaced by CSS variables with a fallback, so one figure
serves light and dark pages and still opens on its own.
"""

import html
import io
import re
from contextlib import AbstractContextManager
from typing import Any

import matplotlib.style
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


def figure_style() -> AbstractContextManager[None]:
    """The style of every figure, over matplotlib's own defaults: a user's matplotlibrc must not change the bytes."""
    return matplotlib.style.context(STYLE, after_reset=True)


def new_axes(x_label: str, y_label: str, height: float = 2.6) -> tuple[Figure, Axes]:
    """A small figure with one pair of axes, without background."""
    figure = Figure(figsize=(3.9, height), layout="constrained")
    figure.patch.set_visible(False)
    axes = figure.subplots()
    axes.patch.set_visible(False)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if x_label == "epoch":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure, axes


def legend_handle(variant: str) -> Line2D:
    """The line of a variant for a legend."""
    colour, label, dash = VARIANTS[variant]
    return Line2D([], [], color=colour, linewidth=2.2, linestyle=dash, label=label)


def svg_text(figure: Figure, name: str, title: str) -> str:
    """The figure as SVG for a page; `name` makes its ids unique there, `title` is read out in its place."""
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
