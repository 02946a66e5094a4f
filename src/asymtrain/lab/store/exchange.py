"""A store as a folder of tables, for git and for other machines, and back.

The folder holds `specs`, `runs`, `epochs` and `measurements` as CSV or Parquet, and `manifest.json` with the hash
of each. The rows are sorted. Requests, failures and claims are not exported: they concern one machine. The same rows
give the same bytes, in CSV and in Parquet.
"""

import csv
import hashlib
import io
import json
import sqlite3
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar, get_args

from asymtrain.errors import UsageError, error_line, how_to_install
from asymtrain.lab.files import write_whole
from asymtrain.lab.runs import Epoch, RunSpec
from asymtrain.lab.store import checksums, records
from asymtrain.lab.store.database import StoreError
from asymtrain.lab.store.records import Record
from asymtrain.lab.store.store import Store
from asymtrain.lab.texts import counted, csv_cell, csv_text

Format = Literal["csv", "parquet"]
Rows = list[tuple[Any, ...]]

MANIFEST = "manifest.json"
_HEAD = {"format": "asymtrain export", "version": 5}
_LONGEST_CELL = 2**31 - 1  # characters: a measured surface exceeds the 131072 that Python's reader allows by default


@dataclass(frozen=True)
class ExportTable:
    """A file's name and its columns: str, int or float. Numbers, and texts in `optional`, may be missing (None)."""

    name: str
    columns: dict[str, type]
    optional: tuple[str, ...] = ()

    def may_be_missing(self, name: str) -> bool:
        return self.columns[name] is not str or name in self.optional


_SPEC = {"id": str, "dataset": str, "arch": str, "variant": str, "seed": int, "spec": str}
_RUN = dict.fromkeys(checksums.RUN_COLUMNS, str) | {
    "attempt": int,
    "dirty": int,
    "seconds": float,
    "calibration_error": float,
    "classes": int,
    "largest_class": float,
}
_EPOCH = dict.fromkeys(checksums.EPOCH_COLUMNS, float) | {"epoch": int}
_VALUE = {"spec_id": str, "name": str, "attempt": int, "epoch": int, "value": str, "created": str}
TABLES = (
    ExportTable("specs", _SPEC),
    ExportTable("runs", _RUN, ("answers", "model_fingerprint", "data_fingerprint")),
    ExportTable("epochs", {"spec_id": str, "attempt": int} | _EPOCH),
    ExportTable("measurements", _VALUE),
)

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
Key = tuple[str, str]  # spec id and name of a measurement
_first_two, _from_third = itemgetter(0, 1), itemgetter(slice(2, None))


@dataclass(frozen=True)
class Imported:
    """What an import did with a folder's runs, as counts."""

    added: int
    present: int  # in the store already
    differing: int  # not imported: the store has another run of the same spec
    measurements: int  # values added


def export_store(
    store: Store,
    folder: str | PathLike[str],
    *,
    format: Format = "csv",
    without: Sequence["Export"] = (),
    only: Collection[str] | None = None,
) -> Path:
    """Write all runs and measurements to a folder, with every attempt; returns the folder.

    Rows that the exports in `without` hold are left out. `only` limits the export to specs with these ids.
    """
    if format not in get_args(Format):
        raise UsageError(f"format must be one of {', '.join(map(repr, get_args(Format)))}, got {format!r}")
    folder = Path(folder)
    encode, rows = _encode_csv if format == "csv" else _encode_parquet, _read_rows(store, without, only)
    contents = {table.name: encode(table, rows[table.name]) for table in TABLES}
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    manifest = _HEAD | {"files": format, "sha256": hashes}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = {folder / f"{name}.{format}": content for name, content in contents.items()}
        # The manifest comes last: after an interrupted export it does not match, and the folder is refused.
        write_whole({**files, folder / MANIFEST: (json.dumps(manifest, indent=2) + "\n").encode()})
        for other in set(get_args(Format)) - {format}:
            for table in TABLES:
                (folder / f"{table.name}.{other}").unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be written ({error.strerror}): free some space or give another") from error
    return folder


@dataclass(frozen=True)
class Export:
    """The checked content of an exported folder, with runs and measured values in the order of attempts."""

    folder: Path
    specs: dict[str, RunSpec]
    runs: dict[str, list[Record]]
    values: dict[Key, list[tuple[Any, ...]]]


