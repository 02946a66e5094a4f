"""Specs, runs, epochs and measured values as rows, and back.

A run is checked before it is written: SQLite silently turns NaN into NULL, and a history with a gap
would falsify every table made from it. It is read only if its checksums match (checksums.py).
"""

import base64
import dataclasses
import gc
import json
import math
import reprlib
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import attrgetter
from types import NoneType
from typing import Any

from asymtrain.lab.runs import Epoch, Run, RunSpec, UnreadHistory
from asymtrain.lab.store import checksums
from asymtrain.lab.store.checksums import EPOCH_COLUMNS, RUN_COLUMNS, Damage, Key, among
from asymtrain.lab.store.database import StoreError
from asymtrain.lab.store.provenance import Provenance

_REQUIRED = {"main_loss", "train_accuracy", "seconds"}
_order = attrgetter("dataset", "arch", "variant", "seed")
_RUN_LIST = ", ".join(f'"{name}"' for name in RUN_COLUMNS)
make_epoch: Callable[[tuple[Any, ...]], Epoch] = partial(tuple.__new__, Epoch)  # like `_make`, but in C
_EPOCH_LIST = ", ".join(EPOCH_COLUMNS)
_COUNT, _SECONDS = 6, RUN_COLUMNS.index("seconds")  # indices: of the number of epochs in a run's row; in RUN_COLUMNS


@dataclass(frozen=True)
class Record:
    """A stored run with its provenance. `attempt` counts from 1; `created` is UTC in ISO format."""

    run: Run
    attempt: int
    provenance: Provenance
    created: str


@dataclass(frozen=True)
class Measurement:
    """One value of one spec; epoch 0 is before training."""

    spec_id: str
    name: str
    epoch: int
    value: Any


def check_whole(run: Run) -> None:
    """Raise ValueError unless the run can be stored and read back bit by bit."""
    if run.outcome not in ("finished", "diverged"):
        raise ValueError(f"the outcome of a run is 'finished' or 'diverged', not {run.outcome!r}")
    numbers = [epoch.epoch for epoch in run.history]
    if numbers != list(range(1, len(numbers) + 1)) or len(numbers) > run.spec.epochs:
        raise ValueError(f"the history of {run.spec.id} is not epochs 1 to {run.spec.epochs} in order: {numbers}")
    if run.outcome == "finished" and len(numbers) != run.spec.epochs:
        raise ValueError(f"{run.spec.id} is called finished after {len(numbers)} of {run.spec.epochs} epochs")
    for name, column in zip(EPOCH_COLUMNS, zip(*run.history, strict=True), strict=False):
        kinds = set(map(type, column))
        values = column if kinds == {float} else [value for value in column if value is not None]
        # By column, since a study has millions of numbers: a finite sum means that all are finite. Only otherwise each
        # number is checked.
        if kinds <= {float, int, *([] if name in _REQUIRED else [NoneType])} and math.isfinite(sum(values)):
            continue
        for epoch, value in enumerate(column, 1):
            if value is None and name not in _REQUIRED:
                continue
            if not isinstance(value, float | int) or not math.isfinite(value):
                raise ValueError(f"{name} of epoch {epoch} of {run.spec.id} is {value!r}, not a finite number")


def spec_row(spec: RunSpec) -> tuple[Any, ...]:
    """The columns of `specs`; the last is the canonical JSON whose hash is the id."""
    seed = spec.seed if spec.seed < 2**63 else None  # a larger seed does not fit the column, and is only in the JSON
    text = json.dumps(spec.to_dict(), sort_keys=True, separators=(",", ":"))
    return (spec.id, spec.dataset, spec.arch, spec.variant, seed, text)


@lru_cache(maxsize=10_000)  # a command may read a store several times
def read_spec(spec_id: str, text: str) -> RunSpec:
    """The spec of a row; raises if it is not the one that the id was made from."""
    spec = RunSpec.from_dict(json.loads(text))
    if spec.id != spec_id:
        raise StoreError(f"spec {spec_id} reads as {spec.id}: it is damaged, or another version of asymtrain wrote it")
    return spec


def insert_specs(connection: sqlite3.Connection, specs: Iterable[RunSpec]) -> None:
    connection.executemany("INSERT OR IGNORE INTO specs VALUES (?, ?, ?, ?, ?, ?)", map(spec_row, specs))


def select_specs(connection: sqlite3.Connection, ids: Collection[str]) -> tuple[dict[str, RunSpec], list[Damage]]:
    """Specs by id, in order, and as damage those that are damaged or missing."""
    condition, values = among("id", ids)
    texts = dict(connection.execute(f"SELECT id, spec FROM specs WHERE {condition}", values).fetchall())
    intact = {spec_id: text for spec_id, text in texts.items() if checksums.is_spec(spec_id, text)}
    damaged = [
        Damage("spec", "is not as it was stored" if spec_id in texts else "is missing", spec_id)
        for spec_id in ids
        if spec_id not in intact
    ]
    return in_order({spec_id: read_spec(spec_id, text) for spec_id, text in intact.items()}), damaged


def in_order(specs: Mapping[str, RunSpec]) -> dict[str, RunSpec]:
    """Specs in the order of all results, which does not depend on when a row was written."""
    return dict(sorted(specs.items(), key=lambda item: (_order(item[1]), item[0])))


