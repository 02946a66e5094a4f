"""Figures of gradient alignment: the cosine over training, and layer by layer."""

from collections.abc import Mapping, Sequence
from typing import Any

from asymtrain.lab.instruments.trajectory.figures import band
from asymtrain.lab.instruments.trajectory.trajectory import Curve
from asymtrain.lab.report.drawing import INK, VARIANTS, figure_style, new_axes, svg_text
from asymtrain.lab.statistics.estimates import Estimate

# Legible on light and dark pages, and none of them Plain's or Asymmetric's. Dashes tell them apart as well.
LINES: tuple[tuple[str, Any], ...] = (
    ("#1b9e77", "-"),
    ("#7570b3", (0, (4, 1.5))),
    ("#a6611a", (0, (1, 1))),
    ("#808000", (0, (4, 1, 1, 1))),
)


def cosines_over_training(curves: Mapping[str, Curve], name: str, title: str) -> str:
    """The gradient cosine of several backbones, or of several kinds of branches: means over seeds with intervals."""
    with figure_style():
        figure, axes = new_axes("epoch", "gradient cosine")
        axes.axhline(0, color=INK, linewidth=0.8)
        for i, (label, curve) in enumerate(curves.items()):
            colour, dash = LINES[i % len(LINES)]
            seen = [(e, p.mean) for e, p in zip(curve.epochs, curve.points, strict=True) if p.mean is not None]
            marker = "o" if len(seen) == 1 else ""  # a line of one point is invisible
            axes.plot(
                [e for e, _ in seen], [mean for _, mean in seen], color=colour, linestyle=dash, linewidth=2.2,
                marker=marker, markersize=5, label=label,
            )  # fmt: skip
            band(axes, curve.epochs, curve.points, colour)
        # Above: it hides no line. As many beside each other as the width of the figure holds.
        longest = max(map(len, curves), default=0)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3 if longest <= 5 else 2 if longest <= 11 else 1)
        return svg_text(figure, name, title)


def cosines_by_layer(
    layers: Sequence[tuple[str, Estimate]], seeds: Sequence[Sequence[float | None]], name: str, title: str
) -> str:
    """Average cosine of each layer, the first at the top: mean over seeds with its interval; the dots are the seeds.

    `seeds` holds each layer's cosines by seed.
    """
    with figure_style():
        figure, axes = new_axes("average gradient cosine", "", height=0.9 + 0.28 * len(layers))
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        axes.axvline(0, color=INK, linewidth=0.8)
        colour = VARIANTS["asymmetric"][0]
        for y, ((_, found), dots) in enumerate(zip(layers, seeds, strict=True)):
            shown = [value for value in dots if value is not None]
            axes.plot(shown, [y] * len(shown), "o", color=colour, markersize=3, alpha=0.45, markeredgewidth=0)
            if found.low is not None and found.high is not None:
                axes.plot([found.low, found.high], [y, y], color=colour, linewidth=2.2)
            if found.mean is not None:
                axes.plot([found.mean], [y], "D", color=colour, markersize=5, markeredgewidth=0)
        axes.set_yticks(range(len(layers)), [layer for layer, _ in layers])
        axes.set_ylim(len(layers) - 0.5, -0.5)
        axes.spines["left"].set_visible(False)
        return svg_text(figure, name, title)
