"""A `Figure` as it answers the pointer: its SVG, and beside it the same values for the script of the page.

`templates/live.js` draws the values with ECharts when the figure comes into view, in place of the SVG. Without scripts,
in print, and where a browser cannot, the SVG stays. The library is in `charts/`, compressed; a page carries the part of
it that its figures need, so that nothing is ever fetched.
"""

import base64
import dataclasses
import gzip
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import matplotlib
import numpy as np
import PIL.Image
from markupsafe import Markup

from asymtrain.lab.report.drawing import (
    HEAT,
    LEVELS,
    VARIABLES,
    draw,
    ends_of,
    is_wide,
    limits_of,
    line_style,
    look,
    top_of,
)
from asymtrain.lab.report.figure import Bars, Colour, Figure, Image, Line, Lines, Surface
from asymtrain.lab.report.table import Column

DIGITS = 7  # significant ones: the page rounds once more, to the digits of the table
SYMBOLS = {"o": "circle", "s": "rect", "^": "triangle", "D": "diamond", "v": "arrow", "P": "roundRect", "X": "pin"}


def embed(figure: Figure, svg: str | None = None) -> Markup:
    """The figure for a page in both forms; `svg` if it is already drawn."""
    drawing = Markup(by_steps(draw(figure) if svg is None else svg))
    box = '<div class="static">'
    if is_wide(figure):  # on a phone it is scrolled
        box = Markup('<div class="static scroll" tabindex="0" role="region" aria-label="{}">').format(figure.title)
    values = packed_script(live_values(figure), 'class="values"')
    return Markup('<div class="plot">{}{}</div>{}</div>').format(Markup(box), drawing, values)


def by_steps(svg: str) -> str:
    """The same drawing with lines as relative steps in tenths of a point: a page with many is a fifth smaller."""
    return re.sub(r'\bd="(M[-\d. MLz]*)"', lambda path: f'd="{re.sub("M[^M]*", _line_by_steps, path[1])}"', svg)


def _line_by_steps(line: re.Match[str]) -> str:
    points = np.round(10 * np.array(re.findall(r"-?[\d.]+", line[0]), np.float64).reshape(-1, 2))
    steps = np.diff(points, axis=0, prepend=0)  # steps between rounded points: their errors do not add up
    x, y, *rest = (f"{step / 10 + 0:g}" for step in steps.flat)
    path = f"M{x} {y}" + (f"l{' '.join(rest)}" if rest else "") + "z" * line[0].endswith("z")
    return re.sub(r"(?<!\d)0\.", ".", path).replace(" -", "-")


def library(figures: Iterable[Figure]) -> Markup:
    """The script elements with `live.js` and the part of the library that these figures need; nothing without any."""
    complete = [figure for figure in figures if not figure.missing]
    if not complete:
        return Markup()
    return _library("relief" if any(is_relief(figure) for figure in complete) else "flat")


@cache
def _library(name: str) -> Markup:
    files = resources.files(__package__)
    charts = files.joinpath("charts", f"{name}.js.gz").read_bytes()
    live = dense(files.joinpath("templates", "live.js").read_text(encoding="utf-8"))
    return _script(charts, f'id="charts" data-part="{name}"') + _script(_packed(live.encode()), 'id="live"')


def dense(code: str) -> str:
    """A script or a style sheet without indentation and without lines that are comments."""
    return re.sub(r"^[ \t]*(?:(?://.*|/\*.*?\*/[ \t]*)?\n)?", "", code, flags=re.MULTILINE)


def is_relief(figure: Figure) -> bool:
    """Is it drawn in three dimensions? Its library then compiles expressions, which a page must allow."""
    return any(isinstance(panel, Surface) and panel.relief for panel in figure.panels)


def packed_script(values: Any, attributes: str) -> Markup:
    """JSON that a script of the page unpacks when it is needed; the bytes depend on the values alone."""
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _script(_packed(text.encode()), attributes)


def _packed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def _script(packed: bytes, attributes: str) -> Markup:
    """Five letters for four bytes, where base 64 takes five and a third; none of them can begin a tag."""
    text = base64.b85encode(packed).decode().replace("<", ",")
    return Markup(f'<script type="application/gzip" {attributes}>{text}</script>')


