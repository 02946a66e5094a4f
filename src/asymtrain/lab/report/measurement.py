"""The page of a measurement: a lead, tables and figures in one self-contained HTML file, the numbers as JSON beside it.

Like the report, it depends on what it is given and on nothing else: written again from the same values it has the
same bytes.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from asymtrain.lab.report.files import write_files
from asymtrain.lab.report.rendering import render_template
from asymtrain.lab.report.summary import MISSING
from asymtrain.lab.runs import DEFAULTS, NAMES, RunSpec
from asymtrain.lab.statistics.estimates import Estimate

WIDE = 420.0  # points; a figure with several panels is wider than this and gets the whole row
CARDS = 6  # rows; a longer table is scrolled on a phone instead of becoming cards


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
    _check(name, tables, figures)
    texts = {
        "page": (f"{name}.html", render_measurement(name, title, lead, tables, figures, facts)),
        "json": (f"{name}.json", json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"),
        **{figure.name: (f"{name}-{figure.name}.svg", figure.svg) for figure in figures},
    }
    write_files(out, dict(texts.values()))
    return {kind: out / file for kind, (file, _) in texts.items()}


def render_measurement(
    name: str, title: str, lead: str, tables: Sequence[Listed], figures: Sequence[Drawn], facts: Mapping[str, str]
) -> str:
    """The page as text."""
    return render_template(
        "measurement.html.j2",
        name=name,
        title=title,
        lead=[part for part in lead.split("\n\n") if part.strip()],
        tables=tables,
        cards=CARDS,
        figures=[(figure, _is_wide(figure.svg), _embedded(figure)) for figure in figures],
        facts=facts,
    )


def spec_labels(specs: Sequence[RunSpec], without: Sequence[str] = ()) -> list[str]:
    """A short name for each spec: its backbone, and every setting in which specs of that backbone differ.

    The seed and the fields in `without` are never named; the dataset is where there are several.
    """
    skipped = {"arch", "seed", "dataset", *without}
    shown: dict[str, list[str]] = {}
    for arch in dict.fromkeys(spec.arch for spec in specs):
        alike = [spec for spec in specs if spec.arch == arch]
        names = [name for name in DEFAULTS if name not in skipped]
        shown[arch] = [name for name in names if len({getattr(spec, name) for spec in alike}) > 1]
    several = len({spec.dataset for spec in specs}) > 1

    def label(spec: RunSpec) -> str:
        parts = [NAMES.get(spec.arch, spec.arch), *([spec.dataset] if several else ())]
        return ", ".join([*parts, *(f"{name.replace('_', ' ')} {getattr(spec, name)}" for name in shown[spec.arch])])

    return [label(spec) for spec in specs]


def number(value: float | None, form: str = ".3f") -> str:
    """A number as a cell; a dash where it is undefined."""
    return MISSING if value is None else f"{value:{form}}"


def interval(found: Estimate, form: str = ".3f") -> str:
    """An interval as a cell; a dash where there are too few values for one."""
    return MISSING if found.low is None else f"{number(found.low, form)} to {number(found.high, form)}"


def _check(name: str, tables: Sequence[Listed], figures: Sequence[Drawn]) -> None:
    """Asserts are for us: a measurement that breaks them is wrong, not its user."""
    for stem in (name, *(figure.name for figure in figures)):
        assert re.fullmatch(r"[\w.-]+", stem), f"{stem!r} is no part of a file's name"
    names = [figure.name for figure in figures]
    assert len({*names, "page", "json"}) == len(names) + 2, f"figures share a name, or are called page or json: {names}"
    for table in tables:
        assert all(len(row) == len(table.columns) for row in table.rows), f"{table.title}: a row has other columns"


def _is_wide(svg: str) -> bool:
    found = re.search(r'viewBox="\S+ \S+ ([\d.]+) ', svg)
    return found is not None and float(found[1]) > WIDE


def _embedded(figure: Drawn) -> Markup:
    """For a page of several figures: ids are made unique whatever the figures' authors called them."""
    svg = figure.svg[figure.svg.index("<svg") :]
    svg = re.sub(r'\bid="', f'id="{figure.name}.', svg)
    return Markup(re.sub(r'(url\(#|href="#)', rf"\g<1>{figure.name}.", svg))
