"""Invariant 2 (CONTRIBUTING.md) on the CPU, in float32: small backbones, every setting."""

import dataclasses

import near_reference
import pytest
from equivalence import (
    Distances,
    assert_near_the_reference_together,
    assert_within_a_point,
    distance,
    interval_of,
    measure_accuracies,
    mixed_specs,
    patterns,
    reference_after,
    stack_after,
)
from near_reference import DRAWS, assert_stack_is_near, base_spec, few_steps_or_all
from small_runs import STRATEGIES

from asymtrain.lab.runs import RunSpec, grid
from small_backbones import LEARNING


@pytest.fixture(scope="module")
def dataset():
    return patterns()


@pytest.mark.parametrize("arch", ["mlp", *(pytest.param(arch, marks=pytest.mark.slow) for arch in ("cnn", "vit"))])
def test_runs_that_differ_in_everything_a_stack_keeps_for_each(arch, dataset):
    assert_stack_is_near(mixed_specs(base_spec(arch)), dataset, *STRATEGIES)


@pytest.mark.slow  # each setting alone is tried below
@pytest.mark.parametrize("arch", ["cnn", "vit"])
def test_settings_together(arch, dataset):
    options = {"cnn": {"dropout": 0.3, "points": (3, 1)}, "vit": {"branch_input": "mean", "points": (1,)}}[arch]
    together = {"class_reduction": "sum", "augmentation": "flip_shift", "schedule": "cosine", "decay": "matrices"}
    together |= {"activation": "all", "validation": "none", "arch_options": {**LEARNING[arch], **options}}
    assert_stack_is_near(mixed_specs(base_spec(arch, **together), runs=3), dataset, "batched")


VARIANTS = {
    "all": {"activation": "all"},
    "sum over classes": {"class_reduction": "sum"},
    "augmented": {"augmentation": "flip_shift"},
    "cosine": {"schedule": "cosine"},
    "decay of matrices": {"decay": "matrices", "weight_decay": 1.0},
    "no validation": {"validation": "none", "per_class": None, "batch": 45},
    "no subset": {"per_class": None, "batch": 48, "epochs": 13},
    "whole batches": {"per_class": None, "batch": 32},
    "one batch": {"per_class": 26, "batch": 500, "epochs": 50},
    "cosine at every step": {"cosine_every": 1},
    "truncated normal": {"arch_options": {**LEARNING["mlp"], "initialisation": "trunc_normal"}},
    "points in another order": {"arch_options": {**LEARNING["mlp"], "points": (2, 0)}, "activation": "all"},
}


LONG = ("one batch", "no subset", "whole batches", "cosine at every step")


