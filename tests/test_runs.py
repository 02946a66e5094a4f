import dataclasses
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args, get_origin

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asymtrain import UsageError, models, runs
from asymtrain.runs import DEFAULTS, Epoch, Run, RunSpec, epochs_of_equal_steps, grid, pairs

# A released default never changes: it would change what an id means.
PINNED_DEFAULTS = {
    "dataset": "shapes",
    "dataset_options": (),
    "per_class": None,
    "label_noise": 0.0,
    "validation": "split",
    "split_seed": None,
    "arch": "mlp",
    "arch_options": (),
    "redundancy": 1,
    "activation": "last",
    "combine": "sum",
    "draw": "independent",
    "alpha": 1.0,
    "over_classes": "mean",
    "alpha_schedule": "constant",
    "objective": "sigmoid",
    "branch_labels": "true",
    "branch_bias": "none",
    "branch_weights": "trained",
    "signal": "gradient",
    "aggregator": "sum",
    "label_smoothing": 0.0,
    "learning_rate": 1e-3,
    "weight_decay": 1e-2,
    "decay": "all",
    "batch": 128,
    "epochs": 10,
    "schedule": "constant",
    "augmentation": "none",
    "precision": "fp32",
    "seed": 42,
    "test": "last",
    "cosine_every": 16,
    "cosine_by": "model",
}

FIRST_FIELDS = {
    "dataset": "cifar100",
    "dataset_options": {"download": False},
    "per_class": 5,
    "label_noise": 0.3,
    "validation": "none",
    "split_seed": 7,
    "arch": "cnn",
    "arch_options": {"widths": [8, 16, 16, 8, 8, 4], "dropout": 0.25},
    "redundancy": 20,
    "activation": "random",
    "combine": "mean",
    "draw": "sequence",
    "alpha": 46.416,
    "over_classes": "sum",
    "learning_rate": 3e-4,
    "weight_decay": 1e-5,
    "decay": "matrices",
    "batch": 64,
    "epochs": 200,
    "schedule": "cosine",
    "augmentation": "flip_shift",
    "precision": "bf16",
    "seed": 51,
    "test": "never",
    "cosine_every": 0,
}
ALL_FIELDS = FIRST_FIELDS | {
    "alpha_schedule": "early",
    "objective": "softmax",
    "branch_labels": "random",
    "branch_bias": "prior",
    "branch_weights": "frozen",
    "signal": "noise",
    "aggregator": "pcgrad",
    "label_smoothing": 0.1,
    "cosine_by": "layer",
}

# Ids that results are stored under.
PINNED_IDS = {
    "44136fa355b3678a": {},
    "6e8a3e14dac4ffe6": {"redundancy": 0},
    "768c5f10a31fdd66": {
        "arch": "vit",
        "arch_options": {"width": 32, "depth": 2, "branch_input": "mean"},
        "seed": 51,
        "alpha": 46.416,
        "learning_rate": 3e-4,
    },
    "10d73a3a6ae0a3bc": FIRST_FIELDS,
    "deff24ed855346e8": ALL_FIELDS,
}

# What follows the defaults in `Literal`, and values of every other field.
VALUES = {
    "dataset": st.sampled_from(["shapes", "cifar10", "folder:./très loin"]),
    "dataset_options": st.dictionaries(st.sampled_from(["classes", "size", "seed"]), st.integers(0, 10**6)),
    "per_class": st.none() | st.integers(1, 5000),
    "label_noise": st.floats(0, 1),
    "split_seed": st.none() | st.integers(0, 2**70),
    "arch": st.sampled_from(sorted(models.BUILDERS)),
    "arch_options": st.fixed_dictionaries(
        {}, optional={"image_size": st.integers(8, 64), "points": st.lists(st.integers(0, 5))}
    ),
    "redundancy": st.integers(0, 300),
    "alpha": st.floats(0, 1e6),
    "learning_rate": st.floats(1e-12, 1e3),
    "weight_decay": st.floats(0, 10),
    "batch": st.integers(1, 4096),
    "epochs": st.integers(1, 1000),
    "seed": st.integers(0, 2**70),
    "cosine_every": st.integers(0, 1000),
    "label_smoothing": st.floats(0, 0.999),
}
for _field in dataclasses.fields(RunSpec):
    if get_origin(_field.type) is Literal:
        VALUES[_field.name] = st.sampled_from(get_args(_field.type))
fields = st.fixed_dictionaries({}, optional=VALUES)


def test_the_defaults_are_pinned():
    assert PINNED_DEFAULTS == DEFAULTS
    assert dataclasses.asdict(RunSpec()) == PINNED_DEFAULTS
    for field in dataclasses.fields(RunSpec):
        if get_origin(field.type) is Literal:
            assert get_args(field.type)[0] == field.default


def test_the_ids_are_pinned():
    assert {RunSpec(**values).id: values for values in PINNED_IDS.values()} == PINNED_IDS


def test_every_field_is_part_of_the_id():
    assert ALL_FIELDS.keys() == DEFAULTS.keys() == VALUES.keys()
    ids = {RunSpec(arch="cnn", activation="all", **{name: value}).id for name, value in ALL_FIELDS.items()
           if name not in ("arch", "activation")}  # fmt: skip
    others = {RunSpec().id, RunSpec(arch="cnn").id, RunSpec(arch="cnn", activation="all").id}
    assert len(ids | others) == len(DEFAULTS) + 1


