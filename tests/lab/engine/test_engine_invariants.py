"""Invariants 3 to 5 (CONTRIBUTING.md): exact, so bits are compared."""

import dataclasses
import functools

import pytest
import torch
from equivalence import distance
from near_reference import assert_in_one_draw
from small_runs import (
    TRAINERS,
    assert_same_bits,
    differ,
    every_arch,
    every_strategy,
    spec_of,
    stack_of,
    trained,
    weights_of,
    without_time,
)

from asymtrain.lab.engine import Stack, train_reference
from asymtrain.lab.engine.setup import build_backbone, run_data
from asymtrain.lab.runs import Epoch

# Invariant 3: random streams are keyed by (seed, purpose) alone.

CHANGES = {
    "Plain": {"redundancy": 0},
    "alpha": {"alpha": 7.0},
    "N": {"redundancy": 20},
    "activation": {"activation": "all"},
    "class_reduction": {"class_reduction": "sum"},
    "learning rate": {"learning_rate": 0.1},
    "weight decay": {"weight_decay": 0.3, "decay": "matrices"},
    "schedule": {"schedule": "cosine", "epochs": 5},
    "recording": {"test": "never", "cosine_every": 0},
}


def batches_of(stack, run, epochs=2):
    """What one run is given, step by step."""
    for epoch in range(epochs):
        stack.data.start_epoch(epoch)
        for _ in range(stack.data.steps):
            batch = stack.data.next_batch()
            yield {
                "images": batch.images[run],
                "targets": batch.targets[run],
                "weight": batch.weight,
                "keep": torch.zeros(0) if batch.keep is None else batch.keep[run],
            }


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@every_arch
def test_settings_do_not_move_initial_weights_split_order_augmentation_or_dropout(arch, change, dataset):
    base = spec_of(arch, label_noise=0.4, augmentation="flip_shift")
    other = dataclasses.replace(base, **change)
    first, second = Stack([base], dataset), Stack([other], dataset)
    assert_same_bits(weights_of(first), weights_of(second))
    for one, two in zip(batches_of(first, 0), batches_of(second, 0), strict=True):
        assert_same_bits(one, two)
    assert torch.equal(first.data.validation, second.data.validation)


@every_arch
def test_another_seed_moves_all_of_them(arch, dataset):
    base = spec_of(arch, label_noise=0.4, redundancy=5)
    first, second = (Stack([dataclasses.replace(base, seed=seed)], dataset) for seed in (1, 2))
    assert differ(weights_of(first), weights_of(second))
    assert not torch.equal(first.data.validation, second.data.validation)
    for field in next(batches_of(first, 0)):
        if field == "weight" or (field == "keep" and not first.network.dropout_width):
            continue
        pairs = zip(batches_of(first, 0), batches_of(second, 0), strict=True)
        assert any(not torch.equal(one[field], two[field]) for one, two in pairs), field


def test_the_parts_of_a_seed_are_drawn_apart(dataset):
    """Noise does not move the split, and a subset moves neither the split nor the weights."""
    base = run_data(spec_of(), dataset)
    noisy = run_data(spec_of(label_noise=0.5), dataset)
    assert (base.train == noisy.train).all()
    assert (base.labels[base.validation] == noisy.labels[noisy.validation]).all()
    assert (noisy.labels != dataset.train.labels).sum() == round(0.5 * len(base.train))
    few = run_data(spec_of(per_class=3), dataset)
    assert set(few.train) <= set(base.train)
    assert (few.validation == base.validation).all()
    assert torch.equal(
        build_backbone(spec_of(), dataset).head.weight, build_backbone(spec_of(per_class=3), dataset).head.weight
    )


NEIGHBOURS = [
    {"seed": 7, "alpha": 3.0, "label_noise": 0.5},
    {"seed": 8, "redundancy": 0, "learning_rate": 0.02},
    {"seed": 42, "weight_decay": 0.5},
]


@pytest.mark.parametrize("activation", ["last", "all"])
@every_arch
def test_a_run_is_given_the_same_in_any_stack(arch, activation, dataset):
    spec = spec_of(arch, augmentation="flip_shift", activation=activation, label_noise=0.2)
    others = [dataclasses.replace(spec, **changed) for changed in NEIGHBOURS]
    alone = Stack([spec], dataset)
    for specs in ([spec, others[0]], [*others, spec], [others[1], spec, others[2]]):
        stack, at = Stack(specs, dataset), specs.index(spec)
        assert_same_bits(weights_of(alone), weights_of(stack, at))
        for one, two in zip(batches_of(alone, 0), batches_of(stack, at), strict=True):
            assert_same_bits(one, two)