@few_steps_or_all
@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(variant, id=name, marks=[pytest.mark.slow] if name in LONG else [])
        for name, variant in VARIANTS.items()
    ],
)
def test_every_setting(variant, steps, dataset):
    specs = mixed_specs(base_spec("mlp", **{"epochs": steps // 5, **variant}), runs=3)
    assert_stack_is_near(specs, dataset, *STRATEGIES, steps=steps)


@few_steps_or_all
@pytest.mark.parametrize("first", [0, 2])
def test_a_stack_takes_its_runs_in_any_order(first, steps, dataset):
    """`pairs` puts Plain first, and Plain has no branches to take the sizes from."""
    specs = mixed_specs(base_spec("mlp", activation="all"))
    specs = specs[first:] + specs[:first]
    assert_stack_is_near(specs, dataset, "batched", steps=steps)


# What a careless engine could get wrong by a hair.
MISTAKES = {
    "alpha": ({}, {"alpha": 1.001}),
    "learning rate": ({}, {"learning_rate": 1e-3 * 1.0001}),
    "weight decay": ({}, {"weight_decay": 0.02}),
    "seed": ({}, {"seed": 43}),
    "noise": ({}, {"label_noise": 0.02}),
    "schedule": ({}, {"schedule": "cosine"}),
    "decay": ({}, {"decay": "matrices"}),
    "augmentation": ({}, {"augmentation": "flip_shift"}),
    "activation": ({}, {"activation": "all"}),
    "reduction": ({}, {"class_reduction": "sum"}),
    "schedule by step": ({"schedule": "cosine"}, {"schedule_by": "step"}),
    "warm-up": ({"schedule_by": "step"}, {"warmup": 0.4}),
    "clip": ({"clip": 0.3}, {"clip": 0.5}),  # AdamW sees of the scale of gradients only how it changes
    "averaging": ({"averaging": 0.5}, {"averaging": 0.501}),
    "trivial": ({"augmentation": "flip_shift"}, {"augmentation": "trivial"}),
    "erasing": ({"erasing": 0.5}, {"erasing": 0.52}),
    "mixup": ({"mixup": 0.4}, {"mixup": 0.401}),
    "cutmix": ({"cutmix": 1.0}, {"cutmix": 0.9}),
}


@few_steps_or_all
@pytest.mark.parametrize(("given", "changed"), MISTAKES.values(), ids=MISTAKES)
def test_the_yardstick_sees_small_mistakes(given, changed, steps, dataset):
    spec = base_spec("mlp", epochs=steps // 5, **given)
    wrong = dataclasses.replace(spec, **changed)
    alone, moved = (reference_after(spec, dataset, steps, "cpu", perturb)[0] for perturb in (0.0, 1e-6))
    ((other, _),) = stack_after([wrong], dataset, steps, "cpu", "batched")
    assert distance(alone, other) > 3 * distance(alone, moved)


# A CNN that is done learning after three epochs. While it is at it, a perturbation of 1e-6 moves the mean of ten seeds
# by a point, and so does the rounding of another kind of CPU.
LEARNT = {**LEARNING, "cnn": {"widths": (16, 16), "pool_after": (1,), "hidden": (32,), "dropout": 0.2}}


@pytest.fixture(scope="module")
def larger():
    return patterns(classes=10, size=700, test_size=1000)


@pytest.mark.parametrize(
    ("arch", "strategy", "precision"),
    [
        ("mlp", "batched", "fp32"),
        ("mlp", "batched", "bf16"),
        ("cnn", "side_by_side", "fp32"),
        ("vit", "batched", "fp32"),
    ],
)
@pytest.mark.slow
def test_accuracies_agree_over_ten_seeds(arch, strategy, precision, larger):
    batch = 16 if arch == "cnn" else 32
    options = {"arch_options": LEARNT[arch], "epochs": 3, "batch": batch, "learning_rate": 5e-3}
    base = RunSpec(arch=arch, precision=precision, **options)
    specs = grid(base, seed=range(42, 52))
    assert_within_a_point(measure_accuracies(specs, larger, device="cpu", strategy=strategy))


def test_the_paired_test_sees_a_stack_that_is_farther():
    """On distances like those of full size: mostly 1e-6, now and then a crossing."""
    allowed = [1e-6, 2e-6, 1e-2, 1e-6, 3e-3, 2e-6, 1e-6, 5e-2, 1e-6, 2e-6]
    spec = base_spec("mlp")

    def found(distances):
        return [Distances(spec, d, a, 0.0, 1e-6) for d, a in zip(distances, allowed, strict=True)]

    assert_near_the_reference_together(found([1e-7] * 10))
    assert_near_the_reference_together(found(allowed[::-1]))  # as many crossings, in other runs
    assert_near_the_reference_together(found([1e-7] * 9 + [1e-2]))
    for wrong in ([1e-2] * 10, [(2 + i % 2) * a for i, a in enumerate(allowed)]):
        with pytest.raises(AssertionError):
            assert_near_the_reference_together(found(wrong))


@pytest.mark.parametrize("farther", range(len(DRAWS) + 1))
def test_a_stack_that_is_farther_with_every_seed_is_found(farther, monkeypatch):
    spec, asked = base_spec("mlp", seed=5), []

    def measure(specs, *_, **__):
        asked.append(specs[0].seed)
        return [Distances(specs[0], 1e-3 if len(asked) <= farther else 1e-7, 1e-6, 0.0, 1e-6)]

    monkeypatch.setattr(near_reference, "measure_distances", measure)
    if farther == len(DRAWS):
        with pytest.raises(AssertionError):
            assert_stack_is_near([spec], None, "batched")
    else:
        assert_stack_is_near([spec], None, "batched")
    assert asked == [5 + more for more in DRAWS[: farther + 1]]


def test_the_interval_is_student_s():
    found = interval_of([0.01, 0.03])
    assert (found.mean, found.low, found.high) == pytest.approx((0.02, 0.02 - 0.0631375, 0.02 + 0.0631375), abs=1e-6)
    with pytest.raises(AssertionError):
        assert_within_a_point(found)
