"""How training went, from recorded runs: convergence, generalisation gap, when two ways of training part.

Pure functions of `Run`s. Estimates are means over seeds with t intervals, clipped to possible values. A diverged run
has no complete trajectory: it is left out and counted.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from asymtrain.errors import UsageError
from asymtrain.lab.instruments.curves import BOUNDS, CURVES, Curve, by_setting, curve, curve_of
from asymtrain.lab.runs import Epoch, Run, RunSpec
from asymtrain.lab.statistics.estimates import DIFFERENCES, SHARES, Estimate, estimate

TOLERANCE = 0.01  # share of the best validation accuracy within which a run has converged
PHASES = (0.1, 0.5, 1.0)  # of training, at which the gap is reported: epochs 10, 50 and 100 of 100


@dataclass(frozen=True)
class Trajectory:
    """Runs that differ in their seed only."""

    spec: RunSpec  # of the first seed
    seeds: tuple[int, ...]
    diverged: int
    convergence: Estimate  # epoch from which a run is about as good as its best (`convergence_epoch`); over seeds
    convergence_of_mean: int  # the same epoch for the mean curve
    final: Estimate  # validation accuracy after the last epoch
    best: Estimate  # highest validation accuracy
    gaps: tuple[tuple[int, Estimate], ...]  # generalisation gap at chosen epochs
    curves: dict[str, Curve]

    def to_dict(self) -> dict[str, Any]:
        gaps = {str(epoch): dataclasses.asdict(value) for epoch, value in self.gaps}
        return {**dataclasses.asdict(self), "spec": self.spec.to_dict(), "variant": self.spec.variant, "gaps": gaps}


@dataclass(frozen=True)
class Parting:
    """When the validation curves of Plain and Asymmetric part: their paired difference over training.

    They part at the first epoch from which the interval of the difference excludes 0 on one side until the last epoch.
    The intervals are for single epochs, not for the whole curve at once.
    """

    epoch: int | None  # None if they do not part
    side: Literal["above", "below"] | None  # whether Asymmetric is above or below Plain from there on
    pairs: int  # seeds that both sides have
    difference: Curve  # Asymmetric - Plain


@dataclass(frozen=True)
class TrajectoryPair:
    """Asymmetric runs beside the Plain runs of the same settings."""

    plain: Trajectory
    asymmetric: Trajectory
    parting: Parting

    def to_dict(self) -> dict[str, Any]:
        parting = dataclasses.asdict(self.parting)
        return {"plain": self.plain.to_dict(), "asymmetric": self.asymmetric.to_dict(), "parting": parting}


@dataclass(frozen=True)
class Trajectories:
    """Comparisons of Asymmetric with Plain; trajectories without a partner; specs whose seeds all diverged."""

    comparisons: tuple[TrajectoryPair, ...]
    alone: tuple[Trajectory, ...]
    lost: tuple[RunSpec, ...]


def convergence_epoch(accuracies: Sequence[float]) -> int:
    """First epoch, from 1, whose accuracy is at least (1 - TOLERANCE) times the best."""
    least = (1 - TOLERANCE) * max(accuracies) - 1e-12  # accuracies are counts over images: the margin is for rounding
    return next(number for number, value in enumerate(accuracies, start=1) if value >= least)


def gap_epochs(epochs: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(max(1, round(share * epochs)) for share in PHASES))


def trajectory(runs: Sequence[Run]) -> Trajectory:
    """The trajectory of runs that differ in their seed only."""
    whole = sorted((run for run in runs if run.outcome == "finished"), key=lambda run: run.spec.seed)
    if not whole:
        raise UsageError(f"all {len(runs)} runs diverged: there is no trajectory; lower the learning rate")
    spec = whole[0].spec
    for run in whole:
        if any(epoch.validation_accuracy is None for epoch in run.history):
            raise UsageError(f"run {run.spec.id} has no validation accuracy: train it with validation='split'")
    curves = {name: curve(whole, value, BOUNDS[name]) for name, value in CURVES.items()}
    accuracies = [[value for value in seed if value is not None] for seed in curves["validation_accuracy"].seeds]
    means = [point.mean for point in curves["validation_accuracy"].points if point.mean is not None]
    return Trajectory(
        spec=spec,
        seeds=tuple(run.spec.seed for run in whole),
        diverged=len(runs) - len(whole),
        convergence=estimate(map(convergence_epoch, accuracies), within=(1, spec.epochs)),
        convergence_of_mean=convergence_epoch(means),
        final=estimate((values[-1] for values in accuracies), within=SHARES),
        best=estimate((max(values) for values in accuracies), within=SHARES),
        gaps=tuple((number, curves["gap"].points[number - 1]) for number in gap_epochs(spec.epochs)),
        curves={name: values for name, values in curves.items() if any(point.n for point in values.points)},
    )


def parting(plain: Sequence[Run], asymmetric: Sequence[Run]) -> Parting:
    """When the validation accuracies of two ways of training part, from the seeds that both finished."""
    others = {run.spec.seed: run for run in plain if run.outcome == "finished"}
    both = [(others[run.spec.seed], run) for run in asymmetric if run.outcome == "finished" and run.spec.seed in others]
    both.sort(key=lambda pair: pair[1].spec.seed)
    seeds = tuple(tuple(map(_difference, a.history, b.history)) for a, b in both)
    difference = curve_of(seeds, DIFFERENCES)
    parted: int | None = None
    side: Literal["above", "below"] | None = None
    for epoch, point in reversed(list(zip(difference.epochs, difference.points, strict=True))):
        if point.low is None or point.high is None or point.low <= 0 <= point.high:
            break
        here: Literal["above", "below"] = "above" if point.low > 0 else "below"
        if side is not None and here != side:
            break
        parted, side = epoch, here
    return Parting(parted, side, len(both), difference)


def compare_trajectories(runs: Iterable[Run]) -> Trajectories:
    """The trajectories of all runs, Asymmetric beside Plain if both are there.

    Runs belong together if they differ only in their seed; one group of Plain runs may be the partner of several
    Asymmetric ones.
    """
    groups = by_setting({run.spec.id: run for run in runs}.values(), lambda run: run.spec)
    finished_groups = {spec: group for spec, group in groups.items() if any(run.outcome == "finished" for run in group)}
    lost = [group for spec, group in groups.items() if spec not in finished_groups]
    if not finished_groups:
        if not lost:
            raise UsageError("there is no run to follow: give at least one")
        raise UsageError(f"all {sum(map(len, lost))} runs diverged: there is no trajectory; lower the learning rate")
    followed = {spec: trajectory(group) for spec, group in finished_groups.items()}
    pairs = [
        (spec.plain(), spec) for spec in finished_groups if spec.redundancy > 0 and spec.plain() in finished_groups
    ]
    paired = {spec for pair in pairs for spec in pair}
    return Trajectories(
        tuple(
            TrajectoryPair(followed[a], followed[b], parting(finished_groups[a], finished_groups[b])) for a, b in pairs
        ),
        tuple(followed[spec] for spec in finished_groups if spec not in paired),
        tuple(group[0].spec for group in lost),
    )


def _difference(plain: Epoch, asymmetric: Epoch) -> float | None:
    if plain.validation_accuracy is None or asymmetric.validation_accuracy is None:
        return None
    return asymmetric.validation_accuracy - plain.validation_accuracy
