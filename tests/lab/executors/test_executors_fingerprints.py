"""What a spec names can change: runs carry fingerprints of their model and data, and nothing is mixed."""

import dataclasses
import functools

import pytest
import torch
from executor_examples import examples

from asymtrain.errors import UsageError
from asymtrain.lab.data import Dataset
from asymtrain.lab.engine.setup import run_data
from asymtrain.lab.executors import check_sources, execute, fingerprints
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.sources import difference
from asymtrain.lab.store import Store
from asymtrain.models import MLP
from small_backbones import TINY_DATA

pytestmark = pytest.mark.usefixtures("one_core")
SPECS = examples("mlp", 1, epochs=1)
NET = (
    "from torch import nn\n"
    "def net(classes, width=4):\n"
    "    return nn.Sequential(nn.Flatten(), nn.Linear(192, width), nn.Linear(width, classes))\n"
)


@pytest.fixture
def data_print(monkeypatch):
    """What `Dataset.fingerprint` says; the last of the list."""
    prints = ["0123456789abcdef"]
    monkeypatch.setattr(Dataset, "fingerprint", property(lambda self: prints[-1]))
    return prints


@pytest.fixture
def store(tmp_path, data_print):
    path = tmp_path / "runs.sqlite"
    assert len(list(execute(SPECS, store=path, device="cpu"))) == 2
    return path


def attempts(store):
    with Store(store, read_only=True) as opened:
        return [record.run for record in opened.records(every_attempt=True)]


def refuse(text, store, specs=SPECS):
    before = {path: path.read_bytes() for path in store.parent.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=text) as caught:
        next(execute(specs, store=store, device="cpu"))
    assert "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in store.parent.rglob("*") if path.is_file()} == before


def redraw(monkeypatch):
    """The MLP as another version of its code might make it: with other initial values."""
    initialise = MLP.__init__

    @functools.wraps(initialise)
    def changed(self, *arguments, **options):
        initialise(self, *arguments, **options)
        with torch.no_grad():
            next(self.parameters()).mul_(2)

    monkeypatch.setattr(MLP, "__init__", changed)


def test_runs_of_one_model_and_data_have_the_same_fingerprints(store):
    plain, asymmetric = attempts(store)
    assert plain.model_fingerprint is not None
    assert plain.model_fingerprint == asymmetric.model_fingerprint
    assert {plain.data_fingerprint, asymmetric.data_fingerprint} == {"0123456789abcdef"}
    assert (plain.classes, plain.largest_class) == (TINY_DATA["classes"], 0.25)
    other = [
        dataclasses.replace(spec, arch_options={"widths": (9,)}, seed=7) for spec in SPECS
    ]  # another kind of model
    new = list(execute(other, store=store, device="cpu"))
    assert difference(str(new[0].model_fingerprint), plain.model_fingerprint)
    list(execute(examples("mlp", 2, epochs=1), store=store, device="cpu"))
    assert len({run.model_fingerprint for run in attempts(store)}) == 2


def test_a_model_that_changed_is_told_before_anything_is_trained(store, monkeypatch):
    redraw(monkeypatch)
    told = r"^the model mlp changed since 2 runs in .*runs\.sqlite were trained: its initial values changed; give an"
    refuse(told, store)  # all of them are stored: they would be shown as if they were of the new model
    refuse(told, store, examples("mlp", 2, epochs=1))
    others = [dataclasses.replace(spec, arch_options={"widths": (9,)}) for spec in SPECS]
    assert len(list(execute(others, store=store, device="cpu"))) == 2
    assert len(list(execute(SPECS, store=store, device="cpu", fresh=True))) == 2
    assert len(list(execute(SPECS, store=store, device="cpu"))) == 2  # what is read now is of the new model


def test_a_model_that_changed_does_not_go_on_from_a_checkpoint(tmp_path, monkeypatch):
    store, specs = tmp_path / "runs.sqlite", examples("mlp", 1, epochs=3)

    def stop(state):
        if state.epochs_done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(execute(specs, store=store, device="cpu", progress=stop, checkpoint_seconds=0.0))
    with monkeypatch.context() as changed:
        redraw(changed)
        refuse(r"^the model mlp changed since a run in .*runs\.sqlite was trained: its initial values", store, specs)
    assert len(list(execute(specs, store=store, device="cpu"))) == 2


def test_a_plain_run_that_would_fail_in_training_is_told_before_anything_is_written(own_module, tmp_path):
    own_module("own_nets", NET.replace("nn.Linear(width", "nn.BatchNorm1d(width), nn.Linear(width"))
    spec = RunSpec(arch="own_nets:net", dataset_options=TINY_DATA, epochs=1, redundancy=0)
    images = len(run_data(spec, fingerprints.load_for(spec)).train)
    with pytest.raises(UsageError, match="the last batch of an epoch has one example"):
        next(execute([dataclasses.replace(spec, batch=images - 1)], store=tmp_path / "runs.sqlite"))
    assert not (tmp_path / "runs.sqlite").exists()


def test_data_that_changed_are_told_before_anything_is_trained(store, data_print):
    data_print.append("fedcba9876543210")
    refuse(r"^the data shapes changed since 2 runs in .*runs\.sqlite were trained: they hold other examples", store)
    refuse("^the data shapes changed since 2 runs", store, examples("cnn", 1, epochs=1))
    other = [dataclasses.replace(spec, dataset_options={**TINY_DATA, "size": 80}) for spec in SPECS]
    assert len(list(execute(other, store=store, device="cpu"))) == 2


def test_rows_without_fingerprints_are_taken_as_they_are(tmp_path, monkeypatch):
    path = tmp_path / "runs.sqlite"
    with Store(path) as opened:
        for run in execute(SPECS, device="cpu"):
            opened.add(dataclasses.replace(run, model_fingerprint=None, data_fingerprint=None))
    redraw(monkeypatch)
    assert len(list(execute(SPECS, store=path, device="cpu"))) == 2


def test_one_model_is_built_for_each_kind_of_spec(store, monkeypatch):
    built = []
    take = fingerprints.build_module
    monkeypatch.setattr(fingerprints, "build_module", lambda *arguments: built.append(1) or take(*arguments))
    check_sources(examples("mlp", 50, epochs=1), store)
    assert len(built) == 1
    check_sources(examples("mlp", 50, epochs=1), store.with_name("none.sqlite"))
    assert len(built) == 1  # where there is nothing to compare with, nothing is built


def test_a_function_whose_code_changed(own_module, tmp_path, data_print):
    own_module("own_nets", NET)
    spec = RunSpec(arch="own_nets:net", dataset_options=TINY_DATA, epochs=1, at="1")
    dataset = fingerprints.load_for(spec)
    taken = fingerprints.take_fingerprints([spec], dataset)
    path = tmp_path / "runs.sqlite"
    run = dataclasses.replace(next(execute(SPECS[:1], device="cpu")), spec=spec)
    with Store(path) as opened:
        for member in fingerprints.with_sources([run], taken, dataset):
            opened.add(member)
    check_sources([spec], path)
    own_module("own_nets", NET.replace("width=4", "width=5"))
    refuse(r"the model own_nets:net changed since a run in .* was trained: names, shapes or types of", path, [spec])
