"""Figures of a search: how validation accuracy depends on one setting."""

from collections.abc import Sequence

from matplotlib.ticker import NullLocator

from asymtrain.lab.report.drawing import INK, VARIANTS, figure_style, new_axes, svg_text


def accuracy_by_setting(
    values: Sequence[float],
    accuracies: Sequence[Sequence[float]],
    *,
    variant: str,
    setting: str,
    chosen: float | None,
    name: str,
    title: str,
) -> str:
    """Validation accuracy over the values of one setting: the mean, each seed, and a ring around the chosen one.

    The values stand side by side at equal distances, as a grid does: most grids are logarithmic, and some start at 0.
    """
    colour, _, dash = VARIANTS[variant]
    means = [sum(dots) / len(dots) if dots else float("nan") for dots in accuracies]
    with figure_style():
        figure, axes = new_axes(setting, "validation accuracy")
        axes.plot(range(len(values)), means, color=colour, linewidth=2.2, linestyle=dash, marker="o", markersize=4)
        for x, dots in enumerate(accuracies):
            if len(dots) > 1:
                axes.plot([x] * len(dots), dots, "o", color=colour, markersize=4, alpha=0.45, markeredgewidth=0)
        if chosen is not None:
            at = list(values).index(chosen)
            axes.plot([at], [means[at]], "o", color=INK, fillstyle="none", markersize=11, markeredgewidth=1.2)
        axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
        axes.xaxis.set_minor_locator(NullLocator())
        if len(values) > 6:
            axes.tick_params(axis="x", labelrotation=45)
        return svg_text(figure, name, title)
