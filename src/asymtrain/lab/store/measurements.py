"""What instruments saw: named values of a spec, by epoch. A value is anything JSON can hold."""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from asymtrain.errors import UsageError
from asymtrain.lab.store.records import among

COLUMNS = ("spec_id", "name", "attempt", "epoch", "value", "created")


@dataclass(frozen=True)
class Measurement:
    """One value of one spec; epoch 0 is before training."""

    spec_id: str
    name: str
    epoch: int
    value: Any


def value_text(value: Any) -> str:
    """A value as canonical JSON; NaN and inf are no values."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise ValueError(f"a measurement must be finite, got {value!r}") from error


def insert_measurement(
    connection: sqlite3.Connection, spec_id: str, name: str, values: Mapping[int, Any], now: str, *, again: bool
) -> bool:
    """Write a measurement whole; False where it is there already and is not to be repeated."""
    if not connection.execute("SELECT 1 FROM specs WHERE id = ?", (spec_id,)).fetchone():
        raise UsageError(f"the store does not know spec {spec_id!r}: add its run, request it or make it known first")
    (attempts,) = connection.execute(
        "SELECT coalesce(max(attempt), 0) FROM measurements WHERE spec_id = ? AND name = ?", (spec_id, name)
    ).fetchone()
    if attempts and not again:
        return False
    rows = [(spec_id, name, attempts + 1, epoch, value_text(value), now) for epoch, value in sorted(values.items())]
    insert_rows(connection, rows)
    return bool(rows)


def insert_rows(connection: sqlite3.Connection, rows: Iterable[tuple[Any, ...]]) -> None:
    """Write rows of `COLUMNS`."""
    connection.executemany("INSERT INTO measurements VALUES (?, ?, ?, ?, ?, ?)", rows)


def select_rows(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    """Every attempt, as rows of `COLUMNS`, in order."""
    return connection.execute(
        f"SELECT {', '.join(COLUMNS)} FROM measurements ORDER BY spec_id, name, attempt, epoch"
    ).fetchall()


def select_measurements(
    connection: sqlite3.Connection, name: str | None, ids: Iterable[str] | None
) -> list[Measurement]:
    """The latest attempt of each measurement, ordered by spec id, name and epoch."""
    condition, values = among("spec_id", ids)
    rows = connection.execute(
        f"""SELECT spec_id, name, epoch, value FROM measurements AS m
        WHERE {condition} AND (? IS NULL OR name = ?)
          AND attempt = (SELECT max(attempt) FROM measurements WHERE spec_id = m.spec_id AND name = m.name)
        ORDER BY spec_id, name, epoch""",
        (*values, name, name),
    )
    return [Measurement(spec_id, name, epoch, json.loads(text)) for spec_id, name, epoch, text in rows]
