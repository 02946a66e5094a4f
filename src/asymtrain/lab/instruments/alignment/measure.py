"""Gradient alignment through training, from recorded runs: final, average, least and largest cosine, share in conflict.

The engine records the cosine between main and auxiliary gradients at chosen steps of each epoch. Here these become
the numbers of a run, with an interval over its batches, and of several seeds, with an interval over them. Pure
functions; a cosine that is undefined is None and enters no mean.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from asymtrain.errors import UsageError
from asymtrain.intervals import COSINES, CosineSummary, batch_means, mean
from asymtrain.lab.instruments.curves import Curve, by_setting, curve
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.statistics.estimates import POSITIVE, SHARES, Estimate, estimate

VARIANTS: dict[str, dict[str, Any]] = {
    "trained": {},
    "frozen": {"branch_weights": "frozen"},
    "detached": {"signal": "detached"},
}
"""Branches trained with the run; frozen at initialisation; or trained on detached features: the cosine is then of the
gradient that the branches would send back, and the backbone is Plain's."""
NO_BRANCHES = "none of these runs has branches: alignment needs Asymmetric runs"


@dataclass(frozen=True)
class RunConflict(CosineSummary):
    """The alignment of one run. Means are over its epochs; an epoch's value is a mean over its measured steps.

    `final` is the mean cosine of the last epoch, `undefined` counts epochs, the blocks of the interval are epochs.
    `min`, `max` and `conflict` are over single measured steps.
    """

    id: str
    seed: int
    outcome: str
    epochs: int
    epoch_min: float | None  # of the epochs' means
    epoch_max: float | None


@dataclass(frozen=True)
class Conflict:
    """The alignment of runs that differ in their seed only; estimates are over seeds.

    A diverged run counts, with the epochs before it diverged; `RunConflict.outcome` names it.
    """

    spec: RunSpec  # of the first seed
    variant: str  # "trained", "frozen", "detached", or another signal's name
    runs: tuple[RunConflict, ...]
    final: Estimate
    mean: Estimate
    min: Estimate  # of each seed's smallest step
    max: Estimate
    conflict: Estimate
    main_norm: Estimate
    auxiliary_norm: Estimate

    @property
    def diverged(self) -> int:
        return sum(run.outcome == "diverged" for run in self.runs)

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "spec": self.spec.to_dict()}


def variant_of(spec: RunSpec) -> str:
    """The name of a spec in `VARIANTS`, or the name of its signal if it is none of them."""
    if spec.signal != "gradient":
        return spec.signal
    return "frozen" if spec.branch_weights == "frozen" else "trained"


def run_conflict(run: Run) -> RunConflict:
    spec, history = run.spec, run.history
    if spec.redundancy == 0:
        raise UsageError(f"run {spec.id} is Plain: it has no auxiliary gradient; choose an Asymmetric run")
    if spec.cosine_every == 0:
        raise UsageError(f"run {spec.id} recorded no cosine: train it with cosine_every of 1 or more")

    def values_of(name: str) -> list[float]:
        return [value for epoch in history if (value := getattr(epoch, name)) is not None]

    cosines = values_of("cosine")
    low, high, blocks, autocorrelation = batch_means(cosines, least=1, within=COSINES)
    return RunConflict(
        id=spec.id,
        seed=spec.seed,
        outcome=run.outcome,
        epochs=len(history),
        undefined=len(history) - len(cosines),
        final=history[-1].cosine if history else None,
        mean=mean(cosines),
        min=min(values_of("cosine_min"), default=None),
        max=max(values_of("cosine_max"), default=None),
        epoch_min=min(cosines, default=None),
        epoch_max=max(cosines, default=None),
        conflict=mean(values_of("conflict")),
        low=low,
        high=high,
        blocks=blocks,
        autocorrelation=autocorrelation,
        main_norm=mean(values_of("main_norm")),
        auxiliary_norm=mean(values_of("auxiliary_norm")),
    )


def conflicts(runs: Iterable[Run]) -> list[Conflict]:
    """One entry for each spec with branches, with all its seeds, in the order of the runs; skips Plain runs."""
    asymmetric = {run.spec.id: run for run in runs if run.spec.redundancy > 0}.values()
    if not asymmetric:
        raise UsageError(NO_BRANCHES)
    groups = by_setting(asymmetric, lambda run: run.spec).values()
    return [_together(sorted(group, key=lambda run: run.spec.seed)) for group in groups]


def cosine_curve(runs: Sequence[Run]) -> Curve:
    """The cosine of each epoch that every run reached: a run that ended early must not shift the mean."""
    length = min(len(run.history) for run in runs)
    cut = [Run(run.spec, run.history[:length], run.outcome) for run in runs]
    return curve(cut, lambda epoch: epoch.cosine, COSINES)


def _together(runs: Sequence[Run]) -> Conflict:
    parts = tuple(run_conflict(run) for run in runs)
    bounds = dict.fromkeys(("final", "mean", "min", "max"), COSINES)
    bounds |= {"conflict": SHARES, "main_norm": POSITIVE, "auxiliary_norm": POSITIVE}
    return Conflict(
        spec=runs[0].spec,
        variant=variant_of(runs[0].spec),
        runs=parts,
        **{name: estimate((getattr(part, name) for part in parts), within=within) for name, within in bounds.items()},
    )
