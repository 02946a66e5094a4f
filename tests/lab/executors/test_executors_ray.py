"""A real Ray cluster of two workers on this machine, started once."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from executor_examples import LONGER, PATIENCE, checkpoints, examples, parent_of, processes, rows, stored, wait_for

from asymtrain.errors import UsageError
from asymtrain.lab.engine import Progress, plan
from asymtrain.lab.executors import execute, local
from asymtrain.lab.executors.outcomes import Job, Stopped
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.store import Store

ray = pytest.importorskip("ray")
from asymtrain.lab.executors.ray import RayCluster, _environment, ray_cluster  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.xdist_group("ray"),  # one cluster, not one for each process of tests
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

# A machine that is short of cores, memory or disk is no reason for Ray to kill our workers.
UNDISTURBED = {
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_local_fs_capacity_threshold": "1",
    "RAY_health_check_failure_threshold": "100",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with pytest.MonkeyPatch.context() as patch, ExitStack() as opened:
        patch.setattr("asymtrain.lab.executors.ray.cores", lambda: 2)
        patch.setattr("asymtrain.lab.executors.ray.SHUTDOWN_SECONDS", PATIENCE)
        patch.setattr("asymtrain.lab.executors.ray.MAILBOX_SECONDS", PATIENCE)
        for name, value in UNDISTURBED.items():
            patch.setenv(name, value)
        yield start(opened)
    assert not ray.is_initialized(), "a cluster that was started here must not stay"


def start(opened: ExitStack) -> RayCluster:
    """Ray gives its first process 30 seconds, which a busy machine may not have."""
    for _ in range(4):
        with suppress(UsageError):
            return opened.enter_context(ray_cluster(None))
    return opened.enter_context(ray_cluster(None))


@pytest.fixture
def train(cluster: RayCluster, store: Path) -> Callable[..., list[Run]]:
    wait_for(lambda: not training_processes())

    def on_ray(specs: list[RunSpec], **options: Any) -> list[Run]:
        runs = list(execute(specs, **{"store": store, "executor": "ray", **options}))
        assert ray.is_initialized(), "a cluster that was there before must stay"
        return runs

    return on_ray


def test_a_training_that_outlasts_its_claims_is_not_handed_out_again(
    train: Callable[..., list[Run]], store: Path, other_machine: Any
) -> None:
    other_machine.specs = examples("mlp", 1, epochs=30)
    train(other_machine.specs, progress=other_machine)
    assert other_machine.answers == [[], [], []]
    assert len(stored(store)) == 2


def training_processes() -> list[int]:
    """Workers of our cluster that are in the middle of a stack: Ray names processes by their task."""
    return [one for one in processes() if _name(one).startswith("ray::_train") and _grandparent(one) == os.getpid()]


def _name(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _grandparent(process: int) -> int | None:
    parent = parent_of(process)
    return None if parent is None else parent_of(parent)


def kill(process: int) -> int:
    with suppress(ProcessLookupError):  # it was faster
        os.kill(process, signal.SIGKILL)
    return process


def test_every_epoch_comes_back_from_the_cluster(train: Callable[..., list[Run]], store: Path) -> None:
    reports: list[Progress] = []
    runs = train(examples("mlp", 1, epochs=3), progress=reports.append)
    recorded = [(spec.id, epoch) for report in reports for spec, epoch in report.recorded]
    assert sorted(recorded, key=lambda pair: (pair[0], pair[1].epoch)) == [
        (run.spec.id, epoch) for run in sorted(runs, key=lambda run: run.spec.id) for epoch in run.history
    ]
    assert [run for report in reports for run in report.finished] == runs


def test_a_killed_worker_costs_nothing(
    train: Callable[..., list[Run]], cluster: RayCluster, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are, bit by bit, those of a local execution that nobody disturbed."""
    assert cluster == RayCluster(torch.device("cpu"), 2)
    for longer in LONGER:
        place = store.with_name(f"{longer}.sqlite")
        specs = [*examples("mlp", 3, epochs=150 * longer), *examples("cnn", 1, epochs=10)]
        killed: list[int] = []
        notes: list[str] = []

        def kill_one(progress: Progress, place: Path = place, killed: list[int] = killed, notes: Any = notes) -> None:
            notes += [progress.note] if progress.note else []
            if not killed and progress.epochs_done > 60 and any(checkpoints(place).glob("*/state.safetensors")):
                killed += [kill(process) for process in training_processes()[:1]]

        runs = train(specs, store=place, progress=kill_one, checkpoint_seconds=0.05)
        assert rows(runs) == stored(place)
        assert not checkpoints(place).exists()
        if notes:  # otherwise the stack was done before it could be hit
            break
    assert killed
    assert notes == [
        "its worker or its node died (WorkerCrashedError): the stack starts again from its last checkpoint"
    ]
    monkeypatch.setattr(local, "cores", lambda: 2)  # the same number of workers, the same stacks
    assert rows(runs) == rows(execute(specs, device="cpu"))


