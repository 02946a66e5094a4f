"""Figures of features: a quantity over the first steps, a line for each kind of branches."""

from collections.abc import Sequence

from matplotlib.ticker import NullFormatter

from asymtrain.lab.instruments.alignment.figures import LINES
from asymtrain.lab.report.drawing import VARIANTS, figure_style, new_axes, svg_text

Series = tuple[str, list[tuple[int, float]]]  # words, and values by step


def over_steps(lines: Sequence[Series], label: str, name: str, title: str, *, log: bool = False) -> str:
    """The first line is Plain's. Linear axes begin at 0."""
    looks = [(VARIANTS["plain"][0], VARIANTS["plain"][2]), (VARIANTS["asymmetric"][0], VARIANTS["asymmetric"][2])]
    looks += LINES
    with figure_style():
        figure, axes = new_axes("steps", label)
        for i, (words, points) in enumerate(lines):
            colour, dash = looks[i % len(looks)]
            axes.plot(
                [step for step, _ in points], [value for _, value in points], color=colour, linestyle=dash,
                linewidth=2.2, marker="o", markersize=4, label=words,
            )  # fmt: skip
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(bottom=0)
        # Of the figure: above narrow axes the words would be cut.
        figure.legend(loc="outside upper left", ncols=2, fontsize=9)
        return svg_text(figure, name, title)
