"""A figure as values: panels of lines, effects, surfaces or maps. `drawing.draw` makes SVG of any of them.

Colours are roles, not paint: "plain" and "asymmetric", a backbone's name, or a number for the next of a list.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Colour = str | int
Dash = Literal["solid", "dashed", "dotted"]
Numbers = tuple[float | None, ...]


@dataclass(frozen=True)
class Line:
    """Points of one series.

    Attributes:
        label: in the legend; lines of one label share an entry, and an empty one has none.
        colour: its role.
        x, y: the points; None is a gap.
        low, high: of the intervals: a band, or bars where `marker`.
        seeds: each seed's own y, drawn thin.
        dash: how the line is drawn.
        marker: are the points marked?
        joined: is there a line between them?
        thin: is it a line that others are compared with?
    """

    label: str
    colour: Colour
    x: tuple[float, ...]
    y: Numbers
    low: Numbers = ()
    high: Numbers = ()
    seeds: tuple[Numbers, ...] = ()
    dash: Dash = "solid"
    marker: bool = False
    joined: bool = True
    thin: bool = False


@dataclass(frozen=True)
class Lines:
    """One set of axes.

    Attributes:
        marks: x of vertical lines.
        zero: is the line of 0 drawn?
        log: is the y axis logarithmic, where all values are positive?
        ticks: of the x axis; with `tick_labels` words in place of numbers.
        ring: the point around which a ring is drawn.
    """

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    marks: tuple[float, ...] = ()
    zero: bool = False
    log: bool = False
    ticks: tuple[float, ...] = ()
    tick_labels: tuple[str, ...] = ()
    ring: tuple[float, float] | None = None


@dataclass(frozen=True)
class Bar:
    """An effect with its interval, and the numbers of the seeds."""

    label: str
    estimate: float | None
    low: float | None
    high: float | None
    seeds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Bars:
    """Effects below each other, on an axis of their own that shows 0."""

    title: str
    x_label: str
    colour: Colour
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Surface:
    """Values over a square grid, `values[i][j]` at (x[i], y[j]); contours, or a relief. None is a gap."""

    title: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    values: tuple[Numbers, ...]
    label: str = ""  # of the scale
    relief: bool = False
    group: str = ""  # surfaces of one group share their scale


@dataclass(frozen=True)
class Image:
    """A picture (H, W, 3) with values from 0 to 1, and a map over it."""

    title: str
    pixels: tuple[tuple[tuple[float, float, float], ...], ...]
    heat: tuple[tuple[float, ...], ...] = ()


Panel = Lines | Bars | Surface | Image


@dataclass(frozen=True)
class Figure:
    """Panels in rows of `columns`.

    Attributes:
        name: last part of its file's name.
        title: read out in its place.
        panels: none where it waits for rows; the caption then says for which.
        caption: below it.
    """

    name: str
    title: str
    panels: Sequence[Panel]
    columns: int = 1
    caption: str = ""

    @property
    def missing(self) -> bool:
        """Does it wait for rows?"""
        return not self.panels
