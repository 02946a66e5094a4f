"""How long runs will take: by similar runs in the store, else by a rule of thumb."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from asymtrain.lab.data import registry, shapes
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.studies.snapshot import Snapshot

# Images a second that the engine trains, summed over the runs of a stack, as measured in results/benchmarks/
# (stack-h200.txt, bf16; stack-cpu.txt, a core in float32). A guess for other devices, and low for small networks
RULE = {
    "cuda": {"mlp": 18e6, "cnn": 169e3, "vit": 227e3},
    "cpu": {"mlp": 20e3, "cnn": 37e0, "vit": 121e0},
}
# The same on one core for the small networks of the scale `quick`.
SMALL = {"mlp": 5e3, "cnn": 800.0, "vit": 1100.0}
# Seconds before the first step: torch is loaded, workers start, and on a GPU compiled code is loaded from the cache
# (docs/performance.md).
START = {"cuda": 20.0, "cpu": 10.0}
PASSES = 3  # a training step takes as long as this many forward passes
BOTH = 1.9  # how much longer a step with both gradients takes (noise, gated): ViT-Tiny, MLP-Mixer (practice-signal)


@dataclass(frozen=True)
class TimeEstimate:
    """Seconds of wall time, and how many of the runs resemble a stored one."""

    seconds: float
    runs: int
    like: int
    rates: str = ""  # the precision of the rule's rates, if the runs have another

    @property
    def basis(self) -> str:
        if self.like == self.runs:
            return "by like runs of the store"
        rule = f"a rule of thumb (images a second of each backbone{self.rates})"
        return f"by {rule}" if not self.like else f"by like runs of the store for {self.like} of them, else by {rule}"


def class_count(spec: RunSpec) -> int:
    count = registry.class_count(spec.dataset, dict(spec.dataset_options))
    assert count is not None, f"{spec.dataset} does not tell how many classes it has"
    return count


def image_counts(spec: RunSpec) -> tuple[int, int]:
    """Images to train and to test on; as many as `shapes` has if a source does not tell."""
    size = registry.size_of(spec.dataset, dict(spec.dataset_options))
    return (size and size.train) or shapes.SIZE, (size and size.test) or shapes.TEST_SIZE


def count_test_images(spec: RunSpec) -> int:
    return image_counts(spec)[1]


def image_steps(spec: RunSpec, epochs: int | None = None) -> float:
    """The cost of a run in trained images: an evaluated image takes a forward pass alone."""
    total, tested = image_counts(spec)
    total = total if spec.per_class is None else spec.per_class * class_count(spec)
    split = spec.validation == "split"
    every = (0.8 if split else 1.0) * total * spec.passes + (
        0.2 * total * split + tested * (spec.test == "every")
    ) / PASSES
    return (spec.epochs if epochs is None else epochs) * every + tested * (spec.test == "last") / PASSES


def estimate(specs: Sequence[RunSpec], snapshot: Snapshot, device: str, workers: int, small: bool) -> TimeEstimate:
    """Wall time of these runs on `workers` workers (cores, or GPUs) of a kind of device (cpu, cuda)."""
    rates, of_models = _known_rates(snapshot, device)
    rule = SMALL if small and device == "cpu" else RULE[device]
    known_rates = [rates.get(_kind(spec)) for spec in specs]

    def rate_of_model(spec: RunSpec) -> float:
        rate = rule.get(spec.arch) or of_models.get(spec.arch, min(rule.values()))
        return rate / BOTH if takes_both(spec) else rate

    seconds = sum(
        image_steps(spec) / (rate or rate_of_model(spec)) for spec, rate in zip(specs, known_rates, strict=True)
    )
    slower = device == "cuda" and any(spec.precision != "bf16" for spec in specs)
    like = len(specs) - known_rates.count(None)
    return TimeEstimate(seconds / max(1, workers), len(specs), like, " in bf16, which is faster" if slower else "")


def is_timed(run: Run, device: str) -> bool:
    """Does the run show a rate for this kind of device?"""
    return (run.device == "cpu") == (device == "cpu") and run.seconds > 0


def has_rates(specs: Iterable[RunSpec], snapshot: Snapshot, device: str) -> bool:
    """Is there a rule or a timed run for each of the models?"""
    return {spec.arch for spec in specs} <= {*RULE[device], *_known_rates(snapshot, device)[1]}


@lru_cache(maxsize=1)  # a list asks for one store's rates many times
def _known_rates(snapshot: Snapshot, device: str) -> tuple[Mapping[tuple[object, ...], float], Mapping[str, float]]:
    """Images a second of each kind of run, and of each model; a run's seconds are its share of its stack's.

    The fastest run counts: slower ones were short, in a small stack, or beside other work on the device.
    """
    rates, of_models = defaultdict[tuple[object, ...], float](float), defaultdict[str, float](float)
    for run in snapshot.runs.values():
        if is_timed(run, device):
            rate, kind, arch = image_steps(run.spec, len(run.history)) / run.seconds, _kind(run.spec), run.spec.arch
            rates[kind], of_models[arch] = max(rate, rates[kind]), max(rate, of_models[arch])
    return dict(rates), dict(of_models)


def _kind(spec: RunSpec) -> tuple[object, ...]:
    every = spec.activation == "all" and spec.redundancy
    return (spec.arch, spec.arch_options, spec.precision, every, takes_both(spec))


def takes_both(spec: RunSpec) -> bool:
    """Does every step compute the gradients of both objectives separately?"""
    return spec.signal in ("noise", "gated")
