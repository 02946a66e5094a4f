"""Tables that unpack to much more than they are on disk."""

import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asymtrain.lab.data import parquet
from asymtrain.lab.data.parquet import read_within_bound
from asymtrain.lab.store import Store
from asymtrain.lab.store.exchange import MANIFEST, export_store, read_export

MOST = 1 << 20


@pytest.fixture(autouse=True)
def _little(monkeypatch):
    monkeypatch.setattr(parquet, "MOST_BYTES", MOST)


def repeated(value, kind, rows):
    """A column of one value: a few bytes in a file, since the value is there once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([value], kind))


def write(path, columns, **options):
    # Without Arrow's own schema the columns read back as what they repeat.
    pq.write_table(pa.table(columns), path, store_schema=False, **options)
    return pq.ParquetFile(path)


@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_a_table_comes_back_whole(tmp_path, rows):
    columns = {"text": [f"row {i}" for i in range(rows)], "number": list(range(rows)), "gap": [None, 1.5] * (rows // 2)}
    columns["gap"] += [None] * (rows % 2)
    table = pa.table(columns, schema=pa.schema({"text": pa.string(), "number": pa.int64(), "gap": pa.float64()}))
    pq.write_table(table, tmp_path / "file", row_group_size=300)
    assert read_within_bound(pq.ParquetFile(tmp_path / "file")).equals(table)


BOMBS = {
    "numbers that repeat": {"a": repeated(7, pa.int64(), 200_000)},
    "a text that repeats": {"a": repeated("x" * 100_000, pa.string(), 1000)},
    "a text in each of many columns": {str(i): repeated("x" * 100_000, pa.string(), 4) for i in range(20)},
    "a text that compresses": {"a": pa.array(["x" * 2 * MOST])},
    "numbers that compress": {"a": pa.array([0] * 200_000, pa.int64())},
}


@pytest.mark.parametrize("columns", BOMBS.values(), ids=BOMBS)
def test_a_table_that_unpacks_to_too_much_is_refused(tmp_path, columns):
    file = write(tmp_path / "file", columns, compression="zstd")
    assert (tmp_path / "file").stat().st_size < MOST / 2
    pa.default_memory_pool().release_unused()
    before = pa.total_allocated_bytes()
    with pytest.raises(ValueError, match=f"unpacks to .*{MOST}"):
        read_within_bound(file)
    assert pa.total_allocated_bytes() - before < 3 * MOST


def test_an_export_that_unpacks_to_too_much_is_not_imported(tmp_path):
    with Store(tmp_path / "store.sqlite") as store:
        folder = export_store(store, tmp_path / "export", format="parquet")
    path = folder / "measurements.parquet"
    schema = pq.ParquetFile(path).schema_arrow
    values = {"attempt": 1, "epoch": 1, "value": json.dumps("x" * 10_000)}
    columns = [repeated(values.get(field.name, "a"), field.type, 1500) for field in schema]
    required = pa.schema([pa.field(f.name, c.type, f.nullable) for f, c in zip(schema, columns, strict=True)])
    pq.write_table(pa.table(columns, schema=required), path, store_schema=False, compression="zstd")
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["sha256"]["measurements"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert path.stat().st_size < 100_000
    with pytest.raises(ValueError, match=r"measurements.parquet .*unpacks to") as caught:
        read_export(folder)
    assert "\n" not in str(caught.value)
