"""Damaged files: each is read as before, or what is damaged is named and the rest is as before, or it is refused.

A subject is a kind of file: how a folder of it is made, which of its files are damaged, how it is read through the
library, and by which commands. Every case damages a copy and reads it in a forked process, under limits of time and
memory. Faults: another answer without a word, a traceback, a hang, memory without bounds.
"""

import dataclasses
import hashlib
import io
import json
import os
import pickle
import random
import resource
import select
import shutil
import signal
import sqlite3
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot  # noqa: F401  (before the forks)
import numpy as np
import pyarrow.parquet  # noqa: F401
from cifar_files import HUNDRED, TEN, contents, pack, write_folder
from executor_examples import bare, checkpoints, examples
from PIL import Image
from store_examples import example_run, example_spec

import asymtrain.lab.cli.app
import asymtrain.lab.report.run_report  # noqa: F401
from abuse.tally import Tally, keep
from asymtrain.__main__ import main
from asymtrain.errors import UsageError
from asymtrain.lab.cli import DONE, FAILED, REFUSED
from asymtrain.lab.data import cifar, registry
from asymtrain.lab.data import folder as image_folder
from asymtrain.lab.data import own as own_arrays
from asymtrain.lab.engine.states import states_at
from asymtrain.lab.executors import execute, local
from asymtrain.lab.executors.outcomes import Job
from asymtrain.lab.store import Store
from asymtrain.lab.store.exchange import export_store, import_store, read_export
from forking import start

SECONDS = 20  # of processor time; nothing here takes a second
PATIENCE = 300.0  # seconds of the clock, on a busy machine
MEMORY = 1 << 30  # bytes on top of what the process has when it begins
COMMANDS_EVERY = 5  # one of so many cases is read by a command too
PAGE = 4096

Answer = dict[str, Any]  # what was read, by name; the first word of a name is the question that it answers
Damage = Callable[[bytes, random.Random, bytes], bytes]


class Named(Exception):
    """What could be read, and which questions were answered with a word about damage."""

    def __init__(self, answer: Answer, questions: set[str]) -> None:
        self.answer, self.questions = answer, questions


@dataclass(frozen=True)
class Subject:
    """A kind of file."""

    name: str
    share: int  # of all cases
    make: Callable[[Path, int], None]  # into a folder; the number gives another valid one
    files: Callable[[Path], list[Path]]  # that are damaged
    read: Callable[[Path], Answer]
    commands: Callable[[Path], list[list[str]]] = lambda folder: []
    more: tuple[Callable[[Path, random.Random], str], ...] = ()  # further damage, of this kind alone
    checked: bool = True  # does the format know what it held? Else other values may come of a damaged file


# Damage to the bytes of any file; `other` is another valid file of its kind.


def flip(content: bytes, chance: random.Random, other: bytes, bits: int = 1) -> bytes:
    changed = bytearray(content)
    for _ in range(bits):
        place = chance.randrange(len(changed))
        changed[place] ^= 1 << chance.randrange(8)
    return bytes(changed)


def overwrite(content: bytes, chance: random.Random, other: bytes) -> bytes:
    start_, length = chance.randrange(len(content)), chance.choice((1, 4, 16, 100, 1000))
    return content[:start_] + chance.randbytes(len(content[start_ : start_ + length])) + content[start_ + length :]


