import json

import numpy as np
import pytest

from asymtrain.lab.data import source_names
from asymtrain.lab.runs import RunSpec, pairs
from asymtrain.lab.store import Store
from invented_runs import invent


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "kept" / "runs.sqlite"
    path.parent.mkdir()
    specs = pairs(RunSpec(epochs=1), [42, 43, 44])
    with Store(path) as opened:
        for spec in specs:
            opened.add(invent(spec))
        opened.request([RunSpec(arch="vit", seed=1)])
        opened.fail([RunSpec(arch="cnn", seed=2)], "out of memory at one run")
    return path


def test_report_is_built_again_with_the_same_bytes(cli, store, tmp_path):
    result = cli("report", "--store", store, "--out", tmp_path / "page")
    assert result.code == 0, result.err
    assert "MLP: " in result.out
    first = {path.name: path.read_bytes() for path in (tmp_path / "page").iterdir()}
    assert set(first) == {"rows.csv", "history.csv", "report.html"}
    assert cli("report", "--store", store, "--out", tmp_path / "page").code == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "page").iterdir()} == first
    assert b"torch" in first["report.html"]


def test_report_names_the_store_that_is_here(refused, store, tmp_path, monkeypatch):
    store.parent.rename(tmp_path / "asymtrain-tune")
    monkeypatch.chdir(tmp_path)
    told = refused("report")
    assert "no store at asymtrain-report/runs.sqlite" in told
    assert "asymtrain-tune/runs.sqlite was written last" in told


def test_report_leaves_the_page_of_another_command(refused, cli, store, tmp_path):
    page = store.parent / "report.html"  # beside the store by default
    page.write_text("the answer of a tune")
    assert "is the page of another command: give another folder with --out" in refused("report", "--store", store)
    assert page.read_text() == "the answer of a tune"
    page.unlink()
    assert cli("report", "--store", store).code == 0
    assert page.is_file()


def test_report_of_nothing(refused, tmp_path):
    assert "absent.sqlite" in refused("report", "--store", tmp_path / "absent.sqlite")
    with Store(tmp_path / "empty.sqlite"):
        pass
    assert "holds no finished run" in refused("report", "--store", tmp_path / "empty.sqlite", "--out", tmp_path)
    (tmp_path / "letter.txt").write_text("dear reader, this is no store\n" * 50)
    assert "letter.txt" in refused("report", "--store", tmp_path / "letter.txt", "--out", tmp_path)


def test_status_shows_counts(cli, store):
    result = cli("status", "--store", store)
    assert result.code == 0, result.err
    lines = {tuple(line.split()[:3]): line.split()[3:] for line in result.out.splitlines() if line.startswith("shapes")}
    assert lines["shapes", "MLP", "plain"][:5] == ["3", "0", "0", "0", "0"]
    assert lines["shapes", "ViT", "asymmetric"][:5] == ["0", "0", "1", "0", "0"]
    assert lines["shapes", "CNN", "asymmetric"][:5] == ["0", "0", "0", "0", "1"]
    total = json.loads(cli("status", "--store", store, "--json").out)["total"]
    assert (total["finished"], total["pending"], total["failed"]) == (6, 1, 1)


def test_status_of_no_store(cli, refused, tmp_path):
    assert "runs.sqlite" in refused("status")
    with Store(tmp_path / "empty.sqlite"):
        pass
    assert "holds nothing yet" in cli("status", "--store", tmp_path / "empty.sqlite").out


def test_data_list(cli, tmp_path):
    (tmp_path / "here" / "cifar-100-python").mkdir(parents=True)
    result = cli("data", "list", "--data-root", tmp_path / "here", "--json")
    found = {row["name"]: row["state"] for row in json.loads(result.out)}
    assert set(found) == {
        "shapes",
        "cifar10",
        "cifar100",
        "folder:PATH",
        "idx:FOLDER",
        "npz:FILE",
        "package.module:function",
    }
    assert found["cifar10"].startswith("not in")
    assert found["cifar100"].startswith("in ")
    assert "cifar100" in cli("data", "list").out


def test_data_get_and_check(cli, refused):
    assert "4,000 images to train on" in cli("data", "get", "shapes").out
    assert json.loads(cli("data", "check", "shapes", "--json").out)["train"] == 4000
    assert "downloading was not asked for" in refused("data", "check", "cifar10")
    assert "did you mean 'cifar100'" in refused("data", "get", "cifar1000")
    assert "list" in cli("data").out


def test_data_of_your_own(cli, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    labels = np.arange(20) % 4
    np.savez("vectors.npz", x=np.ones((20, 5), np.float32), y=labels)
    np.savez("tokens.npz", x=np.ones((20, 7), np.int64), y=labels)
    np.savez("images.npz", x=np.ones((20, 3, 8, 6), np.uint8), y=labels)
    told = "npz:vectors.npz: 16 vectors to train on, 4 to test on, 4 classes, 5 features\n"
    assert cli("data", "check", "npz:vectors.npz").out == told
    assert "16 sequences to train on, 4 to test on, 4 classes, 7 tokens" in cli("data", "check", "npz:tokens.npz").out
    assert "4 classes, 8 x 6 pixels" in cli("data", "check", "npz:images.npz").out
    resized = cli("data", "check", "npz:images.npz", "--data-option", "image_size=12", "--json")
    facts = json.loads(resized.out)
    assert (facts["kind"], facts["height"], facts["width"], facts["channels"]) == ("images", 12, 12, 3)
    assert len(facts["fingerprint"]) == 16
    assert "unknown option" in refused("data", "check", "npz:images.npz", "--data-option", "imagesize=12")
    assert "write NAME=VALUE" in refused("data", "check", "npz:images.npz", "--data-option", "12")
    assert "is not a file" in refused("data", "check", "npz:gone.npz")
    listed = [row["name"] for row in json.loads(cli("data", "list", "--json").out)]
    assert listed == list(source_names())
