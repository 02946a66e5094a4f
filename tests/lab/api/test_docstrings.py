"""The examples in the docstrings of the functions run as they stand."""

import doctest

import pytest

from asymtrain.lab.api import compare, search, tune


@pytest.mark.usefixtures("workplace", "one_core")
@pytest.mark.parametrize("module", [compare, search, tune], ids=lambda module: module.__name__)
def test_a_docstring_runs(module):
    found = doctest.testmod(module)
    assert found.attempted > 5
    assert found.failed == 0
