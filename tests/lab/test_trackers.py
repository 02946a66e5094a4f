"""Runs in the real libraries, offline: what they were given is read back with the libraries' own means."""

import json
import re
import socket
import struct
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asymtrain.errors import UsageError
from asymtrain.lab import trackers
from asymtrain.lab.engine import Progress
from asymtrain.lab.executors import execute
from asymtrain.lab.runs import Run, RunSpec, pairs
from asymtrain.lab.store.tensorboard import curve_values, run_name
from asymtrain.lab.trackers import TRACKERS, TensorBoard, open_tracker, tracking
from invented_runs import invented_epoch
from small_backbones import tiny_spec

SPECS = pairs(tiny_spec(epochs=2), [42])


def read_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves = {}
    outcomes, rates = {}, {}
    for log in (folder / "tensorboard").iterdir():
        events = EventAccumulator(str(log)).Reload()
        tags = events.Tags()
        curves[log.name] = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags["scalars"]}
        texts = {tag: events.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in tags["tensors"]}
        outcomes[log.name] = texts["outcome/text_summary"]
        rates[log.name] = "0.001" if "learning_rate" not in texts["spec/text_summary"] else "another"
    return curves, outcomes, rates


def read_mlflow(folder):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    curves = {}
    outcomes, rates = {}, {}
    for run in client.search_runs([client.get_experiment_by_name("asymtrain").experiment_id]):
        name = run.info.run_name
        curves[name] = {
            key: [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, key)]
            for key in run.data.metrics
        }
        status = {"FINISHED": "finished", "FAILED": "diverged", "KILLED": "stopped"}[run.info.status]
        assert run.data.tags["outcome"] == status
        outcomes[name], rates[name] = status, run.data.params["learning_rate"]
    return curves, outcomes, rates


def wandb_records(data):
    """The records of an offline run: LevelDB's log format, after a header of 7 bytes."""
    at, record, block = 7, b"", 32768
    while at < len(data):
        if block - at % block < 7:  # no room for the head of a part
            at += block - at % block
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def read_wandb(folder):
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # its own process writes the files: wait for it
    curves = {}
    outcomes, rates = {}, {}
    for file in (folder / "wandb").glob("offline-run-*/*.wandb"):
        record, name = Record(), ""
        for content in wandb_records(file.read_bytes()):
            record.ParseFromString(content)
            if record.HasField("run"):
                name = record.run.display_name
                settings = {item.key: json.loads(item.value_json) for item in record.run.config.update}
                rates[name] = str(settings["learning_rate"])
            for item in record.summary.update:
                if (item.key or item.nested_key[0]) == "outcome":
                    outcomes[name] = json.loads(item.value_json)
            values = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            for curve, value in values.items():
                if not curve.startswith("_"):
                    curves.setdefault(name, {}).setdefault(curve, []).append((values["_step"], value))
    return curves, outcomes, rates


def read_trackio(folder):
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    curves = {}
    outcomes, rates = {}, {}
    for run in trackio.Api().runs("asymtrain"):
        curves[run.name] = {}
        for row in SQLiteStorage.get_logs("asymtrain", run.name):
            outcomes[run.name] = row.get("outcome", "")
            for curve, value in row.items():
                if "/" in curve:
                    curves[run.name].setdefault(curve, []).append((row["step"], value))
        rates[run.name] = str(run.config["learning_rate"])
    return curves, outcomes, rates


# Each gives the curves of each run as (epoch, value), its outcome and its learning rate.
READERS = {
    "tensorboard": read_tensorboard,
    "mlflow": read_mlflow,
    "wandb": read_wandb,
    "trackio": read_trackio,
}


@pytest.fixture(params=TRACKERS)
def library(request, tmp_path, monkeypatch):
    """Each tracker that is installed, without what this machine's user has set for it."""
    for module in TRACKERS[request.param].modules:
        pytest.importorskip(module, reason=f"{module} is not installed: pip install -e '.[{request.param}]'")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_DIR", "WANDB_PROJECT", "TRACKIO_SPACE_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    if request.param == "trackio":  # reads its folder when it is imported
        for module in ("trackio.utils", "trackio.sqlite_storage"):
            monkeypatch.setattr(f"{module}.TRACKIO_DIR", tmp_path / "trackio")
    return str(request.param)


def expected(runs):
    return {
        run_name(run.spec): {
            curve: [(epoch.epoch, pytest.approx(curve_values(epoch)[curve])) for epoch in run.history]
            for curve in curve_values(run.history[0])
        }
        for run in runs
    }


libraries_warn = pytest.mark.filterwarnings("ignore")  # of what other libraries deprecate


@libraries_warn
def test_epochs_settings_and_outcome_arrive(library, tmp_path, one_core, capsys):
    lines = []
    # Tested every epoch: all curves have all epochs.
    specs = pairs(replace(SPECS[1], test="every"), [42])
    with tracking(open_tracker(library, tmp_path), lambda progress: None, lines.append) as update:
        runs = list(execute(specs, device="cpu", progress=update))
    curves, outcomes, rates = READERS[library](tmp_path)
    assert curves == expected(runs)
    assert outcomes == dict.fromkeys(curves, "finished")
    assert rates == dict.fromkeys(curves, "0.001")
    (line,) = lines
    assert line.startswith(f"Tracked: {library}")
    assert capsys.readouterr().out == ""


