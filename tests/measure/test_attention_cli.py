"""`asymtrain measure attention`: small runs, files, stored runs, refusals."""

import json

import pytest
import typer
from typer.testing import CliRunner

from asymtrain.cli.measure_attention import attention, parse_epochs, parse_layers
from asymtrain.engine import train
from asymtrain.errors import UsageError
from asymtrain.runs import RunSpec
from asymtrain.store import Store

SMALL = {"classes": 4, "size": 60, "test_size": 40, "image_size": 16}
VIT = {"depth": 2, "width": 16, "heads": 2, "patch": 4}


@pytest.fixture(autouse=True)
def small_scale(monkeypatch):
    """The quick scale in a hundredth of its size."""
    from asymtrain.scales import SCALES

    quick = SCALES["quick"]
    monkeypatch.setitem(quick.archs, "vit", {**quick.archs["vit"], "arch_options": VIT})
    monkeypatch.setitem(quick.datasets, "shapes", {"dataset_options": SMALL})


def call(*arguments):
    app = typer.Typer()
    app.command()(attention)
    found = CliRunner().invoke(app, list(map(str, arguments)))
    if found.exception and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


def test_pairs_are_trained_measured_and_written(tmp_path):
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
    shown = call(*options[:-1], "--layers", "2", "--raw", "--query", "mean").stdout
    assert "map entropy (nats)" in shown
    assert "layer 1, Plain" in shown


def test_a_stored_run_keeps_its_measurement(tmp_path):
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


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--arch", "mlp"], "mlp has no attention"),
        (["--sample", "41"], "larger than the test set of 40"),
        (["--sample", "0"], "1 image or more"),
        (["--layers", "7"], "there are layers 1 to 2"),
        (["--layers", "blocks.7.attention"], "unknown attention layer"),
        (["--at", "9", "--epochs", "2"], "epochs from 0 to 2"),
        (["--images", "7"], "between 0 and 6"),
        (["--query", "patch"], "'class_token' or 'mean'"),
        (["--threshold", "0"], "above 0"),
    ],
)
def test_bad_options_are_refused_before_anything_is_trained(options, text, tmp_path):
    with pytest.raises(UsageError, match=text):
        call("--sample", 9, *options, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_typed_as_values():
    assert parse_epochs(None, 100) == (20, 60, 100)
    assert parse_epochs(None, 6) == (1, 4, 6)
    assert parse_epochs(None, 1) == (1,)
    assert parse_epochs("5, 0,5", 9) == (0, 5)
    assert parse_layers("2,1,b", ["a", "b", "c"]) == ("b", "a")
    assert parse_layers(None, ["a"]) == ()
