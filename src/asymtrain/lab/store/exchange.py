"""A store as a folder of tables, for git and for other machines, and back.

The folder holds `specs`, `runs`, `epochs` and `measurements` as CSV or Parquet, and `manifest.json` with the hash
of each. The rows are sorted. Requests, failures and claims stay
behind: they speak of the machine. The same rows give the same bytes, in CSV as in Parquet.
"""

import csv
import hashlib
import io
import json
import sqlite3
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

from asymtrain.errors import UsageError
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.store import records
from asymtrain.lab.store.database import StoreError
from asymtrain.lab.store.records import Record
from asymtrain.lab.store.store import Store

Format = Literal["csv", "parquet"]
Rows = list[tuple[Any, ...]]

MANIFEST = "manifest.json"
_HEAD = {"format": "asymtrain export", "version": 2}
_VERSIONS = (1, 2)  # 2 added gradient norms, deviations and layers of cosines, and the answers to the test images
_LONGEST_CELL = 2**31 - 1  # characters: a measured surface passes the 131072 that Python's reader takes by itself


@dataclass(frozen=True)
class Table:
    """A file's name and its columns: str, int or float. Numbers may be missing (None), texts may not.

    The last `added` columns are not in files of the first version; what they hold may be missing, texts included.
    """

    name: str
    columns: dict[str, type]
    added: int = 0

    def known_columns(self, header: Sequence[str]) -> int:
        """How many of the columns a file has that names these; an error where they are others."""
        names = list(self.columns)
        if list(header) not in (names, names[: len(names) - self.added]):
            raise ValueError(f"its columns are {', '.join(header)}, not {', '.join(names)}")
        return len(header)

    def filled(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """A row with None for what an older file lacks."""
        return (*row, *[None] * (len(self.columns) - len(row)))


_TEXT_OF_RUNS = {
    "spec_id", "outcome", "device", "path", "python", "torch", "asymtrain", "commit", "source", "created", "answers",
}  # fmt: skip
_KINDS_OF_RUNS = {"attempt": int, "dirty": int, "seconds": float} | dict.fromkeys(_TEXT_OF_RUNS, str)
SPECS = Table("specs", {"id": str, "dataset": str, "arch": str, "variant": str, "seed": int, "spec": str})
RUNS = Table("runs", {name: _KINDS_OF_RUNS[name] for name in records.RUN_COLUMNS}, added=1)
EPOCHS = Table(
    "epochs",
    {"spec_id": str, "attempt": int, "epoch": int}
    | dict.fromkeys(records.EPOCH_COLUMNS[1:], float)
    | {"layer_cosines": str},
    added=5,
)
MEASUREMENTS = Table(
    "measurements", {"spec_id": str, "name": str, "attempt": int, "epoch": int, "value": str, "created": str}
)
TABLES = (SPECS, RUNS, EPOCHS, MEASUREMENTS)

T = TypeVar("T")
Key = tuple[str, str]  # spec id and name of a measurement


@dataclass(frozen=True)
class Imported:
    """What an import did with the runs of a folder."""

    added: int
    present: int  # in the store already
    differing: int  # left out: the store has another run of the same spec
    measurements: int  # values added


def export_store(store: Store, folder: str | PathLike[str], *, format: Format = "csv") -> Path:
    """Write everything that was run and measured to a folder, every attempt included; returns the folder."""
    if format not in get_args(Format):
        raise UsageError(f"format must be one of {', '.join(map(repr, get_args(Format)))}, got {format!r}")
    folder = Path(folder)
    contents = {table.name: encode(table, rows, format) for table, rows in _rows_of(store)}
    manifest = _HEAD | {
        "files": format,
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            _replace(folder / f"{name}.{format}", content)
        # Last: a folder whose export was interrupted does not match its manifest and is refused.
        _replace(folder / MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())
        for other in set(get_args(Format)) - {format}:
            for table in TABLES:
                (folder / f"{table.name}.{other}").unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be written ({error.strerror}): free some space or give another") from error
    return folder


@dataclass(frozen=True)
class Export:
    """What an exported folder holds, read and found whole. Runs and measured values in the order of their attempts."""

    folder: Path
    specs: dict[str, RunSpec]
    runs: dict[str, list[Record]]
    values: dict[Key, list[tuple[Any, ...]]]


def read_export(folder: str | PathLike[str]) -> Export:
    """Read a folder; raises `StoreError` for one that is damaged or no export."""
    folder = Path(folder)
    tables = {table.name: rows for table, rows in _read_folder(folder)}
    try:
        specs = {row[0]: records.read_spec(row[0], row[5]) for row in tables["specs"]}
        runs = _records_from(specs, tables["runs"], tables["epochs"])
        return Export(folder, specs, runs, _measurements_from(specs, tables["measurements"]))
    except UsageError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{folder} is damaged, nothing was imported: {error}") from error


def import_store(store: Store, source: str | PathLike[str] | Export) -> Imported:
    """Add what a folder (or what was read from it) holds and the store does not: all in one transaction, or nothing.

    Attempts that the store lacks are added after those that both have. Where the store has a run of its own for a
    spec, that one stays.
    """
    given = source if isinstance(source, Export) else read_export(source)
    try:
        return _add(store, given)
    except sqlite3.IntegrityError as error:
        raise StoreError(f"{given.folder} is damaged, nothing was imported: {error}") from error


def _add(store: Store, given: Export) -> Imported:
    added = present = differing = values = 0
    with store.database.writing() as connection:
        stored = records.select_records(connection, list(given.specs), every_attempt=True)
        have = _by(stored, lambda record: record.run.spec.id)
        for spec_id, attempts in given.runs.items():
            rest = _missing(have.get(spec_id, []), attempts)
            for record in rest or ():
                records.insert_record(connection, record)
            added += len(rest or ())
            present += 0 if rest is None else len(attempts) - len(rest)
            differing += len(attempts) if rest is None else 0
        have_values = _by(records.select_measurement_rows(connection), lambda row: (row[0], row[1]))
        for key, rows in given.values.items():
            rest_of_rows = _missing(have_values.get(key, []), rows)
            records.insert_specs(connection, [given.specs[key[0]]])
            records.insert_measurement_rows(connection, rest_of_rows or ())
            values += len(rest_of_rows or ())
    return Imported(added, present, differing, values)


def _rows_of(store: Store) -> list[tuple[Table, Rows]]:
    with store.database.reading() as connection:
        stored = records.select_records(connection, every_attempt=True)
        values = records.select_measurement_rows(connection)
        known = records.select_specs(connection, {record.run.spec.id for record in stored} | {row[0] for row in values})
    specs = [(s.id, s.dataset, s.arch, s.variant, records.spec_seed(s), records.spec_text(s)) for s in known.values()]
    runs = [tuple(int(v) if isinstance(v, bool) else v for v in records.run_row(record)) for record in stored]
    epochs = [
        (row[0], record.attempt, *records.epoch_row(epoch))
        for row, record in zip(runs, stored, strict=True)
        for epoch in record.run.history
    ]
    return [(SPECS, specs), (RUNS, runs), (EPOCHS, epochs), (MEASUREMENTS, values)]


def _read_folder(folder: Path) -> list[tuple[Table, Rows]]:
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except OSError as error:
        raise StoreError(f"{folder} is not an asymtrain export: it has no {MANIFEST}") from error
    except ValueError as error:
        raise StoreError(f"{folder / MANIFEST} is damaged: export again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _HEAD["format"]:
        raise StoreError(f"{folder} is not an asymtrain export: its {MANIFEST} is another program's")
    if manifest.get("version") not in _VERSIONS:
        raise StoreError(f"{folder} was exported by a newer asymtrain: upgrade asymtrain")
    form, hashes = manifest.get("files"), manifest.get("sha256")
    if form not in get_args(Format) or not isinstance(hashes, dict):
        raise StoreError(f"{folder / MANIFEST} is damaged: export again")
    tables = []
    for table in TABLES:
        path = folder / f"{table.name}.{form}"
        try:
            content = path.read_bytes()
        except OSError as error:
            raise StoreError(f"{path} cannot be read ({error.strerror}), nothing was imported") from error
        if hashlib.sha256(content).hexdigest() != hashes.get(table.name):
            raise StoreError(f"{path} is not as it was exported, nothing was imported: export again")
        tables.append((table, decode(table, content, cast(Format, form), path)))
    return tables


def _records_from(specs: dict[str, RunSpec], runs: Rows, epochs: Rows) -> dict[str, list[Record]]:
    """The runs by spec id, attempts in order, each checked to be whole."""
    histories = _by(epochs, lambda row: (row[0], row[1]))
    read = []
    for row in runs:
        values = dict(zip(records.RUN_COLUMNS, row, strict=True))
        key = (values["spec_id"], values["attempt"])
        history = tuple(records.make_epoch(epoch[2:]) for epoch in histories.pop(key, []))
        record = records.make_record(specs[key[0]], history, values)
        records.check_whole(record.run)
        read.append(record)
    if histories:
        raise ValueError(f"epochs of {len(histories)} runs that are not there")
    by_spec = _by(read, lambda record: record.run.spec.id)
    for spec_id, attempts in by_spec.items():
        if [record.attempt for record in attempts] != list(range(1, len(attempts) + 1)):
            raise ValueError(f"the attempts of {spec_id} are not 1 to {len(attempts)}")
    return by_spec


def _measurements_from(specs: dict[str, RunSpec], rows: Rows) -> dict[Key, list[tuple[Any, ...]]]:
    for row in rows:
        if row[0] not in specs:
            raise ValueError(f"a measurement of the unknown spec {row[0]}")
        json.loads(row[4])
    return _by(rows, lambda row: (row[0], row[1]))


def _missing(have: Sequence[T], given: list[T]) -> list[T] | None:
    """What to append so that `have` holds `given`; None where the two part."""
    both = min(len(have), len(given))
    return given[both:] if list(have[:both]) == given[:both] else None


def _by(items: Iterable[Any], key: Any) -> dict[Any, list[Any]]:
    groups: dict[Hashable, list[Any]] = {}
    for name, members in groupby(items, key=key):
        groups.setdefault(name, []).extend(members)
    return groups


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def encode(table: Table, rows: Sequence[tuple[Any, ...]], form: Format) -> bytes:
    """The file's content."""
    return _encode_csv(table, rows) if form == "csv" else _encode_parquet(table, rows)


def decode(table: Table, content: bytes, form: Format, path: Path) -> Rows:
    """Inverse of `encode`; an error that names the file where it is something else."""
    return _decode_csv(table, content, path) if form == "csv" else _decode_parquet(table, content, path)


def _encode_csv(table: Table, rows: Sequence[tuple[Any, ...]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")  # writes floats by repr, which reads back to the same bits
    writer.writerow(table.columns)
    writer.writerows(rows)
    return text.getvalue().encode()


def _decode_csv(table: Table, content: bytes, path: Path) -> Rows:
    limit = csv.field_size_limit(_LONGEST_CELL)
    try:
        header, *rows = csv.reader(io.StringIO(content.decode(), newline=""), strict=True)
        kinds = list(table.columns.values())[: table.known_columns(header)]
        first = len(table.columns) - table.added
        empty = ["" if kind is str and column < first else None for column, kind in enumerate(kinds)]
        return [
            table.filled([kind(cell) if cell else none for kind, cell, none in zip(kinds, row, empty, strict=True)])
            for row in rows
        ]
    except (ValueError, csv.Error) as error:
        raise StoreError(f"{path} is not a table of an asymtrain export: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _encode_parquet(table: Table, rows: Sequence[tuple[Any, ...]]) -> bytes:
    pa, pq = _pyarrow()
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(table.columns)
    schema = _parquet_schema(table, len(table.columns))
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    # Measured numbers hardly repeat: stored byte by byte, exponents beside exponents, they take a third less space.
    varied = [
        field.name
        for field, column in zip(schema, columns, strict=True)
        if field.type == pa.float64() and 2 * len(set(column)) > len(column)
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=schema),
        sink,
        compression="zstd",
        use_dictionary=[name for name in schema.names if name not in varied],
        use_byte_stream_split=varied,
    )
    return bytes(sink.getvalue())


def _decode_parquet(table: Table, content: bytes, path: Path) -> Rows:
    pa, pq = _pyarrow()
    try:
        read = pq.read_table(pa.BufferReader(content))
        if not read.schema.equals(_parquet_schema(table, table.known_columns(read.schema.names))):
            raise ValueError(f"its columns are not of the kinds of {', '.join(table.columns)}")
    except (ValueError, OSError) as error:  # pyarrow's own errors are one or the other
        raise StoreError(f"{path} is not a table of an asymtrain export: {error}") from error
    columns = [read.column(name).to_pylist() for name in read.schema.names]
    return [table.filled(row) for row in zip(*columns, strict=True)]


def _parquet_schema(table: Table, count: int) -> Any:
    pa, _ = _pyarrow()
    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    first = len(table.columns) - table.added
    return pa.schema(
        [
            pa.field(name, kinds[kind], nullable=kind is not str or column >= first)
            for column, (name, kind) in enumerate(table.columns.items())
        ][:count]
    )


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError('Parquet needs pyarrow: pip install "asymtrain[lab]", or export to CSV') from error
    return pyarrow, pyarrow.parquet