@every_strategy
@every_arch
def test_a_run_ends_the_same_in_any_stack(arch, strategy, dataset):
    """To the bit next to other neighbours; in a stack of another size up to the rounding of its products."""
    spec = spec_of(arch)
    others = [dataclasses.replace(spec, **changed) for changed in NEIGHBOURS]
    first = weights_of(stack_of([spec, others[0]], dataset, strategy))
    assert_same_bits(first, weights_of(stack_of([others[2], spec], dataset, strategy), 1))
    larger = weights_of(stack_of([*others, spec], dataset, strategy), 3)
    if strategy == "side_by_side":
        assert_same_bits(first, larger)
    assert distance(first, larger) < 1e-4


# Invariant 4: a measurement leaves training as it is.


@pytest.mark.parametrize("trainer", TRAINERS)
@every_arch
def test_measurements_leave_the_trained_weights(arch, trainer, dataset):
    unseen, plain_sight = (
        trained(spec_of(arch, cosine_every=every, test=test), dataset, trainer)
        for every, test in ((0, "never"), (1, "every"))
    )
    assert_same_bits(unseen[1], plain_sight[1])
    assert [epoch.main_loss for epoch in unseen[0].history] == [epoch.main_loss for epoch in plain_sight[0].history]
    assert [epoch.cosine for epoch in unseen[0].history] == [None, None]
    for epoch in plain_sight[0].history:
        assert -1 <= epoch.cosine_min < epoch.cosine < epoch.cosine_max <= 1


@every_strategy
@every_arch
def test_histories_agree_with_the_reference(arch, strategy, dataset):
    recording = {"cosine_every": 1, "test": "every"}
    specs = [spec_of(arch, **recording, alpha=alpha, label_noise=0.2) for alpha in (0.5, 0.0, 20.0)]
    check = functools.partial(assert_histories_of_the_reference, dataset=dataset, strategy=strategy)
    assert_in_one_draw(check, specs)
    assert_in_one_draw(check, [specs[0].plain()])


def assert_histories_of_the_reference(specs, dataset, strategy):
    for spec, run in zip(specs, stack_of(specs, dataset, strategy).results(), strict=True):
        expected = train_reference(spec, dataset)
        assert (run.spec, run.outcome, run.path, run.device) == (spec, "finished", strategy, "cpu")
        assert expected.path == "reference"
        for seen, right in zip(run.history, expected.history, strict=True):
            for name in Epoch._fields:
                value, wanted = getattr(seen, name), getattr(right, name)
                if name != "seconds":
                    assert (value is None) == (wanted is None), name
                    assert value is None or value == pytest.approx(wanted, rel=1e-3, abs=1e-3), name


# Invariant 5: idle branches take part in nothing.


@pytest.mark.parametrize("trainer", TRAINERS)
@every_arch
def test_redundancy_does_not_reach_the_backbone(arch, trainer, dataset):
    one, twenty = (trained(spec_of(arch, redundancy=n, epochs=1), dataset, trainer) for n in (1, 20))
    assert_same_bits(one[1], twenty[1])
    assert without_time(one[0]) == without_time(twenty[0])


@pytest.mark.parametrize("trainer", TRAINERS)
def test_where_all_are_live_redundancy_does_reach_it(trainer, dataset):
    one, twenty = (trained(spec_of(redundancy=n, epochs=1, activation="all"), dataset, trainer)[1] for n in (1, 20))
    assert differ(one, twenty)


def test_one_and_twenty_branches_share_a_stack(dataset):
    specs = [spec_of(redundancy=n) for n in (20, 1)]
    stack = stack_of(specs, dataset)
    assert_same_bits(weights_of(stack, 0), weights_of(stack, 1))


# The same spec, the same numbers.


@pytest.mark.parametrize("trainer", TRAINERS)
@every_arch
def test_the_same_spec_gives_the_same_bits(arch, trainer, dataset):
    spec = spec_of(arch, activation="all", augmentation="flip_shift", cosine_every=1)
    torch.manual_seed(1)
    first = trained(spec, dataset, trainer)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = trained(spec, dataset, trainer)
    assert torch.equal(torch.get_rng_state(), state)
    assert without_time(first[0]) == without_time(second[0])
    assert_same_bits(first[1], second[1])


@pytest.mark.parametrize("trainer", TRAINERS)
def test_more_threads_change_only_the_rounding(trainer, dataset):
    """Products of this size are split over threads, so that sums are rounded in another order."""
    spec = spec_of("mlp", arch_options={"widths": (256, 256)}, epochs=2, learning_rate=1e-3)
    ends, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            ends.append(trained(spec, dataset, trainer)[1])
    finally:
        torch.set_num_threads(before)
    assert distance(*ends) < 1e-4
