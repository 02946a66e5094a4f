"""What a stack and the reference owe a run: when test images are seen, and what happens when it diverges."""

import dataclasses
import functools
from collections import Counter

import numpy as np
import pytest
import torch
from equivalence import patterns
from small_runs import (
    STRATEGIES,
    TRAINERS,
    assert_same_bits,
    every_strategy,
    spec_of,
    stack_of,
    trained,
    weights_of,
    without_time,
)
from torch.utils._python_dispatch import TorchDispatchMode

from asymtrain import models
from asymtrain.lab.data import Dataset, Examples
from asymtrain.lab.engine import Stack, device_data, reference, train_reference
from asymtrain.lab.engine.losses import gradients
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.store.records import check_whole

# Test images are looked at only where the spec says so.


@pytest.fixture
def trap(dataset):
    """Test images of another size: whoever computes an accuracy on them fails."""
    images = np.zeros((40, 3, 4, 4), np.uint8)
    return Dataset("trap", dataset.train, Examples(images, dataset.test.labels), dataset.class_names)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_search_never_looks_at_the_test_images(trainer, trap):
    run, _ = trained(spec_of(test="never"), trap, trainer)
    assert [epoch.test_accuracy for epoch in run.history] == [None, None]
    for when in ("last", "every"):
        with pytest.raises(RuntimeError, match="shape"):
            trained(spec_of(test=when), trap, trainer)


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize(
    ("when", "seen"), [("last", [False, True]), ("every", [True, True]), ("never", [False, False])]
)
def test_accuracies_are_recorded_when_asked_for(trainer, when, seen, dataset):
    run, _ = trained(spec_of(test=when), dataset, trainer)
    assert [epoch.test_accuracy is not None for epoch in run.history] == seen
    assert (run.calibration_error is None) == (when == "never")
    assert all(epoch.validation_accuracy is not None for epoch in run.history)
    run, _ = trained(spec_of(validation="none"), dataset, trainer)
    assert all(epoch.validation_accuracy is None for epoch in run.history)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_noise_is_trained_on_and_never_validated_on(trainer, dataset):
    """With every label wrong, a network learns to be wrong: below chance on clean labels."""
    run, _ = trained(spec_of(label_noise=1.0, epochs=25, redundancy=0, learning_rate=1e-2), dataset, trainer)
    assert run.history[-1].train_accuracy > 0.5
    assert run.history[-1].validation_accuracy < 0.25
    assert run.history[-1].test_accuracy < 0.25


# A run that diverges.


@pytest.fixture(scope="module")
def diverging(dataset):
    """A rate at which the first epochs are finite and a later one is not."""
    spec = spec_of(learning_rate=500.0, epochs=6)
    lost = train_reference(spec, dataset)
    assert lost.outcome == "diverged"
    assert 0 < len(lost.history) < 6
    return spec, lost


@every_strategy
def test_a_diverged_run_keeps_its_last_good_epoch_and_its_neighbours_do_not_notice(strategy, diverging, dataset):
    spec, lost = diverging
    calm = dataclasses.replace(spec, learning_rate=1e-3)
    first, last = dataclasses.replace(calm, seed=1), dataclasses.replace(calm, seed=2, redundancy=0)
    stack = stack_of([first, spec, last], dataset, strategy)
    runs = stack.results()
    assert [run.outcome for run in runs] == ["finished", "diverged", "finished"]
    assert len(runs[1].history) == len(lost.history)
    assert stack.epoch == 6
    undisturbed = stack_of([first, calm, last], dataset, strategy)
    for at in (0, 2):
        assert_same_bits(weights_of(stack, at), weights_of(undisturbed, at))
        assert without_time(runs[at]) == without_time(undisturbed.results()[at])


@every_strategy
def test_a_stack_ends_when_all_its_runs_are_lost(strategy, diverging, dataset):
    spec, lost = diverging
    stack = stack_of([spec, dataclasses.replace(spec, alpha=2.0)], dataset, strategy)
    assert stack.epoch < 6
    assert [run.outcome for run in stack.results()] == ["diverged", "diverged"]
    assert len(stack.results()[0].history) == len(lost.history)


EXTREMES = {
    "the weight of the auxiliary loss": {"alpha": 1e30},
    "a weight that float32 cannot hold": {"alpha": 1e300},
    "the learning rate": {"learning_rate": 1e4},
    "a learning rate that float32 cannot hold": {"learning_rate": 1e300},
    "weight decay": {"weight_decay": 1e5},
    "a weight decay that float32 cannot hold": {"weight_decay": 1e300},
    "noise as large as a gradient": {"alpha": 1e30, "signal": "noise"},
}


