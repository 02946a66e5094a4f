"""One small study of the whole paper, trained once for all tests of the recipes."""

import dataclasses
import os

import pytest
import torch

from asymtrain.lab.studies.frame import run_parts
from asymtrain.lab.studies.paper import STUDY as PAPER
from asymtrain.lab.studies.paper.recipe import build_result
from asymtrain.lab.studies.paper.recipes import RECIPES
from asymtrain.lab.studies.paper.study import SIZES, Scope, parse_readings
from asymtrain.lab.studies.snapshot import read_store
from small_backbones import THIN_FIELDS

TINY = dataclasses.replace(
    SIZES["quick"],
    epochs=2,
    search_epochs=1,
    learning_rates=(1e-3, 3e-3),
    weight_decays=(1e-2, 1e-3),
    alphas=(0.1, 1.0),
    alphas_mlp_cifar10=(0.0, 50.0),
    archs=THIN_FIELDS,
    stands_for={
        name: {"dataset": "shapes", "dataset_options": {"classes": classes, "size": 100, "test_size": 40}}
        for name, classes in (("cifar10", 2), ("cifar100", 4))
    },
    landscape={"grid": 3, "sample": 10, "draws": 2},
    attention={"sample": 5},
    few_shot={
        "cifar10": {10: 2, 50: 3, 100: 4, 500: 5, 1000: 6},
        "cifar100": {5: 2, 10: 3, 20: 4, 50: 5, 100: 6, 200: 7},
    },
    attention_images=2,
)


@pytest.fixture(scope="session")
def tiny():
    """A study of every table with tiny networks, two seeds and two epochs."""
    return Scope(sizes=TINY)


@pytest.fixture(scope="session")
def kitchen(tiny, tmp_path_factory):
    """The store of that study, with everything that the recipes need under the primary reading."""
    store = tmp_path_factory.mktemp("paper") / "runs.sqlite"
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        torch.set_num_threads(1)  # these networks are too small for two: on a busy machine they wait for each other
        # With one core the executor trains in this process: no time goes into starting workers.
        patch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
        done = run_parts(PAPER, list(RECIPES.values()), tiny, store, device="cpu")
        torch.set_num_threads(threads)
    assert not done.left.specs
    assert not done.left.measurements
    return store


@pytest.fixture(scope="session")
def known(kitchen):
    """What that store holds."""
    return read_store(kitchen)


@pytest.fixture(scope="session")
def results(tiny, known):
    """Every recipe's result by its name."""
    return {name: build_result(recipe, tiny, known) for name, recipe in RECIPES.items()}


@pytest.fixture(scope="session")
def every_reading():
    """The tiny study under all readings."""
    return Scope(sizes=TINY, readings=parse_readings(["every"]))
