"""Specs, runs, epochs and measured values as rows, and back.

A run is checked before it is written: SQLite turns NaN into NULL without a word, and a history with a hole
would poison every table made from it.
"""

import base64
import dataclasses
import json
import math
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from asymtrain.lab.runs import Epoch, Run, RunSpec
from asymtrain.lab.store.database import StoreError
from asymtrain.lab.store.provenance import Provenance

EPOCH_COLUMNS = tuple(field.name for field in dataclasses.fields(Epoch))
_REQUIRED = {"main_loss", "train_accuracy", "seconds"}
_NUMBERS = EPOCH_COLUMNS[1:-1]  # the first is the epoch's own, the last, layer_cosines, is no number
_numbers_of = attrgetter(*_NUMBERS)  # of a long study there are hundreds of thousands of epochs
_order = attrgetter("dataset", "arch", "variant", "seed")
PROVENANCE_COLUMNS = tuple(field.name for field in dataclasses.fields(Provenance))
RUN_COLUMNS = (
    "spec_id", "attempt", "outcome", "device", "path", "seconds", *PROVENANCE_COLUMNS, "created", "answers",
)  # fmt: skip
_RUN_LIST = ", ".join(f'"{name}"' for name in RUN_COLUMNS)
_EPOCH_LIST = ", ".join(EPOCH_COLUMNS)


@dataclass(frozen=True)
class Record:
    """A stored run, with where it came from. `attempt` counts from 1; `created` is UTC in ISO format."""

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
    for epoch in run.history:
        layers = [(f"the cosine of {layer}", value) for layer, value in epoch.layer_cosines or ()]
        for name, value in (*zip(_NUMBERS, _numbers_of(epoch), strict=True), *layers):
            if value is None and name not in _REQUIRED:
                continue
            if not isinstance(value, float | int) or not math.isfinite(value):
                raise ValueError(f"{name} of epoch {epoch.epoch} of {run.spec.id} is {value!r}, not a finite number")


def spec_row(spec: RunSpec) -> tuple[Any, ...]:
    """The columns of `specs`: the last is the canonical JSON that the id is the hash of."""
    seed = spec.seed if spec.seed < 2**63 else None  # what does not fit a 64-bit column is in the JSON
    text = json.dumps(spec.to_dict(), sort_keys=True, separators=(",", ":"))
    return (spec.id, spec.dataset, spec.arch, spec.variant, seed, text)


def read_spec(spec_id: str, text: str) -> RunSpec:
    """The spec behind a row; an error where it is not the one that the id was made from."""
    spec = RunSpec.from_dict(json.loads(text))
    if spec.id != spec_id:
        raise StoreError(f"spec {spec_id} reads as {spec.id}: it is damaged, or another version of asymtrain wrote it")
    return spec


def insert_specs(connection: sqlite3.Connection, specs: Iterable[RunSpec]) -> None:
    connection.executemany("INSERT OR IGNORE INTO specs VALUES (?, ?, ?, ?, ?, ?)", map(spec_row, specs))


def select_specs(connection: sqlite3.Connection, ids: Iterable[str] | None = None) -> dict[str, RunSpec]:
    """Known specs by id, in the order of everything that is read: it does not depend on when a row was written."""
    condition, values = among("id", ids)
    rows = connection.execute(f"SELECT id, spec FROM specs WHERE {condition}", values)
    specs = {spec_id: read_spec(spec_id, text) for spec_id, text in rows}
    return dict(sorted(specs.items(), key=lambda item: (_order(item[1]), item[0])))


def count_attempts(connection: sqlite3.Connection, spec_id: str) -> int:
    (count,) = connection.execute("SELECT count(*) FROM runs WHERE spec_id = ?", (spec_id,)).fetchone()
    return int(count)


def insert_record(connection: sqlite3.Connection, record: Record) -> None:
    """Write a run with all its epochs; the caller checked it and holds the transaction."""
    insert_specs(connection, [record.run.spec])
    marks = ", ".join("?" * len(RUN_COLUMNS))
    cursor = connection.execute(f"INSERT INTO runs ({_RUN_LIST}) VALUES ({marks})", run_row(record))
    marks = ", ".join("?" * len(EPOCH_COLUMNS))
    statement = f"INSERT INTO epochs (run_id, {_EPOCH_LIST}) VALUES ({cursor.lastrowid}, {marks})"
    connection.executemany(statement, map(epoch_row, record.run.history))


def select_records(
    connection: sqlite3.Connection, ids: Iterable[str] | None = None, *, every_attempt: bool = False
) -> list[Record]:
    """Stored runs, in order: the latest attempt of each spec, or every one."""
    condition, values = among("spec_id", ids)
    table = "runs" if every_attempt else "latest_runs"
    rows = connection.execute(f"SELECT id, {_RUN_LIST} FROM {table} WHERE {condition}", values).fetchall()
    specs = select_specs(connection, None if ids is None else {row[1] for row in rows})
    condition, values = among("run_id", [row[0] for row in rows])
    statement = f"SELECT run_id, {_EPOCH_LIST} FROM epochs WHERE {condition} ORDER BY run_id, epoch"
    by_run = groupby(connection.execute(statement, values), key=lambda row: row[0])
    histories = {run_id: tuple(make_epoch(row[1:]) for row in epochs) for run_id, epochs in by_run}
    order = {spec_id: number for number, spec_id in enumerate(specs)}
    return [
        make_record(specs[row[1]], histories.get(row[0], ()), row[1:])
        for row in sorted(rows, key=lambda row: (order[row[1]], row[2]))  # spec, then attempt
    ]


def run_row(record: Record) -> tuple[Any, ...]:
    run = record.run
    return (
        run.spec.id, record.attempt, run.outcome, run.device, run.path, run.seconds,
        *dataclasses.astuple(record.provenance), record.created,
        None if run.answers is None else base64.b64encode(run.answers).decode(),
    )  # fmt: skip


def epoch_row(epoch: Epoch) -> tuple[Any, ...]:
    """The values of `EPOCH_COLUMNS`, every measured number a float."""
    layers = None if epoch.layer_cosines is None else json.dumps(epoch.layer_cosines, separators=(",", ":"))
    return (epoch.epoch, *[None if value is None else float(value) for value in _numbers_of(epoch)], layers)


def make_epoch(row: Sequence[Any]) -> Epoch:
    """Inverse of `epoch_row`."""
    *numbers, text = row
    layers = tuple((name, value) for name, value in json.loads(text)) if text else None
    return Epoch(*(*numbers, layers))


def make_record(spec: RunSpec, history: tuple[Epoch, ...], row: Sequence[Any]) -> Record:
    """Inverse of `run_row`."""
    _, attempt, outcome, device, path, _, python, torch, asymtrain, commit, dirty, source, created, answers = row
    run = Run(spec, history, outcome, device, path, base64.b64decode(answers) if answers else None)
    return Record(run, attempt, Provenance(python, torch, asymtrain, commit, bool(dirty), source), created)


def value_text(value: Any) -> str:
    """A value as canonical JSON; NaN and inf are no values."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise ValueError(f"a measurement must be finite, got {value!r}") from error


def insert_measurement_rows(connection: sqlite3.Connection, rows: Iterable[tuple[Any, ...]]) -> None:
    connection.executemany("INSERT INTO measurements VALUES (?, ?, ?, ?, ?, ?)", rows)


def among(column: str, values: Iterable[Any] | None) -> tuple[str, tuple[str, ...]]:
    """A condition for any number of values, as one parameter; None for no condition."""
    if values is None:
        return "1", ()
    return f"{column} IN (SELECT value FROM json_each(?))", (json.dumps(list(values)),)
