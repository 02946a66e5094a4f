"""The data that most tests of the engine train on."""

import pytest
from equivalence import patterns


@pytest.fixture(scope="module")
def dataset():
    return patterns(classes=4, size=100, test_size=40)