# The hashing needs no torch: with the package's front door and the backbones left out, any Python can run it.
PROGRAM = """
import json, sys, types
package, models = types.ModuleType("asymtrain"), types.ModuleType("asymtrain.models")
package.__path__, models.check_options = [sys.argv[1]], lambda *_: None
sys.modules.update({"asymtrain": package, "asymtrain.models": models})
from asymtrain.runs import RunSpec
print(json.dumps([RunSpec(**values).id for values in json.loads(sys.argv[2])]))
"""


@pytest.mark.parametrize("python", [sys.executable, "python3.11", "python3.12", "python3.13"])
@pytest.mark.parametrize("hash_seed", ["0", "1", "4711"])
def test_any_process_and_python_gives_the_same_ids(python, hash_seed):
    if not shutil.which(python) or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"no {python} here")
    package = str(Path(runs.__file__).parent)
    arguments = [python, "-c", PROGRAM, package, json.dumps(list(PINNED_IDS.values()))]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    found = subprocess.run(arguments, capture_output=True, text=True, env=environment, check=True)
    assert json.loads(found.stdout) == list(PINNED_IDS)


@pytest.fixture(scope="module")
def later_version(tmp_path_factory):
    """runs.py as it may be one day: with fields that do not exist yet, in the middle and at the end."""
    source = Path(runs.__file__).read_text()
    new = {
        "    dataset: str =": "    resolution: float = 3.5\n    dataset: str =",
        "    seed: int = 42\n": '    seed: int = 42\n    mood: Literal["good", "bad"] = "good"\n    n: int = 1\n',
    }
    for old, text in new.items():
        assert source.count(old) == 1
        source = source.replace(old, text)
    file = tmp_path_factory.mktemp("later") / "later_runs.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("later_runs", file)
    module = sys.modules["later_runs"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["later_runs"]


@settings(deadline=None, max_examples=50)
@given(values=fields)
def test_a_field_added_later_changes_no_id(later_version, values):
    assert later_version.RunSpec(**values).id == RunSpec(**values).id
    assert later_version.RunSpec(**values, mood="bad").id != RunSpec(**values).id


def test_a_field_of_a_newer_version_is_refused_by_name(later_version):
    written = later_version.RunSpec(mood="bad").to_dict()
    with pytest.raises(UsageError, match=r"newer version.*'mood'"):
        RunSpec.from_dict(written)


@settings(deadline=None)
@given(values=fields)
def test_a_spec_survives_json(values):
    spec = RunSpec(**values)
    again = RunSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert again.id == spec.id
    assert hash(again) == hash(spec)
    assert all(value != DEFAULTS[name] for name, value in spec.to_dict().items())
    assert dataclasses.replace(spec) == spec


@settings(deadline=None)
@given(values=fields)
def test_plain_is_one_spec_whatever_it_is_compared_with(values):
    plain, bare = RunSpec(**values).plain(), {**values, "redundancy": 0}
    for name in ("activation", "combine", "draw", "alpha", "over_classes", "cosine_every"):
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
    ({"redundancy": 0}, {"redundancy": 0, "alpha": 3.0}, {"redundancy": 0, "activation": "all", "draw": "sequence"}),
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
    ({"learning_rate": -1}, "learning_rate must be above 0"),
    ({"label_noise": -0.1}, "label_noise must be 0 or more"),
    ({"label_noise": 1.1}, "label_noise is a share between 0 and 1"),
    ({"batch": 0}, "batch must be 1 or more"),
    ({"epochs": 0}, "epochs must be 1 or more"),
    ({"epochs": 2.5}, r"epochs must be a whole number, got 2\.5"),
    ({"epochs": "3"}, "epochs must be a number, got '3'"),
    ({"seed": -1}, "seed must be 0 or more"),
    ({"seed": 1.5}, "seed must be a whole number"),
    ({"seed": 10**400}, "seed must be a number"),
    ({"split_seed": -1}, "split_seed must be 0 or more"),
    ({"split_seed": 0.5}, "split_seed must be a whole number"),
    ({"per_class": 0}, "per_class must be 1 or more"),
    ({"per_class": "five"}, "per_class must be a number"),
    ({"cosine_every": -1}, "cosine_every must be 0 or more"),
    ({"redundancy": 0, "cosine_every": "x"}, "cosine_every must be a number"),
    ({"activation": "first"}, "activation must be one of 'last', 'all', 'random', 'cycle', got 'first'"),
    ({"validation": None}, "validation must be one of 'split', 'none', got None"),
    ({"precision": "fp16"}, "precision must be one of"),
    ({"test": True}, "test must be one of"),
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


@pytest.mark.parametrize(
    ("epochs", "full", "subset", "expected"), [(10, 4000, 400, 100), (3, 100, 100, 3), (1, 10, 90, 1)]
)
def test_epochs_of_equal_steps(epochs, full, subset, expected):
    assert epochs_of_equal_steps(epochs, full, subset) == expected


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


@pytest.mark.parametrize("arch", models.BUILDERS)
def test_every_backbone_makes_a_spec(arch):
    assert RunSpec(arch=arch, arch_options={"initialisation": "trunc_normal"}).arch == arch
