"""A file that someone sent runs no code: a command imports the functions alone that are typed in it."""

import json
from pathlib import Path

import pytest

from asymtrain.lab.checkpoints import StackPlan, checkpoints_of, execution_name
from asymtrain.lab.engine import training
from asymtrain.lab.live_page import LivePage
from asymtrain.lab.runs import RunSpec, pairs
from asymtrain.lab.store import Store
from invented_runs import invent

TRAP = """
import pathlib, numpy, torch
pathlib.Path("sprung").touch()
def data():
    return numpy.random.default_rng(0).integers(256, size=(80, 8, 8, 3), dtype="uint8"), numpy.arange(80) % 4
def build(classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(8), torch.nn.Linear(8, classes))
"""
SPECS = {
    "data": RunSpec(dataset="trap:data", arch="mlp", epochs=1),
    "model": RunSpec(arch="trap:build", epochs=1, at=("0",)),
    "Python": RunSpec(dataset="subprocess:getoutput", dataset_options={"cmd": "touch sprung"}, epochs=1),
}


@pytest.fixture(autouse=True)
def trap(own_module):
    """A module beside the results that leaves a trace when it is imported."""
    training._LOADED.clear()  # of this process, which is many commands here
    return own_module("trap", TRAP).with_name("sprung")


def write_search(spec):
    chosen = {"plain": {"learning_rate": 0.1}, "asymmetric": {"learning_rate": 0.1}}
    found = {"complete": True, "base": spec.to_dict(), "chosen": chosen}
    Path("found").mkdir(exist_ok=True)
    Path("found/search.json").write_text(json.dumps({"searches": [found]}))


def write_store(path, spec):
    with Store(path) as store:
        for member in pairs(spec, [42]):
            store.add(invent(member))


@pytest.mark.parametrize("kind", SPECS)
def test_the_function_of_a_search_is_imported_where_it_is_typed(refused, trap, kind):
    write_search(SPECS[kind])
    assert "run its code" in refused("run", "--from-search", "found", "--seeds", "1")
    assert "was not of other:function" in refused("run", "--from-search", "found", "--arch", "other:function")
    assert not trap.exists()


def test_a_search_of_a_function_can_be_trained(cli, trap):
    write_search(SPECS["data"])
    result = cli("run", "--from-search", "found", "--seeds", "1", "--data", "trap:data")
    assert result.code == 0, result.err
    assert trap.exists()


def test_the_function_of_a_stored_run_is_imported_where_it_is_typed(cli, refused, trap):
    write_store(Path("sent.sqlite"), SPECS["data"])
    call = ("measure", "landscape", "--run", "all", "--store", "sent.sqlite")
    call += ("--sample", "8", "--grid", "3", "--draws", "1")
    assert "run its code" in refused(*call)
    assert "leave it out" in refused(*call, "--data", "other:function")
    assert "leave out --data" in refused(*call, "--data", "shapes")
    assert not trap.exists()
    result = cli(*call, "--data", "trap:data")
    assert trap.exists(), result.err


@pytest.mark.parametrize("kind", SPECS)
def test_what_reads_a_store_imports_nothing(cli, trap, kind):
    write_store(Path("sent.sqlite"), SPECS[kind])
    with Store("sent.sqlite") as store:
        store.request(pairs(SPECS[kind], [43]))
    for call in ("report --store {}", "status --store {}", "store check {}", "store export {} kept"):
        result = cli(*call.format("sent.sqlite").split())
        assert result.code == 0, result.err
    assert cli("store", "import", "new.sqlite", "kept").code == 0
    assert cli("measure", "alignment", "--run", "all", "--store", "new.sqlite").code == 0
    assert b"2 of 4 runs" in LivePage(Path("sent.sqlite")).current()[0]
    assert not trap.exists()


@pytest.mark.parametrize("kind", SPECS)
def test_a_plan_with_runs_of_others_is_set_aside(cli, trap, tmp_path, kind):
    """It holds a run that is asked for, and one that would run code."""
    call = ("run", "--arch", "mlp", "--epochs", "1", "--seeds", "1", "--out", "study")
    assert cli(*call).code == 0
    with Store("study/runs.sqlite", read_only=True) as store:
        asked = tuple(run.spec for run in store.runs())
    Path("study/runs.sqlite").unlink()
    stack = StackPlan((SPECS[kind], *asked), "side_by_side")
    folder = checkpoints_of(Path("study/runs.sqlite"))
    (folder / stack.id).mkdir(parents=True)
    (folder / stack.id / "plan.json").write_text(json.dumps(stack.to_dict()))
    (folder / execution_name([stack])).write_text(json.dumps({"device": "cpu", "stacks": [stack.to_dict()]}))
    result = cli(*call)
    assert result.code == 0, result.err
    assert result.err.count("set aside as") == 2
    assert not trap.exists()
