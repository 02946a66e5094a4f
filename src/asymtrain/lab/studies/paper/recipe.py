"""A recipe: which runs and measurements a table or figure of the paper needs, and how they become it.

`needs` is a function of what is known, since some runs cannot be named before others are done (the settings that a
search chooses): `later` counts them. `make` must work with any part of the rows, and returns values: the report formats
tables and draws figures.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

from asymtrain.lab.report.figure import Bars, Figure, Lines, Panel
from asymtrain.lab.report.table import Table
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.store.provenance import joined_versions
from asymtrain.lab.studies.frame import missing_of
from asymtrain.lab.studies.paper.claims import claim
from asymtrain.lab.studies.paper.evidence import Evidence
from asymtrain.lab.studies.paper.numbers import texts
from asymtrain.lab.studies.paper.study import ARCHS, Scope, title_for, with_every_reading
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.study import Needs


@dataclass(frozen=True)
class Measuring:
    """A measurement that a recipe wants on the states of one run."""

    kind: str  # the instrument that measures: a name in `measurements.INSTRUMENTS`
    name: str  # its name in the store: instrument, settings and what else distinguishes it from the run's others
    spec: RunSpec
    epochs: tuple[int, ...]  # of the states; 0 is before training
    settings: Any = None  # of the instrument
    keep: int = 0  # for a figure: maps of this many images, or surfaces of this many draws
    what: str = ""  # what is measured, if recipes ask for several of this kind on one run

    @property
    def title(self) -> str:
        spec, what = self.spec, f", {self.what}" if self.what else ""
        return f"{self.kind} of {spec.arch} {spec.variant} seed {spec.seed}{what}"


@dataclass(frozen=True)
class RecipeOutput:
    """What a recipe made of the rows; `evidence` by reading and then by label."""

    tables: Iterable[Table] = ()  # read once, when shown: a generator makes none for the evidence alone
    figures: tuple[Figure, ...] = ()
    evidence: Mapping[str, Mapping[str, Evidence]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """One table or figure, or several that the paper prints together."""

    name: str
    covers: tuple[str, ...]  # the paper's names: table 2, table 15, figure 2
    title: str
    question: str
    how: str
    claims: tuple[str, ...]
    needs: Callable[[Scope, Snapshot], Needs]
    make: Callable[[Scope, Snapshot], RecipeOutput]
    beyond: bool = False  # beyond the paper: a table or figure that it does not have


def recipe(
    name: str, needs: Callable[[Scope, Snapshot], Needs], make: Callable[[Scope, Snapshot], RecipeOutput]
) -> Recipe:
    """A recipe with its words in `texts.toml`."""
    words = recipe_words(name)
    covers, claims = (tuple(words.get(field, default).split()) for field, default in (("covers", name), ("claims", "")))
    beyond = words.get("beyond", False)
    return Recipe(name, covers, words["title"], words["question"], words["how"], claims, needs, make, beyond)


def recipe_words(name: str) -> Mapping[str, Any]:
    """With `like`, a recipe has the question and the method of another."""
    words = texts()["recipes"]
    other = words[words[name].get("like", name)]
    return {"question": other["question"], "how": other["how"], **words[name]}


@dataclass(frozen=True)
class RecipeResult:
    """A table or figure of the paper, made from the rows of a store."""

    name: str
    title: str
    question: str
    how: str
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    evidence: Mapping[str, Mapping[str, Evidence]] = field(default_factory=dict)  # by reading and then by label
    runs_needed: int = 0  # runs that it needs
    runs_there: int = 0  # how many of them the store holds
    measurements_needed: int = 0
    measurements_there: int = 0
    seconds: float = 0.0  # of its runs and measurements, summed over runs
    devices: tuple[str, ...] = ()  # as far as the rows tell, like the versions
    versions: Mapping[str, str] = field(default_factory=dict)
    claims: tuple[str, ...] = ()
    diverged: tuple[str, ...] = ()  # ids of diverged runs; they count at chance accuracy
    notes: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        whole = self.runs_there == self.runs_needed and self.measurements_there == self.measurements_needed
        return whole and not self.missing_count

    @property
    def missing_count(self) -> int:
        cells = sum(cell.missing for table in self.tables for row in table.rows for cell in row)
        return cells + sum(figure.missing for figure in self.figures)


def build_result(recipe: Recipe, study: Scope, snapshot: Snapshot, *, with_tables: bool = True) -> RecipeResult:
    """The recipe's result from a snapshot: tables of the study's readings, evidence of all readings."""
    needs, output = recipe.needs(study, snapshot), recipe.make(study, snapshot)
    # Readings are fixed in the sources: the verdict on a claim does not depend on which of them are shown.
    every = with_every_reading(study)
    all_output = output if every == study else recipe.make(every, snapshot)
    runs = snapshot.of(needs.specs)
    measured = [snapshot.values(measuring.spec, measuring.name) for measuring in needs.measurements]
    origins = [value for values in measured if values is not None for value in values.values()]
    devices = {run.device for run in runs} | {value["device"] for value in origins if "device" in value}
    versions = [snapshot.versions[run.spec.id] for run in runs if run.spec.id in snapshot.versions]
    versions += [value["versions"] for value in origins if "versions" in value]
    return RecipeResult(
        recipe.name,
        title_for(study, recipe.title),
        recipe.question,
        recipe.how,
        tuple(_beside_paper(table, study) for table in output.tables) if with_tables else (),
        output.figures,
        all_output.evidence,
        **missing_of(needs, snapshot).progress,
        seconds=sum(run.seconds for run in runs) + sum(value.get("seconds", 0.0) for value in origins),
        devices=tuple(sorted(devices)),
        versions=joined_versions(versions),
        claims=recipe.claims,
        diverged=tuple(run.spec.id for run in runs if run.outcome == "diverged"),
        notes=output.notes,
    )


def _beside_paper(table: Table, study: Scope) -> Table:
    """The table with a note on its differences to the paper; without them if the study trains something else."""
    title, against = title_for(study, table.title), [column.against_paper for column in table.columns]
    if not study.stand_in:
        return dataclasses.replace(table, title=title, note=" ".join(filter(None, (table.note, *against))))
    marks = [not difference for difference in against]
    columns, rows = tuple(compress(table.columns, marks)), tuple(tuple(compress(row, marks)) for row in table.rows)
    return dataclasses.replace(table, title=title, columns=columns, rows=rows)


def of_archs(needs: Needs, archs: Collection[str] | None) -> Needs:
    """The needs of these backbones alone; all needs for None."""
    if archs is None:
        return needs
    names = set(archs)
    return Needs(
        tuple(spec for spec in needs.specs if spec.arch in names),
        tuple(measuring for measuring in needs.measurements if measuring.spec.arch in names),
        {group: count for group, count in needs.later.items() if group[0] in names},
    )


def parts_of(recipes: Iterable[Recipe], study: Scope, archs: Collection[str]) -> tuple[Recipe, ...]:
    """The recipes' parts for these backbones, without recipes that have none."""
    parts = [part_of(recipe, archs) for recipe in recipes]
    return tuple(part for part in parts if part.needs(study, Snapshot()) != Needs())


