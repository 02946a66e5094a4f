"""SIGKILL at random moments, and disks that fill up: what was stored is whole, and in the end the rows are the same.

A scene is something that users do, in a folder. It runs once undisturbed; then it is begun in new folders, killed,
looked at and begun again, and at last finished: rows and files are those of the undisturbed folder. Processes are
forked from this one, which has imported everything, so that a start costs milliseconds. The seed draws what is killed
and after which share of the usual time; which instruction that hits is up to the machine.
"""

import ctypes
import multiprocessing.forkserver
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot  # noqa: F401  (before the forks)
from executor_examples import bare, examples, parent_of, processes
from store_examples import example_run, example_spec

import asymtrain.lab.cli.app
import asymtrain.lab.report.run_report  # noqa: F401
from abuse.tally import Tally, keep
from asymtrain.__main__ import main
from asymtrain.lab.cli import DONE, FAILED, REFUSED
from asymtrain.lab.executors import execute, local
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.scales import SCALES, Scale
from asymtrain.lab.store import Store, StoreError
from asymtrain.lab.store.exchange import export_store, read_export
from asymtrain.lab.store.provenance import current
from forking import end, start
from small_backbones import SMALL

PATIENCE = 120.0  # seconds that no scene takes on a machine that is merely busy
OFTEN = 0.02  # seconds between checkpoints
STORE = "runs.sqlite"
Rows = dict[str, Any]

TINY = Scale(
    "shapes",
    seeds=(1, 2),
    fields={"epochs": 12, "batch": 16, "test": "every"},
    archs={arch: {"arch_options": options} for arch, options in SMALL.items()},
    datasets={"shapes": {"dataset_options": {"classes": 4, "size": 64, "test_size": 16, "image_size": 8}}},
)


@dataclass(frozen=True)
class Scene:
    """What is done, by one process or by several at once, and how its folder is read."""

    name: str
    share: int  # of all kills
    work: Callable[[Path, int], None]  # the folder, and the number of the process
    read: Callable[[Path], Rows]  # what is stored; an error where that is not whole
    make: Callable[[Path], None] = lambda folder: None  # what is there before
    at_once: int = 1
    victims: Callable[[int], list[int]] = lambda process: [process]  # whom to kill of a process


