"""Specs and runs as values: what they normalise, refuse and say."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings

from asymtrain import UsageError
from asymtrain.lab.runs import DEFAULTS, Epoch, Run, RunSpec, from_stored, grid, pairs
from run_values import fields


@settings(deadline=None)
@given(values=fields)
def test_a_spec_survives_json(values):
    spec = RunSpec(**values)
    again = RunSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert again.id == spec.id
    assert hash(again) == hash(spec)
    assert all(value != DEFAULTS[name] for name, value in from_stored(spec.to_dict()).items())
    assert dataclasses.replace(spec) == spec


@settings(deadline=None)
@given(values=fields)
def test_plain_is_one_spec_whatever_it_is_compared_with(values):
    plain, bare = RunSpec(**values).plain(), {**values, "redundancy": 0}
    for name in ("activation", "alpha", "class_reduction", "cosine_every"):
        bare.pop(name, None)
    assert plain == RunSpec(**bare)
    assert plain.id == RunSpec(**bare).id
    assert plain.alpha == 0.0
    assert plain.plain() == plain
    assert plain.variant == "plain"
    assert RunSpec(**{**values, "redundancy": 1}).variant == "asymmetric"


EQUAL_FORMS = [
    ({"alpha": 2}, {"alpha": 2.0}, {"alpha": np.float64(2)}, {"alpha": np.float32(2)}, {"alpha": np.int64(2)}),
    ({"seed": 43}, {"seed": 43.0}, {"seed": np.int64(43)}, {"seed": np.uint8(43)}),
    ({"seed": 2**60 + 1}, {"seed": np.int64(2**60 + 1)}),
    ({"weight_decay": 0.0}, {"weight_decay": -0.0}, {"weight_decay": 0}),
    ({"per_class": 5}, {"per_class": np.int32(5)}, {"per_class": 5.0}),
    (
        {"arch_options": {"widths": (8, 4), "points": (0,)}},
        {"arch_options": [["points", [0]], ["widths", [8.0, 4]]]},
        {"arch_options": (("widths", (8, 4)), ("points", range(1)))},
    ),
    ({"arch": "cnn", "arch_options": {"dropout": 0}}, {"arch": "cnn", "arch_options": {"dropout": 0.0}}),
    ({"arch": "cnn", "arch_options": {"dropout": 0.5}}, {"arch": "cnn", "arch_options": {"dropout": np.float64(0.5)}}),
    ({"redundancy": 0}, {"redundancy": 0, "alpha": 3.0}, {"redundancy": 0, "activation": "all"}),
]


@pytest.mark.parametrize("forms", EQUAL_FORMS, ids=str)
def test_equal_settings_have_one_form_and_one_id(forms):
    specs = [RunSpec(**form) for form in forms]
    assert len(set(specs)) == 1
    assert len({spec.id for spec in specs}) == 1
    assert len({json.dumps(spec.to_dict()) for spec in specs}) == 1


BAD = [
    ({"redundancy": -1}, "redundancy must be 0 or more, got -1"),
    ({"alpha": -0.1}, r"alpha must be 0 or more, got -0\.1"),
    ({"alpha": float("nan")}, "alpha must be a finite number"),
    ({"alpha": float("inf")}, "alpha must be a finite number"),
    ({"alpha": "1"}, "alpha must be a number, got '1'"),
    ({"alpha": None}, "alpha must be a number, got None"),
    ({"alpha": True}, "alpha must be a number, got True"),
    ({"alpha": [1, 2]}, "alpha must be a number"),
    ({"weight_decay": -1e-9}, "weight_decay must be 0 or more"),
    ({"learning_rate": 0}, "learning_rate must be above 0"),
    ({"label_noise": -0.1}, "label_noise must be 0 or more"),
    ({"label_noise": 1.1}, "label_noise is a share between 0 and 1"),
    ({"batch": 0}, "batch must be 1 or more"),
    ({"label_smoothing": 1}, "label_smoothing is a share below 1"),
    ({"schedule": "step"}, "schedule must be one of 'constant', 'cosine'"),
    ({"warmup": -1}, "warmup must be 0 or more"),
    ({"warmup": 10}, "warmup must be shorter than the 10 epochs of the run, got 10"),
    ({"clip": -1}, "clip must be 0 or more"),
    ({"averaging": 1}, "averaging is a share below 1"),
    ({"averaging": -0.1}, "averaging must be 0 or more"),
    ({"augmentation": "auto"}, "augmentation must be one of 'none', 'flip_shift', 'trivial'"),
    ({"erasing": 1.1}, r"erasing is a probability between 0 and 1, got 1\.1"),
    ({"mixup": -1}, "mixup must be 0 or more"),
    ({"balance": "norms", "signal": "noise"}, "balance='norms' is for signal='gradient', and the signal is 'noise'"),
    ({"head": "tower", "arch": "timm:x", "pool": "class_token"}, "head='tower' reads maps without pooling"),
    ({"cutmix": float("inf")}, "cutmix must be a finite number"),
    ({"epochs": 0}, "epochs must be 1 or more"),
    ({"epochs": 2.5}, r"epochs must be a whole number, got 2\.5"),
    ({"epochs": "3"}, "epochs must be a number, got '3'"),
    ({"seed": -1}, "seed must be 0 or more"),
    ({"seed": 1.5}, "seed must be a whole number"),
    ({"seed": 10**400}, "seed must be a number"),
    ({"per_class": 0}, "per_class must be 1 or more"),
    ({"per_class": "five"}, "per_class must be a number"),
    ({"cosine_every": -1}, "cosine_every must be 0 or more"),
    ({"redundancy": 0, "cosine_every": "x"}, "cosine_every must be a number"),
    ({"activation": "first"}, "activation must be one of 'last', 'all', got 'first'"),
    ({"validation": None}, "validation must be one of 'split', 'none', got None"),
    ({"dataset": 3}, "dataset must be a text, got 3"),
    ({"arch": "vitt"}, "unknown backbone 'vitt': did you mean 'vit'"),
    ({"arch": None}, "arch must be a text"),
    ({"arch_options": {"width": 3}}, "unknown option of mlp 'width': did you mean 'widths'"),
    ({"arch_options": 3}, "arch_options must map names to values"),
    ({"arch_options": ["widths"]}, "arch_options must map names to values"),
    ({"arch_options": {1: 2}}, "arch_options must map names to values"),
    ({"arch_options": [("widths", (1,)), ("widths", (2,))]}, "each name once"),
    ({"arch_options": {"widths": None}}, "widths in arch_options must be a number, got None"),
    ({"dataset_options": {"size": float("nan")}}, "size in dataset_options must be a finite number"),
]


@pytest.mark.parametrize(("values", "message"), BAD, ids=str)
def test_bad_fields_are_refused_in_one_line(values, message):
    with pytest.raises(UsageError, match=message) as refused:
        RunSpec(**values)
    assert "\n" not in str(refused.value)


def test_the_fields_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunSpec().seed = 1


def test_a_grid_is_every_combination_in_order_without_repeats():
    specs = grid(RunSpec(epochs=3), seed=range(2), alpha=iter([0.1, 1, 1.0]))
    assert [(spec.seed, spec.alpha, spec.epochs) for spec in specs] == [(0, 0.1, 3), (0, 1, 3), (1, 0.1, 3), (1, 1, 3)]
    assert grid(RunSpec()) == [RunSpec()]
    assert grid(RunSpec(), seed=[]) == []
    # Plain has no alpha, so it appears once.
    assert len(grid(RunSpec(redundancy=0), alpha=[0.1, 1, 10])) == 1
    assert len(grid(RunSpec(), redundancy=[0, 1], alpha=[0.1, 1, 10])) == 4
    with pytest.raises(UsageError, match="unknown field of a run 'alfa': did you mean 'alpha'"):
        grid(RunSpec(), alfa=[1])
    with pytest.raises(UsageError, match=r"seed must be a list of values, got 3: write seed=\[3\]"):
        grid(RunSpec(), seed=3)
    with pytest.raises(UsageError, match=r"arch must be a list of values, got 'mlp'"):
        grid(RunSpec(), arch="mlp")


def test_pairs_are_plain_and_asymmetric_of_each_seed():
    base = RunSpec(arch="cnn", redundancy=20, alpha=0.1)
    specs = pairs(base, [42, 43])
    assert [(spec.seed, spec.variant) for spec in specs] == [
        (42, "plain"), (42, "asymmetric"), (43, "plain"), (43, "asymmetric")]  # fmt: skip
    for plain, asymmetric in zip(specs[::2], specs[1::2], strict=True):
        assert plain == asymmetric.plain()
        assert asymmetric == dataclasses.replace(base, seed=plain.seed)
    with pytest.raises(UsageError, match="pairs need redundancy 1 or more"):
        pairs(base.plain(), [42])


def epoch(number, validation=None, test=None, cosine=None):
    return Epoch(number, 1.0, 1.0, 0.5, validation, test, cosine, cosine, cosine, 0.1)


def test_a_run_reads_its_history():
    run = Run(RunSpec(), (epoch(1, 0.4, None, 0.5), epoch(2, 0.6, None, None), epoch(3, 0.6, 0.7, -0.1)))
    assert run.test_accuracy == 0.7
    assert run.best_validation.epoch == 2
    assert run.mean_cosine == pytest.approx(0.2)
    assert run.seconds == pytest.approx(0.3)
    empty = Run(RunSpec(), (), outcome="diverged")
    assert (empty.test_accuracy, empty.best_validation, empty.mean_cosine, empty.seconds) == (None, None, None, 0)
    assert Run(RunSpec(), (epoch(1), epoch(2))).best_validation is None
    assert Run(RunSpec(), (epoch(1, 0.0),)).best_validation.epoch == 1