@records.uncollected()
def read_export(folder: str | PathLike[str]) -> Export:
    """Read a folder; raises a `StoreError` if it is damaged or not an export."""
    folder = Path(folder)
    tables = _read_tables(folder)
    specs: dict[str, RunSpec] = {}
    runs: dict[str, list[Record]] = {}
    histories: dict[tuple[Any, ...], list[Epoch]] = {}
    for key, rows in groupby(tables["epochs"], _first_two):
        histories.setdefault(key, []).extend(map(records.make_epoch, map(_from_third, rows)))
    at = ""  # the current row, for errors
    try:
        for number, row in enumerate(tables["specs"], 1):
            at = f"row {number} of specs: "
            specs[row[0]] = records.read_spec(row[0], row[5])
        for number, row in enumerate(tables["runs"], 1):
            at = f"row {number} of runs: "
            record = _make_record(specs, row, histories.pop(row[:2], []))
            attempts = runs.setdefault(row[0], [])
            attempts.append(record)
            if record.attempt != len(attempts):
                raise ValueError(f"attempt {record.attempt} of {row[0]} comes as number {len(attempts)}")
        for number, row in enumerate(tables["epochs"] if histories else (), 1):
            if row[:2] in histories:
                at = f"row {number} of epochs: "
                raise ValueError(f"there is no attempt {row[1]} of {row[0]}")
        for number, row in enumerate(tables["measurements"], 1):
            at = f"row {number} of measurements: "
            _check_measurement(specs, row)
    except RecursionError as error:
        raise StoreError(f"{folder} is damaged, nothing was imported: {at}its JSON is nested too deeply") from error
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{folder} is damaged, nothing was imported: {at}{error}") from error
    return Export(folder, specs, runs, _group(tables["measurements"], _first_two))


@records.uncollected()
def import_store(store: Store, source: str | PathLike[str] | Export) -> Imported:
    """Add the rows of a folder (or of an `Export`) that the store lacks: all in one transaction, or nothing.

    Attempts that the store lacks are added after those that both have. If the store has a different run of a spec,
    the store's run stays.
    """
    export = source if isinstance(source, Export) else read_export(source)
    added = present = differing = values = 0
    try:
        with store.database.writing() as connection:
            in_store, damaged = records.select_records(connection, export.specs, every_attempt=True)
            in_store_values, damaged_values = records.select_measurements(connection, every_attempt=True)
            if damage := [*damaged, *damaged_values]:
                raise StoreError(
                    f"{store.path} is damaged ({damage[0]}), nothing was imported: import into a new store; "
                    f"`asymtrain store check {store.path}` names what is damaged"
                )
            stored_by_id = _group(in_store, lambda record: record.run.spec.id)
            for spec_id, attempts in export.runs.items():
                missing = _missing(stored_by_id.get(spec_id, []), attempts)
                if missing is None:
                    differing += len(attempts)
                    continue
                for record in missing:
                    records.insert_record(connection, record)
                added += len(missing)
                present += len(attempts) - len(missing)
            stored_values = _group(in_store_values, _first_two)
            for key, rows in export.values.items():
                missing_values = _missing(stored_values.get(key, []), rows) or []
                records.insert_specs(connection, [export.specs[key[0]]])
                records.insert_measurement_rows(connection, missing_values)
                values += len(missing_values)
    except sqlite3.IntegrityError as error:
        raise StoreError(f"{export.folder} is damaged, nothing was imported: {error}") from error
    return Imported(added, present, differing, values)


def lost_by_export(store: Store, folder: Path) -> str | None:
    """What an export into the folder would destroy, if anything: foreign files, or rows that the store lacks."""
    names = (MANIFEST, *(f"{table.name}.{form}" for table in TABLES for form in ("csv", "parquet")))
    existing = [name for name in names if (folder / name).exists()]
    if not existing:
        return None
    with TemporaryDirectory() as temporary, Store(Path(temporary) / "copy.sqlite") as copy:
        try:
            import_store(copy, folder)
        except StoreError:
            return f"{folder / existing[0]} is not of a whole export"
        rows = len(_rows(copy) - _rows(store))
    return f"{folder} holds an export with {counted(rows, 'row')} that {store.path} does not have" if rows else None


