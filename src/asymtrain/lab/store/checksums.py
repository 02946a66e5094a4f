"""A checksum for everything that is stored: damage to the file is detected, reported, and left out when reading.

SQLite detects a page that makes no sense. It does not detect a number that changed, nor a page that lost rows. So each
write adds, in its own transaction, a checksum for what it wrote: a run with its spec, its epochs, a measurement, a
request, a failure. Checksums have a separate table, so a missing row still has its checksum, and a missing checksum
still has its row.

Each checksum includes a random text of its store, so that pages of another store do not pass. Checksums are numbered
without a gap, and SQLite keeps the last number elsewhere (AUTOINCREMENT), so that the loss of a row together with its
checksum is detected too.
"""

import dataclasses
import hashlib
import json
import math
import sqlite3
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, NamedTuple

from asymtrain.lab.runs import Epoch
from asymtrain.lab.store.provenance import Provenance

EPOCH_COLUMNS = Epoch._fields
PROVENANCE_COLUMNS = tuple(field.name for field in dataclasses.fields(Provenance))
RUN_COLUMNS = (
    "spec_id", "attempt", "outcome", "device", "path", "seconds", *PROVENANCE_COLUMNS, "created", "answers",
    "model_fingerprint", "data_fingerprint", "calibration_error", "classes", "largest_class",
)  # fmt: skip
_SPEC = ("spec.dataset", "spec.arch", "spec.variant", "spec.seed", "spec.spec")

Rows = list[tuple[Any, ...]]


class Key(NamedTuple):
    """What a checksum belongs to. `number` is an attempt, or the id of a request; only measurements have a name."""

    spec_id: str
    name: str
    number: int


def _key(spec_id: Any, name: Any, number: Any) -> Key:
    """A sortable key: a damaged file may have text in place of a number, or lack a text."""
    return Key(str(spec_id), str(name), number if isinstance(number, int) else -1)


@dataclass(frozen=True)
class Damage:
    """Something that is not as it was stored. Reading leaves it out."""

    content: str  # run, history, measurement, request, failure or spec; `file` if nothing more is known
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
    """A kind of content with checksums: its key, the columns of its rows, and their tables."""

    key: str
    columns: tuple[str, ...]
    tables: str
    order: str = "1"

    def select(self, connection: sqlite3.Connection, condition: str, values: Sequence[Any] = ()) -> dict[Key, Rows]:
        columns = ", ".join((self.key, *self.columns))
        statement = f"SELECT {columns} FROM {self.tables} WHERE {condition} ORDER BY {self.order}"
        groups: dict[Key, Rows] = {}
        for row in connection.execute(statement, values):
            groups.setdefault(_key(*row[:3]), []).append(row[3:])
        return groups


@dataclass(frozen=True)
class History(Content):
    """The epochs of runs. There are hundreds of thousands, so the key of a run is read only once."""

    def select(self, connection: sqlite3.Connection, condition: str, values: Sequence[Any] = ()) -> dict[Key, Rows]:
        runs = connection.execute(f"SELECT run.id, {self.key} FROM runs AS run WHERE {condition}", values)
        keys = {run_id: _key(*key) for run_id, *key in runs.fetchall()}
        statement = f"SELECT {', '.join(self.columns)} FROM epochs WHERE run_id = ? ORDER BY epoch"
        groups = {key: connection.execute(statement, (run_id,)).fetchall() for run_id, key in keys.items()}
        return {key: rows for key, rows in groups.items() if rows}


CONTENTS = {
    # With the spec and the number of epochs, so that counts and groups are also checked.
    "run": Content(
        "run.spec_id, '', run.attempt",
        (
            "run.id", *_SPEC, "(SELECT count(*) FROM epochs WHERE run_id = run.id)",
            *(f'run."{name}"' for name in RUN_COLUMNS),
        ),
        "runs AS run LEFT JOIN specs AS spec ON spec.id = run.spec_id",
    ),
    "history": History("run.spec_id, '', run.attempt", EPOCH_COLUMNS, "epochs"),
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


def digest(rows: Rows, salt: str) -> str:
    """A hash of rows. One row is hashed as JSON; several by column, floats as bytes and everything else as JSON.

    NULL adds nothing. Most rows are epochs, and writing their floats as text takes twenty times as long.
    """
    total = hashlib.blake2b(salt.encode(), digest_size=8)
    if len(rows) == 1:
        values = [(index, value) for index, value in enumerate(rows[0]) if value is not None]
        total.update(_json(values))
        return total.hexdigest()
    for index, column in enumerate(zip(*rows, strict=True)):
        kinds = set(map(type, column))
        if kinds == {NoneType}:
            continue
        total.update(f"{index} {len(column)} ".encode())
        if kinds <= {float, NoneType}:  # SQLite holds no NaN, so NaN can stand for NULL
            numbers = [math.nan if value is None else value for value in column] if NoneType in kinds else column
            total.update(struct.pack(f"<{len(column)}d", *numbers))
        else:
            total.update(_json(column))
    return total.hexdigest()


def _json(values: Sequence[Any]) -> bytes:
    return json.dumps(values, default=repr).encode()  # bytes, which only a damaged file has, are not JSON


def add(connection: sqlite3.Connection, content: str, key: Key, rows: Rows | None = None) -> None:
    """Add the checksum of rows just written, given or else read back; the caller holds the transaction."""
    kind = CONTENTS[content]
    if rows is None:
        rows = kind.select(connection, f"({kind.key}) = (?, ?, ?)", key)[key]
    _insert(connection, content, key, digest(rows, _salt(connection)))


def is_spec(spec_id: str, text: Any) -> bool:
    """Whether this is the JSON that the id was made from."""
    return isinstance(text, str) and hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16] == spec_id


