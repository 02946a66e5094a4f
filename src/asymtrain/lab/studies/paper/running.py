"""Train and measure what recipes need: what is missing, how long it will take, and the loop that does it.

A round trains everything that can be named now, in one call of `executors.execute`, so that runs of several recipes
share stacks; the next round knows more (the choices of a search). What was stored is never done twice, so the same
call goes on where the last one stopped.
"""

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.studies.paper.measurements import Workplace, passes_of, take
from asymtrain.lab.studies.paper.recipe import Measuring, Needs, Recipe, needs_of, of_archs
from asymtrain.lab.studies.paper.snapshot import Snapshot, class_count, image_counts, read_store
from asymtrain.lab.studies.paper.study import Study


@dataclass(frozen=True)
class Missing:
    """What is still to be done, as far as it can be named."""

    specs: tuple[RunSpec, ...]
    measurements: tuple[Measuring, ...]
    later: int  # trainings that wait for others, at most

    @property
    def is_empty(self) -> bool:
        return not (self.specs or self.measurements or self.later)


def missing(recipes: Sequence[Recipe], study: Study, known: Snapshot, archs: Collection[str] | None = None) -> Missing:
    """What the store does not hold; of these backbones, where some are named."""
    return missing_of(of_archs(needs_of(recipes, study, known), archs), known)


def missing_of(needs: Needs, known: Snapshot) -> Missing:
    """What the store does not hold of these needs."""
    return Missing(
        tuple(spec for spec in needs.specs if spec.id not in known.runs),
        tuple(wanted for wanted in needs.measurements if known.values(wanted.spec, wanted.name) is None),
        sum(needs.later.values()),
    )


def check_data(left: Missing, data_root: Path | None) -> None:
    """Load every dataset that is needed, so that missing files show before anything is trained.

    What waits for a search needs the search's data.
    """
    from asymtrain.lab.engine import load_for

    wanted = [*left.specs, *(measuring.spec for measuring in left.measurements)]
    for spec in {(spec.dataset, spec.dataset_options): spec for spec in wanted}.values():
        load_for(spec, data_root)


@dataclass(frozen=True)
class Done:
    """How a call ended: what the store holds and what is left, and whether the user ended it."""

    known: Snapshot
    left: Missing
    interrupted: bool


def run_recipes(
    recipes: Sequence[Recipe],
    study: Study,
    store: Path,
    *,
    known: Snapshot | None = None,
    minutes: float | None = None,
    device: str | None = None,
    data_root: Path | None = None,
    on_run: Callable[[Run, int, int], None] = lambda run, done, total: None,
    on_measurement: Callable[[Measuring, int, int], None] = lambda measured, done, total: None,
    **options: Any,
) -> Done:
    """Do what is missing, round by round, until nothing is or `minutes` are over.

    `known` is what the store holds, if it was just read: with half a million epochs that takes seconds. `options` are
    those of `execute`.
    """
    from asymtrain.lab import executors  # here: torch is loaded to train, not to say what is missing

    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    tried: set[str] = set()  # a training that failed is not asked for again in this call
    workplace, interrupted = Workplace(store, device, data_root), False
    known = read_store(store) if known is None else known
    try:
        with executors.Workers() as workers:
            while True:
                left = missing(recipes, study, known)
                specs = [spec for spec in left.specs if spec.id not in tried]
                seconds = _seconds_left(deadline)
                if not specs or seconds <= 0:
                    break
                tried.update(spec.id for spec in specs)
                rest = None if deadline is None else max(1e-3, seconds / 60)
                where = {"store": store, "device": device, "data_root": data_root, "workers": workers, **options}
                trained = executors.execute(specs, minutes=rest, **where)
                for done, run in enumerate(trained, 1):
                    on_run(run, done, len(specs))
                known = read_store(store)
        wanted = left.measurements
        for done, measured in enumerate(_until(deadline, take(wanted, workplace)), 1):
            on_measurement(measured, done, len(wanted))
    except KeyboardInterrupt:
        interrupted = True
    if interrupted or left.measurements:
        known = read_store(store)
    return Done(known, missing(recipes, study, known), interrupted)


def _until(deadline: float | None, taken: Iterator[Measuring]) -> Iterator[Measuring]:
    """What is taken until time is over; a measurement that has begun is finished."""
    while _seconds_left(deadline) > 0 and (measured := next(taken, None)) is not None:
        yield measured


def _seconds_left(deadline: float | None) -> float:
    return float("inf") if deadline is None else deadline - time.monotonic()


