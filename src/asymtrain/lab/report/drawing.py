"""A `Figure` as SVG text whose bytes depend on the figure alone.

Everything is drawn in stand-in colours that are then replaced by CSS variables with a fallback, so one figure serves
light and dark pages and still opens on its own.
"""

import dataclasses
import html
import io
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import matplotlib
import matplotlib.figure
import matplotlib.style
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, ScalarFormatter
from matplotlib.transforms import ScaledTranslation

from asymtrain.lab.report.figure import Bar, Bars, Colour, Figure, Image, Line, Lines, Numbers, Surface
from asymtrain.lab.texts import printable

Canvas = matplotlib.figure.Figure
Floats = npt.NDArray[np.float64]

# Okabe and Ito's blue and vermillion: distinct with every kind of colour vision. Asymmetric is solid, Plain dashed.
BLUE, VERMILLION = "#0072b2", "#d55e00"
INK, GRID = "#010203", "#040506"
GOOD, BAD, SOFT = "#00795a", "#b3261e", "#59616b"  # verdicts, as in style.css
VARIABLES = {
    INK: "var(--ink, #222)",
    GRID: "var(--rule, #ccc)",
    BLUE: f"var(--plain, {BLUE})",
    VERMILLION: f"var(--asymmetric, {VERMILLION})",
    GOOD: f"var(--good, {GOOD})",
    BAD: f"var(--bad, {BAD})",
    SOFT: f"var(--soft, {SOFT})",
}
DASHES: dict[str, Any] = {"solid": "-", "dashed": (0, (4, 1.5)), "dotted": (0, (1, 1.5))}
ROLES: dict[str, tuple[str, Any]] = {
    "plain": (BLUE, DASHES["dashed"]),
    "asymmetric": (VERMILLION, "-"),
    "mlp": (BLUE, "-"),
    "cnn": (VERMILLION, "-"),
    "vit": ("#009e73", "-"),
    "ink": (INK, "-"),
    "good": (GOOD, "-"),
    "bad": (BAD, "-"),
    "soft": (SOFT, "-"),
}
# Legible on light and dark pages, and none of them Plain's or Asymmetric's. Dashes distinguish them too.
LIST: tuple[tuple[str, Any], ...] = (
    ("#1b9e77", "-"),
    ("#7570b3", DASHES["dashed"]),
    ("#a6611a", (0, (1, 1))),
    ("#808000", (0, (4, 1, 1, 1))),
)
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "asymtrain",
    "image.composite_image": False,
    "text.parse_math": False,  # a dollar sign in a name does not start a formula
    "font.family": ["DejaVu Sans", "sans-serif"],
    **dict.fromkeys(("font.size", "axes.titlesize"), 10),
    "legend.fontsize": 9,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), GRID),
    "grid.linewidth": 0.6,
    "axes.grid": True,
    "axes.grid.axis": "y",
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 0),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon", "path.simplify"), False),
}
WIDE = 5.8  # inches; a wider figure gets a whole row of its page
CUT = 3.0  # an interval longer than this many times the largest effect or seed ends in an arrow
LEVELS = 12  # contours
LONGEST = 64  # characters of a text; a longer one loses its middle
FACETS = 17  # along each side of a relief; more would only make the file larger
BESIDE = 6.0  # points between a mark and its seeds
CELL = 0.82  # inches of an image
HEAT = 0.65  # share of the colour in an overlay; the rest is the image in grey


def draw(figure: Figure) -> str:
    """The figure as SVG text for a page or a file; its name makes the ids inside unique on a page."""
    with figure_style():
        return svg_text(lay_out(figure), figure.name, figure.title)


def is_wide(figure: Figure) -> bool:
    return bool(figure.panels) and size_of(figure)[0] > WIDE


def room_of(figure: Figure) -> float | None:
    """The width in rem of a wide figure on a page: at most a quarter wider than drawn, or its letters get too large."""
    return round(1.25 * 6 * size_of(figure)[0], 1) if is_wide(figure) else None  # 6 rem are an inch