@pytest.fixture(scope="module")
def undisturbed(dataset):
    """Histories of the first and the last of three runs of which none is lost; several tests ask for the same."""

    @functools.cache
    def train(first, calm, last, strategy):
        results = stack_of([first, calm, last], dataset, strategy).results()
        return [without_time(results[at]) for at in (0, 2)]

    return train


def each_extreme():
    """Every one on the smallest backbone, and every backbone with one; the others are slow tests."""
    for name, fields in EXTREMES.items():
        for arch in models.BACKBONES:
            quick = arch == "mlp" or name == "the learning rate"
            yield pytest.param(fields, arch, id=f"{name}-{arch}", marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(("fields", "arch"), [*each_extreme()])
def test_whatever_leaves_the_finite_numbers_makes_a_run_diverge(fields, arch, dataset, undisturbed):
    """In every trainer at the same epoch; all that is kept can be stored. Neighbours keep their bits."""
    calm = spec_of(arch, epochs=3, **{name: value for name, value in fields.items() if isinstance(value, str)})
    wild = dataclasses.replace(calm, seed=1, **fields)
    lost = train_reference(wild, dataset)
    assert lost.outcome == "diverged"
    check_whole(lost)
    for strategy in STRATEGIES:
        neighbours = [dataclasses.replace(calm, seed=2), dataclasses.replace(calm, seed=3, redundancy=0)]
        first, found, last = stack_of([neighbours[0], wild, neighbours[1]], dataset, strategy).results()
        assert (found.outcome, len(found.history)) == ("diverged", len(lost.history))
        for run in (first, found, last):
            check_whole(run)
        alone = undisturbed(neighbours[0], calm, neighbours[1], strategy)
        assert [without_time(first), without_time(last)] == alone


@every_strategy
def test_a_large_gradient_of_the_branches_is_no_gradient_of_the_backbone(strategy, dataset):
    """Squares of theirs leave float32 at this alpha, though nothing that is recorded does."""
    spec = spec_of("vit", alpha=1e20)
    (run,) = stack_of([spec], dataset, strategy).results()
    assert run.outcome == train_reference(spec, dataset).outcome == "finished"
    check_whole(run)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_an_accuracy_of_logits_that_are_not_finite_is_none(trainer, dataset, monkeypatch):
    """Weights and losses are finite, and only the 40 test images are too much for the network."""
    spec = spec_of(epochs=2, test="every", redundancy=0)
    module = reference if trainer == "reference" else device_data
    plain = module.normalise

    def overflowing(pixels, *statistics):
        return plain(pixels, *statistics) * (1e300 if pixels.shape[-4] == 40 else 1.0)

    assert trained(spec, dataset, trainer)[0].outcome == "finished"
    monkeypatch.setattr(module, "normalise", overflowing)
    run, _ = trained(spec, dataset, trainer)
    assert (run.outcome, run.history) == ("diverged", ())


def test_the_paths_are_two(dataset, monkeypatch):
    """Batched computes all runs in one call, side by side one run in each."""
    sizes = {}
    for strategy in ("batched", "side_by_side"):
        stack, seen = Stack([spec_of(seed=s) for s in range(3)], dataset, strategy=strategy), []
        losses = stack.programs.losses
        monkeypatch.setattr(
            stack.programs, "losses", lambda p, b, a, seen=seen, losses=losses: seen.append(len(a)) or losses(p, b, a)
        )
        stack.advance()
        sizes[strategy] = seen
    steps = stack.data.steps
    assert sizes == {"batched": [3] * steps, "side_by_side": [1] * (3 * steps)}


@every_strategy
def test_of_large_images_fewer_are_evaluated_at_once(strategy, monkeypatch):
    stack = Stack([spec_of(epochs=1)], patterns(classes=4, size=100, test_size=1100, image_size=64), strategy=strategy)
    sizes, chunk = [], stack.programs.chunk
    monkeypatch.setattr(stack.programs, "chunk", lambda x, indices: sizes.append(indices.shape[1]) or chunk(x, indices))
    stack.advance()
    assert sizes == [20, 550, 550]  # equal chunks of at most 1000, as many numbers as 4000 images of 32 x 32


def test_stacks_of_two_controls_share_every_compiled_part_but_the_signal(dataset, monkeypatch):
    monkeypatch.setattr("asymtrain.lab.engine.programs._COMPILED", {})
    stacks = [Stack([spec_of(signal=signal)], dataset) for signal in ("noise", "gated", "noise")]
    noise, gated, again = (stack.programs.compiled(("one shape",)) for stack in stacks)
    assert noise.losses is gated.losses
    assert noise.forward is gated.forward
    assert noise.signal is again.signal
    assert noise.signal is not gated.signal


KINDS = [
    {},
    {"objective": "softmax"},
    {"bias": "prior", "class_reduction": "sum"},
    {"branch_weights": "frozen"},
    {"signal": "detached"},
    {"redundancy": 0},
]


def stack_of_kinds(strategy="batched", widths=(8, 8)):
    """A stack of runs of several kinds, and its first batch."""
    specs = [RunSpec(arch_options={"widths": widths}, batch=8, epochs=1, **kind) for kind in KINDS]
    stack = Stack(specs, patterns(classes=4, size=40, test_size=8), strategy=strategy)
    stack.data.start_epoch(0)
    return stack, stack.data.next_batch()._replace(kind=stack.kind)


@pytest.mark.parametrize("strategy", ["batched", "side_by_side"])
def test_losses_of_several_kinds_are_one_graph_for_the_compiler(strategy):
    """A break would leave a part of every step to Python, and say nothing."""
    stack, batch = stack_of_kinds(strategy)
    losses = torch.compile(lambda *given: stack.loss(*given), backend="eager", fullgraph=True, dynamic=False)
    found, wanted = (
        gradients(
            of, stack.parameters, stack.weights, batch, torch.ones(len(KINDS)), strategy=strategy,
            gather=stack.parameters.gather, shared=stack.shared,
        )
        for of in (losses, stack.loss)
    )  # fmt: skip
    for one, two in zip(found, wanted, strict=True):
        assert torch.allclose(one, two)


class Operations(TorchDispatchMode):
    """Counts operations of torch by name."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[function.name()] += 1
        return function(*args, **(kwargs or {}))


def test_each_loss_is_taken_of_all_points_at_once():
    """The compiler makes one kernel of losses that read the same targets: with one for each point, it takes minutes."""
    stack, batch = stack_of_kinds(widths=(8, 8, 8, 8))
    with Operations() as seen:
        stack.loss(stack.parameters.views(stack.weights), batch, torch.ones(len(KINDS)))
    assert len(stack.network.points) == 3
    assert seen.counts["aten::binary_cross_entropy_with_logits"] == 2  # the mean over classes, and the sum
    assert seen.counts["aten::_log_softmax"] == 2  # the network's own, and that of branches


class Replayed:
    """Captured steps as a CPU can have them: a step is run once and put back, and run again at each replay."""

    def __init__(self):
        self.steps, self.late = {}, []

    def capture(self, kind, step, changing):
        if kind not in self.steps:
            kept = {name: value.clone() for name, value in changing().items()}
            step()
            for name, value in changing().items():
                value.copy_(kept[name])
            self.steps[kind] = step
            self.late.append(kind)

    def allows(self, step, changing):
        return True

    def replay(self, kind):
        self.steps[kind]()


@pytest.mark.parametrize("arch", ["mlp", "any_models:resnet"])
@pytest.mark.parametrize("begun", [0, 2])
def test_preparing_captures_every_kind_of_step_and_changes_nothing(arch, begun, dataset, monkeypatch):
    """Also within an epoch, as after a checkpoint; batch normalisation counts what it has seen."""
    specs = [spec_of(arch, seed=seed, cosine_every=2) for seed in (0, 1)]
    stack, other = (Stack(specs, dataset, strategy="side_by_side") for _ in range(2))
    for one in (stack, other) if begun else ():
        one.advance(pause=lambda one=one: one.step == begun)
        assert one.step == begun
    stack.captured = Replayed()
    monkeypatch.setattr(stack, "_programs", lambda: stack.programs)
    stack.prepare()
    assert len(stack.captured.late) > 1
    stack.captured.late.clear()
    while not stack.finished:
        stack.advance()
        other.advance()
    assert stack.captured.late == []
    for run, wanted in zip(stack.results(), other.results(), strict=True):
        assert without_time(run) == without_time(wanted)
    assert_same_bits(stack.state(), other.state())