@libraries_warn
def test_a_run_that_is_stopped_or_diverges_says_so(library, tmp_path):
    stopped, diverged = SPECS
    with tracking(open_tracker(library, tmp_path), lambda progress: None, print) as update:
        update(report(recorded=((stopped, invented_epoch(1, 0.5, None, None)),)))
        update(report(finished=(Run(diverged, (), outcome="diverged"),)))
    _, outcomes, _ = READERS[library](tmp_path)
    assert outcomes == {run_name(stopped): "stopped", run_name(diverged): "diverged"}


@libraries_warn
def test_names_are_sent_and_no_folder_nor_machine(library, tmp_path):
    """In every byte that a library keeps to send it. TensorBoard's files are for this machine."""
    spec = RunSpec(
        dataset="folder:/data/jane/photos/", initial_weights="weights/jane/last.safetensors", arch="jane_models:build",
        arch_options={"file": "/data/jane/model.json", "files": ["C:\\Users\\jane\\a.json"]},
    )  # fmt: skip
    with tracking(open_tracker(library, tmp_path), lambda progress: None, print) as update:
        update(report(finished=(Run(spec, (invented_epoch(1, 0.5, 0.5, None),)),)))
    READERS[library](tmp_path)  # all is written
    if library == "tensorboard":
        assert [path.name for path in (tmp_path / "tensorboard").iterdir()] == [re.sub("[:]", "_", run_name(spec))]
        return
    sent = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.suffix in (".wandb", ".db", ".db-wal"))
    for name in (b"folder:photos", b"last.safetensors", b"jane_models:build", b"model.json", b"a.json"):
        assert name in sent
    assert not re.search(rb"data.jane|Users.*jane|weights.jane", sent)
    if library == "wandb":
        for private in (socket.gethostname(), str(tmp_path), str(Path.cwd()), Path(sys.argv[0]).name):
            assert private.encode() not in sent
        assert not list(tmp_path.rglob("requirements.txt")) + list(tmp_path.rglob("wandb-metadata.json"))


def report(**news):
    return Progress(2, 0, 4, 0, 0.0, None, **news)


class Recorder(TensorBoard):
    """Remembers its calls; the tests below are of `Tracking` itself, whatever the library does."""

    def __init__(self, fail=""):
        self.where, self.fail, self.calls = "here", fail, list[tuple[Any, ...]]()
        self.logged = threading.Event()

    def call(self, *call):
        if call[0] == self.fail:
            raise ConnectionError("the server is gone\nat line 1")
        self.calls.append(call)
        return call[1]

    def begin(self, spec):
        return self.call("begin", spec)

    def log(self, run, epoch):
        self.call("log", run, epoch.epoch)
        self.logged.set()

    def end(self, run, outcome):
        self.call("end", run, outcome)


def history(count):
    return tuple(invented_epoch(number, 0.5, None, None) for number in range(1, count + 1))


def test_an_epoch_is_logged_while_the_run_trains_and_once():
    recorder, (spec, _) = Recorder(), SPECS
    with tracking(recorder, lambda progress: None, print) as update:
        update(report(recorded=((spec, history(1)[0]),)))
        assert recorder.logged.wait(60), "the epoch waits for the end of the run"
        update(report(recorded=tuple((spec, epoch) for epoch in history(2))))  # a stack that began again
        update(report(finished=(Run(spec, history(3)),)))  # the report of the third epoch was lost
    assert recorder.calls == [("begin", spec), *(("log", spec, n) for n in (1, 2, 3)), ("end", spec, "finished")]


@pytest.mark.parametrize("fail", ["begin", "log", "end"])
def test_a_tracker_that_fails_warns_once_and_stops_nothing(fail, one_core):
    recorder, lines, shown = Recorder(fail), list[str](), list[Progress]()
    with tracking(recorder, shown.append, lines.append) as update:
        runs = list(execute(SPECS, device="cpu", progress=update))
    assert [run.spec for run in runs] == SPECS
    assert shown[-1].runs_done == len(SPECS)
    assert lines == ["tensorboard failed (ConnectionError: the server is gone): training goes on without it"]


def test_a_tracker_that_hangs_is_left_behind(monkeypatch):
    monkeypatch.setattr(trackers, "PATIENCE", 0.1)
    recorder, lines, released = Recorder(), list[str](), threading.Event()
    monkeypatch.setattr(recorder, "begin", lambda spec: released.wait())
    with tracking(recorder, lambda progress: None, lines.append) as update:
        update(report(recorded=((SPECS[0], history(1)[0]),)))
    released.set()
    assert lines == ["tensorboard failed (it has not answered for 0 s): training goes on without it"]


@pytest.mark.parametrize("name", TRACKERS)
def test_what_is_not_installed_is_named_with_its_extra(name, tmp_path, monkeypatch):
    for module in TRACKERS[name].modules:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=rf'--track {name} needs .*: pip install -e "\.\[{name}\]"'):
        open_tracker(name, tmp_path)
