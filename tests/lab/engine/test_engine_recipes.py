"""Invariant 2 (CONTRIBUTING.md) for what recipes are made of: each part alone, and all of them together."""

import dataclasses
from functools import partial

import near_reference
import pytest
import torch
from equivalence import (
    assert_near_the_reference_together,
    measure_distances,
    mixed_specs,
    patterns,
)
from near_reference import assert_stack_is_near, few_steps_or_all
from small_runs import STRATEGIES, TRAINERS, compiles, spec_of, stack_of, trained

from asymtrain.lab.engine import Stack
from asymtrain.lab.engine.optimizer import adamw_elementwise_
from asymtrain.lab.engine.plan import strategy_for
from small_backbones import SMALL


@pytest.fixture(scope="module")
def dataset():
    return patterns()


base_spec = partial(near_reference.base_spec, redundancy=2)
PARTS = {
    "decay of matrices": {"decay": "matrices", "weight_decay": 0.1},
    "cosine by step, warm-up": {"schedule": "cosine", "schedule_by": "step", "warmup": 1.5},
    "constant, warm-up by epoch": {"warmup": 2},
    "clip": {"clip": 0.3},
    "averaging": {"averaging": 0.5},  # a larger one begins to count after more steps
    "trivial": {"augmentation": "trivial"},
    "policy": {"augmentation": "policy", "passes": 2},
    "policy first": {"augmentation": "policy_first"},
    "erasing": {"erasing": 0.6, "erased_area": 0.4},
    "mixup": {"mixup": 0.4},
    "cutmix": {"cutmix": 1.0, "mixing": 0.5},
    "mixup or cutmix": {"mixup": 0.4, "cutmix": 1.0},
    "mixup, random labels, softmax": {"mixup": 0.4, "branch_labels": "random", "objective": "softmax"},
    "mixup, regression of classes": {"mixup": 0.4, "objective": "mse"},
    "cutmix, all live, smoothing": {"cutmix": 1.0, "activation": "all", "label_smoothing": 0.2},
    "mixup, cosines": {"mixup": 0.4, "cosine_every": 3},
}
TOGETHER = {
    "schedule": "cosine", "schedule_by": "step", "warmup": 1.5, "decay": "matrices", "clip": 0.5, "averaging": 0.9,
    "label_smoothing": 0.1, "activation": "all", "augmentation": "trivial", "erasing": 0.3, "mixup": 0.4,
    "cutmix": 1.0,
}  # fmt: skip
AS_PUBLISHED = TOGETHER | {"augmentation": "policy", "passes": 2, "erased_area": 0.4, "mixing": 0.5}


# A case of each part; the others are slow tests.
QUICK = ("cosine by step, warm-up", "clip", "averaging", "trivial", "policy", "erasing", "mixup or cutmix")


@few_steps_or_all
@pytest.mark.parametrize(
    "part",
    [pytest.param(part, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, part in PARTS.items()],
)
def test_each_part_alone(part, steps, dataset):
    specs = mixed_specs(base_spec("mlp", epochs=steps // 5, **part), runs=3)
    assert_stack_is_near(specs, dataset, *STRATEGIES, steps=steps)


@few_steps_or_all
@pytest.mark.parametrize("arch", ["mlp", "cnn"])
def test_all_parts_together(arch, steps, dataset):
    specs = mixed_specs(base_spec(arch, arch_options=SMALL[arch], epochs=steps // 5, **TOGETHER), runs=3)
    assert_stack_is_near(specs, dataset, "batched", steps=steps)


@few_steps_or_all
def test_runs_of_one_stack_differ_in_what_it_keeps_for_each(steps, dataset):
    base = base_spec("mlp", epochs=steps // 5, erasing=0.5, mixup=0.2, cutmix=0.3)
    changes = [
        {"clip": 0.1, "cutmix": 3.0},
        {"averaging": 0.5, "seed": 1, "erasing": 0.9},
        {"schedule": "cosine", "redundancy": 0},
        {"schedule": "cosine", "schedule_by": "step", "warmup": 1, "label_smoothing": 0.2, "mixup": 0.5},
    ]
    assert_stack_is_near(
        [dataclasses.replace(base, **changed) for changed in changes], dataset, *STRATEGIES, steps=steps
    )


@pytest.mark.gpu
@compiles
@pytest.mark.parametrize("arch", ["mlp", "cnn"])
def test_all_parts_together_on_a_gpu(arch, dataset):
    specs = mixed_specs(base_spec(arch, **TOGETHER), runs=10)
    strategy = strategy_for(arch, torch.device("cuda"))
    assert_near_the_reference_together(measure_distances(specs, dataset, device="cuda", strategy=strategy))


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_average_is_evaluated_and_not_trained(trainer):
    dataset = patterns(noise=3.0)  # so hard that two networks never agree on all of it
    plain = spec_of(learning_rate=0.05, test="every", epochs=3)
    averaged = dataclasses.replace(plain, averaging=0.999)
    (raw, raw_weights), (run, weights) = (trained(spec, dataset, trainer) for spec in (plain, averaged))
    assert all(torch.equal(raw_weights[name], weights[name]) for name in weights)
    assert [epoch.main_loss for epoch in raw.history] == [epoch.main_loss for epoch in run.history]
    assert [epoch.test_accuracy for epoch in raw.history] != [epoch.test_accuracy for epoch in run.history]


def test_a_run_without_an_average_is_evaluated_as_it_stands_beside_one_with(dataset):
    specs = [spec_of(averaging=0.999, test="every"), spec_of(test="every")]
    stack = stack_of(specs, dataset)
    assert torch.equal(stack.average[1], stack.weights[1])
    assert not torch.equal(stack.average[0], stack.weights[0])


@pytest.mark.parametrize("settings", [TOGETHER, AS_PUBLISHED], ids=["strong", "as published"])
def test_a_step_is_one_graph_without_a_look_at_its_numbers(settings, dataset):
    """As a captured graph needs it: what is compiled whole reads nothing back."""

    def whole(function):
        return torch.compile(function, fullgraph=True, dynamic=False, backend="aot_eager")

    spec = base_spec("mlp", **settings, branch_labels="random")
    first, second = (Stack([spec, spec.plain()], dataset) for _ in range(2))
    compiled = whole(first.data.next_batch)
    for stack in (first, second):
        stack.data.start_epoch(0, 3)
    for _ in range(2):  # the last one is shorter
        pairs = zip(compiled(), second.data.next_batch(), strict=True)
        assert all(torch.equal(one, two) if two is not None else one is None for one, two in pairs)

    for stack, form in ((first, whole), (second, lambda function: function)):
        programs, moments = stack.programs, stack.moments
        gradient = form(programs.clip)(torch.ones_like(stack.weights), stack.clip)
        rate = form(lambda rates, step: rates.index_select(1, (step - 1)[None]) + 0.1)(stack.rates, stack.data.step)
        memory = (moments.first, moments.second, moments.updates.add_(1))
        form(adamw_elementwise_)(stack.weights, gradient, *memory, rate, stack.decay)
        form(programs.average)(stack.average, stack.weights, stack.averaging, moments.updates - 1)
    for name, value in first.state().items():
        assert torch.allclose(value, second.state()[name]), name


def test_what_a_spec_does_not_ask_for_is_not_kept(dataset):
    stack = Stack([spec_of()], dataset)
    assert stack.average is None
    assert stack.clip is None
    assert "average" not in stack.state()