def run(seed: int, cases: int, folder: Path, scenes: "Sequence[Scene] | None" = None) -> Tally:
    """Kill `cases` processes, in all scenes or in some, and fill a disk for every twelfth."""
    tally, chance, chosen = Tally("kills", seed), random.Random(seed), SCENES if scenes is None else scenes
    prepare(folder)
    shares = sum(scene.share for scene in chosen)
    for scene in chosen:
        kills = max(1, round(cases * scene.share / shares))
        place = folder / scene.name
        guarded(tally, scene.name, place, partial(kill_scene, scene, tally, chance, kills, place))
    for number in range(cases // 12):
        size = int(2 ** chance.uniform(15, 21))  # bytes: from a store that cannot be made to a checkpoint too many
        place = folder / f"disk-{number}"
        guarded(tally, "full disk", place, partial(fill_disk, tally, place / "disk", size))
    return tally


def guarded(tally: Tally, name: str, folder: Path, work: Callable[[], None]) -> None:
    """What a check says becomes a fault, its files are kept, and the other scenes go on."""
    try:
        work()
    except Exception as problem:
        line = traceback.extract_tb(problem.__traceback__)[-1].lineno
        text = f"{name}: {problem!r} (kills.py, line {line}); its files are in {keep(folder)}"
        tally.add(f"{name}: fault", f"{text}: python tests/abuse kills --seed {tally.seed}")


def prepare(folder: Path) -> None:
    """Settings that the forked processes take over."""
    SCALES["tiny"] = TINY
    current()  # which code this is: asked of git once
    execute.__kwdefaults__["checkpoint_seconds"] = OFTEN
    # Workers are forked from a server that has imported them; spawned ones would take seconds to start.
    multiprocessing.set_forkserver_preload(["asymtrain.lab.executors.local", "asymtrain.lab.engine"])
    multiprocessing.forkserver.ensure_running()
    multiprocessing.forkserver._forkserver.ensure_running = lambda: None  # it would wait for a child of its caller
    (folder / "tmp").mkdir(parents=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")  # a killed process leaves its temporary files
    get_context = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: get_context("forkserver" if method == "spawn" else method)


def kill_scene(scene: Scene, tally: Tally, chance: random.Random, kills: int, folder: Path) -> None:
    whole = folder / "undisturbed"
    make(scene, whole)
    began = time.monotonic()
    for process in begin(scene, whole):
        finish(process, whole)
    seconds, expected, files = time.monotonic() - began, scene.read(whole), listing(whole)
    assert expected, "the undisturbed scene left no rows"
    number = 0
    while kills > 0:
        number += 1
        place, known = folder / str(number), set[str]()
        make(scene, place)
        for _ in range(chance.randint(1, 6)):
            hit = disturb(scene, place, chance, seconds)
            kills -= hit
            rows = scene.read(place)
            assert known <= rows.keys(), f"lost {known - rows.keys()}"
            assert all(expected[name] == row for name, row in rows.items()), differences(rows, expected)
            known = set(rows)
            state = "nothing" if not known else "all" if len(known) == len(expected) else "a part"
            for _ in range(hit):
                tally.add(f"{scene.name}, {state} stored")
            if kills <= 0 or state == "all":
                break
        for process in begin(scene, place):
            finish(process, place)
        if scene.at_once > 1:  # what a process left to another that was at work
            finish(start(partial(task, scene, place, 0)), place)
        assert scene.read(place) == expected, differences(scene.read(place), expected)
        assert listing(place) == files, f"differs from an undisturbed folder: {listing(place) ^ files}"
        shutil.rmtree(place)


def disturb(scene: Scene, place: Path, chance: random.Random, seconds: float) -> int:
    """Begin, kill some of it after a while, and let the rest end; how many were killed."""
    running = begin(scene, place)
    until = time.monotonic() + chance.uniform(0.0, 0.9) * seconds
    while time.monotonic() < until and not all(map(has_ended, running)):
        time.sleep(0.001)
    hit, killed = 0, set()
    for process in chance.sample(running, chance.randint(1, scene.at_once)):
        victim = chance.choice(scene.victims(process) or [process])
        if not has_ended(process):
            os.kill(victim, signal.SIGKILL)
            hit += 1
            killed.add(victim)
    for process in running:
        if process in killed:
            end(process)
        else:
            finish(process, place)
    return hit


def make(scene: Scene, place: Path) -> None:
    place.mkdir(parents=True)
    scene.make(place)


def begin(scene: Scene, place: Path) -> list[int]:
    server = multiprocessing.forkserver._forkserver
    type(server).ensure_running(server)  # a process that is killed while it asks for a worker takes the server with it
    return [start(partial(task, scene, place, number)) for number in range(scene.at_once)]


def task(scene: Scene, place: Path, number: int) -> None:
    """In the forked process: what it says goes to a file, and `asymtrain` ends a process in its own way."""
    with log_of(place).open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    code: object = None
    try:
        scene.work(place, number)
    except SystemExit as left:
        code = left.code
    if code:
        raise AssertionError(f"exit {code}")


def log_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.log")


def finish(process: int, place: Path) -> None:
    """Wait for a process that nobody killed: it ends in time, well, and without a traceback."""
    until = time.monotonic() + PATIENCE
    while not has_ended(process):
        if time.monotonic() > until:
            os.kill(process, signal.SIGKILL)
            end(process)
            raise AssertionError(f"hangs: {tail(place)}")
        time.sleep(0.002)
    code = end(process)
    assert code == 0, f"ended with {code}: {tail(place)}"
    assert "Traceback" not in log_of(place).read_text(), tail(place)


def tail(place: Path) -> str:
    return " / ".join(log_of(place).read_text().splitlines()[-4:])


def has_ended(process: int) -> bool:
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def listing(place: Path) -> set[str]:
    return {str(file.relative_to(place)) for file in place.rglob("*")}


def differences(got: Rows, expected: Rows) -> str:
    names = sorted(name for name in got.keys() | expected.keys() if got.get(name) != expected.get(name))
    return f"{len(names)} of {len(expected)} rows differ: {', '.join(names[:3])}"


def stored_rows(path: Path) -> Rows:
    """Every record without its clock, of a file that SQLite finds whole; none where nothing was stored yet."""
    if not path.exists():
        return {}
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    try:
        with Store(path, read_only=True) as store:
            records, values, damaged = store.records(every_attempt=True), store.measurements(), store.check().damaged
    except StoreError as problem:
        if "is empty" in str(problem):
            return {}
        raise
    assert not damaged, damaged[0]
    # Without commit and source: whoever works on the code need not stop.
    rows: Rows = {
        f"{record.run.spec.id}/{record.attempt}": (
            bare(record.run),
            record.provenance.torch,
            record.provenance.asymtrain,
        )
        for record in records
    }
    assert len(rows) == len({record.run.spec.id for record in records}) == len(records), "a run was recorded twice"
    return rows | {f"{value.spec_id}/{value.name}/{value.epoch}": value.value for value in values}


# The command, which trains in its own process on one core; a pool of workers; several processes with one store.


def command(place: Path, _: int) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    main(["run", "--scale", "tiny", "--arch", "mlp,cnn", "--out", str(place / "out")])


def train(specs: list[RunSpec], place: Path, cores: int) -> None:
    local.cores = lambda: cores
    for _ in execute(specs, store=place / STORE, device="cpu"):
        pass


def workers_of(process: int) -> list[int]:
    """The workers, which are children of the server, twice, and the process itself."""
    server = multiprocessing.forkserver._forkserver._forkserver_pid
    workers = [worker for worker in processes() if parent_of(worker) == server]
    return [*workers, *workers, process]


def train_together(place: Path, number: int) -> None:
    """Two processes want the same runs, two others runs of their own."""
    parts = [examples("mlp", 3, epochs=8)] * 2 + [examples("vit", 1, epochs=4), examples("cnn", 1, epochs=4)]
    train(parts[number], place, 1)


# Four writers of invented runs, which are written much faster than trained ones.

INVENTED = [example_spec(seed, epochs=20) for seed in range(120)]


def write(place: Path, number: int) -> None:
    with Store(place / STORE) as store:
        for spec in INVENTED[number::4]:
            for mine in store.claim([spec]):
                store.add(example_run(mine))
            store.add_measurement(spec.id, "norm", {0: 1.5, 20: spec.seed})


def make_store(place: Path) -> None:
    with Store(place / STORE) as store:
        for spec in INVENTED:
            store.add(example_run(spec))


# Exports over an older export, and imports.


def make_older_export(place: Path) -> None:
    make_store(place)
    with Store(place / "older.sqlite") as store:
        for spec in INVENTED[:40]:
            store.add(example_run(spec))
        export_store(store, place / "export", format="csv")


def export(place: Path, _: int) -> None:
    main(["store", "export", str(place / STORE), str(place / "export"), "--format", "parquet", "--force"])


def read_exported(place: Path) -> Rows:
    """The store; and the folder, which is the old export, the new one, or refused."""
    rows = stored_rows(place / STORE)
    try:
        runs = read_export(place / "export").runs
    except StoreError:
        return rows
    exported = {f"{spec_id}/1": bare(records[0].run) for spec_id, records in runs.items()}
    assert all(rows[name][0] == run for name, run in exported.items())
    assert len(exported) in (40, len(INVENTED)), f"an export of {len(exported)} runs is read"
    return rows | {"the new export is whole": True} if len(exported) > 40 else rows


def make_export(place: Path) -> None:
    make_store(place)
    with Store(place / STORE, read_only=True) as store:
        export_store(store, place / "export", format="parquet")


def import_export(place: Path, _: int) -> None:
    main(["store", "import", str(place / "imported.sqlite"), str(place / "export")])


def read_imported(place: Path) -> Rows:
    rows = stored_rows(place / "imported.sqlite")
    assert len(rows) in (0, len(INVENTED)), f"{len(rows)} of {len(INVENTED)} runs were imported"
    return rows


COMMAND = Scene("command", 5, command, lambda place: stored_rows(place / "out" / STORE))
SCENES = (
    Scene(
        "training",
        13,
        lambda place, _: train([*examples("mlp", 4, epochs=10), *examples("vit", 1, epochs=4)], place, 1),
        lambda place: stored_rows(place / STORE),
    ),
    Scene(
        "workers",
        12,
        lambda place, _: train(examples("mlp", 4, epochs=10), place, 2),
        lambda place: stored_rows(place / STORE),
        victims=workers_of,
    ),
    Scene("together", 10, train_together, lambda place: stored_rows(place / STORE), at_once=4),
    Scene("writers", 12, write, lambda place: stored_rows(place / STORE), at_once=4),
    Scene("export", 4, export, read_exported, make=make_older_export),
    Scene("import", 4, import_export, read_imported, make=make_export),
    COMMAND,
)


def fill_disk(tally: Tally, place: Path, size: int) -> None:
    """A disk of that size, or, where none can be mounted, a limit of files: the command says so, and resumes later."""
    scene = COMMAND
    place.mkdir(parents=True)
    mounted = mount(place, f"size={size}")
    process = start(partial(limited, scene, place, None if mounted else size))
    until = time.monotonic() + PATIENCE
    while not has_ended(process) and time.monotonic() < until:
        time.sleep(0.002)
    hangs = not has_ended(process)
    if hangs:
        os.kill(process, signal.SIGKILL)
    code, said = end(process), log_of(place).read_text()
    assert not hangs, f"hangs on a disk of {size} bytes"
    assert "Traceback" not in said, f"a disk of {size} bytes: {tail(place)}"
    assert code in (DONE, FAILED, REFUSED), f"a disk of {size} bytes: ended with {code}: {tail(place)}"
    before = scene.read(place)
    if mounted:
        mount(place, "remount,size=64m")
    finish(start(partial(task, scene, place, 0)), place)
    rows = scene.read(place)
    assert {name: rows.get(name) for name in before} == before, "a row was lost"
    assert len(rows) == 8, f"{len(rows)} of 8 rows after resuming from a disk of {size} bytes"
    tally.add(f"full disk, {'all' if len(before) == 8 else 'a part' if before else 'nothing'} stored")
    if mounted:
        subprocess.run(["umount", str(place)], check=True)


def limited(scene: Scene, place: Path, size: int | None) -> None:
    if size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    with log_of(place).open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        scene.work(place, 0)
    except SystemExit as left:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(left.code if isinstance(left.code, int) else 0)


def mount(place: Path, options: str) -> bool:
    """A file system in memory, which this process and its children alone see."""
    if "remount" not in options:
        new_mounts = 0x00020000  # CLONE_NEWNS
        if ctypes.CDLL(None).unshare(new_mounts) != 0:
            return False
        subprocess.run(["mount", "--make-rprivate", "/"], check=False, capture_output=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=False, capture_output=True
    )
    return done.returncode == 0
