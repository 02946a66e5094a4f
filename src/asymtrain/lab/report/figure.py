"""A figure as values: panels of lines, effects, surfaces or images. `drawing.draw` makes SVG of any of them.

Colours are roles, not paint: "plain" and "asymmetric", a backbone's name, "ink", or a number for the next of a list.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy.typing as npt

Colour = str | int
Dash = Literal["solid", "dashed", "dotted"]
Numbers = tuple[float | None, ...]


@dataclass(frozen=True)
class Line:
    """Points of one series.

    Attributes:
        label: in the legend; lines of one label share an entry, and an empty one has none.
        colour: its role.
        x, y: the points. None is a gap where points are marked, and passed over elsewhere.
        low, high: of the intervals: a band, or bars where `marker`.
        seeds: each seed's own y: a thin line, or dots where `marker`.
        dash: None for that of its colour: Plain is dashed.
        marker: are the points marked?
        joined: is there a line between them?
        thin: is it the lesser of two, such as training accuracy beside validation accuracy?
        hollow: are its marks open circles, such as those of a prediction around what was measured?
    """

    label: str
    colour: Colour
    x: tuple[float, ...]
    y: Numbers
    low: Numbers = ()
    high: Numbers = ()
    seeds: tuple[Numbers, ...] = ()
    dash: Dash | None = None
    marker: bool = False
    joined: bool = True
    thin: bool = False
    hollow: bool = False


@dataclass(frozen=True)
class Lines:
    """One set of axes.

    Attributes:
        marks: x of vertical lines.
        zero: is the line of 0 drawn?
        log: is the y axis logarithmic, where all values are positive?
        from_zero: does the y axis begin at 0?
        ticks: of the x axis; with `tick_labels` words in place of numbers.
        ring: the point around which a ring is drawn.
        kinds: what thick and thin lines are, for the legend.
        about: the backbone that it is of, for those who want a part of the figure; empty where it is of several.
    """

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    marks: tuple[float, ...] = ()
    zero: bool = False
    log: bool = False
    from_zero: bool = False
    ticks: tuple[float, ...] = ()
    tick_labels: tuple[str, ...] = ()
    ring: tuple[float, float] | None = None
    kinds: tuple[str, str] | None = None
    about: str = ""


@dataclass(frozen=True)
class Bar:
    """An effect with its interval, and the numbers of the seeds."""

    label: str
    estimate: float | None
    low: float | None = None
    high: float | None = None
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
    """Values over a grid, `values[i][j]` at (x[i], y[j]): contours, or a relief. None is a gap.

    Surfaces of one `group` share their scale, which `label` names; a group is a row of the figure, or all of it.
    """

    title: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    values: tuple[Numbers, ...]
    label: str = ""
    relief: bool = False
    group: str = ""
    x_label: str = ""
    y_label: str = ""


@dataclass(frozen=True, eq=False)
class Image:
    """A picture (H, W, 3) with values from 0 to 1, and a map over it, such as of attention.

    Attributes:
        title: above it; two lines at most.
        pixels: None where there is nothing to show, which is said.
        heat: values from 0 over a grid whose sides divide H and W, as colours over the picture in grey. All of a
            figure share one scale, and `scale` names it. None: the picture as it is.
        label: at its left, for its row.
        colour: role of the title's colour.
        apart: is there a gap before its column?
    """

    title: str
    pixels: "npt.ArrayLike | None"
    heat: "npt.ArrayLike | None" = None
    scale: str = ""
    label: str = ""
    colour: Colour = "ink"
    apart: bool = False


Panel = Lines | Bars | Surface | Image


@dataclass(frozen=True)
class Figure:
    """Panels of one kind in rows of `columns`.

    Attributes:
        name: last part of its file's name, and no other figure's on its page.
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
