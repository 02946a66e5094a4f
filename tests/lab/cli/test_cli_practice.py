"""`asymtrain practice`: the blocks, the whole chain of a block on tiny runs, and what is refused."""

import dataclasses
import itertools
import json
import re
from pathlib import Path

import pytest

from asymtrain.lab.store import Store
from asymtrain.lab.studies.practice import protocol
from asymtrain.lab.studies.practice.protocol import BLOCKS, Task
from asymtrain.lab.studies.study import Block

HALF = {"dataset": "shapes", "dataset_options": {"classes": 4, "size": 40, "test_size": 8}}


@pytest.fixture
def tiny(monkeypatch):
    """One block of one model, on a few images."""
    data = {name: protocol.Data("shapes", HALF, epochs=2, selection_epochs=1) for name in protocol.QUICK.data}
    study = dataclasses.replace(protocol.QUICK, data=data, seeds=(42, 43), selection_seeds=(1000,))
    monkeypatch.setattr(protocol, "QUICK", study)
    monkeypatch.setitem(BLOCKS, "backbones", Block("backbones", "the MLP", (Task("mlp"),)))


def rows(result):
    return {row["name"]: row for row in json.loads(result.out)}


def test_blocks_are_listed_with_what_is_stored(cli):
    listed = rows(cli("practice", "list", "--device", "cpu", "--json"))
    assert list(listed) == list(BLOCKS)
    assert listed["backbones"]["runs_needed"] == 192
    assert listed["backbones"]["seconds_left"] > 0
    assert listed["resnet18"]["seconds_left"] is None
    assert "ViT-Tiny on CIFAR-100" in cli("practice", "list", "--device", "cuda").out
    assert cli("practice", "list", "--store", "typo.sqlite").err.endswith(
        "There is no store at typo.sqlite: nothing counts as done.\n"
    )


def test_nothing_is_shown_of_a_store_that_is_not_there(refused):
    refusal = refused("practice", "show", "--store", "nope.sqlite")
    assert "there is no store at nope.sqlite: name yours" in refusal
    assert "`asymtrain store import nope.sqlite results/practice-*`" in refusal
    assert not Path("asymtrain-practice").exists()


def test_a_block_selects_and_trains_and_goes_on(cli, tiny):
    command = ("practice", "run", "backbones", "--quick", "--device", "cpu", "--store", "s.sqlite")
    cut = cli(*command, "--minutes", "0.001")
    assert cut.code == 0
    # A quick machine finishes a part of the first wave, or all of it, before the time is looked at.
    stored = 30 - int(re.search(r"Not finished: (\d+) runs are left\.", cut.err)[1])
    assert stored <= 13
    done = cli(*command)
    assert done.code == 0, done.err
    waves = [int(number) for number in re.findall(r"^Missing: (\d+) runs", done.err, re.MULTILINE)]
    assert waves == [13 - stored, 9, 8][stored == 13 :]
    assert "MLP: " in done.out
    with Store("s.sqlite", read_only=True) as store:
        runs = store.runs()
    assert len(runs) == 30
    assert {run.spec.seed for run in runs if run.spec.test == "every"} == {42, 43}
    listed = rows(cli("practice", "list", "--quick", "--device", "cpu", "--store", "s.sqlite", "--json"))
    assert listed["backbones"]["runs_there"] == listed["backbones"]["runs_needed"] == 30
    page = Path("asymtrain-practice/practice.html").read_bytes()
    Path("costs.json").write_text(json.dumps(costs_of_every_form("mlp")))
    shown = cli(
        "practice", "show", "--quick", "--store", "s.sqlite", "--out", "page", "--json", "--step-costs", "costs.json"
    )
    assert shown.code == 0, shown.err
    effect = json.loads(shown.out)["effects"][0]
    assert (effect["model"], effect["step_costs"][0]["ratio"]) == ("mlp", 1.25)
    assert b"MLP" in page
    again = cli(*command)
    assert (again.code, "Nothing is missing." in again.err) == (0, True)
    # A block of another model is next; it needs timm, which is not there.
    assert first_missing(cli) == "plain18"


def costs_of_every_form(model):
    forms = itertools.product(("sigmoid", "softmax"), ("none", "prior"), ("all", "later", "middle"))
    names = ("objective", "bias", "layers")
    times = {"attached": 4, "plain_seconds": 0.001, "ratio": 1.25, "plain_ratio": 1.0, "device": "cpu", "torch": "2"}
    about = {"group": "practice", "model": model, "mode": "eager", **times}
    return [{**about, "branches": dict(zip(names, form, strict=True))} for form in forms]


def first_missing(cli):
    listed = rows(cli("practice", "list", "--quick", "--device", "cpu", "--store", "s.sqlite", "--json"))
    return next(name for name, row in listed.items() if row["runs_there"] < row["runs_needed"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "backbone"), "block of the practice study"),
        (("run", "cifar10"), "takes what was selected in backbones, mixer, resnet18, vit-tiny"),
        (("run", "backbones", "--minutes", "0"), "--minutes must be above 0"),
        (("run", "backbones", "--data-root", "nowhere"), "cifar"),
    ],
    ids=["unknown", "waits", "minutes", "data"],
)
def test_what_cannot_be_run_is_refused(refused, words, told):
    assert told in refused("practice", *words)
