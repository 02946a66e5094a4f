"""Scenes with real processes, run as a script: it has no threads, so it may fork, and it pays for its imports once.

python store_processes.py race|kill|read-only|file-limit FOLDER
"""

import fcntl
import os
import random
import resource
import shutil
import signal
import sqlite3
import struct
import sys
import tempfile
import termios
import time
from functools import partial
from pathlib import Path

import pytest
from store_examples import example_run, example_spec

from asymtrain.lab.store import Store, StoreError
from forking import end, start

NOBODY = 65534


def end_well(process):
    assert end(process) == 0, "a process failed; see above"


def wait_for_bytes(pipe, count):
    """Until so many lie in the pipe, unread: however slow the machine is."""
    until = time.monotonic() + 600
    while int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder) < count:
        assert time.monotonic() < until, "the writers are stuck"
        time.sleep(0.001)


def check_file(path):
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


def race(folder):
    """Four processes open a store that does not exist, at the same moment, and all add the same runs."""
    path, ready, go = folder / "race.sqlite", os.pipe(), time.time() + 0.3
    specs = [example_spec(seed) for seed in range(150)]

    def write(number):
        time.sleep(max(0.0, go - time.time()))
        order = random.Random(number).sample(specs, len(specs))
        with Store(path) as store:
            added = sum(store.add(example_run(spec)) for spec in order)
        os.write(ready[1], struct.pack("i", added))

    for process in [start(partial(write, number)) for number in range(4)]:
        end_well(process)
    added = struct.unpack("4i", os.read(ready[0], 16))
    assert sum(added) == len(specs), added
    with Store(path) as store:
        assert sorted(store.runs(), key=lambda run: run.spec.seed) == [example_run(spec) for spec in specs]
    check_file(path)

    # The same with claims: every spec is trained once, and somebody trains it.
    path = folder / "claims.sqlite"

    def work(number):
        with Store(path) as store:
            for _ in range(100):
                mine = store.claim(random.Random(number).sample(specs, 10))
                for spec in mine:
                    assert store.add(example_run(spec)), "two processes trained the same spec"

    for process in [start(partial(work, number)) for number in range(3)]:
        end_well(process)
    check_file(path)


def kill(folder):
    """Writers are killed at random moments; what they were told is stored is there, and all of it is whole."""
    rng = random.Random(int.from_bytes(os.urandom(4)))
    next_seed, stored, interrupted = 0, 0, 0
    for number in range(45):
        path = folder / f"kill-{number // 5}.sqlite"  # every fifth is killed around the creation of the file
        read_end, write_end = os.pipe()

        def write(first, count, path=path, told=write_end):
            with Store(path) as store:
                for seed in range(first, first + count):
                    store.claim([example_spec(seed, epochs=60)])
                    assert store.add(example_run(example_spec(seed, epochs=60)))
                    store.add_measurement(example_spec(seed, epochs=60).id, "norm", {0: 1.5, 60: seed})
                    os.write(told, struct.pack("i", seed))

        victim = start(partial(write, next_seed, 10**5))
        survivor = start(partial(write, next_seed + 10**5, 3))
        if number % 5:
            wait_for_bytes(read_end, 4 * rng.randint(4, 9))  # three seeds may be the survivor's
        time.sleep(rng.uniform(0.0, 0.03))
        os.kill(victim, signal.SIGKILL)
        _, status = os.waitpid(victim, 0)
        interrupted += os.WIFSIGNALED(status)
        end_well(survivor)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as pipe:
            told = [seed for (seed,) in struct.iter_unpack("i", pipe.read())]

        check_file(path)
        with Store(path) as store:
            runs = [run for run in store.runs() if run.spec.seed >= next_seed]
            assert set(told) <= {run.spec.seed for run in runs}
            assert all(run == example_run(run.spec) for run in runs)
            # At most the one run that was added when the process ended before it could say so.
            assert len(told) <= len(runs) <= len(told) + 1
            measured = [value.epoch for value in store.measurements("norm", [run.spec.id for run in runs])]
            assert measured == [0, 60] * (len(measured) // 2)
            # A killed process holds nothing: what it had not finished can be claimed at once.
            rest = store.pending()
            assert store.claim(rest) == rest
        next_seed, stored = next_seed + 10**6, stored + len(told)
    assert interrupted == 45
    assert stored >= 36 * 4 + 9 * 3, "no victim lived long enough to write"


def read_only(_):
    """A store where nothing can be written: reading works, writing says so at once."""
    with tempfile.TemporaryDirectory() as name:
        folder, path = Path(name), Path(name) / "runs.sqlite"
        with Store(path) as store:
            store.add(example_run(example_spec(1)))
        path.chmod(0o444)
        folder.chmod(0o555)

        def look():
            if os.geteuid() == 0:
                os.setuid(NOBODY)  # root may write anywhere
            for place in (path, folder / "new.sqlite", folder / "deeper" / "new.sqlite"):
                with pytest.raises(StoreError, match=place.name):
                    Store(place)
            with Store(path, read_only=True) as store:
                assert store.runs() == [example_run(example_spec(1))]
                assert store.summary().total.finished == 1

        end_well(start(look))
        folder.chmod(0o755)

    # What a killed writer left in the log is not left out without a word, also through a link.
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as elsewhere:
        folder, link = Path(name), Path(elsewhere) / "link.sqlite"
        Path(elsewhere).chmod(0o755)
        with Store(folder / "live.sqlite") as store:
            store.add(example_run(example_spec(1)))
            for ending in ("", "-wal"):
                shutil.copyfile(folder / f"live.sqlite{ending}", folder / f"runs.sqlite{ending}")
        link.symlink_to(folder / "runs.sqlite")
        folder.chmod(0o555)

        def look_behind():
            if os.geteuid() == 0:
                os.setuid(NOBODY)
            for place in (folder / "runs.sqlite", link):
                with pytest.raises(StoreError, match="copy both files"):
                    Store(place, read_only=True)

        end_well(start(look_behind))
        folder.chmod(0o755)


def file_limit(folder):
    """The operating system refuses to let the file grow: as on a full disk, what was stored stays."""
    path = folder / "limit.sqlite"

    def write():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        with Store(path) as store:
            add = [partial(store.add, example_run(example_spec(seed, epochs=60))) for seed in range(100)]
            with pytest.raises(StoreError, match="safe"):
                all(one() for one in add)
            assert 0 < len(store.finished()) < 100

    end_well(start(write))
    check_file(path)
    with Store(path) as store:
        runs = store.runs()
        assert runs == [example_run(example_spec(seed, epochs=60)) for seed in range(len(runs))]
        assert store.add(example_run(example_spec(len(runs), epochs=60)))


if __name__ == "__main__":
    scenes = {"race": race, "kill": kill, "read-only": read_only, "file-limit": file_limit}
    scenes[sys.argv[1]](Path(sys.argv[2]))