def part_of(recipe: Recipe, archs: Collection[str]) -> Recipe:
    """The part of a recipe for some backbones: its needs, rows and lines, and the claims that name no other.

    The rows keep their numbers from the whole table: corrections count the paper's cells, not the ones shown.
    """
    others = set(ARCHS) - set(archs)

    def needs(study: Scope, snapshot: Snapshot) -> Needs:
        return of_archs(recipe.needs(study, snapshot), archs)

    def make(study: Scope, snapshot: Snapshot) -> RecipeOutput:
        # Leave out measurements of other backbones, whose figures show nothing else. Keep their runs: a note may say
        # which settings they led to.
        hidden = {
            measuring.spec.id
            for measuring in recipe.needs(study, snapshot).measurements
            if measuring.spec.arch in others
        }
        measured = {key: values for key, values in snapshot.measured.items() if key[0] not in hidden}
        output = recipe.make(study, dataclasses.replace(snapshot, measured=measured))
        tables = (
            dataclasses.replace(
                table, rows=tuple(row for row in table.rows if not any(others & {*cell.about} for cell in row))
            )
            for table in output.tables
        )
        evidence = {
            reading: {label: numbers for label, numbers in labelled.items() if _are_of([label], archs)}
            for reading, labelled in output.evidence.items()
        }
        return dataclasses.replace(
            output,
            tables=(table for table in tables if table.rows),
            figures=tuple(_without_panels(figure, others) for figure in output.figures),
            evidence=evidence,
        )

    claims = tuple(name for name in recipe.claims if _are_of(claim(name).needs, archs))
    return dataclasses.replace(recipe, needs=needs, make=make, claims=claims)


def _without_panels(figure: Figure, archs: Collection[str]) -> Figure:
    """The figure without the panels and lines of these backbones, the paper's included."""

    def part(panel: Panel) -> Panel | None:
        if isinstance(panel, Bars):
            return None if panel.colour in archs else panel
        if isinstance(panel, Lines):
            lines = tuple(line for line in panel.lines if line.colour not in archs)
            return None if panel.about in archs else dataclasses.replace(panel, lines=lines)
        return panel

    panels = tuple(smaller for panel in figure.panels if (smaller := part(panel)) is not None)
    return dataclasses.replace(figure, panels=panels)


def _are_of(labels: Iterable[str], archs: Collection[str]) -> bool:
    """Are all labels cells of these backbones? Labels that name none belong to tables of one backbone."""
    archs_named = {word for label in labels for word in label.split("/")} & set(ARCHS)
    return archs_named <= set(archs)
