"""A table of plain values as a CSV or Parquet file, the same bytes for the same rows."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from asymtrain.errors import UsageError
from asymtrain.lab.store.problems import StoreError

Format = Literal["csv", "parquet"]
Rows = list[tuple[Any, ...]]

_LONGEST_CELL = 2**31 - 1  # characters: a measured surface passes the 131072 that Python's reader takes by itself


@dataclass(frozen=True)
class Table:
    """A file's name and its columns: str, int or float. Numbers may be missing (None), texts may not.

    The last `added` columns are not in files of the first version; what they hold may be missing, texts included.
    """

    name: str
    columns: dict[str, type]
    added: int = 0

    def known_columns(self, found: Sequence[str]) -> int:
        """How many of the columns a file has that names these; an error where they are others."""
        names = list(self.columns)
        if list(found) not in (names, names[: len(names) - self.added]):
            raise ValueError(f"its columns are {', '.join(found)}, not {', '.join(names)}")
        return len(found)

    def filled(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """A row with None for what an older file lacks."""
        return (*row, *[None] * (len(self.columns) - len(row)))


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
        empty = ["" if kind is str and place < first else None for place, kind in enumerate(kinds)]
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
            pa.field(name, kinds[kind], nullable=kind is not str or place >= first)
            for place, (name, kind) in enumerate(table.columns.items())
        ][:count]
    )


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError('Parquet needs pyarrow: pip install "asymtrain[lab]", or export to CSV') from error
    return pyarrow, pyarrow.parquet
