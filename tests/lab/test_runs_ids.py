"""A spec's id: the same in any process, any Python, and after fields are added. Stored results are found by it."""

import csv
import dataclasses
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest
from hypothesis import given, settings

from asymtrain import UsageError
from asymtrain.lab import runs
from asymtrain.lab.runs import DEFAULTS, RunSpec, choices
from run_values import (
    ALL_FIELDS,
    FIRST_FIELDS,
    LAST_FIELDS,
    LATER_FIELDS,
    MODEL_FIELDS,
    NAMED,
    NEEDS,
    PUBLISHED_FIELDS,
    RECIPE_FIELDS,
    VALUES,
    fields,
)

# A released default never changes: it would change what an id means.
PINNED_DEFAULTS = {
    "dataset": "shapes",
    "dataset_options": (),
    "per_class": None,
    "label_noise": 0.0,
    "validation": "split",
    "arch": "mlp",
    "arch_options": (),
    "initial_weights": "",
    "at": (),
    "layers": "all",
    "pool": "mean",
    "layout": "",
    "head": "linear",
    "redundancy": 1,
    "activation": "last",
    "alpha": 1.0,
    "class_reduction": "mean",
    "layer_reduction": "sum",
    "alpha_schedule": "constant",
    "balance": "none",
    "objective": "sigmoid",
    "branch_labels": "true",
    "bias": "none",
    "branch_weights": "trained",
    "signal": "gradient",
    "label_smoothing": 0.0,
    "learning_rate": 1e-3,
    "weight_decay": 1e-2,
    "decay": "all",
    "batch": 128,
    "last_batch": "keep",
    "epochs": 10,
    "schedule": "constant",
    "augmentation": "none",
    "schedule_by": "epoch",
    "warmup": 0.0,
    "clip": 0.0,
    "averaging": 0.0,
    "erasing": 0.0,
    "mixup": 0.0,
    "cutmix": 0.0,
    "passes": 1,
    "erased_area": 1 / 3,
    "mixing": 1.0,
    "precision": "fp32",
    "seed": 42,
    "test": "last",
    "cosine_every": 16,
}

# All fields that one spec can have together
BACKBONE_FIELDS = FIRST_FIELDS | LATER_FIELDS | RECIPE_FIELDS
NAMED_FIELDS = BACKBONE_FIELDS | MODEL_FIELDS | NAMED | {"bias": "none"}

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
    "778762aee9fcc266": FIRST_FIELDS,
    "8d7e97079cc164ee": FIRST_FIELDS | LATER_FIELDS,
    "96459ad62f6a4b7d": BACKBONE_FIELDS,
    "8c92481569cd8777": NAMED_FIELDS,
    "744f5e9f25968574": NAMED_FIELDS | LAST_FIELDS,
    "823285f42da033b9": NAMED_FIELDS | LAST_FIELDS | PUBLISHED_FIELDS,
}


def test_the_defaults_are_pinned():
    assert PINNED_DEFAULTS == DEFAULTS
    assert dataclasses.asdict(RunSpec()) == PINNED_DEFAULTS
    for name, default in DEFAULTS.items():
        assert not choices(name) or choices(name)[0] == default


def test_the_ids_are_pinned():
    assert {RunSpec(**values).id: values for values in PINNED_IDS.values()} == PINNED_IDS


def test_every_stored_spec_still_has_its_id():
    folders = sorted((Path(__file__).parents[2] / "results").glob("*/specs.*"))
    rows = [(row["id"], row["spec"]) for path in folders for row in _read_rows(path)]
    assert len(rows) >= 3764
    assert [spec_id for spec_id, text in rows if RunSpec.from_dict(json.loads(text)).id != spec_id] == []


def _read_rows(path):
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path, columns=["id", "spec"]).to_pylist()
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_field_is_part_of_the_id():
    assert ALL_FIELDS.keys() == DEFAULTS.keys() == VALUES.keys()
    ids = {RunSpec(**{"arch": "cnn", "activation": "all", **NEEDS.get(name, {}), name: value}).id
           for name, value in ALL_FIELDS.items()
           if name not in ("arch", "activation")}  # fmt: skip
    others = {RunSpec().id, RunSpec(arch="cnn").id, RunSpec(arch="cnn", activation="all").id}
    assert len(ids | others) == len(DEFAULTS) + 1


# The hashing needs no torch: with the package's front door, backbones and losses left out, any Python can run it.
PROGRAM = """
import json, sys, types
names = ("asymtrain", "asymtrain.models", "asymtrain.objectives")
package, models, objectives = modules = [types.ModuleType(name) for name in names]
package.__path__, models.check_options = [sys.argv[1]], lambda *_: None
objectives.OBJECTIVES = ("sigmoid", "softmax")
sys.modules.update(zip(names, modules))
from asymtrain.lab.runs import RunSpec
print(json.dumps([RunSpec(**values).id for values in json.loads(sys.argv[2])]))
"""


@pytest.mark.parametrize("python", [sys.executable, "python3.11", "python3.12", "python3.13"])
@pytest.mark.parametrize("hash_seed", ["0", "1", "4711"])
def test_any_process_and_python_gives_the_same_ids(python, hash_seed):
    if not shutil.which(python) or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"no {python} here")
    package = str(Path(runs.__file__).parents[1])
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


def test_a_field_of_another_version_is_refused_by_name(later_version):
    written = later_version.RunSpec(mood="bad").to_dict()
    with pytest.raises(UsageError, match=r"another version.*'mood'"):
        RunSpec.from_dict(written)
