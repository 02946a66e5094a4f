"""Real processes that are killed, interrupted, or at work at the same time: in the end the rows are the same."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from executor_examples import LONGER, PATIENCE, checkpoints, parent_of, processes, stored, wait_for

from asymtrain.lab.store import Store, requests

SCRIPT = Path(__file__).with_name("executor_processes.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}

pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.skipif(sys.platform != "linux", reason="the scenes fork, and look into /proc"),
]


@pytest.mark.slow
@pytest.mark.parametrize("scene", ["kill", "interrupt", "together"])
def test_scene(scene, tmp_path):
    command = [sys.executable, "-W", "error", str(SCRIPT), scene, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


WITH_A_BAR = """
from torch import nn
from tqdm import tqdm

def build(classes):
    tqdm(disable=True)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, classes))
"""
TRAIN_IT = """
import os
from pathlib import Path
from asymtrain.lab.executors import execute
from asymtrain.lab.runs import RunSpec, pairs

os.sched_getaffinity = lambda _: {0, 1}  # on one core it would train in this process, without workers
data = {"classes": 4, "size": 64, "test_size": 16, "image_size": 8}
base = RunSpec(arch="with_a_bar:build", at="1", epochs=1, batch=16, dataset_options=data)
print(len(list(execute(pairs(base, range(2)), store=Path("runs.sqlite"), device="cpu"))))
"""


@pytest.mark.slow
def test_workers_that_show_a_bar_leave_nothing_behind(tmp_path):
    pytest.importorskip("tqdm")
    (tmp_path / "with_a_bar.py").write_text(WITH_A_BAR)
    command = [sys.executable, "-c", TRAIN_IT]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert (done.stdout, done.stderr) == ("4\n", "")


class Training:
    """A process that trains two stacks in a pool of two workers, in a process group of its own."""

    def __init__(self, store, checkpoint_seconds, epochs):
        arguments = [str(SCRIPT), "train", str(store), str(checkpoint_seconds), str(epochs)]
        self.store = store
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
            start_new_session=True,
        )

    def finish(self):
        _, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, errors

    def reaches(self, happened):
        """Wait until it has happened; False where the process ended before."""
        wait_for(lambda: happened() or self.process.poll() is not None)
        return self.process.poll() is None

    def workers(self):
        """Process ids of the workers: they are the ones that have torch in memory."""
        return [one for one in processes() if parent_of(one) == self.process.pid and has_torch(one)]

    def begun(self):
        """Stacks with an epoch: before its first step a stack has nothing to keep."""
        return len(list(checkpoints(self.store).glob("*/epochs.jsonl")))

    def states(self):
        """Checkpoints, and when each was written."""
        found = {}
        for state in checkpoints(self.store).glob("*/state.safetensors"):
            try:
                found[state] = state.stat().st_mtime_ns
            except FileNotFoundError:
                continue  # its stack has just been stored
        return found


def has_torch(process):
    try:
        return "libtorch_cpu" in Path(f"/proc/{process}/maps").read_text()
    except OSError:
        return False


@pytest.fixture
def begin():
    begun = []

    def start(store, checkpoint_seconds, epochs):
        begun.append(Training(store, checkpoint_seconds, epochs))
        return begun[-1]

    yield start
    for training in begun:
        training.process.kill()
        training.process.communicate()


@pytest.mark.slow
def test_a_pool_that_is_interrupted_and_then_killed(tmp_path, begin):
    for epochs in (200 * longer for longer in LONGER):
        store = tmp_path / f"{epochs}.sqlite"
        if interrupted(begin(store, 10**6, epochs)) and killed(begin(store, 0.05, epochs)):
            break  # otherwise a stack was done before it could be hit
    else:
        pytest.fail("no stack was hit while it trained")
    whole = tmp_path / "whole.sqlite"
    assert begin(whole, 60.0, epochs).finish() == (0, "")
    assert begin(store, 60.0, epochs).finish() == (0, "")
    assert stored(store) == stored(whole)
    assert len(stored(whole)) == 8
    assert not checkpoints(store).exists()


def interrupted(training):
    """Ctrl-C: every stack writes a checkpoint, though none is due, and all processes end."""
    if not training.reaches(lambda: training.begun() == 2):
        return False
    os.killpg(training.process.pid, signal.SIGINT)
    code, errors = training.finish()
    assert errors == ""
    if code == 0 or stored(training.store):
        return False
    assert code == 130
    assert len(training.states()) == 2
    with Store(training.store, read_only=True) as record:
        assert len(record.pending()) == 8
        assert record.summary().total.running == 0  # nothing is claimed any more
    return True


def killed(training):
    """No worker outlives its parent: it could write into the next one's checkpoint."""
    before = training.states()
    workers = []

    def both_train():
        workers[:] = training.workers()
        return len(workers) == 2 and training.states() != before

    if not training.reaches(both_train):
        return False
    training.process.kill()
    training.process.wait()
    wait_for(lambda: not any(requests._start_of(worker) for worker in workers))  # gone, or not collected yet
    return True


@pytest.mark.slow
def test_ctrl_c_while_workers_start(tmp_path, begin):
    training = begin(tmp_path / "runs.sqlite", 10**6, 10**6)
    assert training.reaches(lambda: any(checkpoints(training.store).glob("plans-*.json")))
    os.killpg(training.process.pid, signal.SIGINT)
    code, errors = training.finish()
    assert code == 130
    assert "Traceback" not in errors
