"""Figures as plain data: panels of lines, and effects with their intervals. The report draws them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from asymtrain.lab.instruments.trajectory.trajectory import Curve

Colour = Literal["plain", "asymmetric", "mlp", "cnn", "vit"]
Dash = Literal["solid", "dashed", "dotted"]
Numbers = tuple[float | None, ...]
LEAST = 4  # seeds for a band: the t interval of fewer is wider than the figure


@dataclass(frozen=True)
class Line:
    """Points with a band (or bars, where `marker`) between `low` and `high`; `thin` are the seeds' own lines."""

    label: str
    colour: Colour
    x: tuple[float, ...]
    y: Numbers
    low: Numbers = ()
    high: Numbers = ()
    thin: tuple[Numbers, ...] = ()
    dash: Dash = "solid"
    marker: bool = False


@dataclass(frozen=True)
class Panel:
    """One set of axes; `marks` are vertical lines, `zero` draws the line of 0."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    marks: tuple[float, ...] = ()
    zero: bool = False
    log: bool = False
    ticks: tuple[float, ...] = ()


@dataclass(frozen=True)
class Panels:
    """A figure: panels in rows of `columns`."""

    title: str
    panels: tuple[Panel, ...]
    columns: int = 1


@dataclass(frozen=True)
class Bar:
    """An effect with its interval, and the numbers of the seeds."""

    label: str
    estimate: float | None
    low: float | None
    high: float | None
    seeds: tuple[float, ...] = ()


@dataclass(frozen=True)
class BarPanel:
    """Effects below each other, on an axis of their own."""

    title: str
    colour: Colour
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Effects:
    """A figure: panels side by side, with the same labels in each."""

    title: str
    x_label: str
    panels: tuple[BarPanel, ...]


def curve_line(label: str, colour: Colour, curve: Curve, *, dash: Dash = "solid", seeds: bool = False) -> Line:
    """A curve with its interval over seeds; with each seed's line where asked for, or where there are few."""
    x = tuple(float(epoch) for epoch in curve.epochs)
    mean = tuple(point.mean for point in curve.points)
    if seeds or len(curve.seeds) < LEAST:
        return Line(label, colour, x, mean, thin=curve.seeds, dash=dash)
    low, high = tuple(point.low for point in curve.points), tuple(point.high for point in curve.points)
    return Line(label, colour, x, mean, low, high, dash=dash)


def has_points(lines: Sequence[Line]) -> bool:
    """Is there anything to draw?"""
    return any(value is not None for line in lines for value in line.y)
