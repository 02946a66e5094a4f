"""Parquet tables from outside, read within a bound of memory.

What a table unpacks to has little to do with its size on disk: a column of a billion equal numbers takes a few bytes,
and so does one of a long text that repeats. The file's own account of rows and sizes is held against the bound before
anything is read. It does not say how long a repeated text is, so rows are then read in pieces that fit the bound
whatever they hold, and counted.
"""

from typing import Any

from asymtrain.errors import error_line

MOST_BYTES = 1 << 30  # of a table in memory; as rows of Python values it takes five times as much
_NUMBER = 8  # bytes
_MOST_ROWS = 1 << 16  # in a piece


def read_within_bound(file: Any) -> Any:
    """The table in a `pyarrow.parquet.ParquetFile`; a ValueError where it is damaged or too large."""
    import pyarrow

    try:
        return _read(pyarrow, file)
    except pyarrow.ArrowException as error:
        raise ValueError(error_line(error)) from None


def _read(pyarrow: Any, file: Any) -> Any:
    metadata = file.metadata
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    chunks = [[group.column(index) for group in groups] for index in range(metadata.num_columns)]
    sizes = [[chunk.total_uncompressed_size for chunk in column] for column in chunks]
    rows = max(metadata.num_rows, sum(group.num_rows for group in groups))
    _check(max(sum(map(sum, sizes)), rows * metadata.num_columns * _NUMBER))
    # A text is no longer than all of its column.
    texts = [any("BYTE_ARRAY" in chunk.physical_type for chunk in column) for column in chunks]
    longest_row = sum(max(size) if text else _NUMBER for size, text in zip(sizes, texts, strict=True) if size)
    piece = max(1, min(_MOST_ROWS, MOST_BYTES // max(longest_row, 1)))
    pieces, unpacked = [], 0
    for batch in file.iter_batches(batch_size=piece, use_threads=False):
        unpacked += batch.nbytes
        _check(unpacked)
        pieces.append(batch)
    return pyarrow.Table.from_batches(pieces, schema=file.schema_arrow)


def _check(unpacked: int) -> None:
    if unpacked > MOST_BYTES:
        raise ValueError(f"it unpacks to {unpacked} bytes or more, and at most {MOST_BYTES} are read")
