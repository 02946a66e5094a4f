"""A checksum for everything that is stored: damage to the file is noticed, named, and left out of what is read.

SQLite notices a page that makes no sense. It does not notice a number that changed, nor a page that lost rows. So each
write adds, in its own transaction, a checksum for what it wrote: a run with its spec, its epochs, a measurement, a
request, a failure. They are in a table of their own, away from the rows that they speak for: for a row that is missing
there is a checksum, and for a checksum that is missing there is a row.

Checksums are numbered without a gap, and SQLite keeps the last number in yet another place (AUTOINCREMENT), so that the
loss of a row together with its checksum is noticed too.
"""

import dataclasses
import hashlib
import json
import math
import sqlite3
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import NoneType
from typing import Any, NamedTuple

from asymtrain.lab.runs import DEFAULTS, Epoch
from asymtrain.lab.store.provenance import Provenance

EPOCH_COLUMNS = tuple(field.name for field in dataclasses.fields(Epoch))
PROVENANCE_COLUMNS = tuple(field.name for field in dataclasses.fields(Provenance))
RUN_COLUMNS = (
    "spec_id", "attempt", "outcome", "device", "path", "seconds", *PROVENANCE_COLUMNS, "created", "answers",
)  # fmt: skip
_SPEC = ("spec.dataset", "spec.arch", "spec.variant", "spec.seed", "spec.spec")

Rows = list[tuple[Any, ...]]


class Key(NamedTuple):
    """What a checksum speaks for. `number` is an attempt, or the id of a request; only measurements have a name."""

    spec_id: str
    name: str
    number: int


def _key(spec_id: Any, name: Any, number: Any) -> Key:
    """In a damaged file a number may be a text, and a text be missing."""
    return Key(str(spec_id), str(name), number if isinstance(number, int) else -1)


@dataclass(frozen=True)
class Damage:
    """Something that is not as it was stored. It is left out of what is read."""

    content: str  # run, history, measurement, request, failure or spec; `file` where more is not known
    problem: str
    spec_id: str = ""
    name: str = ""
    number: int = 0

    def __str__(self) -> str:
        if not self.spec_id:
            return self.problem
        name = f" {self.name!r}" if self.name else ""
        attempt = f", attempt {self.number}" if self.content in ("run", "history", "measurement") else ""
        return f"{self.content}{name} of spec {self.spec_id}{attempt}: {self.problem}"


@dataclass(frozen=True)
class Content:
    """A kind of thing that has a checksum: its key, the columns of its rows, and the tables that they are in.

    A column that a later version adds goes to the end and is NULL in older rows: their checksums stay.
    """

    key: str
    columns: tuple[str, ...]
    tables: str
    order: str = "1"

    def select(self, connection: sqlite3.Connection, condition: str, values: Sequence[Any] = ()) -> dict[Key, Rows]:
        columns = ", ".join((self.key, *self.columns))
        statement = f"SELECT {columns} FROM {self.tables} WHERE {condition} ORDER BY {self.order}"
        groups: dict[Key, Rows] = {}
        for key, rows in groupby(connection.execute(statement, values), key=lambda row: row[:3]):
            groups.setdefault(_key(*key), []).extend(row[3:] for row in rows)
        return groups


CONTENTS = {
    # With the spec and the number of epochs: what is counted and grouped is what was stored.
    "run": Content(
        "run.spec_id, '', run.attempt",
        (
            "run.id", *_SPEC, "(SELECT count(*) FROM epochs WHERE run_id = run.id)",
            *(f'run."{name}"' for name in RUN_COLUMNS),
        ),
        "runs AS run LEFT JOIN specs AS spec ON spec.id = run.spec_id",
    ),
    "history": Content(
        "run.spec_id, '', run.attempt",
        tuple(f"epoch.{name}" for name in EPOCH_COLUMNS),
        "epochs AS epoch JOIN runs AS run ON run.id = epoch.run_id",
        "epoch.run_id, epoch.epoch",
    ),
    "measurement": Content(
        "spec_id, name, attempt", ("epoch", "value", "created"), "measurements", "spec_id, name, attempt, epoch"
    ),
    "request": Content(
        "request.spec_id, '', request.id",
        (*_SPEC, "request.runs_before", "request.created"),
        "requests AS request LEFT JOIN specs AS spec ON spec.id = request.spec_id",
        "request.id",
    ),
    "failure": Content(
        "request.spec_id, '', failure.request_id",
        ("failure.reason", "failure.created"),
        "failures AS failure LEFT JOIN requests AS request ON request.id = failure.request_id",
    ),
}  # fmt: skip