def live_values(figure: Figure) -> dict[str, Any]:
    """The figure for the script: kind, title, columns and panels; what is empty is left out."""
    panels: Sequence[Any] = figure.panels  # all of one kind
    shared: dict[str, Any] = {}
    match panels[0]:
        case Lines():
            kind, values = "lines", [_lines(panel) for panel in panels]
        case Bars():
            kind, values = "bars", [{**_plain(panel), "ends": _plain(ends_of(panel))} for panel in panels]
        case Surface(relief=relief):
            kind, values = "relief" if relief else "contours", _surfaces(panels)
            shared = {"colours": _colours("viridis", LEVELS + 1)}
        case Image():
            kind, (values, pictures) = "images", _images(panels)
            scale = next((panel.scale for panel in panels if panel.scale), "")
            shared = {"pictures": pictures, "top": top_of(panels), "scale": scale, "share": HEAT}
            shared |= {"colours": _colours("inferno", LEVELS + 1)}
    columns = min(figure.columns, len(panels))
    return {"kind": kind, "title": figure.title, "columns": columns, **_present(shared), "panels": values}


def _lines(panel: Lines) -> dict[str, Any]:
    values = [value for line in panel.lines for value in line.y if value is not None]
    own = {
        "log": panel.log and bool(values) and min(values) > 0,
        "kinds": panel.kinds if any(line.thin for line in panel.lines) else None,
        "lines": [_line(line) for line in panel.lines],
    }
    return _present(_plain(panel) | own)


def _line(line: Line) -> dict[str, Any]:
    style = line_style(line, alone=sum(value is not None for value in line.y) == 1)
    width, dash = style.get("linewidth"), style["linestyle"]
    own = {
        "width": width,
        "dash": [round(part * (width or 1), 2) for part in dash[1]] if isinstance(dash, tuple) else None,
        "symbol": SYMBOLS.get(style["marker"], "") if style["marker"] else "",
        "size": style.get("markersize"),
        "alone": not line.joined or line.hollow,  # points without a line between them
        "seed_names": line.seed_names or tuple(str(number) for number in range(1, len(line.seeds) + 1)),
    }
    if all(end is None for end in line.low):
        own |= {"low": None, "high": None}
    # A line without points, such as a run before the end of its first epoch, has both lists too.
    return {**_present(_plain(line) | own), "x": _plain(line.x), "y": _plain(line.y)}


def _surfaces(panels: Sequence[Surface]) -> list[dict[str, Any]]:
    """Reliefs share one scale; other surfaces share one within their group."""
    groups: dict[str, list[Surface]] = {}
    for panel in panels:
        groups.setdefault("" if panel.relief else panel.group, []).append(panel)
    limits = {group: _plain(limits_of(members)) for group, members in groups.items()}
    return [
        # Four digits distinguish more values than there are colours.
        {**_plain(panel), "limits": limits["" if panel.relief else panel.group], "values": _plain(panel.values, 4)}
        for panel in panels
    ]


def _images(panels: Sequence[Image]) -> tuple[list[dict[str, Any]], list[str]]:
    """The panels, and each picture once: a panel holds its number."""
    pictures: dict[str, int] = {}
    images = []
    for panel in panels:
        values: dict[str, Any] = {"title": panel.title, "label": panel.label, "paint": _paint(panel.colour)}
        values |= {"frame": panel.frame, "apart": panel.apart}
        if panel.pixels is not None:
            pixels = np.round(np.asarray(panel.pixels, np.float64) * 255).astype(np.uint8)
            values["picture"] = pictures.setdefault(_data_address(pixels), len(pictures))
            if panel.heat is not None:
                values["heat"] = _plain(np.asarray(panel.heat, np.float64).tolist(), 3)
        images.append(_present(values))
    return images, list(pictures)


def _data_address(pixels: Any) -> str:
    out = io.BytesIO()
    PIL.Image.fromarray(pixels).save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def _paint(colour: Colour) -> str:
    stand_in = look(colour)[0]
    return VARIABLES.get(stand_in, stand_in)


def _colours(name: str, count: int) -> list[str]:
    shades = matplotlib.colormaps[name](np.linspace(0, 1, count))
    return [matplotlib.colors.to_hex(shade) for shade in shades]


def _plain(value: Any, digits: int = DIGITS) -> Any:
    """A part of a figure as JSON values: the fields of a dataclass under their names, a `colour` as `paint`."""
    match value:
        case None | bool() | str():
            return value
        case int() | float():
            if not np.isfinite(value):
                return None
            short = float(f"{value:.{digits}g}")
            return int(short) if short.is_integer() and abs(short) < 1e15 else short
        case Column():  # how the script writes a value; empty if it has as many digits as it needs
            if value.digits is None:
                return None
            writing = {"digits": value.digits, "signed": value.signed, "significant": value.significant}
            return _present({**writing, "unit": value.ending, "times": value.factor if value.factor != 1 else None})
        case list() | tuple():
            return [_plain(part, digits) for part in value]
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if fields.get("colour") is not None:
        fields["paint"] = _paint(fields.pop("colour"))
    return _present({name: _plain(part, digits) for name, part in fields.items()})


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is empty or False; 0 is a value."""
    return {name: value for name, value in values.items() if value or (value == 0 and value is not False)}