def figure_style() -> AbstractContextManager[None]:
    """The style of every figure, over matplotlib's own defaults: a user's matplotlibrc must not change the bytes."""
    return matplotlib.style.context(STYLE, after_reset=True)


def size_of(figure: Figure) -> tuple[float, float]:
    """Width and height in inches."""
    rows, columns = _grid(figure)
    first = figure.panels[0]
    if isinstance(first, Lines):
        width = 4.2 if columns == 1 else 2.7 * columns
        labels = _legend_entries(figure)
        legend = 0.2 * -(-len(labels) // _legend_columns(labels, width))
        return width, 0.2 + legend + (2.4 if columns == 1 else 2.0) * rows
    if isinstance(first, Bars):
        panels = [panel for panel in figure.panels if isinstance(panel, Bars)]
        longest = max(len(panel.bars) for panel in panels)
        label = max((len(bar.label) for panel in panels for bar in panel.bars), default=0)
        room = 0.08 * max(0, min(label, LONGEST) - 32)  # for long names, which would leave no room for the bars
        pitch = 0.33 if longest <= 12 else 0.24  # a long list stays on one screen
        return (4.2 if columns == 1 else 2.0 + 2.1 * columns) + room, (0.9 + pitch * longest) * rows
    if isinstance(first, Surface):
        return (0.3 + 2.3 * columns, 2.6 * rows) if first.relief else (1.4 + 1.9 * columns, 0.3 + 2.2 * rows)
    return CELL * columns + 0.14 * _gaps(figure)[-1] + 1.3, CELL * rows + 0.75


def lay_out(figure: Figure) -> Canvas:
    """The figure as matplotlib's, in the current style."""
    assert len({type(panel) for panel in figure.panels}) == 1, f"{figure.name}: panels of one kind"
    figure = dataclasses.replace(figure, panels=_with_drawable_texts(figure.panels))
    first = figure.panels[0]
    by_hand = isinstance(first, Image) or (isinstance(first, Surface) and first.relief)
    canvas = Canvas(figsize=size_of(figure), layout=None if by_hand else "constrained")
    canvas.patch.set_visible(False)
    fill: Any = {Lines: _draw_lines, Bars: _draw_bars, Surface: _draw_surfaces, Image: _draw_images}[type(first)]
    fill(canvas, figure, figure.panels)
    return canvas


def svg_text(canvas: Canvas, name: str, title: str) -> str:
    """What is on the canvas as SVG; `name` makes its ids unique on a page, `title` is read out in its place."""
    out = io.StringIO()
    _place_parts(canvas)
    # No metadata: it would carry the date.
    canvas.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    # A style sheet inside a figure would apply to the whole page.
    text = re.sub(r"\s*<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = text.replace(
        "<svg ", f'<svg role="img" aria-label="{html.escape(printable(title))}" stroke-linejoin="round" ', 1
    )
    for stand_in, variable in VARIABLES.items():
        text = text.replace(stand_in, variable)
    # Nobody sees a hundredth of a point, and digits would fill half of a page.
    numbers = r'\b(?:d|x|y)="[^"]*"|translate\([^)]*\)'
    text = re.sub(numbers, lambda match: re.sub(r"-?\d+\.\d{3,}", _hundredths, match[0]), text)
    text = re.sub(r'\bd="[^"]*"', lambda match: re.sub(r'\s*([A-Za-z"])\s*', r"\1", match[0]), text)
    text = re.sub(r"\n +<", "\n<", text)
    # Fonts of every word, unused ids and rotations by 0 are left out.
    fonts = re.search(r"font-family: ([^;\"]*)", text)
    if fonts is not None:
        text = re.sub(r" font-family: [^;\"]*;?", "", text).replace("<svg ", f'<svg font-family="{fonts[1]}" ', 1)
    used = {*re.findall(r'(?:url\(#|href="#)([^")]*)', text)}
    text = re.sub(r' id="([^"]*)"', lambda attribute: attribute[0] if attribute[1] in used else "", text)
    text = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", text)
    # Several figures share one page, so each gets ids of its own.
    text = re.sub(r'\bid="', f'id="{name}-', text)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)