def digest(rows: Rows) -> str:
    """Of floats the bytes, of everything else the JSON, column by column; a column without a value adds nothing."""
    total = hashlib.blake2b(digest_size=8)
    for place, column in enumerate(zip(*rows, strict=True)):
        kinds = set(map(type, column))
        if kinds == {NoneType}:
            continue
        total.update(f"{place} {len(column)} ".encode())
        if kinds <= {float, NoneType}:  # SQLite holds no NaN, so that it can stand for NULL
            numbers = [math.nan if value is None else value for value in column] if NoneType in kinds else column
            total.update(struct.pack(f"<{len(column)}d", *numbers))
        else:
            total.update(json.dumps(column, default=repr).encode())  # bytes are only where the file is damaged
    return total.hexdigest()


def add(connection: sqlite3.Connection, content: str, keys: Iterable[Key]) -> None:
    """Add the checksums of what was just written; the caller holds the transaction."""
    kind = CONTENTS[content]
    for key in keys:
        rows = kind.select(connection, f"({kind.key}) = (?, ?, ?)", key).get(key, [])
        _insert(connection, content, key, digest(rows))


def add_to_old_rows(connection: sqlite3.Connection) -> None:
    """Add checksums to what a version without them wrote, except to what cannot be as it was stored."""
    runs = CONTENTS["run"].select(connection, "1")
    for content, kind in CONTENTS.items():
        groups = runs if content == "run" else kind.select(connection, "1")
        for key in runs if content == "history" else groups:  # a run that diverged at once has no epochs
            rows = groups.get(key, [])
            if content == "run" and not _plausible(key, *rows):
                continue
            if content == "history" and [row[0] for row in rows] != list(range(1, len(rows) + 1)):
                continue
            _insert(connection, content, key, digest(rows))


def _plausible(key: Key, row: tuple[Any, ...]) -> bool:
    """Is the spec the one of the id, and has a finished run all its epochs?"""
    text, count, outcome = row[5], row[6], row[7 + RUN_COLUMNS.index("outcome")]
    if not is_spec(key.spec_id, text):
        return False
    return bool(outcome == "diverged" or count == json.loads(text).get("epochs", DEFAULTS["epochs"]))


def is_spec(spec_id: str, text: Any) -> bool:
    """Is this the JSON that the id was made from?"""
    return isinstance(text, str) and hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16] == spec_id


def _insert(connection: sqlite3.Connection, content: str, key: Key, value: str) -> None:
    statement = "INSERT INTO checksums (content, spec_id, name, number, digest) VALUES (?, ?, ?, ?, ?)"
    connection.execute(statement, (content, *key, value))


def select_intact(
    connection: sqlite3.Connection,
    content: str,
    ids: Collection[str] | None = None,
    keys: Collection[Key] | None = None,
) -> tuple[dict[Key, Rows], list[Damage]]:
    """What is as it was stored, and what is not: of these specs, of these keys alone, or of all."""
    digests, groups = select_digests(connection, content, ids), _select_groups(connection, content, ids)
    if keys is not None:
        digests = {key: value for key, value in digests.items() if key in keys}
        groups = {key: groups.get(key, []) for key in keys}
    intact: dict[Key, Rows] = {}
    damaged = [Damage(content, "has no checksum", *key) for key in groups if key not in digests]
    for key, value in digests.items():
        rows = groups.get(key, [])
        if digest(rows) == value:
            intact[key] = rows
        else:
            damaged.append(Damage(content, "is not as it was stored" if rows else "is missing", *key))
    return intact, damaged


