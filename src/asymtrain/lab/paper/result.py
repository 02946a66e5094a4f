"""What a recipe makes of the rows: plain data that a page, a terminal or a JSON document can show."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MISSING = "—"


@dataclass(frozen=True)
class Cell:
    """One place of a table. `spec_ids` name the runs behind the number; a missing one waits for its runs."""

    text: str
    value: float | None = None
    spec_ids: tuple[str, ...] = ()
    missing: bool = False


@dataclass(frozen=True)
class ResultTable:
    """Rows of cells under headings, as wide as `columns`."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        widths = {len(row) for row in self.rows}
        assert widths <= {len(self.columns)}, f"{self.name}: rows of {widths} cells under {len(self.columns)} headings"


@dataclass(frozen=True)
class ResultFigure:
    """A drawn figure; a missing one has no SVG and says in its caption what it waits for."""

    name: str
    title: str
    svg: str
    caption: str = ""
    missing: bool = False


@dataclass(frozen=True)
class RecipeResult:
    """A table or figure of the paper as the rows of a store give it.

    Attributes:
        name: of the recipe.
        title: of the paper's table or figure.
        question: what it is to answer.
        how: how the rows were made, in a sentence or two.
        tables: ours beside the paper's.
        figures: drawn from the same rows.
        evidence: for the verdicts, by reading and then by label.
        runs_needed: trainings that it rests on.
        runs_there: how many of them the store holds.
        measurements_needed: measurements that it rests on.
        measurements_there: how many of them the store holds.
        seconds: spent on its trainings and measurements, summed over runs.
        devices: on which they ran, as far as the rows say.
        versions: with which they ran, as far as the rows say.
        diverged: ids of runs that left the finite numbers; they count at chance accuracy.
        notes: what a reader must know beside the rows.
    """

    name: str
    title: str
    question: str
    how: str
    tables: tuple[ResultTable, ...]
    figures: tuple[ResultFigure, ...]
    evidence: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    runs_needed: int = 0
    runs_there: int = 0
    measurements_needed: int = 0
    measurements_there: int = 0
    seconds: float = 0.0
    devices: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    claims: tuple[str, ...] = ()
    diverged: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Is everything there that it rests on, and no place empty?"""
        whole = self.runs_there == self.runs_needed and self.measurements_there == self.measurements_needed
        return whole and not self.empty_places

    @property
    def empty_places(self) -> int:
        """Cells and figures that wait for rows."""
        cells = sum(cell.missing for table in self.tables for row in table.rows for cell in row)
        return cells + sum(figure.missing for figure in self.figures)


def missing_cell(text: str = MISSING) -> Cell:
    """A place that waits for its runs."""
    return Cell(text, missing=True)
