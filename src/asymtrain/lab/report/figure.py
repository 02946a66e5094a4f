"""A figure as values: panels of lines, effects, surfaces or images; and a page of figures and tables.

`drawing.draw` makes SVG of any of them, `live.embed` the form that answers the pointer.

Colours are roles, not paint: "plain" and "asymmetric", "good" and "bad" for verdicts, a backbone's name, "ink", or a
number for the next of a list.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from asymtrain.lab.report.table import Column, Table

if TYPE_CHECKING:
    import numpy.typing as npt

    from asymtrain.lab.runs import RunSpec

Colour = str | int
Headline = tuple[str, str]  # of a page: the colour of its result (good, bad or soft), and that as a sentence
Dash = Literal["solid", "dashed", "dotted"]
Numbers = tuple[float | None, ...]

# Values under the pointer are written as in the tables of the page.
AS_NEEDED = Column("", "number", digits=None)
VALUE = Column("", "number")
SIGNED = Column("", "number", signed=True)
POINTS = Column("", "number", " points", 1, signed=True)
PERCENT = Column("", "number", "%", 1, signed=True)


@dataclass(frozen=True)
class Line:
    """Points of one series."""

    label: str  # in the legend; lines of one label share an entry, and an empty one has none
    colour: Colour
    x: tuple[float, ...]
    y: Numbers  # None is a gap where points are marked, and skipped elsewhere
    low: Numbers = ()  # of the intervals: a band, or bars if `marker`
    high: Numbers = ()
    seeds: tuple[Numbers, ...] = ()  # each seed's own y: a thin line, or dots if `marker`
    seed_names: tuple[str, ...] = ()  # of these, for a reader who looks at one of them
    seeds_on_demand: bool = False  # are they shown only if a reader asks for them?
    dash: Dash | None = None  # None: the dash of its colour; Plain is dashed
    marker: bool = False  # are the points marked?
    joined: bool = True  # is there a line between them?
    thin: bool = False  # is it secondary, such as training accuracy beside validation accuracy?
    hollow: bool = False  # are its marks open circles, such as those of a prediction around what was measured?


@dataclass(frozen=True)
class Lines:
    """One set of axes.

    `about` is its backbone, so that a part of the figure can be selected; empty if it has several.
    """

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    marks: tuple[float, ...] = ()  # x of vertical lines
    zero: bool = False  # is the line of 0 drawn?
    log: bool = False  # is the y axis logarithmic, where all values are positive?
    from_zero: bool = False  # does the y axis begin at 0?
    ticks: tuple[float, ...] = ()  # of the x axis
    tick_labels: tuple[str, ...] = ()  # words in place of their numbers
    ring: tuple[float, float] | None = None  # the point around which a ring is drawn
    kinds: tuple[str, str] | None = None  # what thick and thin lines are, for the legend
    about: str = ""
    written: Column = AS_NEEDED


@dataclass(frozen=True)
class Bar:
    """An effect with its interval, and the numbers of the seeds."""

    label: str
    estimate: float | None
    low: float | None = None
    high: float | None = None
    seeds: tuple[float, ...] = ()
    colour: Colour | None = None  # such as a verdict's; None for that of all bars
    more: str = ""  # shown under the pointer


@dataclass(frozen=True)
class Bars:
    """Effects below each other, on an axis of their own that shows 0."""

    title: str
    x_label: str
    colour: Colour
    bars: tuple[Bar, ...]
    marks: tuple[float, ...] = ()  # x of dotted lines
    ends: tuple[float, float] | None = None  # of the axis; None: those that the bars need
    written: Column = AS_NEEDED


@dataclass(frozen=True)
class Surface:
    """Values over a grid, `values[i][j]` at (x[i], y[j]): contours, or a relief. None is a gap."""

    title: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    values: tuple[Numbers, ...]
    label: str = ""  # names the scale
    relief: bool = False
    group: str = ""  # surfaces of one group share their scale; it is a row of the figure, or all of it
    x_label: str = ""
    y_label: str = ""


@dataclass(frozen=True, eq=False)
class Image:
    """A picture (H, W, 3) with values from 0 to 1, and a map over it, such as of attention."""

    title: str  # two lines at most
    pixels: "npt.ArrayLike | None"  # None shows the word "none" instead
    # Values from 0 over a grid whose sides divide H and W, as colours over the picture in grey, on one scale for the
    # whole figure. None: the picture as it is.
    heat: "npt.ArrayLike | None" = None
    scale: str = ""  # names that scale
    label: str = ""  # at the left of its row
    colour: Colour = "ink"  # of the title
    apart: bool = False  # is there a gap before its column?
    frame: str = ""  # such as "epoch 4": where a reader can choose, one frame of a row is shown at a time


Panel = Lines | Bars | Surface | Image


@dataclass(frozen=True)
class Figure:
    """Panels of one kind in rows of `columns`."""

    name: str  # last part of its file name, unique on its page
    title: str  # read out in its place
    panels: Sequence[Panel]  # none while rows are missing; the caption then says which
    columns: int = 1
    caption: str = ""

    @property
    def missing(self) -> bool:
        return not self.panels


@dataclass(frozen=True)
class Page:
    """What people read of a result. An empty line in `lead` starts a new paragraph."""

    title: str
    lead: str
    tables: Sequence[Table]
    document: Mapping[str, Any]  # the numbers as JSON values
    figures: Sequence[Figure] = ()
    sentences: Sequence[str] = ()
    headline: Headline | None = None
    specs: "Sequence[RunSpec]" = ()  # of the runs that were measured
    facts: Mapping[str, str] = field(default_factory=dict)  # further ones of how it was made
    page_only: Sequence[Table] = ()  # tables that are too long for a screen

    @property
    def content(self) -> dict[str, Any]:
        """As `report.page.write_page` takes it."""
        names = ("title", "lead", "document", "figures", "headline")
        return {**{name: getattr(self, name) for name in names}, "tables": [*self.tables, *self.page_only]}