def select_digests(connection: sqlite3.Connection, content: str, ids: Collection[str] | None = None) -> dict[Key, str]:
    condition, values = among("spec_id", ids)
    statement = f"SELECT spec_id, name, number, digest FROM checksums WHERE content = ? AND {condition} ORDER BY id"
    return {_key(*key): value for *key, value in connection.execute(statement, (content, *values))}


def _select_groups(connection: sqlite3.Connection, content: str, ids: Collection[str] | None) -> dict[Key, Rows]:
    kind = CONTENTS[content]
    try:
        return kind.select(connection, *among(kind.key.partition(",")[0], ids))
    except sqlite3.DatabaseError as error:
        if not _is_damage(error):
            raise
    # A page cannot be read: whatever is not on it can.
    groups = {}
    for key in select_digests(connection, content, ids):
        try:
            groups |= kind.select(connection, f"({kind.key}) = (?, ?, ?)", key)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
    return groups


def _is_damage(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_TOOBIG)


def keep_latest(intact: Mapping[Key, Rows], damaged: Iterable[Damage]) -> tuple[dict[Key, Rows], list[Damage]]:
    """Of each spec and name the latest attempt alone; a damaged one does not bring back the one before it."""
    last: dict[tuple[str, str], int] = {}
    for spec_id, name, number in (*intact, *((one.spec_id, one.name, one.number) for one in damaged)):
        last[spec_id, name] = max(number, last.get((spec_id, name), number))
    return (
        {key: rows for key, rows in intact.items() if last[key.spec_id, key.name] == key.number},
        [one for one in damaged if last[one.spec_id, one.name] == one.number],
    )


def among(column: str, values: Iterable[Any] | None) -> tuple[str, tuple[str, ...]]:
    """A condition for any number of values, as one parameter; None for no condition."""
    if values is None:
        return "1", ()
    return f"{column} IN (SELECT value FROM json_each(?))", (json.dumps(list(values)),)


def check_numbers(connection: sqlite3.Connection) -> list[Damage]:
    """Is every checksum there that was ever added?"""
    count, last = connection.execute("SELECT count(*), max(id) FROM checksums NOT INDEXED").fetchone()
    (added,) = connection.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'checksums'").fetchone()
    if count == last == added:
        return []
    return [Damage("file", f"{count} checksums are left of {added}: what they spoke for may be missing too")]


def add_schema(connection: sqlite3.Connection, names: Iterable[str], version: int) -> None:
    """Add the checksum of the tables, views and triggers of these names."""
    _insert(connection, "schema", Key("", "", version), digest(_select_schema(connection, names)))


def check_schema(connection: sqlite3.Connection, names: Iterable[str], version: int) -> bool:
    digests = select_digests(connection, "schema")
    return digests.get(Key("", "", version)) == digest(_select_schema(connection, names))


def _select_schema(connection: sqlite3.Connection, names: Iterable[str]) -> Rows:
    statement = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name IN (SELECT value FROM json_each(?))"
    return connection.execute(f"{statement} ORDER BY name", (json.dumps(list(names)),)).fetchall()


def check_all(connection: sqlite3.Connection) -> list[Damage]:
    """Everything in the file that is not as it was stored."""
    answers = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
    damaged = [Damage("file", f"SQLite says: {' '.join(answer.split())}") for answer in answers if answer != "ok"]
    damaged += check_numbers(connection)
    for content in CONTENTS:
        damaged += select_intact(connection, content)[1]
    for spec_id, text in connection.execute("SELECT id, spec FROM specs ORDER BY id"):
        if not is_spec(spec_id, text):
            damaged.append(Damage("spec", "is not as it was stored", spec_id))
    return damaged
