"""A table as values: typed columns, cells that are numbers until the edge.

A terminal, HTML, Markdown, LaTeX, CSV and JSON show the same `Table`. How a number is written is said once, by its
column; `cell_text` is the only place where a value becomes text, and nothing reads that text back.
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

NOTHING = "—"  # there is no such number; one that waits for its runs is `missing`


@dataclass(frozen=True)
class Mean:
    """A mean with the deviation over seeds; None for one seed."""

    mean: float
    deviation: float | None = None


@dataclass(frozen=True)
class Range:
    """Both ends of an interval."""

    low: float
    high: float


Value = int | float | str | Mean | Range | None


@dataclass(frozen=True)
class Column:
    """A heading, and how the numbers below it are written."""

    name: str
    # `text` is aligned left; a `number` may be a mean or an interval; a `share` from 0 to 1 is shown in percent;
    # `millions` are counts that are shown as 1.23M; a `p` is never shown as nought.
    kind: Literal["text", "number", "count", "share", "millions", "p"] = "text"
    unit: str = ""  # written after each number: "%"
    digits: int | None = 3  # after the point; None for as many as the number needs
    signed: bool = False  # is a plus written?
    significant: bool = False  # are `digits` significant ones?
    papers: bool = False  # are these the paper's numbers, beside ours of the same name?
    against_paper: str = ""  # for our number minus the paper's: what it is, as a sentence for the table's note
    short: str = ""  # the heading if there is little space, such as on a narrow terminal
    only_if_varied: bool = False  # do pages leave it out if every row says the same?

    @property
    def heading(self) -> str:
        return f"Paper: {self.name}" if self.papers else self.name

    @property
    def ending(self) -> str:
        return {"share": "%", "millions": "M"}.get(self.kind, self.unit)

    @property
    def factor(self) -> float:
        return {"share": 100.0, "millions": 1e-6}.get(self.kind, 1.0)

    @property
    def is_number(self) -> bool:
        return self.kind != "text"


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    value: Value = None
    spec_ids: tuple[str, ...] = ()  # the runs behind it
    missing: bool = False  # does it wait for its runs?
    mark: str = ""  # after the value: words such as "(diverged)", or a "*"
    words: str = ""  # in place of the value, such as "exactly 0"
    about: tuple[str, ...] = ()  # what its row is about, such as backbones, to select a part of the table
    colour: str = ""  # of a verdict on a page: good, bad or soft
    interval: Range | None = None  # after the value, if it is not symmetric around it


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns; the first columns name the rows."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    detail: bool = False  # does it stand after the figures of a page?

    def __post_init__(self) -> None:
        widths = {len(row) for row in self.rows}
        assert widths <= {len(self.columns)}, f"{self.name}: rows of {widths} cells under {len(self.columns)} columns"

    def texts(self, missing: str = NOTHING, *, compact: bool = False) -> list[list[str]]:
        return [
            [cell_text(cell, column, missing, compact=compact) for cell, column in zip(row, self.columns, strict=True)]
            for row in self.rows
        ]


def missing_cells(count: int = 1) -> list[Cell]:
    return [Cell(missing=True)] * count


def interval(low: float | None, high: float | None) -> Range | None:
    """Both ends, or None if there were too few values for an interval."""
    return None if low is None or high is None else Range(low, high)


def make_rows(values: Iterable[Sequence[Value | Cell]]) -> tuple[tuple[Cell, ...], ...]:
    return tuple(tuple(value if isinstance(value, Cell) else Cell(value) for value in row) for row in values)


def cell_text(cell: Cell, column: Column, missing: str = NOTHING, *, compact: bool = False) -> str:
    """A cell as it is shown; `compact` for little space, such as a narrow terminal."""
    if cell.missing:
        return missing
    if cell.words:
        return cell.words
    mark = mark_text(cell, column)
    return value_text(cell.value, column, compact=compact) + (mark if mark in ("", "*") else f" {mark}")


def mark_text(cell: Cell, column: Column) -> str:
    return cell.mark if cell.interval is None else f"({value_text(cell.interval, column)})"


def value_text(value: Value, column: Column, *, compact: bool = False) -> str:
    match value:
        case None:
            return NOTHING
        case str():
            return value
        case Range(low, high):
            return f"{number_text(low, column, ending=not compact)} to {number_text(high, column)}"
        case Mean(mean, deviation):
            text = number_text(mean, column)
            if deviation is None:
                return text
            return f"{text}{'±' if compact else ' ± '}{number_text(deviation, column, sign=False)}"
    return number_text(value, column)


def number_text(value: float, column: Column, *, sign: bool = True, ending: bool = True) -> str:
    """One number as its column writes it; `sign` and `ending` switch its plus and its unit."""
    if column.kind == "count":
        return f"{value:d}" if isinstance(value, int) else f"{value:g}"
    if column.kind == "p" and column.digits is not None and value < 10**-column.digits:
        return f"<{10**-column.digits:.{column.digits}f}"
    plus = "+" if column.signed and sign else ""
    form = "g" if column.digits is None else f".{column.digits}{'g' if column.significant else 'f'}"
    return f"{column.factor * value:{plus}{form}}{column.ending if ending else ''}"


def true_minus(text: str, minus: str = "−") -> str:
    """The text with this sign for the minus of each number; a terminal and CSV keep the ASCII one."""
    return re.sub(r"(?<![\w)])-(?=\d)", lambda _: minus, text)


def duration(seconds: float) -> str:
    """Seconds in words, such as 3 min 20 s."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def cell_json(cell: Cell, column: Column) -> dict[str, Any]:
    """A cell for a program: what is shown, and the unrounded numbers behind it."""
    numbers: dict[str, Any] = {"text": cell_text(cell, column), "value": None}
    match cell.value:
        case Range(low, high):
            numbers |= {"low": low, "high": high}
        case Mean(mean, deviation):
            numbers |= {"value": mean, "deviation": deviation}
        case int() | float():
            numbers["value"] = cell.value
    if cell.interval is not None:
        numbers |= dataclasses.asdict(cell.interval)
    return {**numbers, "spec_ids": list(cell.spec_ids), "missing": cell.missing}


def table_json(table: Table) -> dict[str, Any]:
    return {
        "name": table.name,
        "title": table.title,
        "columns": [column.heading for column in table.columns],
        "kinds": [dataclasses.asdict(column) for column in table.columns],
        "rows": [
            [cell_json(cell, column) for cell, column in zip(row, table.columns, strict=True)] for row in table.rows
        ],
        "note": table.note,
    }
