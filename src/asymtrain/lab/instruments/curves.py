"""Values over training, as means over seeds with intervals; names of groups of runs that differ only in their seed."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

from asymtrain.errors import unknown_name
from asymtrain.intervals import ANYTHING, COSINES, Bounds
from asymtrain.lab.report.figure import Colour, Line
from asymtrain.lab.report.table import Cell, Value, interval
from asymtrain.lab.runs import DEFAULTS, Epoch, Run, RunSpec
from asymtrain.lab.statistics.estimates import DIFFERENCES, POSITIVE, SHARES, Estimate, estimate
from asymtrain.models import display_name

T = TypeVar("T")


def gap(epoch: Epoch) -> float | None:
    """Generalisation gap: training accuracy minus validation accuracy.

    Training accuracy is measured on the batches during the epoch; so early in training, and under dropout or
    augmentation, the gap may be negative.
    """
    return None if epoch.validation_accuracy is None else epoch.train_accuracy - epoch.validation_accuracy


BOUNDS: dict[str, Bounds] = {
    "train_accuracy": SHARES,
    "validation_accuracy": SHARES,
    "gap": DIFFERENCES,
    "main_loss": POSITIVE,
    "auxiliary_loss": POSITIVE,
    "main_norm": POSITIVE,
    "auxiliary_norm": POSITIVE,
    "cosine": COSINES,
}
"""The smallest and the largest value of each curve: its intervals are clipped there."""
CURVES: dict[str, Callable[[Epoch], float | None]] = {
    name: gap if name == "gap" else attrgetter(name) for name in BOUNDS
}


@dataclass(frozen=True)
class Curve:
    """A value over training: for each epoch the mean over seeds with its interval, and each seed's own value."""

    epochs: tuple[int, ...]
    points: tuple[Estimate, ...]
    seeds: tuple[tuple[float | None, ...], ...]  # (runs, epochs)
    names: tuple[str, ...] = ()  # of the seeds

    def line(self, label: str, colour: Colour, *, thin: bool = False) -> Line:
        """Means with their intervals; the values of each seed can be shown."""
        line = line_of(label, colour, self.epochs, self.points, thin=thin)
        return dataclasses.replace(line, seeds=self.seeds, seed_names=self.names, seeds_on_demand=True)


def line_of(label: str, colour: Colour, x: Iterable[float], points: Sequence[Estimate], *, thin: bool = False) -> Line:
    """Means with their intervals; a thin line is the secondary one of two and has no band."""
    mean, low, high = (tuple(getattr(point, end) for point in points) for end in ("mean", "low", "high"))
    if thin:
        low = high = ()
    return Line(label, colour, tuple(map(float, x)), mean, low, high, thin=thin)


def curve(runs: Sequence[Run], value: Callable[[Epoch], float | None], within: Bounds = ANYTHING) -> Curve:
    """A value of each epoch over runs of the same length; see `estimate` for `within`."""
    seeds = tuple(tuple(map(value, run.history)) for run in runs)
    return curve_of(seeds, within, tuple(str(run.spec.seed) for run in runs))


def curve_of(
    seeds: tuple[tuple[float | None, ...], ...], within: Bounds = ANYTHING, names: tuple[str, ...] = ()
) -> Curve:
    points = tuple(estimate(values, within=within) for values in zip(*seeds, strict=True))
    return Curve(tuple(range(1, len(points) + 1)), points, seeds, names)


def by_setting(items: Iterable[T], spec_of: Callable[[T], RunSpec]) -> dict[RunSpec, list[T]]:
    """Groups of items that differ only in their seed, in the order in which they come; the key has seed 0."""
    groups: dict[RunSpec, list[T]] = {}
    for item in items:
        groups.setdefault(dataclasses.replace(spec_of(item), seed=0), []).append(item)
    return groups


def in_variants(spec: RunSpec, names: Iterable[str], variants: Mapping[str, Mapping[str, Any]]) -> list[RunSpec]:
    """The spec with the fields of each named variant of its branches."""
    specs = []
    for name in names:
        if name not in variants:
            raise unknown_name("variant of the branches", name, variants)
        specs.append(dataclasses.replace(spec, **variants[name]))
    return specs


def differing_settings(specs: Sequence[RunSpec], without: Sequence[str] = ()) -> list[list[str]]:
    """For each spec, every setting in which specs of its backbone differ, in words.

    The seed, the dataset and the fields in `without` are never named.
    """
    names = [name for name in DEFAULTS if name not in {"arch", "seed", "dataset", *without}]
    values_by_name: dict[str, list[str]] = {}
    for arch in dict.fromkeys(spec.arch for spec in specs):
        alike = [spec for spec in specs if spec.arch == arch]
        values_by_name[arch] = [name for name in names if len({getattr(spec, name) for spec in alike}) > 1]
    return [[f"{name.replace('_', ' ')} {getattr(spec, name)}" for name in values_by_name[spec.arch]] for spec in specs]


def spec_labels(specs: Sequence[RunSpec], without: Sequence[str] = ()) -> list[str]:
    """A short name for each spec: its backbone, the dataset if there are several, and what differs."""
    several = len({spec.dataset for spec in specs}) > 1
    return [
        ", ".join([display_name(spec.arch), *([spec.dataset] if several else ()), *differing])
        for spec, differing in zip(specs, differing_settings(specs, without), strict=True)
    ]


def cells(spec_ids: Iterable[str], *values: Value | Cell | Estimate) -> tuple[Cell, ...]:
    """A row of a table that comes from these runs. An estimate becomes its interval, if it has one."""
    ids = tuple(spec_ids)

    def cell(value: Value | Cell | Estimate) -> Cell:
        if isinstance(value, Estimate):
            value = interval(value.low, value.high)
        return dataclasses.replace(value, spec_ids=ids) if isinstance(value, Cell) else Cell(value, ids)

    return tuple(map(cell, values))


def counted(runs: int, diverged: int) -> Cell:
    return Cell(runs, mark=f"({diverged} diverged)" if diverged else "")