def _rows(store: Store) -> set[Any]:
    values = {(row.spec_id, row.name, row.epoch, repr(row.value)) for row in store.measurements()}
    return {*store.records(every_attempt=True), *values}


def find_exports(folder: Path) -> list[Path]:
    """The folder itself, if it is an export; else the exports in its subfolders."""
    return [folder] if (folder / MANIFEST).exists() else sorted(file.parent for file in folder.glob(f"*/{MANIFEST}"))


def _read_rows(store: Store, without: Sequence[Export], only: Collection[str] | None) -> dict[str, Rows]:
    with store.database.reading() as connection:
        stored_records, damaged = records.select_records(connection, every_attempt=True)
        values, damaged_values = records.select_measurements(connection, every_attempt=True)
        ids = {record.run.spec.id for record in stored_records} | {row[0] for row in values}
        stored_specs, damaged_specs = records.select_specs(connection, ids)
        damaged += [*damaged_values, *damaged_specs, *checksums.check_numbers(connection)]
    store.name_damage(damaged)
    # If an attempt is damaged, none is exported: the last intact one might not be the latest.
    lost = {(damage.spec_id, damage.name) for damage in damaged}
    stored_records = [record for record in stored_records if (record.run.spec.id, "") not in lost]
    values = [row for row in values if (row[0], row[1]) not in lost and row[0] in stored_specs]
    if only is not None:
        stored_records = [record for record in stored_records if record.run.spec.id in only]
        values = [row for row in values if row[0] in only]
    # All attempts of a spec or none: a folder with only a second attempt could not be imported.
    runs_by_id, values_by_key = _group(stored_records, lambda record: record.run.spec.id), _group(values, _first_two)
    for export in without:
        runs_by_id = _beyond(runs_by_id, export.runs)
        values_by_key = _beyond(values_by_key, export.values)
    stored_records, values = list(chain(*runs_by_id.values())), list(chain(*values_by_key.values()))
    used = {record.run.spec.id for record in stored_records} | {row[0] for row in values}
    specs = [records.spec_row(spec) for spec_id, spec in stored_specs.items() if spec_id in used]
    runs = [tuple(int(v) if isinstance(v, bool) else v for v in records.run_row(record)) for record in stored_records]
    epochs = [
        (row[0], record.attempt, *epoch)
        for row, record in zip(runs, stored_records, strict=True)
        for epoch in records.epoch_rows(record.run)
    ]
    return {"specs": specs, "runs": runs, "epochs": epochs, "measurements": values}


