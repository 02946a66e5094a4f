"""How long trainings will take: from like runs of the store, else by a stated rule."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from asymtrain.lab.data import cifar
from asymtrain.lab.paper.known import Snapshot, class_count, count_test_images
from asymtrain.lab.runs import Run, RunSpec

# Images a second that the engine trains, summed over the runs of a stack: docs/performance.md has the measurement (H200
# in bf16; one core of a CPU in float32). A guess for any other device, and for smaller networks a pessimistic one.
RULE = {
    "cuda": {"mlp": 18e6, "cnn": 169e3, "vit": 227e3},
    "cpu": {"mlp": 20e3, "cnn": 37e0, "vit": 121e0},
}
# The same on one core for the small networks of the scale `quick`.
SMALL = {"mlp": 5e3, "cnn": 800.0, "vit": 1100.0}
SURFACES = 5  # that a draw of directions takes at four redundancies, both scalings and the control
# A landscape's forward passes are in float32, the rule's rates in bf16. The factor is a guess from the peaks of the two
# on an H200, not a measurement.
FLOAT32 = {"cuda": 8, "cpu": 1}
PASSES = 3  # forward passes in the time of a training step


@dataclass(frozen=True)
class Estimate:
    """Seconds of wall time, and how many of the trainings were like a stored one."""

    seconds: float
    runs: int
    like: int

    @property
    def basis(self) -> str:
        """What the number rests on."""
        if self.like == self.runs:
            return "by like runs of the store"
        rule = "a rule of thumb (images a second of each backbone)"
        return f"by {rule}" if not self.like else f"by like runs of the store for {self.like} of them, else by {rule}"


def image_steps(spec: RunSpec, epochs: int | None = None) -> float:
    """What a run costs, in images that are trained on: an evaluated one is a forward pass alone."""
    classes, real = class_count(spec), spec.dataset in cifar.SOURCES
    options = dict(spec.dataset_options)
    if spec.per_class is not None:
        total = spec.per_class * classes
    else:
        total = 50_000 if real else int(options.get("size", 4000))  # type: ignore[arg-type]
    tested = count_test_images(spec)
    split = spec.validation == "split"
    every = (0.8 if split else 1.0) * total + (0.2 * total * split + tested * (spec.test == "every")) / PASSES
    return (spec.epochs if epochs is None else epochs) * every + tested * (spec.test == "last") / PASSES


def estimate(specs: Sequence[RunSpec], known: Snapshot, device: str, workers: int, small: bool) -> Estimate:
    """Wall time of these trainings on so many workers (cores, or GPUs) of a kind of device (cpu, cuda)."""
    rates = _rates(known.runs.values(), device)
    rule = SMALL if small and device == "cpu" else RULE[device]
    seconds, like = 0.0, 0
    for spec in specs:
        images = image_steps(spec)
        rate = rates.get(_kind(spec))
        like += rate is not None
        seconds += images / (rate or rule.get(spec.arch, min(rule.values())))
    return Estimate(seconds / max(1, workers), len(specs), like)


def _rates(runs: Iterable[Run], device: str) -> dict[tuple[object, ...], float]:
    """Images a second of each kind of run; a run's seconds are its share of its stack's."""
    images: dict[tuple[object, ...], float] = {}
    seconds: dict[tuple[object, ...], float] = {}
    for run in runs:
        if (run.device == "cpu") == (device == "cpu") and run.seconds > 0:
            kind = _kind(run.spec)
            images[kind] = images.get(kind, 0.0) + image_steps(run.spec, len(run.history))
            seconds[kind] = seconds.get(kind, 0.0) + run.seconds
    return {kind: images[kind] / seconds[kind] for kind in images}


def _kind(spec: RunSpec) -> tuple[object, ...]:
    both = spec.signal in ("noise", "gated")  # these take both gradients at every step
    return (spec.arch, spec.arch_options, spec.precision, spec.activation == "all" and spec.redundancy, both)


def measurement_seconds(wanted: Sequence[Any], known: Snapshot, device: str, workers: int, small: bool) -> float:
    """Wall time of measurements: states are trained again to their last epoch, landscapes are forward passes alone."""
    again = {
        one.spec.id: dataclasses.replace(one.spec, epochs=max(one.epochs)) for one in wanted if max(one.epochs) > 0
    }
    # One process measures: on a CPU the other cores help little.
    trained = estimate(list(again.values()), known, device, workers if device == "cuda" else 1, small).seconds
    rule = SMALL if small and device == "cpu" else RULE[device]
    forward = 0.0
    for one in wanted:
        if one.kind == "landscape":
            settings = one.settings
            images = SURFACES * settings.draws * settings.grid**2 * settings.sample
            forward += images * FLOAT32[device] / (PASSES * rule[one.spec.arch])
    return trained + forward