def test_a_time_limit_ends_with_a_checkpoint(train: Callable[..., list[Run]], store: Path, notes: Any) -> None:
    specs = [*examples("cnn", 2, epochs=10**5)]  # four stacks for two workers
    seconds = 4.0
    while not any(checkpoints(store).glob("*/state.safetensors")):
        assert seconds < PATIENCE, "no stack was begun in minutes"
        assert train(specs, minutes=seconds / 60, progress=notes) == []
        with Store(store, read_only=True) as record:
            assert len(record.pending()) == 4
            assert record.failures() == []
        seconds *= 3  # workers may take that long to import torch

    # A limit that is over before a worker can begin is said: the same command would end like that for ever.
    notes.clear()
    assert train(specs, minutes=-1, progress=notes) == []
    assert notes == ["time was over before a stack had trained an epoch"]


def test_ctrl_c_writes_a_checkpoint_though_none_is_due(train: Callable[..., list[Run]], store: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.epochs_done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(examples("mlp", 1, epochs=10**6)[:1], progress=interrupt, checkpoint_seconds=10**6)
    assert len(list(checkpoints(store).glob("*/state.safetensors"))) == 1
    wait_for(lambda: not training_processes())


def test_closing_the_iterator_ends_what_trains(cluster: RayCluster, store: Path) -> None:
    quick, slow = examples("mlp", 1, epochs=1)[0], examples("mlp", 1, epochs=10**6)[0]
    running = execute([quick, slow], store=store, executor="ray")
    assert next(running).spec == quick
    wait_for(training_processes)
    running.close()  # type: ignore[attr-defined]
    wait_for(lambda: not training_processes())


def test_a_stack_that_kills_every_worker_fails(train: Callable[..., list[Run]], store: Path) -> None:
    specs, killed = examples("mlp", 1, epochs=10**6)[:1], set()

    def kill_all(progress: Progress) -> None:
        killed.update(kill(process) for process in training_processes())

    with pytest.raises(UsageError, match=r"its worker or its node died \(WorkerCrashedError\) \(3 times\)"):
        train(specs, progress=kill_all)
    assert len(killed) == 3
    with Store(store, read_only=True) as record:
        assert [failure.spec for failure in record.failures()] == specs


def test_failures_name_the_node(train: Callable[..., list[Run]], store: Path) -> None:
    bad = RunSpec(dataset="folder:/nowhere", arch="mlp")
    with pytest.raises(UsageError, match=r"/nowhere.* \(on node [\d.]+\)$"):
        train([bad], data_root=Path("elsewhere"))
    with pytest.raises(UsageError, match="the Ray cluster has no GPU"):
        train([bad], device="cuda")


def test_a_function_that_a_node_cannot_import_is_named_with_the_node(
    train: Callable[..., list[Run]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen" / "cluster_data.py").write_text(
        "import numpy\ndef data(): return numpy.zeros((40, 1, 8, 8), 'u1'), numpy.arange(40) % 2"
    )
    monkeypatch.chdir(tmp_path)  # the driver's path has the module's folder, the nodes' has not
    monkeypatch.syspath_prepend(tmp_path / "seen")
    spec = RunSpec(dataset="cluster_data:data", epochs=1)
    with pytest.raises(UsageError, match=r"cluster_data .* \(on node [\d.]+\)$"):
        train([spec])
    monkeypatch.chdir(tmp_path / "seen")
    assert [run.spec for run in train([spec])] == [spec]


def test_a_cluster_that_has_lost_its_gpus_is_named(cluster: RayCluster) -> None:
    """As where every node with a GPU has gone: Ray waits for the next one."""
    told: list[Any] = []
    stacks = plan(examples("mlp", 1, epochs=1), torch.device("cpu"))
    job = Job(deadline=time.time() + 5)  # what nobody has begun by then is given up
    outcomes = list(RayCluster(torch.device("cuda"), 1).run(stacks, job, told.append))
    assert [type(outcome) for outcome in outcomes] == [Stopped] * len(stacks)
    assert told == ["the Ray cluster has no GPU now: 1 stack will wait for a node that has one (Ctrl-C ends it)"]


def test_a_node_without_the_drivers_disk_trains_without_checkpoints(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The driver does not write the plan that workers look for: to them this is a folder of another machine.
    monkeypatch.setattr("asymtrain.lab.executors.ray.open_checkpoint", lambda *_: None)
    stacks = plan(examples("mlp", 1, epochs=2), cluster.device)
    for _ in range(3):  # notes are not rows: on a machine that is short of everything one may be lost
        told: list[Any] = []
        (outcome,) = cluster.run(stacks, Job(checkpoints=tmp_path / "unseen"), told.append)
        assert len(outcome.runs) == 2  # type: ignore[union-attr]
        assert outcome.provenance.torch == torch.__version__  # type: ignore[union-attr]
        if notes := [message for message in told if isinstance(message, str)]:
            break
    (note,) = notes
    assert note.endswith(f"does not see {tmp_path / 'unseen'}: a stack that it loses starts anew")
    assert not (tmp_path / "unseen").exists()


def test_workers_are_told_where_compiled_code_is(monkeypatch):
    """On a node that does not have the driver's variables, each worker would compile anew."""
    folders = {"TORCHINDUCTOR_CACHE_DIR": "/shared/compiled", "TRITON_CACHE_DIR": "/shared/compiled/triton"}
    for name, folder in folders.items():
        monkeypatch.setenv(name, folder)
    assert folders.items() <= _environment(torch.device("cuda")).items()