def _salt(connection: sqlite3.Connection) -> str:
    return " ".join(str(row[0]) for row in connection.execute("SELECT value FROM salt"))


def _insert(connection: sqlite3.Connection, content: str, key: Key, value: str) -> None:
    statement = "INSERT INTO checksums (content, spec_id, name, number, digest) VALUES (?, ?, ?, ?, ?)"
    connection.execute(statement, (content, *key, value))


def select_intact(
    connection: sqlite3.Connection,
    content: str,
    ids: Collection[str] | None = None,
    keys: Collection[Key] | None = None,
) -> tuple[dict[Key, Rows], list[Damage]]:
    """The intact rows and the damage: for all, for these specs, or only for these keys."""
    digests, groups = select_digests(connection, content, ids), _select_groups(connection, content, ids)
    if keys is not None:
        digests = {key: value for key, value in digests.items() if key in keys}
        groups = {key: groups.get(key, []) for key in keys}
    intact: dict[Key, Rows] = {}
    salt = _salt(connection)
    damaged = [Damage(content, "has no checksum", *key) for key in groups if key not in digests]
    for key, value in digests.items():
        rows = groups.get(key, [])
        if digest(rows, salt) == value:
            intact[key] = rows
        else:
            damaged.append(
                Damage(content, "is not as it was stored" if rows else "is missing, or cannot be read", *key)
            )
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
    # A page cannot be read: read the rows on other pages.
    groups: dict[Key, Rows] = {}
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
    """Only the latest attempt of each spec and name; if it is damaged, the previous one is not used instead."""
    damaged = list(damaged)
    last: dict[tuple[str, str], int] = {}
    for spec_id, name, number in (*intact, *((lost.spec_id, lost.name, lost.number) for lost in damaged)):
        last[spec_id, name] = max(number, last.get((spec_id, name), number))
    return (
        {key: rows for key, rows in intact.items() if last[key.spec_id, key.name] == key.number},
        [lost for lost in damaged if last[lost.spec_id, lost.name] == lost.number],
    )


def select_recorded(
    connection: sqlite3.Connection, ids: Collection[str] | None = None
) -> tuple[set[Key], list[Damage]]:
    """Every attempt that has a row or a checksum, and as damage those that lack one of them."""
    condition, values = among("spec_id", ids)
    rows = connection.execute(f"SELECT spec_id, '', attempt FROM runs WHERE {condition}", values)
    by_row, by_checksum = {_key(*row) for row in rows}, select_digests(connection, "run", ids).keys()
    damaged = [Damage("run", "has no checksum", *key) for key in by_row - by_checksum]
    return by_row | by_checksum, [*damaged, *(Damage("run", "is missing", *key) for key in by_checksum - by_row)]


def among(column: str, values: Iterable[Any] | None) -> tuple[str, tuple[str, ...]]:
    """An SQL condition for any number of values, as one parameter; None means no condition."""
    if values is None:
        return "1", ()
    return f"{column} IN (SELECT value FROM json_each(?))", (json.dumps(list(values)),)


def check_numbers(connection: sqlite3.Connection) -> list[Damage]:
    """Check that the numbers of all checksums are there, without a gap."""
    condition, values = among("content", (*CONTENTS, "schema"))
    statement = f"SELECT count(*), max(id) FROM checksums NOT INDEXED WHERE {condition}"
    count, last = connection.execute(statement, values).fetchone()
    (added,) = connection.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'checksums'").fetchone()
    if count == last == added:
        return []
    return [Damage("file", f"{count} checksums are left of {added}: what they spoke for may be missing too")]


def add_schema(connection: sqlite3.Connection, names: Iterable[str], version: int) -> None:
    """Add the checksum of the tables, views and triggers of these names."""
    _insert(connection, "schema", Key("", "", version), _digest_schema(connection, names))


def check_schema(connection: sqlite3.Connection, names: Iterable[str], version: int) -> bool:
    return select_digests(connection, "schema").get(Key("", "", version)) == _digest_schema(connection, names)


def _digest_schema(connection: sqlite3.Connection, names: Iterable[str]) -> str:
    statement = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name IN (SELECT value FROM json_each(?))"
    rows = connection.execute(f"{statement} ORDER BY name", (json.dumps(list(names)),)).fetchall()
    (header,) = connection.execute("PRAGMA user_version")
    return digest([*rows, (*header, None, None, None)], _salt(connection))


@dataclass(frozen=True)
class Check:
    """The number of intact items of each kind, and the damaged ones."""

    intact: dict[str, int]
    damaged: tuple[Damage, ...]


def check_all(connection: sqlite3.Connection) -> Check:
    """Read and check everything in the file."""
    answers = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
    damaged = [Damage("file", f"SQLite says: {' '.join(answer.split())}") for answer in answers if answer != "ok"]
    damaged += check_numbers(connection)
    counts = {}
    for content in CONTENTS:
        intact, damage = select_intact(connection, content)
        counts[content] = len(intact)
        damaged += damage
    for spec_id, text in connection.execute("SELECT id, spec FROM specs ORDER BY id"):
        if not is_spec(spec_id, text):
            damaged.append(Damage("spec", "is not as it was stored", str(spec_id)))
    return Check(counts, tuple(damaged))
