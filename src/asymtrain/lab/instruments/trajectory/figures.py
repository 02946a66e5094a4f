"""Figures of training trajectories: values over epochs, Plain beside Asymmetric, as means over seeds with intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from asymtrain.lab.instruments.trajectory.trajectory import Curve, Parting, Trajectory
from asymtrain.lab.report.drawing import INK, VARIANTS, figure_style, legend_handle, new_axes, svg_text
from asymtrain.lab.statistics.estimates import Estimate

MARK = "#b3261e"  # where the curves part


@dataclass(frozen=True)
class Line:
    """A curve of a variant. A thin one is the lesser of two: training accuracy beside validation accuracy."""

    curve: Curve
    variant: str
    thin: bool = False


def accuracy_curves(sides: Sequence[Trajectory], parted: int | None, name: str, title: str) -> str:
    """Validation accuracy as thick lines, training accuracy as thin ones, and where the former part."""
    lines = _lines(sides, "train_accuracy", thin=True) + _lines(sides, "validation_accuracy")
    return over_training(lines, "accuracy", name, title, mark=parted, kinds=("validation", "training"))


def difference_curve(parting: Parting, name: str, title: str) -> str:
    """Asymmetric less Plain in validation accuracy, with the interval that says where they part."""
    line = Line(parting.difference, "asymmetric")
    return over_training([line], "difference in accuracy", name, title, mark=parting.epoch, zero=True)


def gap_curves(sides: Sequence[Trajectory], name: str, title: str) -> str:
    """Training accuracy less validation accuracy."""
    return over_training(_lines(sides, "gap"), "generalisation gap", name, title, zero=True)


def loss_curves(sides: Sequence[Trajectory], name: str, title: str) -> str:
    """Main loss as thick lines, the auxiliary loss, before alpha, as a thin one."""
    lines = _lines(sides, "main_loss") + _lines(sides, "auxiliary_loss", thin=True)
    return over_training(lines, "loss", name, title, log=True, kinds=("main", "auxiliary"))


def norm_curves(sides: Sequence[Trajectory], name: str, title: str) -> str | None:
    """Norm of the main gradient as thick lines, of the auxiliary one, before alpha, as a thin one; None without any."""
    lines = _lines(sides, "main_norm") + _lines(sides, "auxiliary_norm", thin=True)
    if not lines:
        return None
    return over_training(lines, "gradient norm", name, title, log=True, kinds=("main", "auxiliary"))


def over_training(
    lines: Sequence[Line],
    y_label: str,
    name: str,
    title: str,
    *,
    mark: int | None = None,
    zero: bool = False,
    log: bool = False,
    kinds: tuple[str, str] | None = None,
) -> str:
    """Curves over epochs with bands for their intervals.

    `mark` draws a vertical line at an epoch, `zero` a horizontal one at 0. `kinds` names thick and thin lines. `log`
    makes the axis logarithmic where every value allows it.
    """
    with figure_style():
        figure, axes = new_axes("epoch", y_label)
        if zero:
            axes.axhline(0, color=INK, linewidth=0.8)
        for line in lines:
            _draw_line(axes, line)
        if log and all(point.mean > 0 for line in lines for point in line.curve.points if point.mean is not None):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_locator(NullLocator())
        if mark is not None:
            axes.axvline(mark, color=MARK, linewidth=1.0, linestyle=(0, (1, 1.5)))
        handles = [legend_handle(variant) for variant in VARIANTS if any(line.variant == variant for line in lines)]
        if kinds and any(line.thin for line in lines):
            widths = zip(kinds, (2.2, 1.0), strict=True)
            handles += [Line2D([], [], color=INK, linewidth=width, label=kind) for kind, width in widths]
        # Above: it hides no line.
        axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        return svg_text(figure, name, title)


def band(axes: Axes, epochs: Sequence[int], points: Sequence[Estimate], colour: str) -> None:
    """The intervals of a curve, where there are any."""
    ends = [(e, p.low, p.high) for e, p in zip(epochs, points, strict=True) if p.low is not None and p.high is not None]
    if ends:
        at, low, high = zip(*ends, strict=True)
        axes.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)


def _lines(sides: Sequence[Trajectory], curve: str, *, thin: bool = False) -> list[Line]:
    return [Line(side.curves[curve], side.spec.variant, thin) for side in sides if curve in side.curves]


def _draw_line(axes: Axes, line: Line) -> None:
    colour, _, dash = VARIANTS[line.variant]
    points = line.curve.points
    seen = [(e, p.mean) for e, p in zip(line.curve.epochs, points, strict=True) if p.mean is not None]
    if not seen:
        return
    at, means = zip(*seen, strict=True)
    marker = "o" if len(at) == 1 else ""  # a line of one point is invisible
    width = 1.0 if line.thin else 2.2
    axes.plot(at, means, color=colour, linewidth=width, linestyle=dash, marker=marker, markersize=2 + 1.5 * width)
    if not line.thin:
        band(axes, line.curve.epochs, points, colour)
