"""Plain against Asymmetric, seed by seed: the form that most of the paper's tables have.

A recipe lists its `PairedCell`s; the specs that it needs, the tables beside the paper's (`tables`) and the evidence for
the verdicts all follow from that list.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.statistics import Interval, t_interval
from asymtrain.lab.studies.paper.evidence import Effect, Evidence, accuracy, by_reading, paired
from asymtrain.lab.studies.paper.numbers import Hyperparameters, Printed, cells
from asymtrain.lab.studies.paper.study import Reading, Scope, asymmetric_spec, over_seeds, plain_spec, unique
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.study import Needs


@dataclass(frozen=True)
class PairedCell:
    """One cell of the paper under one reading: its specs, Plain and Asymmetric over the same seeds."""

    label: str  # names it in the evidence: `table1/vit/20`
    heading: tuple[str | float, ...]  # its first cells in the table
    arch: str
    reading: Reading
    plain: tuple[RunSpec, ...]
    asymmetric: tuple[RunSpec, ...]
    paper: Printed | None = None
    stand_in: str = ""  # what stands in for the paper's data and networks


def compare(
    study: Scope,
    reading: Reading,
    label: str,
    heading: tuple[str | float, ...],
    arch: str,
    dataset: str,
    values: Hyperparameters | None,
    redundancy: int,
    auxiliary: Mapping[str, Any] | None = None,
    *,
    plain_values: Hyperparameters | None = None,
    paper: str | None = None,
    **fields: Any,
) -> PairedCell:
    """The comparison of one backbone, dataset and setting over the study's seeds.

    Without `values` (a search will find them) it has no specs yet. `plain_values` are Plain's if it has its own.
    `paper` is the label of the paper's cell if it is not `label`; `auxiliary` and `fields` as in `asymmetric_spec`.
    """
    plain: tuple[RunSpec, ...] = ()
    asymmetric: tuple[RunSpec, ...] = ()
    if values is not None:
        fields = {**reading.both, **fields}
        plain = over_seeds(study, plain_spec(study, arch, dataset, plain_values or values, **fields))
        branched = asymmetric_spec(study, reading, arch, dataset, values, redundancy, auxiliary, **fields)
        asymmetric = over_seeds(study, branched)
    return PairedCell(label, heading, arch, reading, plain, asymmetric, cells().get(paper or label), study.stand_in)


def needs_of(study: Scope, comparisons: Sequence[PairedCell], *searches: Needs) -> Needs:
    """The searches' trials, then the runs of comparisons that can be named."""
    specs = unique([*(search.specs for search in searches), specs_of(comparisons)])
    later = {group: count for search in searches for group, count in search.later.items()}
    waiting = [(row.arch, f"{row.label} {row.reading.name}") for row in comparisons if not row.plain]
    later |= dict.fromkeys(waiting, 2 * len(study.seeds))
    return Needs(specs, later=later)


def specs_of(comparisons: Iterable[PairedCell]) -> tuple[RunSpec, ...]:
    return unique(pair for row in comparisons for pair in zip(row.plain, row.asymmetric, strict=True))


def pairs_of(snapshot: Snapshot, comparison: PairedCell) -> list[tuple[Run, Run]]:
    """Plain and Asymmetric of the seeds for which both are stored."""
    return [
        (snapshot.runs[plain.id], snapshot.runs[asymmetric.id])
        for plain, asymmetric in zip(comparison.plain, comparison.asymmetric, strict=True)
        if plain.id in snapshot.runs and asymmetric.id in snapshot.runs
    ]


def effect_of(
    snapshot: Snapshot,
    comparison: PairedCell,
    look: Callable[[Run, Run], Sequence[float | None]] | None = None,
    epochs: int | None = None,
) -> Effect | None:
    """The effect by the reading's accuracy, or by `look`, which reads a pair; pairs without a number are left out."""
    before, after = dict[int, tuple[float, str]](), dict[int, tuple[float, str]]()
    for pair in pairs_of(snapshot, comparison):
        values = look(*pair) if look else [accuracy(run, comparison.reading) for run in pair]
        for side, run, value in zip((before, after), pair, values, strict=True):
            if value is not None:
                side[run.spec.seed] = value, run.spec.id
    trained = comparison.plain[0].epochs if comparison.plain else 0
    return paired(comparison.label, before, after, epochs or trained, comparison.stand_in)


def evidence_of(snapshot: Snapshot, comparisons: Iterable[PairedCell]) -> dict[str, dict[str, Evidence]]:
    return by_reading((comparison.reading.name, effect_of(snapshot, comparison)) for comparison in comparisons)


def interval(effect: Effect, family: int = 1) -> Interval | None:
    """Improvement in percent of Plain's mean and its Bonferroni t interval; None for one seed, or if Plain is 0."""
    base = float(np.mean(effect.plain))
    if len(effect.seeds) < 2 or not base:
        return None
    changes = [100 * (after - before) / base for before, after in zip(effect.plain, effect.asymmetric, strict=True)]
    return t_interval(changes, family=family)


def improvement(effect: Effect) -> float | None:
    base = float(np.mean(effect.plain))
    return 100 * (float(np.mean(effect.asymmetric)) - base) / base if base else None
