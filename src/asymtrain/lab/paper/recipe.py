"""A recipe: which runs and measurements a table or figure of the paper rests on, and how they become it.

`needs` is a function of what is known, since some runs cannot be named before others are done (the settings that a
search chooses): `later` counts them. `make` must work with any part of the rows there.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from asymtrain.lab.paper.result import RecipeResult, ResultFigure, ResultTable
from asymtrain.lab.paper.snapshot import Snapshot
from asymtrain.lab.paper.study import READINGS, Study
from asymtrain.lab.runs import RunSpec

Draw = Callable[[str, str, Any], str]
"""From the kind of a figure ("panels", "effects", "surfaces", "maps"), its name and its data to SVG.

Drawing belongs to the report, above this room: `report.paper_figures.draw` is the one that commands pass.
"""


class Measuring(Protocol):
    """A measurement that a recipe wants on one spec."""

    @property
    def spec(self) -> RunSpec:
        """On which run's states it is taken."""

    @property
    def name(self) -> str:
        """Under which it is stored: instrument and settings."""

    @property
    def epochs(self) -> tuple[int, ...]:
        """At which states; 0 is before training."""

    @property
    def kind(self) -> str:
        """Which instrument takes it: a name in `measuring.INSTRUMENTS`."""


@dataclass(frozen=True)
class Needs:
    """Trainings and measurements, and how many trainings (at most) wait for others before they can be named.

    `later` has a name for each group of them, so that what several recipes wait for is counted once; the backbone is
    a word of it.
    """

    specs: tuple[RunSpec, ...] = ()
    measurements: tuple[Measuring, ...] = ()
    later: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RecipeOutput:
    """What a recipe made of the rows; `evidence` by reading and then by label."""

    tables: tuple[ResultTable, ...] = ()
    figures: tuple[ResultFigure, ...] = ()
    evidence: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """One table or figure, or those that the paper prints together."""

    name: str
    covers: tuple[str, ...]  # the paper's names: table 2, table 15, figure 2
    title: str
    question: str
    how: str
    claims: tuple[str, ...]
    needs: Callable[[Study, Snapshot], Needs]
    make: Callable[[Study, Snapshot, Draw], RecipeOutput]
    beyond: bool = False  # beyond the paper: a table or figure that it does not have


def build_result(recipe: Recipe, study: Study, known: Snapshot, draw: Draw) -> RecipeResult:
    """The recipe's result from what is known: tables of the study's readings, evidence of every one."""
    needs = recipe.needs(study, known)
    made = recipe.make(study, known, draw)
    # Readings were fixed before any row: what a claim comes to does not depend on which of them are shown.
    every = dataclasses.replace(study, readings=tuple(READINGS.values()))
    judged = made if every == study else recipe.make(every, known, _draw_nothing)
    runs = known.of(needs.specs)
    found = [known.values(one.spec, one.name) for one in needs.measurements]
    there = [values for values in found if values is not None]
    origins = [value for values in there for value in values.values()]
    devices = {run.device for run in runs} | {value["device"] for value in origins if "device" in value}
    versions = [known.versions[run.spec.id] for run in runs if run.spec.id in known.versions]
    versions += [value["versions"] for value in origins if "versions" in value]
    return RecipeResult(
        name=recipe.name,
        title=recipe.title,
        question=recipe.question,
        how=recipe.how,
        tables=made.tables,
        figures=made.figures,
        evidence=judged.evidence,
        runs_needed=len(needs.specs) + sum(needs.later.values()),
        runs_there=len(runs),
        measurements_needed=len(needs.measurements),
        measurements_there=len(there),
        seconds=sum(run.seconds for run in runs) + sum(value.get("seconds", 0.0) for value in origins),
        devices=tuple(sorted(devices)),
        versions=_joined(versions),
        claims=recipe.claims,
        diverged=tuple(run.spec.id for run in runs if run.outcome == "diverged"),
        notes=made.notes,
    )


def _draw_nothing(kind: str, name: str, content: Any) -> str:
    return ""


def _joined(seen: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Versions of each thing; several of one are all named."""
    names = dict.fromkeys(name for one in seen for name in one)
    return {name: " and ".join(sorted({one[name] for one in seen if name in one})) for name in names}
