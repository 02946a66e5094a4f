"""What every command does alike: exit statuses, devices, and what the system says of paths, memory and outputs."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from asymtrain.lab.cli import EXITS, FAILED, REFUSED, UNREAD
from asymtrain.lab.data.registry import SOURCES
from asymtrain.lab.executors import outcomes
from asymtrain.lab.runs import Run, RunSpec, pairs
from asymtrain.lab.store import Store
from invented_runs import invented_epoch

ODD = "\x1b[31m=$a$ [red]\x9b2J"
TRAINING = (
    ("run", "--epochs", "1"),
    ("search", "--epochs", "1"),
    ("paper", "run", "table3"),
    *(("measure", name) for name in ("alignment", "trajectory", "landscape", "attention", "features")),
)


@pytest.fixture
def failing_vit(monkeypatch):
    """Every stack of a ViT fails, as if its device were broken in a way that nobody has seen."""
    real = outcomes.train_stack

    def train(plan, *args, **kwargs):
        if plan.specs[0].arch == "vit":
            raise ArithmeticError("odd")
        return real(plan, *args, **kwargs)

    monkeypatch.setattr(outcomes, "train_stack", train)


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--arch", "mlp,vit", "--seeds", "1", "--epochs", "1"),
        (
            *("search", "--arch", "mlp,vit", "--seeds", "1", "--epochs", "1", "--learning-rates", "0.001"),
            *("--weight-decays", "0.01", "--alphas", "1"),
        ),
        ("paper", "run", "table3", "--arch", "mlp,vit", "--seeds", "1", "--epochs", "1"),
        ("measure", "alignment", "--arch", "mlp,vit", "--seeds", "1", "--epochs", "1"),
    ],
    ids=lambda words: words[0],
)
def test_failed_runs_are_an_exit_status_and_the_others_are_shown(cli, failing_vit, words):
    result = cli(*words)
    assert result.code == FAILED, result.err
    assert "ArithmeticError: odd" in result.err
    assert "MLP" in result.out


def test_the_exit_statuses_are_in_the_help_and_in_the_docs(cli):
    shown = " ".join(cli("--help").out.split())
    docs = (Path(__file__).parents[3] / "docs/cluster.md").read_text()
    for status, meaning in EXITS.items():
        assert f"{status}: {meaning}." in shown
        assert f"| {status} | {meaning} |" in docs


@pytest.mark.parametrize("device", ["gpu", "", "cuda:a", "cuda:99", "meta"])
@pytest.mark.parametrize("words", TRAINING, ids=lambda words: " ".join(words[:2]))
def test_a_device_that_is_not_there_is_refused_by_every_command(refused, words, device):
    if device == "cuda:99" and not torch.cuda.is_available():
        assert "torch sees no GPU" in refused(*words, "--device", device)
    else:
        assert f"device {device!r}" in refused(*words, "--device", device)


def test_a_driver_without_a_gpu_may_ask_a_cluster_for_them(refused):
    """The devices are those of the cluster, which is not there."""
    words = ("run", "--executor", "ray", "--address", "nowhere:1", "--device", "cuda")
    assert "torch sees no GPU" not in refused(*words, "--epochs", "1", "--arch", "mlp", "--seeds", "1")


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--out", "n" * 300),
        ("status", "--store", "n" * 300),
        ("report", "--out", "n" * 300, "--store", "n"),
        ("paper", "list", "--store", "n" * 300),
        ("paper", "show", "table3", "--store", "n" * 300),
        ("data", "check", "folder:" + "n" * 300),
        ("data", "list", "--data-root", "n" * 300),
        ("data", "list", "--data-root", "~nosuchuser"),
        ("run", "--data", "folder:~nosuchuser"),
        ("tune", "hf:~nosuchuser/config.json"),
        ("run", "--out", "loop"),
        ("run", "--out", "loop/below"),
        ("report", "--store", "loop/runs.sqlite", "--out", "loop"),
        ("store", "export", "loop", "loop"),
        ("run", "--data", os.fsdecode(b"folder:\xff")),
        ("status", "--store", ODD),
        ("measure", "landscape", "--redundancy", "9" * 5000),
        ("run", "--epochs", "9" * 30),
        ("run", "--minutes", "inf"),
        ("tune", "mlp", "--epochs", "9" * 30),
        ("tune", "mlp", "--arch-option", "points=" + "[" * 100_000),
    ],
    ids=lambda words: " ".join(words)[:40].encode("ascii", "replace").decode(),
)
def test_what_the_system_says_of_a_value_is_one_line(refused, tmp_path, words):
    (tmp_path / "loop").symlink_to("loop")
    line = refused(*words)
    assert line.rstrip("\n").isprintable()


def test_what_is_left_out_or_too_much_names_the_help_and_a_near_miss_the_name(refused):
    assert refused("tune") == "asymtrain: Missing argument 'MODEL': see `asymtrain tune --help`\n"
    assert refused("paper", "list", "extra").endswith(": see `asymtrain paper list --help`\n")
    assert "--help`" not in refused("tun")


@pytest.mark.parametrize(
    "problem",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    ],
    ids=lambda problem: type(problem).__name__,
)
def test_too_little_memory_is_one_line(refused, monkeypatch, problem):
    _replace_shapes(monkeypatch, problem)
    assert "not enough memory" in refused("data", "get", "shapes")


@pytest.mark.parametrize("problem", [RuntimeError("a bug"), OSError("a bug without a number"), TypeError("a bug")])
def test_a_bug_keeps_its_traceback(cli, monkeypatch, problem):
    _replace_shapes(monkeypatch, problem)
    with pytest.raises(type(problem), match="a bug"):
        cli("data", "get", "shapes")


def _replace_shapes(monkeypatch, problem):
    """Let the source `shapes` raise this when it is loaded."""

    def load(*, image_size=32):
        raise problem

    monkeypatch.setitem(SOURCES, "shapes", dataclasses.replace(SOURCES["shapes"], load=load))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_an_output_that_cannot_be_written_is_one_line():
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(
            [sys.executable, "-m", "asymtrain", "-h"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (found.returncode, found.stderr.count("\n")) == (REFUSED, 1)
    assert found.stderr.startswith("asymtrain: No space left on device")


def test_a_pipe_that_nobody_reads_is_an_exit_status():
    reader, writer = os.pipe()
    os.close(reader)
    found = subprocess.run([sys.executable, "-m", "asymtrain", "-h"], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (found.returncode, found.stderr) == (UNREAD, "")


def test_text_of_a_store_neither_steers_the_terminal_nor_computes_in_a_spreadsheet(cli, tmp_path):
    """A store from someone else may hold any text as the name of a dataset, of a device or as a reason."""
    bases = [RunSpec(epochs=1, dataset=name) for name in (f"folder:{ODD}", "=1+1", f"folder:{'n' * 300}")]
    with Store(tmp_path / "runs.sqlite") as store:
        for spec in (spec for base in bases for spec in pairs(base, [1, 2])):
            cosine = 0.1 if spec.redundancy else None
            store.add(Run(spec, (invented_epoch(1, 0.5, 0.5, cosine),), device=f"={ODD}"))
        store.fail([RunSpec(dataset=ODD, seed=3)], f"{ODD}\r\u202e")
    for words in (("status",), ("status", "--json"), ("report", "--out", tmp_path)):
        result = cli(*words, "--store", tmp_path / "runs.sqlite")
        assert result.code == 0, result.err
        assert re.sub(r"\n", "", result.out + result.err).isprintable()
    assert json.loads(cli("status", "--json", "--store", tmp_path / "runs.sqlite").out)["failures"][0]["reason"]
    assert "[red]" in cli("status", "--store", tmp_path / "runs.sqlite").out  # no markup either
    rows = (tmp_path / "rows.csv").read_text()
    assert ",'=1+1," in rows
    assert not re.search('(^|,)"?=', rows, re.MULTILINE)
    assert "\x1b" not in (tmp_path / "report.html").read_text()


def test_what_cannot_be_measured_is_refused_before_anything_is_trained(refused):
    call = ("measure", "landscape", "--data", "folder:", "--at", "1", "--arch", "mlp", "--seeds", "1")
    assert "folder:PATH" in refused(*call)
