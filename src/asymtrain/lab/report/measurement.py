"""The page of a measurement: a lead, tables and figures in one self-contained HTML file, the numbers as JSON beside it.

Like the report, it depends on what it is given and on nothing else: written again from the same values it has the
same bytes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from asymtrain.lab.report.page import _check_names, json_text, render_template, write_files
from asymtrain.lab.report.summary import MISSING
from asymtrain.lab.report.summary import spec_labels as spec_labels
from asymtrain.lab.report.table import Column, Table, make_rows
from asymtrain.lab.statistics.estimates import Estimate

WIDE = 420.0  # points; a figure with several panels is wider than this and gets the whole row


@dataclass(frozen=True)
class Drawn:
    """A figure: SVG text as `report.drawing` makes it. `name` is the last part of its file's name."""

    name: str
    title: str
    svg: str
    caption: str = ""


@dataclass(frozen=True)
class Listed:
    """A table of finished text; the first column names the rows. Details stand behind the figures of a page."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""
    detail: bool = False


def write_measurement(
    out: Path,
    name: str,
    *,
    title: str,
    lead: str,
    tables: Sequence[Listed],
    figures: Sequence[Drawn],
    facts: Mapping[str, str],
    document: Mapping[str, Any],
) -> dict[str, Path]:
    """Write name.html, name.json and name-FIGURE.svg into the folder `out`; the paths by "page", "json", FIGURE.

    `document` is the measurement as JSON values, all of them finite. A fact called "Command" is set as code. An empty
    line in `lead` starts a new paragraph.
    """
    _check_names(name, [figure.name for figure in figures])
    for table in tables:
        assert all(len(row) == len(table.columns) for row in table.rows), f"{table.title}: a row has other columns"
    page = render_template(
        "measurement.html.j2",
        name=name,
        title=title,
        lead=[part for part in lead.split("\n\n") if part.strip()],
        tables=[_as_table(table) for table in tables],
        figures=[(figure, _is_wide(figure.svg), _embedded(figure)) for figure in figures],
        facts=facts,
    )
    texts = {
        "page": (f"{name}.html", page),
        "json": (f"{name}.json", json_text(document)),
        **{figure.name: (f"{name}-{figure.name}.svg", figure.svg) for figure in figures},
    }
    write_files(out, dict(texts.values()))
    return {kind: out / file for kind, (file, _) in texts.items()}


def _as_table(table: Listed) -> Table:
    columns = tuple(Column(name, "number" if i else "text") for i, name in enumerate(table.columns))
    return Table(table.title, table.title, columns, make_rows(table.rows), table.note, table.detail)


def number(value: float | None, form: str = ".3f") -> str:
    """A number as a cell; a dash where it is undefined."""
    return MISSING if value is None else f"{value:{form}}"


def interval(found: Estimate, form: str = ".3f") -> str:
    """An interval as a cell; a dash where there are too few values for one."""
    return MISSING if found.low is None else f"{number(found.low, form)} to {number(found.high, form)}"


def _is_wide(svg: str) -> bool:
    found = re.search(r'viewBox="\S+ \S+ ([\d.]+) ', svg)
    return found is not None and float(found[1]) > WIDE


def _embedded(figure: Drawn) -> Markup:
    """For a page of several figures: ids are made unique whatever the figures' authors called them."""
    svg = figure.svg[figure.svg.index("<svg") :]
    svg = re.sub(r'\bid="', f'id="{figure.name}.', svg)
    return Markup(re.sub(r'(url\(#|href="#)', rf"\g<1>{figure.name}.", svg))
