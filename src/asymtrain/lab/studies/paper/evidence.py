"""The input of verdicts: measured numbers, one for each seed, under the label of a printed cell.

`Effect` is a cell with Plain beside Asymmetric; `Quantity` is a number of one side alone, such as a mean cosine. Labels
are those of `numbers.labels` ("table1/vit/20"); `claim.needs` lists the ones that a claim needs. A diverged run stays
in, at chance accuracy. If a seed has several draws (landscape directions, images), the values here are means over them:
a seed counts once.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from asymtrain.lab.runs import Run
from asymtrain.lab.studies.paper.study import Reading
from asymtrain.lab.studies.timing import class_count

LAST = 20  # epochs behind the reading `last20`


@dataclass(frozen=True)
class Effect:
    """One cell under one reading: Plain and Asymmetric, paired by seed."""

    label: str
    plain: tuple[float, ...]
    asymmetric: tuple[float, ...]
    epochs: int  # trained; 0 for a measurement of the initial state
    spec_ids: tuple[str, ...]  # every run behind the numbers
    seeds: tuple[int, ...]  # one for each pair
    stand_in: str = ""  # what stands in for the paper's data or networks; if not empty, verdicts stay preliminary
    same: bool = False  # are both sides one measurement by construction?

    def __post_init__(self) -> None:
        if not len(self.plain) == len(self.asymmetric) == len(self.seeds) == len(set(self.seeds)):
            raise ValueError(f"{self.label}: plain, asymmetric and seeds must pair up, each seed once")

    @property
    def changes(self) -> dict[int, float]:
        """By seed: Asymmetric minus Plain in percent of Plain's mean over seeds; empty if that is 0.

        A generalisation gap can be negative: the change is relative to its absolute value.
        """
        base = abs(sum(self.plain) / len(self.plain)) if self.plain else 0.0
        pairs = zip(self.seeds, self.plain, self.asymmetric, strict=True)
        return {seed: 100 * (after - before) / base for seed, before, after in pairs} if base else {}


@dataclass(frozen=True)
class Quantity:
    """A measured number under one reading, one value for each seed."""

    label: str
    values: tuple[float, ...]
    epochs: int
    spec_ids: tuple[str, ...]
    seeds: tuple[int, ...]
    stand_in: str = ""

    def __post_init__(self) -> None:
        if not len(self.values) == len(self.seeds) == len(set(self.seeds)):
            raise ValueError(f"{self.label}: values and seeds must pair up, each seed once")


Evidence = Effect | Quantity
Side = Mapping[int, tuple[float, str]]  # by seed, a number and the id of its spec


def paired(
    label: str, plain: Side, asymmetric: Side, epochs: int, stand_in: str = "", *, same: bool = False
) -> Effect | None:
    """The effect over the seeds of both sides; `same`: if all numbers are equal, they are one measurement."""
    seeds = tuple(seed for seed in plain if seed in asymmetric)
    before, after = (tuple(side[seed][0] for seed in seeds) for side in (plain, asymmetric))
    ids = tuple(side[seed][1] for seed in seeds for side in (plain, asymmetric))
    return Effect(label, before, after, epochs, ids, seeds, stand_in, same and before == after) if seeds else None


def by_reading(items: Iterable[tuple[str, Evidence | None]]) -> dict[str, dict[str, Evidence]]:
    """Evidence, paired with the names of its readings, by reading and then by label."""
    evidence: dict[str, dict[str, Evidence]] = {}
    for reading, numbers in items:
        if numbers is not None:
            evidence.setdefault(reading, {})[numbers.label] = numbers
    return evidence


def accuracy(run: Run, reading: Reading) -> float:
    """Test accuracy according to a reading; a diverged run counts at chance."""
    if run.outcome == "diverged":
        return 1 / class_count(run.spec)
    if reading.accuracy == "last20":
        tail = [epoch.test_accuracy for epoch in run.history[-LAST:]]
        assert None not in tail, f"{run.spec.id} was not tested at every epoch"
        return sum(tail) / len(tail)  # type: ignore[arg-type]
    best = run.best_validation if reading.accuracy == "best" else None
    tested = run.test_accuracy if best is None else best.test_accuracy
    assert tested is not None, f"{run.spec.id} was trained without test accuracy"
    return tested


def first_epochs(run: Run, count: int) -> Run:
    return dataclasses.replace(run, history=run.history[:count])