def _read_tables(folder: Path) -> dict[str, Rows]:
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except OSError as error:
        raise StoreError(f"{folder} is not an asymtrain export: it has no {MANIFEST}") from error
    except (RecursionError, ValueError) as error:
        raise StoreError(f"{folder / MANIFEST} is damaged: export again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _HEAD["format"]:
        raise StoreError(f"{folder} is not an asymtrain export: its {MANIFEST} is another program's")
    if manifest.get("version") != _HEAD["version"]:
        raise StoreError(
            f"{folder} was exported by another asymtrain (export version {manifest.get('version')}, this one reads "
            f"{_HEAD['version']}): read it with that asymtrain, or train its runs again"
        )
    form, hashes = manifest.get("files"), manifest.get("sha256")
    if form not in get_args(Format) or not isinstance(hashes, dict):
        raise StoreError(f"{folder / MANIFEST} is damaged: export again")
    decode = _decode_csv if form == "csv" else _decode_parquet
    tables = {}
    for table in TABLES:
        path = folder / f"{table.name}.{form}"
        try:
            content = path.read_bytes()
        except OSError as error:
            raise StoreError(f"{path} cannot be read ({error.strerror}), nothing was imported") from error
        if hashlib.sha256(content).hexdigest() != hashes.get(table.name):
            raise StoreError(f"{path} is not as it was exported, nothing was imported: export again")
        try:
            rows = decode(table, content)
        except UsageError:
            raise
        except (ValueError, OSError, csv.Error) as error:  # including pyarrow's errors
            text = " ".join(str(error).split())  # pyarrow's messages have several lines
            raise StoreError(f"{path} is not a table of an asymtrain export: {text}") from error
        tables[table.name] = rows
    return tables


def _make_record(specs: Mapping[str, RunSpec], row: tuple[Any, ...], epochs: Sequence[Epoch]) -> Record:
    """The run of a row, after a check that it is complete."""
    if row[0] not in specs:
        raise ValueError(f"a run of the unknown spec {row[0]}")
    record = records.make_record(specs[row[0]], tuple(epochs), row)
    records.check_whole(record.run)
    for name, value in zip(checksums.RUN_COLUMNS, row, strict=True):
        if isinstance(value, float | int) and not -(2**63) <= value < 2**63:  # CSV text may hold any number
            raise ValueError(f"{name} of {row[0]} is {value}, not a finite number of 64 bits")
    return record


def _check_measurement(specs: Mapping[str, RunSpec], row: tuple[Any, ...]) -> None:
    spec_id, _, attempt, epoch, text, _ = row
    if spec_id not in specs:
        raise ValueError(f"a measurement of the unknown spec {spec_id}")
    if any(number is not None and not 0 <= number < 2**63 for number in (attempt, epoch)):
        raise ValueError(f"attempt {attempt} and epoch {epoch} must be 0 or more, and fit 64 bits")
    records.value_text(json.loads(text))  # raises for values that are not finite, such as 1e999


def _missing(have: Sequence[T], rows: list[T]) -> list[T] | None:
    """The items to append so that `have` holds `rows`; None if the two differ."""
    both = min(len(have), len(rows))
    return rows[both:] if list(have[:both]) == rows[:both] else None


def _beyond(have: dict[K, list[T]], exported: Mapping[K, list[T]]) -> dict[K, list[T]]:
    """The entries of `have` that `exported` does not hold completely."""
    return {key: rows for key, rows in have.items() if _missing(exported.get(key, []), rows) != []}


def _group(items: Iterable[Any], key: Callable[[Any], Hashable]) -> dict[Any, list[Any]]:
    groups: dict[Hashable, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _encode_csv(table: ExportTable, rows: Sequence[tuple[Any, ...]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")  # writes floats by repr, so the same bits are read back
    writer.writerow(table.columns)
    writer.writerows(map(csv_cell, row) for row in rows)
    return text.getvalue().encode()


def _decode_csv(table: ExportTable, content: bytes) -> Rows:
    limit = csv.field_size_limit(_LONGEST_CELL)
    try:
        header, *rows = csv.reader(io.StringIO(content.decode(), newline=""), strict=True)
    finally:
        csv.field_size_limit(limit)
    if header != list(table.columns):
        raise ValueError(f"its columns are {', '.join(header)}, not {', '.join(table.columns)}")
    columns = [
        (csv_text if kind is str else kind, None if table.may_be_missing(name) else "")
        for name, kind in table.columns.items()
    ]
    return [
        tuple(kind(cell) if cell else empty for (kind, empty), cell in zip(columns, row, strict=True)) for row in rows
    ]


def _encode_parquet(table: ExportTable, rows: Sequence[tuple[Any, ...]]) -> bytes:
    pa, pq = _pyarrow()
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(table.columns)
    schema = _parquet_schema(table)
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    # Measured numbers seldom repeat: with bytes split by position (exponents together) they take a third less space.
    varied = [
        field.name
        for field, column in zip(schema, columns, strict=True)
        if field.type == pa.float64() and 2 * len(set(column)) > len(column)
    ]
    sink = pa.BufferOutputStream()
    repeated = [name for name in schema.names if name not in varied]
    written = pa.Table.from_arrays(arrays, schema=schema)
    pq.write_table(written, sink, compression="zstd", use_dictionary=repeated, use_byte_stream_split=varied)
    return bytes(sink.getvalue())


def _decode_parquet(table: ExportTable, content: bytes) -> Rows:
    pa, pq = _pyarrow()
    try:
        read = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    except pa.ArrowException as error:  # not all are ValueErrors
        raise ValueError(error_line(error)) from error
    if not read.schema.equals(_parquet_schema(table)):
        raise ValueError(f"its columns are not {', '.join(table.columns)}, or of other kinds")
    return list(zip(*[column.to_pylist() for column in read.columns], strict=True))


def _parquet_schema(table: ExportTable) -> Any:
    pa, _ = _pyarrow()
    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    columns = table.columns.items()
    return pa.schema([pa.field(name, kinds[kind], nullable=table.may_be_missing(name)) for name, kind in columns])


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(f"Parquet needs pyarrow: {how_to_install('lab')}, or export to CSV") from error
    return pyarrow, pyarrow.parquet
