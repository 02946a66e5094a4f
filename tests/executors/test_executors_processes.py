"""Real processes that are killed, interrupted, or at work at the same time: in the end the rows are the same."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from executor_examples import checkpoints, parent_of, processes, stored

from asymtrain.store import Store

SCRIPT = Path(__file__).with_name("executor_processes.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the scenes fork, and look into /proc")


@pytest.mark.slow
@pytest.mark.parametrize("scene", ["kill", "interrupt", "together"])
def test_scene(scene: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(SCRIPT), scene, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Training:
    """A process that trains in a pool of two workers, in a process group of its own."""

    def __init__(self, store: Path, checkpoint_seconds: float) -> None:
        command = [sys.executable, "-W", "error", str(SCRIPT), "train", str(store), str(checkpoint_seconds)]
        self.store = store
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True
        )

    def finish(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=100)
        return self.process.returncode, errors

    def wait_for(self, happened: Callable[[], bool], seconds: float = 60.0) -> None:
        until = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < until, "waited in vain"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)

    def workers(self) -> list[int]:
        """Process ids of the workers: they are the ones that have torch in memory."""
        return [one for one in processes() if parent_of(one) == self.process.pid and has_torch(one)]

    def states(self) -> list[Path]:
        return list(checkpoints(self.store).glob("*/state.safetensors"))


def has_torch(process: int) -> bool:
    try:
        return "libtorch_cpu" in Path(f"/proc/{process}/maps").read_text()
    except OSError:
        return False


@pytest.fixture
def begin() -> Iterator[Callable[[Path, float], Training]]:
    begun: list[Training] = []

    def start(store: Path, checkpoint_seconds: float) -> Training:
        begun.append(Training(store, checkpoint_seconds))
        return begun[-1]

    yield start
    for training in begun:
        training.process.kill()
        training.process.communicate()


@pytest.mark.slow
def test_a_pool_that_is_interrupted_and_then_killed(tmp_path: Path, begin: Callable[[Path, float], Training]) -> None:
    whole, store = tmp_path / "whole.sqlite", tmp_path / "runs.sqlite"
    assert begin(whole, 60.0).finish() == (0, "")

    # Ctrl-C: every stack writes a checkpoint, though none is due, and all processes end within seconds.
    training = begin(store, 1000.0)
    training.wait_for(lambda: len(list(checkpoints(store).glob("*/plan.json"))) == 2)
    time.sleep(0.2)
    began = time.monotonic()
    os.killpg(training.process.pid, signal.SIGINT)
    assert training.finish() == (130, "")
    assert time.monotonic() - began < 15
    assert len(training.states()) == 2
    with Store(store, read_only=True) as record:
        assert len(record.pending()) == len(stored(whole))
        assert record.summary().total.running == 0  # nothing is claimed any more

    # Killed: no worker outlives its parent, it could write into the next one's checkpoint.
    before = {state: state.stat().st_mtime_ns for state in training.states()}
    training = begin(store, 0.05)
    training.wait_for(lambda: {state: state.stat().st_mtime_ns for state in training.states()} != before)
    workers = training.workers()
    assert len(workers) == 2
    training.process.kill()
    training.process.wait()
    until = time.monotonic() + 5
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < until, workers
        time.sleep(0.02)

    assert begin(store, 60.0).finish() == (0, "")
    assert stored(store) == stored(whole)
    assert not checkpoints(store).exists()


def test_ctrl_c_while_workers_start(tmp_path: Path, begin: Callable[[Path, float], Training]) -> None:
    training = begin(tmp_path / "runs.sqlite", 1000.0)
    training.wait_for(lambda: any(checkpoints(training.store).glob("plans-*.json")))
    os.killpg(training.process.pid, signal.SIGINT)
    code, errors = training.finish()
    assert code == 130
    assert "Traceback" not in errors
