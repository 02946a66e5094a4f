import json
import os
from pathlib import Path

import pytest

from asymtrain.lab.checkpoints import STATE
from asymtrain.lab.cli.options import latest_store
from asymtrain.lab.engine import StackPlan
from asymtrain.lab.engine.checkpoint import open_checkpoint
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.status import SHOWN
from asymtrain.lab.store import Store
from invented_runs import invent

REASON = "RuntimeError: the first line\n    and the second, " + "long " * 40 + "(losses.py, line 7)"


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "runs.sqlite"
    with Store(path) as opened:
        for epochs, rate in ((1, 10), (0, 100)):
            opened.add(invent(RunSpec(epochs=4, learning_rate=rate, seed=7), epochs=epochs, diverged=True))
        opened.request([RunSpec(arch="vit", seed=1)])
        opened.fail([RunSpec(arch="cnn", seed=2)], REASON)
    return path


def test_every_run_without_a_result_is_named_with_its_reason_on_one_line(cli, store):
    lines = cli("status", "--store", store).out.splitlines()
    (pending,) = [line for line in lines if line.startswith("pending: ")]
    assert "shapes vit asymmetric seed 1" in pending
    early, late = [line for line in lines if line.startswith("diverged: ")]
    assert "mlp asymmetric seed 7" in early
    assert "epoch 1 of 4, at learning rate 100" in early
    assert "epoch 2 of 4, at learning rate 10" in late
    (failed,) = [line for line in lines if line.startswith("failed: ")]
    assert "shapes cnn asymmetric seed 2" in failed
    assert failed.endswith(": " + " ".join(REASON.split()))


def test_json_names_them_too(cli, store):
    found = json.loads(cli("status", "--store", store, "--json").out)
    assert [one["spec"] for one in found["pending"]] == [{"arch": "vit", "seed": 1}]
    assert sorted(one["epochs"] for one in found["diverged"]) == [0, 1]
    assert [one["reason"] for one in found["failures"]] == [REASON]


def test_many_runs_of_one_reason_do_not_hide_another(cli, tmp_path):
    path = tmp_path / "runs.sqlite"
    with Store(path) as opened:
        opened.fail([RunSpec(seed=seed) for seed in range(SHOWN + 5)], "no memory")
        opened.fail([RunSpec(arch="vit")], "no disk")
    lines = [line for line in cli("status", "--store", path).out.splitlines() if line.startswith("failed: ")]
    assert len(lines) == SHOWN + 2
    assert any("vit" in line and line.endswith("no disk") for line in lines)
    assert "failed: 5 more, which --json lists: no memory" in lines


def test_pending_runs_that_continue_from_a_checkpoint_are_counted(cli, tmp_path):
    path = tmp_path / "runs.sqlite"
    begun, planned = ([RunSpec(arch=arch, seed=seed) for seed in (1, 2, 3)] for arch in ("mlp", "cnn"))
    folder = tmp_path / "runs.sqlite.checkpoints"
    for specs, state in ((begun, b"weights"), (planned, None)):
        place = open_checkpoint(folder, StackPlan(tuple(specs), "batched"))
        if state:
            (place / STATE).write_bytes(state)
    with Store(path) as opened:
        opened.request([*begun, *planned])
    assert "3 runs continue from a checkpoint when" in cli("status", "--store", path).out
    # One that is stored, or being trained, does not wait to be continued.
    with Store(path) as opened:
        opened.add(invent(begun[0], epochs=1, diverged=True))
        opened.claim([begun[1]])
        found = json.loads(cli("status", "--store", path, "--json").out)
        text = cli("status", "--store", path).out
    states = {one["id"]: one["state"] for one in found["pending"]}
    assert states == {
        begun[1].id: "is being trained now",
        begun[2].id: "continues from a checkpoint",
        **dict.fromkeys((spec.id for spec in planned), "not trained yet"),
    }
    assert "1 run continues from a checkpoint when" in text
    (line,) = [line for line in text.splitlines() if line.endswith(": continues from a checkpoint")]
    assert "mlp asymmetric seed 3" in line


def test_without_a_store_it_is_the_one_written_last(cli, store, tmp_path):
    assert "no store at asymtrain-report/runs.sqlite" in cli("status").err
    for at, name in enumerate(("asymtrain-tune", "asymtrain-report", "other")):
        copy = tmp_path / name / "runs.sqlite"
        copy.parent.mkdir()
        copy.write_bytes(store.read_bytes())
        os.utime(copy, (1000 - at, 1000 - at))
    assert cli("status").out.startswith("asymtrain-tune/runs.sqlite:\n")
    (tmp_path / "asymtrain-report" / "runs.sqlite-wal").touch()  # SQLite's, of one that is being written
    assert latest_store() == Path("asymtrain-report/runs.sqlite")