def pages(content: bytes) -> list[bytes]:
    size = PAGE if len(content) > 2 * PAGE else max(1, len(content) // 8)
    return [content[i : i + size] for i in range(0, len(content), size)]


def zero_page(content: bytes, chance: random.Random, other: bytes) -> bytes:
    parts = pages(content)
    place = chance.randrange(len(parts))
    parts[place] = bytes(len(parts[place]))
    return b"".join(parts)


def swap_pages(content: bytes, chance: random.Random, other: bytes) -> bytes:
    parts = pages(content)
    one, two = chance.randrange(len(parts)), chance.randrange(len(parts))
    parts[one], parts[two] = parts[two], parts[one]
    return b"".join(parts)


def truncate(content: bytes, chance: random.Random, other: bytes) -> bytes:
    if chance.random() < 0.5:
        return content[: chance.randrange(len(content))]
    parts = pages(content)
    return b"".join(parts[: chance.randrange(len(parts))])


def splice(content: bytes, chance: random.Random, other: bytes) -> bytes:
    """A few pages of another file, or its end. The whole of it would be the other file, which is valid."""
    parts, others = pages(content), pages(other)
    place, few = chance.randrange(min(len(parts), len(others))), chance.randint(0, 3)
    if few == 0 and place > 0:
        return b"".join(parts[:place] + others[place:])
    parts[place : place + 3] = others[place : place + max(1, few)]
    return b"".join(parts)


def remove_part(content: bytes, chance: random.Random, other: bytes) -> bytes:
    begin_, length = chance.randrange(len(content)), chance.choice((1, 4, 100, PAGE))
    return content[:begin_] + content[begin_ + length :]


BYTES: dict[str, Damage] = {
    "flip": flip,
    "flip 8": partial(flip, bits=8),
    "overwrite": overwrite,
    "zero page": zero_page,
    "swap pages": swap_pages,
    "truncate": truncate,
    "splice": splice,
    "remove part": remove_part,
    "append": lambda content, chance, other: content + chance.randbytes(chance.choice((1, 100, PAGE))),
    "empty": lambda content, chance, other: b"",
    "garbage": lambda content, chance, other: chance.randbytes(len(content)),
    "text": lambda content, chance, other: chance.choice((b"{}", b"[]", b"null", b"\n", b"[" * 100_000, b"\xff" * 64)),
}
WEIGHTS = {"flip": 6, "flip 8": 3, "overwrite": 3, "splice": 2, "truncate": 2}


def run(seed: int, cases: int, folder: Path, subjects: "Sequence[Subject] | None" = None) -> Tally:
    """Damage `cases` files, of all kinds of file or of some."""
    tally, chosen = Tally("damage", seed), SUBJECTS if subjects is None else subjects
    prepare(folder)
    shares = sum(subject.share for subject in chosen)
    numbers = {subject: max(1, round(cases * subject.share / shares)) for subject in chosen}
    expected = {subject: make(subject, folder / subject.name) for subject in chosen}
    # The kinds in turn, each as often as its share: a run that is ended early has tried all of them.
    turns = sorted(
        ((number + 1) / numbers[subject], chosen.index(subject), number)
        for subject in chosen
        for number in range(numbers[subject])
    )
    for _, place, number in turns:
        subject = chosen[place]
        own = folder / subject.name
        damaged = Path(shutil.copytree(own / "whole", own / "damaged"))
        what = damage(subject, damaged, own / "other", random.Random(f"{seed} {subject.name} {number}"))
        commands = number % COMMANDS_EVERY == 0
        outcome, fault = examine(subject, damaged, own / "read", expected[subject], commands=commands)
        text = f"{subject.name} case {number} ({what}): {fault}"
        again = f"its files are in {keep(damaged)}: python tests/abuse damage --seed {seed}" if fault else ""
        tally.add(f"{subject.name}: {outcome}", f"{text}; {again}" if fault else None)
        shutil.rmtree(damaged)
    return tally


def make(subject: Subject, own: Path) -> Answer:
    """A valid folder and another one; what is read of the first.

    Answers contain paths, and reading may change a folder: it is always read as a new copy at the same path.
    """
    for number, place in enumerate(("whole", "other")):
        (own / place).mkdir(parents=True)
        subject.make(own / place, number)
    return subject.read(Path(shutil.copytree(own / "whole", own / "read")))


def examine(subject: Subject, damaged: Path, place: Path, expected: Answer, *, commands: bool) -> tuple[str, str]:
    """Read the damaged folder through the library, and by commands; the outcome, and the fault where there is one."""
    readers: list[Callable[[], tuple[str, str]]] = [partial(judge, subject, place, expected)]
    if commands:
        readers += [partial(command, arguments) for arguments in subject.commands(place)]
    outcomes = []
    for reader in readers:
        shutil.rmtree(place)
        shutil.copytree(damaged, place)
        outcome, fault = in_child(reader)
        if fault:
            return "fault", fault
        outcomes.append(outcome)
    return outcomes[0], ""


def prepare(folder: Path) -> None:
    """Nothing but the files here is read or run; a program that is started for a file leaves a trace."""
    folder.mkdir(parents=True, exist_ok=True)
    programs = folder / "programs"
    programs.mkdir()
    for name in ("gs", "gswin64c", "gm", "convert"):
        (programs / name).write_text('#!/bin/sh\ntouch "$ABUSE_TRACE"\n')
        (programs / name).chmod(0o755)
    os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ["ASYMTRAIN_DATA"] = str(folder / "no-data")
    os.environ["HOME"] = str(folder)
    os.environ["ABUSE_TRACE"] = str(folder / "a-program-ran")
    registry.SOURCES["cifar10"] = registry.cifar_source(TEN)  # for the command
    local.cores = lambda: 1


def damage(subject: Subject, copy: Path, other: Path, chance: random.Random) -> str:
    """Damage the copy; what was done."""
    if subject.more and chance.random() < 0.3:
        return chance.choice(subject.more)(copy, chance)
    file = chance.choice(sorted(subject.files(copy)))
    twin = other / file.relative_to(copy)
    name = chance.choices(list(BYTES), [WEIGHTS.get(kind, 1) for kind in BYTES])[0]
    content = file.read_bytes()
    second = twin.read_bytes() if twin.exists() else chance.choice(sorted(subject.files(other))).read_bytes()
    file.write_bytes(BYTES[name](content, chance, second))
    return f"{name} in {file.relative_to(copy)}"


def judge(subject: Subject, folder: Path, expected: Answer) -> tuple[str, str]:
    """Read the damaged folder and compare."""
    try:
        answer, named = subject.read(folder), set[str]()
    except Named as partly:
        answer, named = partly.answer, partly.questions
    except UsageError as error:
        return "refused", f"a message of several lines: {error}" if "\n" in str(error) else ""
    if answer == expected:
        return ("equal, and damage named" if named else "equal"), ""
    wrong = sorted(name for name, value in answer.items() if name not in expected or expected[name] != value)
    missing = sorted(name for name in expected.keys() - answer.keys() if name.partition(" ")[0] not in named)
    if not wrong and not missing:
        return "named, the rest equal", ""
    if not subject.checked:
        return "other values", ""
    return "different", f"silently different: {len(wrong)} wrong {wrong[:2]}, {len(missing)} missing {missing[:2]}"


def command(arguments: list[str]) -> tuple[str, str]:
    """A command on the damaged folder: it ends well, or in one line."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main(arguments)
    except SystemExit as left:
        code = left.code or 0
    said = err.getvalue()
    text = f"asymtrain {' '.join(arguments[:2])}"
    if "Traceback" in said or code not in (DONE, FAILED, REFUSED):
        return "ended", f"{text}: exit {code}, {said[-300:]}"
    lines = [line for line in said.splitlines() if "is damaged, only the rest is read" not in line]  # may come first
    if code == REFUSED and (len(lines) != 1 or not lines[0].startswith("asymtrain: ")):
        return "ended", f"{text}: not one line: {said[-300:]}"
    return "ended", ""


def in_child(reader: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    """Call it in a forked process, under limits; its result, or what was wrong."""
    ours, theirs = os.pipe()
    child = start(partial(limited, reader, theirs))
    os.close(theirs)
    until, told = time.monotonic() + PATIENCE, b""
    while select.select([ours], [], [], max(0.0, until - time.monotonic()))[0] and (part := os.read(ours, 1 << 16)):
        told += part
    os.close(ours)
    if time.monotonic() > until:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if (trace := Path(os.environ["ABUSE_TRACE"])).exists():
        trace.unlink()
        return "ended", "another program was started for a file"
    if not told:
        code = os.waitstatus_to_exitcode(status)
        return "ended", f"hangs for {SECONDS} s" if -code in (signal.SIGXCPU, signal.SIGKILL) else f"ended with {code}"
    return pickle.loads(told)


def limited(reader: Callable[[], tuple[str, str]], pipe: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 4 * MEMORY, used + 4 * MEMORY))
    sys.stdin.close()
    try:
        result = reader()
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        result = ("ended", f"{type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"[:500])
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    if grown > MEMORY and not result[1]:
        result = ("ended", f"took {grown >> 20} MiB")
    os.write(pipe, pickle.dumps(result))


# Stores.

STORE = "runs.sqlite"


def make_store(folder: Path, number: int) -> None:
    with Store(folder / STORE) as store:
        for seed in range(10 * number, 10 * number + 10):
            for spec in (example_spec(seed, epochs=9), example_spec(seed, epochs=9, redundancy=0)):
                store.add(example_run(spec))
                if seed % 3 == 0:
                    store.add_measurement(spec.id, "norm", {epoch: seed + epoch / 7 for epoch in range(5)})
        store.add(example_run(spec, salt="again"), again=True)
        store.add(example_run(example_spec(seed, epochs=7), epochs=3, outcome="diverged"))
        store.request([example_spec(seed) for seed in (1000, 1001)])
        store.fail([example_spec(1002)], "a reason")


def read_store(folder: Path) -> Answer:
    """The answers to several questions, each to a store that was just opened: it says what it leaves out, once."""
    questions: dict[str, Callable[[Store], Answer]] = {
        "records": lambda store: {f"{r.run.spec.id} {r.attempt}": r for r in store.records(every_attempt=True)},
        "runs": lambda store: {run.spec.id: run for run in store.runs()},
        "measurements": lambda store: {f"{v.spec_id} {v.name} {v.epoch}": v.value for v in store.measurements()},
        "pending": lambda store: {spec.id: spec for spec in store.pending()},
        "failures": lambda store: {failure.spec.id: failure.reason for failure in store.failures()},
        "total": lambda store: {name: n for name, n in vars(store.summary().total).items() if name != "seconds"},
    }
    answer, named = {}, set()
    for question, ask in questions.items():
        with warnings.catch_warnings(record=True) as heard, Store(folder / STORE, read_only=True) as store:
            warnings.simplefilter("always")
            answer |= {f"{question} {name}": value for name, value in ask(store).items()}
        if heard:
            named.add(question)
    if "total" in named:
        answer = {name: value for name, value in answer.items() if not name.startswith("total ")}  # counts of the rest
    if named:
        raise Named(answer, named)
    return answer


def change_rows(folder: Path, chance: random.Random) -> str:
    """Rows deleted or changed by a program that knows SQL and not the store."""
    table = chance.choice(("runs", "epochs", "epochs", "specs", "measurements"))
    with closing(sqlite3.connect(folder / STORE, isolation_level=None)) as connection:
        for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {trigger}")
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        rows = connection.execute(f"SELECT * FROM {table}").fetchall()
        row = chance.choice(rows)
        chosen = " AND ".join(f'"{column}" IS ?' for column in columns)
        if chance.random() < 0.5:
            connection.execute(f"DELETE FROM {table} WHERE {chosen}", row)
            return f"a row of {table} deleted"
        column = chance.choice(columns)
        value = chance.choice((0, -1, 2**62, 0.25, "", "x", b"\xff\x00", "[" * 5000, None, chance.choice(rows)[0]))
        try:
            connection.execute(f'UPDATE {table} SET "{column}" = ? WHERE {chosen}', (value, *row))
        except sqlite3.Error:
            connection.execute(f"DELETE FROM {table} WHERE {chosen}", row)
            return f"a row of {table} deleted"
    return f"{column} of a row of {table} set to {str(value)[:20]!r}"


def store_commands(folder: Path) -> list[list[str]]:
    store = str(folder / STORE)
    return [
        ["status", "--store", store],
        ["store", "check", store],
        ["store", "export", store, str(folder / "exported")],
    ]


# Exports.


def make_export(form: str, folder: Path, number: int) -> None:
    make_store(folder, number)
    with Store(folder / STORE, read_only=True) as store:
        export_store(store, folder / "export", format=form)
    (folder / STORE).unlink()


def export_files(folder: Path) -> list[Path]:
    return [file for file in (folder / "export").iterdir() if file.stat().st_size]


def read_exported(folder: Path) -> Answer:
    with Store(folder / STORE) as store:
        import_store(store, read_export(folder / "export"))
    return read_store(folder)


def forge(folder: Path, chance: random.Random) -> str:
    """A table with a matching hash, so that its content is read: another value may come of it, and no traceback."""
    export = folder / "export"
    manifest = json.loads((export / "manifest.json").read_text())
    form = manifest["files"]
    file = export / f"{chance.choice(('specs', 'runs', 'epochs', 'measurements'))}.{form}"
    content = file.read_bytes()
    if form == "csv" and chance.random() < 0.7:
        lines = content.decode().split("\n")
        place = chance.randrange(1, len(lines) - 1)
        cells = lines[place].split(",")
        forged = ("", "nan", "inf", "-1", "9" * 400, "x", "=1+1", f'"{"[" * 20_000}"', "\x1b[2J", "NaN", "!!!", "null")
        cells[chance.randrange(len(cells))] = chance.choice(forged)
        lines[place] = ",".join(cells)
        content = "\n".join(lines).encode()
    else:
        content = flip(content, chance, b"", chance.choice((1, 8)))
    file.write_bytes(content)
    manifest["sha256"][file.stem] = hashlib.sha256(content).hexdigest()
    (export / "manifest.json").write_text(json.dumps(manifest))
    return f"{file.name} forged"


def read_forged(folder: Path) -> Answer:
    """What is taken must be whole enough to be read and written again."""
    answer = read_exported(folder)
    with Store(folder / STORE, read_only=True) as store:
        export_store(store, folder / "again")
    read_export(folder / "again")
    return answer


def import_command(folder: Path) -> list[list[str]]:
    return [["store", "import", str(folder / "new.sqlite"), str(folder / "export")]]


# Checkpoints, and states that instruments keep.


def make_checkpoint(folder: Path, number: int) -> None:
    """A stack that was ended after some of its epochs."""
    done: list[int] = []

    def watch(progress: Any) -> None:
        done.append(progress.epochs_done)

    over, Job.is_over = Job.is_over, lambda self: bool(done and done[-1] >= 8)  # type: ignore[method-assign]
    try:
        list(execute(checkpointed(number), store=folder / STORE, device="cpu", progress=watch, checkpoint_seconds=0.0))
    finally:
        Job.is_over = over  # type: ignore[method-assign]
    assert checkpoint_files(folder), "no checkpoint was left"


def checkpointed(number: int) -> list[Any]:
    return examples("mlp", 1, epochs=6, batch=32 + number)


def checkpoint_files(folder: Path) -> list[Path]:
    return [file for file in checkpoints(folder / STORE).rglob("*") if file.is_file()]


def resume(folder: Path) -> Answer:
    runs = execute(checkpointed(0), store=folder / STORE, device="cpu", checkpoint_seconds=10**6)
    return {run.spec.id: bare(run) for run in runs}


def status_command(folder: Path) -> list[list[str]]:
    return [["status", "--store", str(folder / STORE)]]


def make_states(folder: Path, number: int) -> None:
    read_states(folder, number)


def read_states(folder: Path, number: int = 0) -> Answer:
    states = states_at(checkpointed(number), [0, 1], device="cpu", cache=folder / "states")
    return {
        f"{state.spec.id} {state.epoch} {name}": (value.shape, value.numpy().tobytes())
        for state in states
        for name, value in state.parameters.items()
    }


# Data.


def make_images(folder: Path, number: int) -> None:
    draw = np.random.default_rng(number)
    for part, count in (("train", 4), ("test", 2)):
        for label in ("ant", "bee"):
            place = folder / "images" / part / label
            place.mkdir(parents=True)
            for index, suffix in enumerate(("png", "jpg", "gif", "webp", "bmp", "tif", "ppm")[: count + 3]):
                Image.fromarray(draw.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(place / f"{index}.{suffix}")


def image_files(folder: Path) -> list[Path]:
    return [file for file in (folder / "images").rglob("*") if file.is_file()]


def read_images(folder: Path) -> Answer:
    return described(image_folder.load(folder / "images", image_size=8))


def make_npz(folder: Path, number: int) -> None:
    drawn = np.random.default_rng(number)
    images = drawn.integers(
        0, 256, (120, 3, 8, 8), dtype=np.uint8
    )  # pages enough that a few of another file are not all
    save = np.savez_compressed if number % 2 else np.savez
    save(folder / "data.npz", x=images, y=np.arange(120) % 4, class_names=["a", "b", "c", "d"])


def described(dataset: Any) -> Answer:
    parts = {"train": dataset.train, "test": dataset.test}
    answer: Answer = {"names": dataset.class_names}
    for name, part in parts.items():
        answer |= {f"{name} images": part.images.tobytes(), f"{name} labels": part.labels.tolist()}
    return answer


def hostile_image(folder: Path, chance: random.Random) -> str:
    """A file that is no picture, or a picture that is too large, under a picture's name."""
    file = chance.choice(sorted(image_files(folder)))
    kind = chance.choice(("postscript", "pdf", "svg", "bomb", "wide header"))
    if kind == "bomb":
        Image.new("1", (20_000, 20_000)).save(file, "PNG")
    elif kind == "wide header":
        buffer = io.BytesIO()
        Image.new("RGB", (4, 4)).save(buffer, "PNG")
        content = bytearray(buffer.getvalue())
        content[16:24] = chance.choice((b"\0\0\xff\xff\0\0\xff\xff", b"\x7f\xff\xff\xff\x7f\xff\xff\xff", bytes(8)))
        file.write_bytes(content)
    else:
        script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\nshowpage\n%%EOF\n"
        file.write_bytes({"postscript": script, "pdf": b"%PDF-1.4\n" + script, "svg": b"<svg/>"}[kind])
    return f"{kind} as {file.name}"


def make_cifar(folder: Path, number: int) -> None:
    changed = contents(TEN) if number == 0 else contents(TEN) | contents(HUNDRED)
    write_folder(TEN, folder, **{name: value for name, value in changed.items() if name in TEN.files})


def cifar_files(folder: Path) -> list[Path]:
    return list((folder / TEN.archive.folder).iterdir())


def hostile_pickle(folder: Path, chance: random.Random) -> str:
    """A pickle that doubles what it holds again and again, that nests, or that calls."""
    file = chance.choice(sorted(cifar_files(folder)))
    kind = chance.choice(("doubling", "nested", "calls", "long"))
    file.write_bytes(
        {
            "doubling": b"\x80\x02(" + b"l" + b"".join(b"2" + b"\x86" for _ in range(60)) + b".",
            "nested": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
            "calls": b"cos\nsystem\n(S'true'\ntR.",
            "long": b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b"x.",
        }[kind]
    )
    return f"a pickle that is {kind} as {file.name}"


def make_archive(folder: Path, number: int) -> None:
    place = write_folder(TEN, folder / "unpacked")
    content, source = pack(TEN, place)
    shutil.rmtree(folder / "unpacked")
    (folder / TEN.archive.file).write_bytes(content)
    (folder / "md5").write_text(source.archive.md5)


def read_archive(folder: Path) -> Answer:
    archive = dataclasses.replace(TEN.archive, md5=(folder / "md5").read_text())
    source = dataclasses.replace(TEN, archive=archive)
    answer = described(cifar.load(source, folder, download=False))
    shutil.rmtree(folder / TEN.archive.folder)
    return answer


SUBJECTS = (
    Subject("store", 8, make_store, lambda f: [f / STORE], read_store, store_commands, more=(change_rows,)),
    Subject("csv", 2, partial(make_export, "csv"), export_files, read_exported, import_command),
    Subject("parquet", 2, partial(make_export, "parquet"), export_files, read_exported, import_command),
    Subject(
        "forged csv", 2, partial(make_export, "csv"), export_files, read_forged, import_command, (forge,), checked=False
    ),
    Subject(
        "forged parquet", 1, partial(make_export, "parquet"), export_files, read_forged, import_command, (forge,), False
    ),
    Subject("checkpoint", 4, make_checkpoint, checkpoint_files, resume, status_command),
    Subject("states", 2, make_states, lambda f: list((f / "states").iterdir()), read_states),
    Subject(
        "images",
        3,
        make_images,
        image_files,
        read_images,
        lambda f: [["data", "check", f"folder:{f / 'images'}"]],
        more=(hostile_image,),
        checked=False,
    ),
    Subject(
        "cifar",
        3,
        make_cifar,
        cifar_files,
        lambda f: described(cifar.load(TEN, f, download=False)),
        lambda f: [["data", "check", "cifar10", "--data-root", str(f)]],
        more=(hostile_pickle,),
        checked=False,
    ),
    Subject("cifar archive", 1, make_archive, lambda f: [f / TEN.archive.file], read_archive),
    Subject(
        "npz",
        2,
        make_npz,
        lambda f: [f / "data.npz"],
        lambda f: described(own_arrays.load_npz(f / "data.npz")),
        lambda f: [["data", "check", f"npz:{f / 'data.npz'}"]],
    ),
)
