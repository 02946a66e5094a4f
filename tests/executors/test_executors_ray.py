"""A real Ray cluster of two workers on this machine, started once."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from executor_examples import checkpoints, examples, parent_of, processes, rows, stored

from asymtrain.engine import Progress
from asymtrain.errors import UsageError
from asymtrain.executors import execute, local
from asymtrain.executors.outcomes import Job
from asymtrain.runs import Run, RunSpec
from asymtrain.store import Store

ray = pytest.importorskip("ray")
from asymtrain.executors.ray import RayCluster, ray_cluster  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asymtrain.executors.ray.cores", lambda: 2)
        with ray_cluster(None) as started:
            yield started
    assert not ray.is_initialized(), "a cluster that was started here must not stay"


@pytest.fixture
def train(cluster: RayCluster, store: Path) -> Callable[..., list[Run]]:
    def on_ray(specs: list[RunSpec], **options: Any) -> list[Run]:
        runs = list(execute(specs, **{"store": store, "executor": "ray", **options}))
        assert ray.is_initialized(), "a cluster that was there before must stay"
        return runs

    return on_ray


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


def test_a_killed_worker_costs_nothing(
    train: Callable[..., list[Run]], cluster: RayCluster, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are, bit by bit, those of a local execution that nobody disturbed."""
    assert cluster == RayCluster(torch.device("cpu"), 2)
    specs = [*examples("mlp", 3, epochs=150), *examples("cnn", 1, epochs=10)]
    killed: list[int] = []
    notes: list[str] = []

    def kill_one(progress: Progress) -> None:
        notes.append(progress.note)
        if not killed and progress.epochs_done > 60 and any(checkpoints(store).glob("*/state.safetensors")):
            killed.append(training_processes()[0])
            os.kill(killed[0], signal.SIGKILL)

    runs = train(specs, progress=kill_one, checkpoint_seconds=0.05)
    assert killed
    assert [note for note in notes if note] == [
        "its worker or its node died (WorkerCrashedError): the stack starts again from its last checkpoint"
    ]
    assert rows(runs) == stored(store)
    assert not checkpoints(store).exists()
    monkeypatch.setattr(local, "cores", lambda: 2)  # the same number of workers, the same stacks
    assert rows(runs) == rows(execute(specs, device="cpu"))


def test_a_time_limit_and_closing_end_with_a_checkpoint(
    train: Callable[..., list[Run]], cluster: RayCluster, store: Path, tmp_path: Path
) -> None:
    specs = [*examples("cnn", 2, epochs=10**5)]  # four stacks for two workers
    began = time.monotonic()
    assert train(specs, minutes=4 / 60) == []
    assert time.monotonic() - began < 20
    with Store(store, read_only=True) as record:
        assert len(record.pending()) == 4
        assert record.failures() == []
    assert any(checkpoints(store).glob("*/state.safetensors"))

    assert train(specs, minutes=-1) == []

    # Ctrl-C, or any end of the driver's loop: what trains writes a checkpoint, though none is due.
    quick, slow = examples("mlp", 1, epochs=1)[0], examples("mlp", 1, epochs=10**6)[0]
    running = execute([quick, slow], store=tmp_path / "closed.sqlite", executor="ray", checkpoint_seconds=1000.0)
    assert next(running).spec == quick
    until = time.monotonic() + 30
    while not training_processes():
        assert time.monotonic() < until
        time.sleep(0.05)
    time.sleep(0.5)
    running.close()  # type: ignore[attr-defined]
    assert training_processes() == []
    assert len(list(checkpoints(tmp_path / "closed.sqlite").glob("*/state.safetensors"))) == 1


def test_a_stack_that_kills_every_worker_fails(train: Callable[..., list[Run]], store: Path) -> None:
    specs, killed = examples("mlp", 1, epochs=10**6)[:1], set()

    def kill_all(progress: Progress) -> None:
        for process in training_processes():
            killed.add(process)
            os.kill(process, signal.SIGKILL)

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


def test_a_node_without_the_drivers_disk_trains_without_checkpoints(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The driver does not write the plan that workers look for: to them this is a folder of another machine.
    monkeypatch.setattr("asymtrain.executors.ray.open_checkpoint", lambda *_: None)
    from asymtrain.engine import plan

    told: list[Any] = []
    stacks = plan(examples("mlp", 1, epochs=2), cluster.device)
    (outcome,) = cluster.run(stacks, Job(checkpoints=tmp_path / "unseen"), told.append)
    assert len(outcome.runs) == 2  # type: ignore[union-attr]
    assert outcome.provenance.torch == torch.__version__  # type: ignore[union-attr]
    (note,) = [message for message in told if isinstance(message, str)]
    assert note.endswith(f"does not see {tmp_path / 'unseen'}: a stack that it loses starts anew")
    assert not (tmp_path / "unseen").exists()
