"""Runs with invented numbers (a report does not care how they were made)."""

import pytest

from asymtrain.lab.runs import RunSpec, pairs
from invented_runs import invent


@pytest.fixture
def make_run():
    return invent


@pytest.fixture(scope="session")
def study():
    """Three backbones, three seeds, 18 runs."""
    bases = [RunSpec(arch=arch, epochs=4, redundancy=20) for arch in ("mlp", "cnn", "vit")]
    return [invent(spec) for base in bases for spec in pairs(base, [42, 43, 44])]
