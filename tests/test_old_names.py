"""Names of earlier versions: they still work, and warn with the new name."""

import importlib
import subprocess
import sys

import pytest
import torch
from torch import nn

import asymtrain
from asymtrain import attach, models
from asymtrain._moved import MOVED_MODULES
from asymtrain.branches import draw_branches
from asymtrain.lab import comparisons

RENAMED_OF_ATTACH = {
    "over_classes": ("class_reduction", "sum"),
    "combine": ("branch_reduction", "mean"),
    "draw": ("initialization", "sequence"),
}


def attached(**options):
    return attach(nn.Linear(4, 3), "", torch.ones(2, 4), classes=3, redundancy=2, activation="all", **options)


@pytest.mark.parametrize("old", RENAMED_OF_ATTACH)
def test_old_arguments_of_attach(old):
    new, value = RENAMED_OF_ATTACH[old]
    with pytest.warns(DeprecationWarning, match=rf"attach\({old}=...\) is now attach\({new}=...\)") as caught:
        first = attached(**{old: value})
    assert caught[0].filename == __file__
    second = attached(**{new: value})
    assert first.settings == second.settings
    assert all(map(torch.equal, first.parameters(), second.parameters()))


def test_an_argument_by_both_names_and_the_argument_of_draw_branches():
    with pytest.raises(TypeError, match="both 'initialization' and 'draw', its old name"):
        attached(initialization="sequence", draw="sequence")
    with pytest.warns(DeprecationWarning, match="is now draw_branches"):
        draw_branches(0, [4], 3, 2, draw="sequence")


def test_old_names_of_modules():
    with pytest.warns(DeprecationWarning, match="is now asymtrain.backward_with_alignment") as caught:
        assert asymtrain.measured_backward is asymtrain.backward_with_alignment
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="asymtrain.models.BUILDERS is now asymtrain.models.BACKBONES"):
        assert models.BUILDERS is models.BACKBONES


def test_names_that_moved_to_another_module():
    with pytest.warns(DeprecationWarning, match=r"statistics\.compare is now asymtrain\.lab\.comparisons\.compare"):
        from asymtrain.lab.statistics import compare
    assert compare is comparisons.compare


OLD_MODULES = """
import importlib, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from asymtrain.engine import train
    from asymtrain.engine.reference import train_reference
    modules = {old: importlib.import_module("asymtrain." + old) for old in MOVED}
import asymtrain
from asymtrain.lab import engine
assert train is engine.train and train_reference is engine.train_reference
assert asymtrain.engine is engine and engine.__spec__.name == engine.__name__ == "asymtrain.lab.engine"
for old, new in MOVED.items():
    assert modules[old] is importlib.import_module("asymtrain." + new)
messages = {str(warning.message) for warning in caught if warning.category is DeprecationWarning}
assert messages >= {f"asymtrain.{old} is now asymtrain.{new}" for old, new in MOVED.items()}
assert "asymtrain.engine.reference is now asymtrain.lab.engine.reference" in messages
assert caught[0].filename == "<string>"
"""


@pytest.mark.slow
def test_old_modules_are_the_new_ones():
    program = f"MOVED = {MOVED_MODULES!r}\n{OLD_MODULES}"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", ["resonance", "lab.probe", "lab.probe.rule"])
def test_modules_that_are_gone_say_what_is_there_now(name):
    with pytest.raises(ModuleNotFoundError, match=r"is now the short form of asymtrain\.tune"):
        importlib.import_module(f"asymtrain.{name}")


def test_the_module_alignment_gave_its_name_to_the_function():
    with pytest.raises(ImportError, match="its module is now asymtrain"):
        from asymtrain.alignment import cosine  # noqa: F401
    assert callable(asymtrain.alignment)
