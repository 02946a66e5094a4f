"""Is a run in a stack what the reference makes of it alone? The asserts of invariant 2, for any device.

Two equally right programs part, because rounding differs and training is chaotic. How far they may part is
measured: after 50 steps, a stack must be as near to the reference as the reference is to itself with its initial
weights moved by 1e-6. Over whole epochs, accuracies must agree on average.
"""

import dataclasses
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from asymtrain.lab.data import Dataset, Examples
from asymtrain.lab.devices import products_of
from asymtrain.lab.engine import Stack, reference, train_reference
from asymtrain.lab.runs import RunSpec

STEPS = 50
PERTURBATION = 1e-6
POINT = 0.01

Named = dict[str, Tensor]


class _Enough(Exception):
    """The steps wanted are done."""


_REFERENCES: dict[tuple[object, ...], tuple[Named, Named]] = {}


def patterns(
    classes: int = 5, size: int = 200, test_size: int = 100, image_size: int = 8, noise: float = 0.5
) -> Dataset:
    """Images that are a pattern of their class under noise: learnt in a few epochs by the smallest network."""
    source = np.random.default_rng(0)
    means = source.random((classes, 3, 4, 4)).repeat(image_size // 4, 2).repeat(image_size // 4, 3)

    def images(count: int) -> Examples:
        labels = np.arange(count, dtype=np.int64) % classes
        drawn = means[labels] + noise * source.standard_normal((count, *means.shape[1:]))
        return Examples((drawn.clip(0, 1) * 255).astype(np.uint8), labels)

    return Dataset("patterns", images(size), images(test_size), tuple(map(str, range(classes))))


def mixed_specs(base: RunSpec, runs: int = 4) -> list[RunSpec]:
    """Runs that differ in everything that a stack keeps for each run: the first is the base, the third is Plain."""
    settings: list[dict[str, Any]] = [
        {},
        {
            "seed": 43,
            "alpha": 0.1,
            "learning_rate": 3e-3,
            "weight_decay": 0.5,
            "label_noise": 0.3,
            "layers": "later",
        },
        {"seed": 42, "redundancy": 0, "weight_decay": 0.1},
        {"seed": 44, "alpha": 10.0, "learning_rate": 3e-4, "weight_decay": 0.0, "label_noise": 0.9, "layers": "middle"},
    ]
    more = [{"seed": 45 + i, "alpha": 0.5 * i, "learning_rate": 1e-3 / (i + 1)} for i in range(max(0, runs - 4))]
    return [dataclasses.replace(base, **changed) for changed in (settings + more)[:runs]]


def reference_after(
    spec: RunSpec, dataset: Dataset, steps: int, device: str, perturb: float = 0.0
) -> tuple[Named, Named]:
    """Backbone, with its average where the run has one, and live branches of the reference after so many steps."""
    key = (spec, id(dataset), steps, device, perturb)
    if key not in _REFERENCES:
        attached: list[Any] = []
        averages: list[Any] = []
        found: list[tuple[Named, Named]] = []

        def attach(*arguments: Any) -> Any:
            attached.append(original(*arguments))
            return attached[-1]

        def averaged(*arguments: Any) -> Any:
            averages.append(original_average(*arguments))
            return averages[-1]

        def look(step: int, backbone: torch.nn.Module) -> None:
            if step + 1 == steps:
                heads = [attached[0].head(layer) for layer in attached[0].layers] if attached else []
                branches = {}
                for k, head in enumerate(heads):
                    if isinstance(head.live, torch.nn.ModuleList):
                        own = [dict(module.named_parameters()) for module in head.live]
                        branches |= {f"branch.{k}.{n}": torch.stack([values[n] for values in own]) for n in own[0]}
                        continue
                    branches[f"branch.{k}"] = head.live.reshape(-1, *head.live.shape[-2:])
                    if head.bias is not None:
                        branches[f"branch.{k}.bias"] = head.bias.reshape(-1, head.bias.shape[-1])
                trained = {name: value for name, value in backbone.named_parameters() if value.requires_grad}
                for average in averages:
                    trained |= {f"average.{n}": v for n, v in average.module.named_parameters() if v.requires_grad}
                found.append((_copied(trained), _copied(branches)))
                raise _Enough

        original, original_average = reference.attach_branches, reference._averaged
        patches = patch.multiple(reference, attach_branches=attach, _averaged=averaged)
        with patches, suppress(_Enough):
            train_reference(spec, dataset, device=device, on_step=look, perturb=perturb)
        _REFERENCES[key] = found[0]
    return _REFERENCES[key]


def stack_after(
    specs: list[RunSpec], dataset: Dataset, steps: int, device: str, strategy: str
) -> list[tuple[Named, Named]]:
    """Backbone, with its average where the run has one, and live branches of each run of a stack after some steps."""
    with products_of(specs[0].precision):
        stack = Stack(specs, dataset, device=device, strategy=strategy)
        total = stack.data.steps

        def enough() -> bool:
            return stack.epoch * total + stack.step >= steps

        while not enough():
            stack.advance(pause=enough)
        assert stack.epoch * total + stack.step == steps
    views = stack.parameters.views(stack.weights)
    runs = []
    for r, spec in enumerate(specs):
        one = _copied({name: views[name][r] for name in stack.names[r]})
        branches = {name: one.pop(name) for name in list(one) if name.startswith("branch.")}
        if spec.averaging:
            averages = stack.parameters.views(stack.average)
            one |= _copied({f"average.{name}": averages[name][r] for name in list(one)})
        runs.append((one, branches if spec.redundancy else {}))
    return runs


def distance(first: Named, second: Named) -> float:
    """|first - second| / |first| over all parameters."""
    assert first.keys() == second.keys()
    apart = sum((first[name] - second[name]).square().sum().item() for name in first)
    return math.sqrt(apart / sum(value.square().sum().item() for value in first.values()))


@dataclass(frozen=True)
class Distances:
    """How far one run of a stack lies from the reference, and how far that may be."""

    spec: RunSpec
    backbone: float
    backbone_allowed: float
    branches: float
    branches_allowed: float

    def row(self) -> str:
        """One line of the table that the GPU tests print."""
        return (
            f"seed {self.spec.seed} alpha {self.spec.alpha:<6g} lr {self.spec.learning_rate:<8.2g} "
            f"backbone {self.backbone:.2e} (allowed {self.backbone_allowed:.2e})  "
            f"branches {self.branches:.2e} (allowed {self.branches_allowed:.2e})"
        )


def measure_distances(
    specs: list[RunSpec], dataset: Dataset, *, device: str, strategy: str, steps: int = STEPS
) -> list[Distances]:
    """Each run of the stack against the reference, and the perturbed reference against the reference."""
    found = []
    for spec, together in zip(specs, stack_after(specs, dataset, steps, device, strategy), strict=True):
        alone = reference_after(spec, dataset, steps, device)
        moved = reference_after(spec, dataset, steps, device, PERTURBATION)
        parts = [distance(alone[0], together[0]), distance(alone[0], moved[0]), 0.0, 0.0]
        if spec.redundancy:
            # The perturbation moves the backbone only; the branches get at least what it would have moved them by.
            parts[2:] = [distance(alone[1], together[1]), max(PERTURBATION, distance(alone[1], moved[1]))]
        found.append(Distances(spec, *parts))
    return found


def assert_near_the_reference(found: Sequence[Distances]) -> None:
    """Invariant 2, first half, run by run."""
    for run in found:
        assert run.backbone <= run.backbone_allowed, run.row()
        assert run.branches <= run.branches_allowed, run.row()
        assert run.backbone_allowed < 0.1, f"training has forgotten its start, nothing is compared: {run.row()}"


def assert_near_the_reference_together(found: Sequence[Distances]) -> None:
    """Invariant 2, first half, over all runs of a stack: it may not be farther than the perturbation, run for run.

    At full size a run's distance is 1e-6 or, where a ReLU or a maximum happens to fall on the other side, 1e-3 to
    1e-1. Which runs cross is chance, for the perturbation as for rounding, so one run alone says nothing. A paired
    t-test on the logarithms over the runs must not find the stack farther.
    """
    assert probability_of_being_no_farther(found) > 0.01, "\n".join(run.row() for run in found)


def probability_of_being_no_farther(found: Sequence[Distances]) -> float:
    """One-sided p of the paired test; small where the stack is farther from the reference than is allowed."""
    ratios = [math.log(max(run.backbone, 1e-12) / run.backbone_allowed) for run in found]
    return float(stats.ttest_1samp(ratios, 0.0, alternative="greater").pvalue)


@dataclass(frozen=True)
class Interval:
    """The 90% interval of paired accuracy differences, stack minus reference."""

    differences: tuple[float, ...]
    mean: float
    low: float
    high: float
    learnt: float = math.inf  # the reference's mean accuracy, as a multiple of chance

    def row(self) -> str:
        """The lines that the GPU tests print: the interval, and each seed's difference behind it."""
        each = " ".join(f"{100 * difference:+.2f}" for difference in self.differences)
        return (
            f"mean {100 * self.mean:+.3f} points, 90% interval [{100 * self.low:+.3f}, {100 * self.high:+.3f}] "
            f"(n={len(self.differences)}); the reference is at {self.learnt:.1f} times chance\n"
            f"    each seed: {each}"
        )


def interval_of(differences: Sequence[float]) -> Interval:
    """Student's interval of the mean."""
    count = len(differences)
    mean = math.fsum(differences) / count
    deviation = math.sqrt(math.fsum((d - mean) ** 2 for d in differences) / (count - 1))
    reach = float(stats.t.ppf(0.95, count - 1)) * deviation / math.sqrt(count)
    return Interval(tuple(differences), mean, mean - reach, mean + reach)


def measure_accuracies(
    specs: list[RunSpec], dataset: Dataset, *, device: str, strategy: str, alone: Sequence[float] | None = None
) -> Interval:
    """Train the stack and the reference of each spec to the end; compare the last test accuracies.

    `alone` are the reference's, where they are known.
    """
    with products_of(specs[0].precision):
        stack = Stack(specs, dataset, device=device, strategy=strategy)
        while not stack.finished:
            stack.advance()
    together = [run.test_accuracy for run in stack.results()]
    if alone is None:
        alone = reference_accuracies(specs, dataset, device=device)
    found = interval_of([a - b for a, b in zip(together, alone, strict=True)])
    return dataclasses.replace(found, learnt=dataset.classes * math.fsum(alone) / len(alone))


def reference_accuracies(specs: list[RunSpec], dataset: Dataset, *, device: str) -> list[float]:
    """The last test accuracy of each spec, trained by the reference."""
    return [train_reference(spec, dataset, device=device).test_accuracy or 0.0 for spec in specs]


def assert_within_a_point(found: Interval, learnt: float = 1.5) -> None:
    """Invariant 2, second half."""
    assert found.learnt > learnt, f"nothing was learnt, nothing is compared: {found.row()}"
    assert -POINT <= found.low <= found.high <= POINT, found.row()


def _copied(named: Named) -> Named:
    """In float64 on the host, without the key biases of attention.

    A bias of the keys adds the same to all scores of a query, so the softmax, the loss and every other parameter do
    not depend on it. Its gradient is rounding noise, which AdamW scales up to full steps: two runs of one program
    with another order of summation differ there as much as two seeds do.
    """
    copied = {}
    for name, value in named.items():
        if name.endswith(".key.bias"):
            continue
        if name.endswith(("attention.qkv.bias", "self_attn.in_proj_bias", "attn.qkv.bias")):
            query, _, rest = value.chunk(3)
            value = torch.cat([query, rest])
        copied[name] = value.detach().cpu().double().clone()
    return copied
