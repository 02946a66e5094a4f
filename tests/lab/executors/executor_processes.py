"""Scenes with real processes, run as a script: it has no threads, so it may fork, and it pays for its imports once.

python executor_processes.py kill|interrupt|together FOLDER     a scene, in forked processes that train by themselves
python executor_processes.py train STORE SECONDS EPOCHS         train in a pool of workers, as a user's script would
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from executor_examples import PATIENCE, checkpoints, examples, stored

from asymtrain.lab.executors import execute, local
from forking import end, start

# In several stacks of one process.
SERIAL = {"mlp": examples("mlp", 7), "cnn": examples("cnn", 1, epochs=40)}


def train(specs, store, seconds=0.05, **options):
    for _ in execute(specs, store=store, device="cpu", checkpoint_seconds=seconds, **options):
        pass


def kill(folder):
    """At random moments, again and again; in the end the rows are those of a process that nobody killed."""
    local.cores = lambda: 1  # train in the process itself
    chance = random.Random(time.time_ns())
    for arch, specs in SERIAL.items():
        began = time.monotonic()
        assert end(start(lambda: train(specs, folder / f"{arch}.sqlite"))) == 0  # noqa: B023
        seconds = time.monotonic() - began
        expected, kills, with_state, store = stored(folder / f"{arch}.sqlite"), 0, 0, folder / f"{arch}-killed.sqlite"
        assert expected.keys() == {spec.id for spec in specs}
        while True:
            began = time.monotonic()
            process = start(lambda: train(specs, store))  # noqa: B023
            if kills < 5:
                time.sleep(chance.uniform(0.1, seconds / 2))
                os.kill(process, signal.SIGKILL)
            code = end(process)
            if code == 0:
                assert stored(store) == expected
                assert not checkpoints(store).exists()
                if kills >= 5:
                    break
                # It was faster than the killer: the machine was busier when the time was taken.
                seconds = min(seconds, time.monotonic() - began)
                store = store.with_name(f"{arch}-{kills}-{seconds}.sqlite")
            else:
                assert code == -signal.SIGKILL
                kills += 1
                with_state += any(checkpoints(store).glob("*/state.safetensors"))
        print(f"{arch}: {seconds:.2f} s when not disturbed; killed {kills} times, {with_state} with a checkpoint")


def interrupt(folder):
    """Ctrl-C in the middle of a stack writes a checkpoint, though none is due."""
    local.cores = lambda: 1
    specs, store = examples("mlp", 2, epochs=30), folder / "interrupted.sqlite"
    assert end(start(lambda: train(specs, folder / "whole.sqlite"))) == 0
    sent = []

    def interrupt_oneself(progress):
        if progress.epochs_done >= 10 * len(specs) and not sent:
            sent.append(signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    process = start(lambda: train(specs, store, seconds=10**6, progress=interrupt_oneself))
    assert end(process) == 130
    assert len(list(checkpoints(store).glob("*/state.safetensors"))) == 1
    assert end(start(lambda: train(specs, store))) == 0
    assert stored(store) == stored(folder / "whole.sqlite")


def together(folder):
    """Two processes want overlapping runs at the same moment: every run is trained and stored once."""
    local.cores = lambda: 1
    specs, store = examples("mlp", 6), folder / "shared.sqlite"
    both = [start(lambda part=part: train(part, store)) for part in (specs, specs, specs[6:], specs[:3])]
    assert [end(process) for process in both] == [0, 0, 0, 0]
    assert stored(store).keys() == {spec.id for spec in specs}
    assert not checkpoints(store).exists()


# No `if __name__ == "__main__"` around what follows: workers must not run the script of whoever started them.
scene, place = sys.argv[1], Path(sys.argv[2])
if scene == "train":
    local.cores, local.SHUTDOWN_SECONDS = lambda: 2, PATIENCE
    try:
        train(examples("mlp", 4, epochs=int(sys.argv[4])), place, seconds=float(sys.argv[3]))  # two stacks
    except KeyboardInterrupt:
        sys.exit(130)
else:
    {"kill": kill, "interrupt": interrupt, "together": together}[scene](place)