# Images a second that the engine trains, summed over the runs of a stack: docs/performance.md has the measurement (H200
# in bf16; one core of a CPU in float32). A guess for any other device, and for smaller networks a pessimistic one.
RULE = {
    "cuda": {"mlp": 18e6, "cnn": 169e3, "vit": 227e3},
    "cpu": {"mlp": 20e3, "cnn": 37e0, "vit": 121e0},
}
# The same on one core for the small networks of the scale `quick`.
SMALL = {"mlp": 5e3, "cnn": 800.0, "vit": 1100.0}
# Seconds before the first step: torch is loaded, workers start, and on a GPU compiled code is loaded from the cache
# (docs/performance.md).
START = {"cuda": 20.0, "cpu": 10.0}
SURFACES = 5  # that a draw of directions takes at four redundancies, both scalings and the control
# A landscape's forward passes are in float32 or TF32, the rule's rates in bf16. The factors are those of the paper's
# ViT, 65 s a network in float32, and CNN, 38 s in TF32, on an H200 (results/200-epochs-landscapes).
SLOWER = {"cuda": {"fp32": 7, "tf32": 3}, "cpu": {"fp32": 1, "tf32": 1}}
PASSES = 3  # forward passes in the time of a training step


@dataclass(frozen=True)
class Estimate:
    """Seconds of wall time, and how many of the trainings were like a stored one."""

    seconds: float
    runs: int
    like: int
    rates: str = ""  # of which precision the rule's rates are, where it is not that of the runs

    @property
    def basis(self) -> str:
        if self.like == self.runs:
            return "by like runs of the store"
        rule = f"a rule of thumb (images a second of each backbone{self.rates})"
        return f"by {rule}" if not self.like else f"by like runs of the store for {self.like} of them, else by {rule}"


def image_steps(spec: RunSpec, epochs: int | None = None) -> float:
    """What a run costs, in images that are trained on: an evaluated one is a forward pass alone."""
    total, tested = image_counts(spec)
    total = total if spec.per_class is None else spec.per_class * class_count(spec)
    split = spec.validation == "split"
    every = (0.8 if split else 1.0) * total + (0.2 * total * split + tested * (spec.test == "every")) / PASSES
    return (spec.epochs if epochs is None else epochs) * every + tested * (spec.test == "last") / PASSES


def estimate(specs: Sequence[RunSpec], known: Snapshot, device: str, workers: int, small: bool) -> Estimate:
    """Wall time of these trainings on so many workers (cores, or GPUs) of a kind of device (cpu, cuda)."""
    timed = [run for run in known.runs.values() if is_timed(run, device)]
    rates, of_models = _rates(timed, _kind), _rates(timed, lambda spec: (spec.arch,))
    rule = SMALL if small and device == "cpu" else RULE[device]
    known_rates = [rates.get(_kind(spec)) for spec in specs]
    seconds = sum(
        image_steps(spec) / (rate or rule.get(spec.arch) or of_models.get((spec.arch,), min(rule.values())))
        for spec, rate in zip(specs, known_rates, strict=True)
    )
    slower = device == "cuda" and any(spec.precision != "bf16" for spec in specs)
    like = len(specs) - known_rates.count(None)
    return Estimate(seconds / max(1, workers), len(specs), like, " in bf16, which is faster" if slower else "")


def is_timed(run: Run, device: str) -> bool:
    """Does the run tell a rate of this kind of device?"""
    return (run.device == "cpu") == (device == "cpu") and run.seconds > 0


def _rates(runs: Iterable[Run], kind: Callable[[RunSpec], tuple[object, ...]]) -> dict[tuple[object, ...], float]:
    """Images a second of each kind of run; a run's seconds are its share of its stack's.

    Of the fastest: slower ones were short, in a small stack, or beside other work on the device.
    """
    rates: defaultdict[tuple[object, ...], float] = defaultdict(float)
    for run in runs:
        rate = image_steps(run.spec, len(run.history)) / run.seconds
        rates[kind(run.spec)] = max(rate, rates[kind(run.spec)])
    return dict(rates)


def _kind(spec: RunSpec) -> tuple[object, ...]:
    both = spec.signal in ("noise", "gated")  # these take both gradients at every step
    return (spec.arch, spec.arch_options, spec.precision, spec.activation == "all" and spec.redundancy, both)


def measurement_seconds(wanted: Sequence[Measuring], known: Snapshot, device: str, workers: int, small: bool) -> float:
    """Wall time of measurements: states are trained again to their last epoch, landscapes are forward passes alone."""
    again = {
        measuring.spec.id: dataclasses.replace(measuring.spec, epochs=max(measuring.epochs))
        for measuring in wanted
        if max(measuring.epochs) > 0
    }
    # One process measures: on a CPU the other cores help little.
    trained = estimate(list(again.values()), known, device, workers if device == "cuda" else 1, small).seconds
    rule = SMALL if small and device == "cpu" else RULE[device]
    forward = 0.0
    for first, *_ in passes_of(measuring for measuring in wanted if measuring.kind == "landscape"):
        settings = first.settings
        images = SURFACES * settings.draws * settings.grid**2 * settings.sample
        forward += images * SLOWER[device][settings.precision] / (PASSES * rule[first.spec.arch])
    return trained + forward