def count_attempts(connection: sqlite3.Connection, spec_id: str) -> int:
    """The number of stored attempts, including damaged ones."""
    recorded, _ = checksums.select_recorded(connection, [spec_id])
    return max((key.number for key in recorded), default=0)


def insert_record(connection: sqlite3.Connection, record: Record) -> None:
    """Write a run with all its epochs; the caller has checked it and holds the transaction."""
    insert_specs(connection, [record.run.spec])
    marks = ", ".join("?" * len(RUN_COLUMNS))
    cursor = connection.execute(f"INSERT INTO runs ({_RUN_LIST}) VALUES ({marks})", run_row(record))
    marks = ", ".join("?" * len(EPOCH_COLUMNS))
    statement = f"INSERT INTO epochs (run_id, {_EPOCH_LIST}) VALUES ({cursor.lastrowid}, {marks})"
    epochs = epoch_rows(record.run)
    connection.executemany(statement, epochs)
    key = Key(record.run.spec.id, "", record.attempt)
    checksums.add(connection, "run", key)
    checksums.add(connection, "history", key, epochs)


@contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection, which would scan all epochs again and again and free nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@uncollected()
def select_records(
    connection: sqlite3.Connection,
    ids: Collection[str] | None = None,
    *,
    every_attempt: bool = False,
    epochs_of: Callable[[RunSpec], bool] | None = None,
) -> tuple[list[Record], list[Damage]]:
    """Stored runs, in order: the latest attempt of each spec, or every attempt; and the damage among them.

    With `epochs_of` the epochs of other runs are neither read nor checked.
    """
    runs, damaged = checksums.select_intact(connection, "run", ids)
    if not every_attempt:
        runs, damaged = checksums.keep_latest(runs, damaged)
    specs = in_order({key.spec_id: read_spec(key.spec_id, row[5]) for key, (row,) in runs.items()})
    read_keys: Collection[Key] = runs
    if epochs_of is not None:
        read_keys = {key for key in runs if epochs_of(specs[key.spec_id])}
        ids = {key.spec_id for key in read_keys}
    histories, damaged_histories = checksums.select_intact(connection, "history", ids, read_keys)
    order = {spec_id: number for number, spec_id in enumerate(specs)}
    all_records = []
    for key, (row,) in sorted(runs.items(), key=lambda item: (order[item[0].spec_id], item[0].number)):
        columns = row[-len(RUN_COLUMNS) :]
        history: Sequence[Epoch] = UnreadHistory(row[_COUNT], columns[_SECONDS])
        if key in read_keys:
            if key not in histories:
                continue
            history = tuple(map(make_epoch, histories[key]))
        all_records.append(make_record(specs[key.spec_id], history, columns))
    return all_records, [*damaged, *damaged_histories]


def run_row(record: Record) -> tuple[Any, ...]:
    run = record.run
    return (
        run.spec.id, record.attempt, run.outcome, run.device, run.path, run.seconds,
        *dataclasses.astuple(record.provenance), record.created,
        None if run.answers is None else base64.b64encode(run.answers).decode(),
        run.model_fingerprint, run.data_fingerprint, run.calibration_error, run.classes, run.largest_class,
    )  # fmt: skip


def epoch_rows(run: Run) -> list[tuple[Any, ...]]:
    """The values of `EPOCH_COLUMNS`, with every measured number as a float."""
    _, *columns = zip(*run.history, strict=True) if run.history else ((),)
    if all(set(map(type, column)) <= {float, NoneType} for column in columns):
        return list(map(tuple, run.history))  # plain tuples, which SQLite reads faster than named ones
    return [(number, *[None if v is None else float(v) for v in values]) for number, *values in run.history]


def make_record(spec: RunSpec, history: Sequence[Epoch], row: Sequence[Any]) -> Record:
    """Inverse of `run_row`."""
    _, attempt, outcome, device, path, _, python, torch, asymtrain, commit, dirty, source, created, answers, *rest = row
    bits = base64.b64decode(answers, validate=True) if answers else None
    run = Run(spec, history, outcome, device, path, bits, *rest)
    return Record(run, attempt, Provenance(python, torch, asymtrain, commit, bool(dirty), source), created)


def value_text(value: Any) -> str:
    """A value as canonical JSON that can be read back; NaN and inf are refused."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
        json.loads(text)
    except RecursionError:
        raise ValueError("a measurement must not be nested so deeply") from None
    except ValueError as error:
        raise ValueError(f"a measurement must be finite, got {reprlib.repr(value)}") from error
    return text


def insert_measurement_rows(connection: sqlite3.Connection, rows: Iterable[tuple[Any, ...]]) -> None:
    """Write the rows of complete measurements; the caller holds the transaction."""
    rows = list(rows)
    connection.executemany("INSERT INTO measurements VALUES (?, ?, ?, ?, ?, ?)", rows)
    for key in dict.fromkeys(Key(*row[:3]) for row in rows):
        checksums.add(connection, "measurement", key)


def select_measurements(
    connection: sqlite3.Connection, ids: Collection[str] | None = None, *, every_attempt: bool = False
) -> tuple[list[tuple[Any, ...]], list[Damage]]:
    """Rows of measured values, ordered by spec id, name, attempt and epoch; and the damage among them."""
    intact, damaged = checksums.select_intact(connection, "measurement", ids)
    if not every_attempt:
        intact, damaged = checksums.keep_latest(intact, damaged)
    return [(*key, *row) for key in sorted(intact) for row in intact[key]], damaged