def as_file(svg: str) -> str:
    """A figure as a file, with a background of its own: it may be shown on a dark page."""
    return svg.replace("<svg ", '<svg style="background: #fff" ', 1)


def _place_parts(canvas: Canvas) -> None:
    """Lay out the parts. `savefig` would draw the whole figure once more for that, and discard it."""
    engine = canvas.get_layout_engine()
    if engine is not None:
        FigureCanvasSVG(canvas)  # its texts are as wide as in the file
        canvas.dpi = 72  # as in every SVG
        engine.execute(canvas)
        canvas.set_layout_engine(None)


def _hundredths(number: re.Match[str]) -> str:
    return f"{round(float(number[0]), 2) + 0.0:g}"  # and never -0


def _with_drawable_texts(value: Any) -> Any:
    """The panels, or a part of one, with texts that SVG can draw and that leave room for the axes."""
    if isinstance(value, str):
        text = printable(value)
        return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}…{text[-LONGEST // 2 + 1 :]}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **{name: _with_drawable_texts(part) for name, part in fields.items()})
    if isinstance(value, list | tuple) and value and (isinstance(value[0], str) or dataclasses.is_dataclass(value[0])):
        return type(value)(map(_with_drawable_texts, value))
    return value


def _grid(figure: Figure) -> tuple[int, int]:
    columns = min(figure.columns, len(figure.panels))
    return -(-len(figure.panels) // columns), columns


def _subplots(canvas: Canvas, figure: Figure, *, sharey: bool = False) -> list[Axes]:
    grid = canvas.subplots(*_grid(figure), squeeze=False, sharey=sharey)
    for axes in grid.flat[len(figure.panels) :]:
        axes.set_visible(False)
    for axes, panel in zip(grid.flat, figure.panels, strict=False):
        axes.patch.set_visible(False)
        axes.set_title(panel.title)
    return list(grid.flat[: len(figure.panels)])


def look(colour: Colour) -> tuple[str, Any]:
    return LIST[colour % len(LIST)] if isinstance(colour, int) else ROLES[colour]


# Lines


def _draw_lines(canvas: Canvas, figure: Figure, panels: Sequence[Lines]) -> None:
    for axes, panel in zip(_subplots(canvas, figure), panels, strict=True):
        axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
        if panel.zero:
            axes.axhline(0, color=INK, linewidth=0.8)
        for x in panel.marks:
            axes.axvline(x, color=INK, linewidth=0.8, linestyle=DASHES["dotted"])
        for line in panel.lines:
            _draw_line(axes, line)
        if panel.ring is not None:
            x, y = panel.ring
            axes.plot([x], [y], "o", color=INK, fillstyle="none", markersize=11, markeredgewidth=1.2)
        _set_axes(axes, panel)
    if handles := _legend_entries(figure):
        # The legend belongs to the figure and stands above it: it hides no line, and no word is cut.
        columns = _legend_columns(handles, canvas.get_figwidth())
        # matplotlib fills columns from above. In two of them a pair stands side by side, in three one below the other.
        labels = list(handles) if columns != 2 else [*list(handles)[::2], *list(handles)[1::2]]
        canvas.legend([handles[label] for label in labels], labels, loc="outside upper left", ncols=columns)


def _set_axes(axes: Axes, panel: Lines) -> None:
    if panel.ticks:
        axes.set_xticks(panel.ticks, panel.tick_labels or None)
        axes.xaxis.set_minor_locator(NullLocator())
        if len(panel.tick_labels) > 6:
            axes.tick_params(axis="x", labelrotation=45)
    elif all(float(x).is_integer() for line in panel.lines for x in line.x):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    values = [value for line in panel.lines for value in line.y if value is not None]
    # A logarithmic axis cannot show 0, and a band that reaches 0 must not stretch it.
    if panel.log and values and min(values) > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(min(values) / 1.3, max(values) * 1.3)
    elif panel.from_zero:
        axes.set_ylim(bottom=0)


def _draw_line(axes: Axes, line: Line) -> None:
    paint = look(line.colour)[0]
    for seed in () if line.seeds_on_demand else line.seeds:
        x, y = _points(line.x, seed)
        if line.marker:
            _draw_dots_beside(axes, x, y, paint)
        else:
            axes.plot(x, y, color=paint, linewidth=0.8, alpha=0.45, linestyle=line_style(line)["linestyle"])
    x, y = _points(line.x, line.y, gaps=line.marker)
    axes.plot(x, y, **line_style(line, alone=len(x) == 1))
    intervals = zip(line.x, line.low, line.high, strict=False)
    ends = [(at, low, high) for at, low, high in intervals if low is not None and high is not None]
    if line.marker:
        for at, low, high in ends:
            axes.plot([at, at], [low, high], color=paint, linewidth=1.4)
    elif ends:
        at_x, lows, highs = zip(*ends, strict=True)
        axes.fill_between(at_x, lows, highs, color=paint, alpha=0.16, linewidth=0)


def _draw_dots_beside(axes: Axes, x: list[float], y: list[float], paint: str) -> None:
    """Draw seeds to the right of their mean's mark, which would hide those near it."""
    axes.update_datalim(list(zip(x, y, strict=True)))
    beside = axes.transData + ScaledTranslation(BESIDE / 72, 0, axes.figure.dpi_scale_trans)
    style: dict[str, Any] = {"color": paint, "markersize": 4, "alpha": 0.6, "markeredgewidth": 0, "clip_on": False}
    axes.add_artist(Line2D(x, y, marker="o", linestyle="none", transform=beside, **style))


def line_style(line: Line, *, alone: bool = False) -> dict[str, Any]:
    paint, dash = look(line.colour)
    if line.hollow:
        return {"color": "none", "markeredgecolor": INK, "marker": "o", "markersize": 9, "linestyle": "none"}
    if not line.joined:
        mark = MARKS[line.colour % len(MARKS)] if isinstance(line.colour, int) else "D"
        return {"color": paint, "marker": mark, "markersize": 5, "markeredgewidth": 0, "linestyle": "none"}
    # Colours of the list repeat; later lines are thicker.
    width = 1.0 if line.thin else 2.0 + (0.6 * (line.colour // len(LIST)) if isinstance(line.colour, int) else 0)
    marker = "o" if line.marker or alone else ""  # a line of one point is invisible
    dashes = DASHES[line.dash] if line.dash else dash
    return {"color": paint, "linewidth": width, "linestyle": dashes, "marker": marker, "markersize": 2 + width}


def _points(x: tuple[float, ...], y: Numbers, *, gaps: bool = False) -> tuple[list[float], list[float]]:
    """The points that exist; with `gaps` a line breaks at a missing value, since what lies between is unknown."""
    pairs = [(at, value) for at, value in zip(x, y, strict=True) if gaps or value is not None]
    return [at for at, _ in pairs], [np.nan if value is None else value for _, value in pairs]


def _legend_entries(figure: Figure) -> dict[str, Line2D]:
    panels = [panel for panel in figure.panels if isinstance(panel, Lines)]
    lines = sorted((line for panel in panels for line in panel.lines), key=lambda line: line.thin)
    first = {line.label: line for line in reversed(lines) if line.label}
    labels = dict.fromkeys(line.label for line in lines if line.label)
    handles = {label: Line2D([], [], **line_style(first[label])) for label in labels}
    kinds = next((panel.kinds for panel in panels if panel.kinds), None)
    if kinds and any(line.thin for line in lines):
        widths = zip(kinds, (2.0, 1.0), strict=True)
        handles |= {kind: Line2D([], [], color=INK, linewidth=width) for kind, width in widths}
    return handles


def _legend_columns(labels: Collection[str], width: float) -> int:
    """As many columns as the width holds. Six entries are three pairs, which three columns keep together."""
    most = 3 if len(labels) in (5, 6) else 4
    needed = 0.6 + 0.085 * max(map(len, labels), default=0)  # inches of the longest
    return max(1, min(most, len(labels), int((width - 0.1) / needed)))


# Bars


def reach_of(panel: Bars) -> float:
    """How far the axis may go to both sides of 0: as far as the intervals, unless they are much wider."""
    measured = [abs(value) for bar in panel.bars for value in (*bar.seeds, bar.estimate) if value is not None]
    ends = [abs(end) for bar in panel.bars for end in (bar.low, bar.high) if end is not None]
    largest = max(measured, default=0.0) or 1.0
    return 1.1 * max(largest, min(max(ends, default=0.0), CUT * largest))


def ends_of(panel: Bars) -> tuple[float, float]:
    """Where the axis begins and ends: each side is as long as its contents need, and none is empty."""
    if panel.ends is not None:
        return panel.ends
    reach = reach_of(panel)
    values = [0.0, *(v or 0.0 for bar in panel.bars for v in (*bar.seeds, bar.estimate, bar.low, bar.high))]
    least = 0.05 if any(values) else 1.0  # if all are equal, small steps would be read as differences
    left, right = (min(max(1.1 * side, least * reach), reach) for side in (-min(values), max(values)))
    return -left, right


def _draw_bars(canvas: Canvas, figure: Figure, panels: Sequence[Bars]) -> None:
    labels = {tuple(bar.label for bar in panel.bars) for panel in panels}
    words = {panel.x_label for panel in panels}
    for axes, panel in zip(_subplots(canvas, figure, sharey=len(labels) == 1), panels, strict=True):
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", pad=8)  # room for an arrow
        axes.axvline(0, color=INK, linewidth=0.8)
        for x in panel.marks:
            axes.axvline(x, color=INK, linewidth=0.8, linestyle=DASHES["dotted"])
        left, right = ends_of(panel)
        axes.set_xlim(left, right)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_yticks(range(len(panel.bars)), [bar.label for bar in panel.bars])
        axes.set_ylim(len(panel.bars) - 0.5, -0.5)  # the first on top
        for at, bar in enumerate(panel.bars):
            _draw_bar(axes, at, bar, left, right, look(panel.colour if bar.colour is None else bar.colour)[0])
        if len(words) > 1 or len(panels) == 1:
            axes.set_xlabel(panel.x_label)
    if len(words) == 1 and len(panels) > 1:
        canvas.supxlabel(panels[0].x_label, fontsize=10)


def _draw_bar(axes: Axes, at: int, bar: Bar, left: float, right: float, paint: str) -> None:
    below = [at + 0.36] * len(bar.seeds)  # so far that the diamond hides none of them
    axes.plot(bar.seeds, below, "o", color=paint, markersize=4, alpha=0.6, markeredgewidth=0)
    if bar.low is not None and bar.high is not None:
        inside = [min(max(end, left), right) for end in (bar.low, bar.high)]
        axes.plot(inside, [at, at], color=paint, linewidth=2.0)
        for is_cut, end, arrow in ((bar.low < left, left, "<"), (bar.high > right, right, ">")):
            if is_cut:
                axes.plot([end], [at], marker=arrow, color=paint, markersize=5, clip_on=False)
    if bar.estimate is not None:
        axes.plot([bar.estimate], [at], "D", color=paint, markersize=5.5, markeredgewidth=0)


# Surfaces


def _draw_surfaces(canvas: Canvas, figure: Figure, panels: Sequence[Surface]) -> None:
    if panels[0].relief:
        _draw_reliefs(canvas, figure, panels)
        return
    grid = _subplots(canvas, figure, sharey=True)
    for group in dict.fromkeys(panel.group for panel in panels):
        members = [(axes, panel) for axes, panel in zip(grid, panels, strict=True) if panel.group == group]
        low, high = limits_of(panel for _, panel in members)
        levels = np.linspace(low, high, LEVELS + 1)
        surface: Any = None
        for axes, panel in members:
            axes.grid(visible=False)
            values = as_array(panel.values).T  # rows of an array go up
            surface = axes.contourf(panel.x, panel.y, values, levels=levels, cmap="viridis", vmin=low, vmax=high)
            axes.contour(panel.x, panel.y, values, levels=levels, colors=INK, linewidths=0.3)
            axes.set(aspect="equal", xlabel=panel.x_label)
            if axes.get_subplotspec().is_first_col():  # type: ignore[union-attr]
                axes.set_ylabel(panel.y_label)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(3, integer=True))
        form = ScalarFormatter()
        form.set_powerlimits((-2, 3))
        bar = canvas.colorbar(
            surface, ax=[axes for axes, _ in members], label=members[0][1].label, ticks=MaxNLocator(5), format=form
        )
        bar.outline.set_visible(False)


def _draw_reliefs(canvas: Canvas, figure: Figure, panels: Sequence[Surface]) -> None:
    from mpl_toolkits.mplot3d import Axes3D  # type: ignore[import-untyped]

    # One factor for all, named once: matplotlib would print it beside every axis.
    power = int(np.floor(np.log10(max(map(abs, limits_of(panels))))))
    low, high = (end / 10.0**power for end in limits_of(panels))
    side = _low_side(as_array(panels[0].values))
    # The labels of the heights have room on either side: matplotlib reserves none for them.
    width = canvas.get_figwidth()
    canvas.subplots_adjust(left=0.22 / width, right=1 - 0.2 / width, bottom=0.06, top=0.9, wspace=0.12)
    for number, panel in enumerate(panels, 1):
        axes = canvas.add_subplot(*_grid(figure), number, projection="3d")
        assert isinstance(axes, Axes3D)
        axes.patch.set_visible(False)
        heights = as_array(panel.values) / 10.0**power
        chosen = [np.unique(np.linspace(0, n - 1, FACETS + 1).round().astype(int)) for n in heights.shape]
        x, y = (np.array(ticks)[index] for ticks, index in zip((panel.x, panel.y), chosen, strict=True))
        axes.plot_surface(
            *np.meshgrid(x, y), heights[np.ix_(*chosen)].T, cmap="viridis", vmin=low, vmax=high, rstride=1, cstride=1,
            linewidth=0, antialiased=False,
        )  # fmt: skip
        axes.set_zlim(low, high)
        axes.view_init(elev=30, azim=side)
        axes.set_title(panel.title)
        for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
            axis.set_major_locator(MaxNLocator(3))
            axis.set_tick_params(labelsize=7, pad=-2)
            axis.pane.set_visible(False)
            axis.line.set_color(GRID)
    unit = f" in units of 1e{power}" if power else ""
    canvas.text(0.5, 0.01, f"{panels[0].label}{unit}", ha="center", fontsize=8)


def as_array(values: Sequence[Numbers]) -> Floats:
    return np.array([[np.nan if value is None else value for value in row] for row in values], np.float64)


def limits_of(panels: Iterable[Surface]) -> tuple[float, float]:
    """The smallest and the largest value of all, slightly apart even if they are equal."""
    values = np.concatenate([as_array(panel.values).ravel() for panel in panels])
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    return (low, high) if high > low else (low - 1e-9, high + 1e-9)


def _low_side(heights: Floats) -> float:
    """The viewing angle in degrees: up the slope of the first relief, slightly from the side."""
    if not np.isfinite(heights).all():
        return -60.0
    halves = [(part[: len(part) // 2], part[-(len(part) // 2) :]) for part in (heights, heights.T)]
    along_x, along_y = (last.mean() - first.mean() for first, last in halves)
    return float(np.degrees(np.arctan2(along_y, along_x))) + 200


# Images


def _draw_images(canvas: Canvas, figure: Figure, panels: Sequence[Image]) -> None:
    rows, columns = _grid(figure)
    width, height = size_of(figure)
    gaps, top = _gaps(figure), top_of(panels)
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        left, bottom = 0.45 + CELL * column + 0.14 * gaps[column], height - 0.6 - CELL * (row + 1)
        axes = canvas.add_axes((left / width, bottom / height, 0.94 * CELL / width, 0.94 * CELL / height))
        axes.grid(visible=False)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.patch.set_visible(False)
        axes.set_ylabel(panel.label, fontsize=9)
        axes.set_title(panel.title, fontsize=8, color=look(panel.colour)[0])
        if panel.pixels is None:
            axes.text(0.5, 0.5, "none", ha="center", va="center", fontsize=8)
        else:
            down, across = np.asarray(panel.pixels).shape[:2]
            axes.imshow(shown_pixels(panel), interpolation="none", aspect="equal")
            if panel.heat is not None:
                # A picture of its own, of a pixel a cell: what lies under the maps is drawn once.
                extent = (-0.5, across - 0.5, down - 0.5, -0.5)
                axes.imshow(heat_colours(panel, top), interpolation="none", aspect="equal", extent=extent, alpha=HEAT)
    if scale := next((panel.scale for panel in panels if panel.scale), ""):
        left, bottom = width - 0.62, height - 0.6 - CELL * rows
        bar = canvas.add_axes((left / width, bottom / height, 0.1 / width, (CELL * rows - 0.05) / height))
        bar.grid(visible=False)
        canvas.colorbar(ScalarMappable(Normalize(0, top), "inferno"), cax=bar).set_label(scale, fontsize=8)
        bar.tick_params(labelsize=8)
        bar.yaxis.set_major_locator(MaxNLocator(4))


def shown_pixels(panel: Image) -> npt.NDArray[np.uint8]:
    """The picture as (H, W, 3) bytes, in grey if a map lies over it."""
    pixels = np.asarray(panel.pixels, np.float64)
    if panel.heat is not None:
        pixels = (pixels @ np.array([0.299, 0.587, 0.114]))[..., None].repeat(3, -1)
    return np.asarray(np.round(pixels * 255), np.uint8)


def heat_colours(panel: Image, top: float) -> npt.NDArray[np.uint8]:
    """The colours of the map, a pixel for each of its cells, from 0 to `top`; more is drawn as `top`."""
    heat = np.asarray(panel.heat, np.float64)
    assert panel.pixels is not None
    sides = zip(np.asarray(panel.pixels).shape, heat.shape, strict=False)
    assert not any(side % parts for side, parts in sides), "a map lies on a grid of its picture"
    # Even steps of lightness: readable in grey and with every kind of colour vision.
    colours = matplotlib.colormaps["inferno"](np.clip(heat / top, 0, 1))[..., :3]
    return np.asarray(np.round(colours * 255), np.uint8)


def top_of(panels: Sequence[Image]) -> float:
    """The end of the colour scale: so high that one value in a hundred is beyond it, and at least 2."""
    values = [np.asarray(panel.heat, np.float64).ravel() for panel in panels if panel.heat is not None]
    return max(2.0, float(np.ceil(np.quantile(np.concatenate(values), 0.99)))) if values else 2.0


def _gaps(figure: Figure) -> list[int]:
    """How many gaps stand before each column."""
    first = [panel for panel in figure.panels if isinstance(panel, Image)][: _grid(figure)[1]]
    return [sum(panel.apart for panel in first[: i + 1]) for i in range(len(first))]
