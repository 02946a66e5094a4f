"""`asymtrain measure attention`: small runs, files, stored runs, interrupts, refusals."""

import json

import pytest

from asymtrain.errors import UsageError
from asymtrain.lab.engine import states, train
from asymtrain.lab.instruments.attention import INSTRUMENT, AttentionOptions, measure, parse_epochs
from asymtrain.lab.instruments.attention.result import AttentionSettings
from asymtrain.lab.runs import Epoch, Run, RunSpec
from asymtrain.lab.store import Store
from small_backbones import LEARNING

SMALL = {"classes": 4, "size": 60, "test_size": 40, "image_size": 16}  # as the small scale has it
VIT = LEARNING["vit"]


pytestmark = pytest.mark.usefixtures("small_scale")


@pytest.fixture
def call(call_of):
    return call_of(INSTRUMENT)


def test_pairs_are_trained_measured_and_written(call, tmp_path):
    options = ["--seeds", 2, "--epochs", 2, "--at", "0,2", "--sample", 9, "--images", 2, "--out", tmp_path, "--json"]
    document = json.loads(call(*options).stdout)
    assert document["settings"] == "attention:sample=9"
    assert {(run["variant"], run["seed"], run["epoch"]) for run in document["runs"]} == {
        (variant, seed, epoch) for variant in ("plain", "asymmetric") for seed in (42, 43) for epoch in (0, 2)
    }
    first = [one for one in document["summary"] if one["variant"] == "difference" and one["epoch"] == 0]
    assert all(one["estimate"][0] == 0 for one in first)  # before training the two are the same network
    assert any(one["estimate"][0] for one in document["summary"] if one["variant"] == "difference")
    assert {path.name for path in tmp_path.iterdir()} == {
        "attention.html", "attention.json", "attention-epochs.svg", "attention-layers.svg", "attention-maps.svg",
        "attention-maps-by-layer.svg", "states",
    }  # fmt: skip
    page = (tmp_path / "attention.html").read_text()
    for text in ("9 test images", "above 0.5 times the uniform value", "weight on the object", "Parts of the network"):
        assert text in page
    again = json.loads(call(*options).stdout)  # from the states that were kept
    assert again == document
    shown = call(*options[:-1], "--query", "mean").stdout
    assert "map entropy (nats)" in shown
    assert "layer 1, Plain" in shown


def test_a_stored_run_keeps_its_measurement(call, tmp_path):
    spec = RunSpec(arch="vit", arch_options=VIT, dataset_options=SMALL, epochs=2)
    place = tmp_path / "runs.sqlite"
    with Store(place) as store:
        for run in train([spec, spec.plain()], device="cpu"):
            store.add(run)
    found = call(
        "--run", spec.id[:8], "--store", place, "--sample", 5, "--out", tmp_path / "out", "--images", 0, "--json"
    )
    document = json.loads(found.stdout)
    assert {run["id"] for run in document["runs"]} == {spec.id}
    with Store(place, read_only=True) as store:
        stored = store.measurements("attention:sample=5")
    assert [(one.spec_id, one.epoch) for one in stored] == [(spec.id, 1), (spec.id, 2)]
    assert "is of one seed" in (tmp_path / "out" / "attention.html").read_text()
    assert stored[1].value["scopes"] == document["runs"][1]["scopes"]


@pytest.fixture
def mixed(tmp_path):
    """A store with a pair of the ViT, one MLP and one CNN; the specs of the first two kinds."""
    vit = RunSpec(arch="vit", arch_options=VIT, dataset_options=SMALL, epochs=1)
    mlp = RunSpec(arch="mlp", dataset_options=SMALL, epochs=1)
    cnn = RunSpec(arch="cnn", dataset="cifar10", epochs=1)  # data that need not be here
    epoch = Epoch(1, 1.0, None, 0.5, 0.5, 0.5, None, None, None, 1.0)
    with Store(tmp_path / "runs.sqlite") as store:
        for spec in (vit, vit.plain(), mlp, cnn):
            store.add(Run(spec, (epoch,)))
    return vit, mlp


def test_all_runs_are_those_with_attention(call, mixed, tmp_path):
    vit, mlp = mixed
    options = ["--store", tmp_path / "runs.sqlite", "--sample", 5, "--images", 0, "--json", "--at", 1]
    found = call("--run", "all", *options, "--out", tmp_path / "out")
    assert "left out for want of attention: 2 runs of cnn, mlp\n" in found.stderr
    assert {run["id"] for run in json.loads(found.stdout)["runs"]} == {vit.id, vit.plain().id}
    with pytest.raises(UsageError, match="mlp has no attention"):
        call("--run", mlp.id, *options, "--out", tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize(("at", "kept"), [("saving", "1 of 4"), ("measuring", "4 of 4")])
def test_an_interrupt_says_what_is_kept_and_the_next_call_uses_it(call, at, kept, tmp_path, monkeypatch):
    options = ["--seeds", 1, "--epochs", 2, "--at", "0,1,2", "--sample", 5, "--images", 0, "--out", tmp_path]
    saved = []

    def save(cache, state, keep=states._save):
        if at == "saving" and saved:
            raise KeyboardInterrupt
        saved.append(state.epoch)
        keep(cache, state)

    def stop(*arguments, **keywords):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(states, "_save", save)
        patched.setattr(measure, "measure_states", stop)
        stopped = call(*options)
    assert stopped.exit_code == 130
    assert f"Stopped: {kept} trained states are in {tmp_path / 'states'}" in " ".join(stopped.stderr.split("\n"))
    assert not (tmp_path / "attention.html").exists()
    there = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "states").iterdir()}
    assert call(*options).exit_code == 0
    if at == "measuring":
        assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "states").iterdir()} == there


def test_the_defaults_are_those_of_the_settings():
    assert AttentionOptions().settings() == AttentionSettings()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--arch", "mlp"], "mlp has no attention"),
        (["--sample", "41"], "larger than the test set of 40: give --sample"),
        (["--sample", "0"], "1 image or more"),
        (["--at", "9", "--epochs", "2"], "epochs from 0 to 2"),
        (["--images", "7"], "between 0 and 6"),
        (["--query", "patch"], "'class_token' or 'mean'"),
        (["--threshold", "0"], "above 0"),
    ],
)
def test_bad_options_are_refused_before_anything_is_trained(call, options, text, tmp_path):
    with pytest.raises(UsageError, match=text):
        call("--sample", 9, *options, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_typed_as_values():
    assert parse_epochs(None, 100) == (20, 60, 100)
    assert parse_epochs(None, 6) == (1, 4, 6)
    assert parse_epochs(None, 1) == (1,)
    assert parse_epochs("5, 0,5", 9) == (0, 5)
