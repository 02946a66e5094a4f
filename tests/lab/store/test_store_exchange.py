import csv
import hashlib
import io
import itertools
import json
import sys
from pathlib import Path

import pytest
from store_examples import example_run, example_spec

from asymtrain.errors import UsageError
from asymtrain.lab.runs import RunSpec, pairs
from asymtrain.lab.store import Store, StoreError
from asymtrain.lab.store.exchange import MANIFEST, TABLES, Imported, export_store, import_store, read_export
from asymtrain.lab.texts import printable

FORMATS = ["csv", "parquet"]
SPECS = [*pairs(RunSpec(epochs=3, alpha=0.1), range(3)), RunSpec(seed=2**80, epochs=3, dataset='my "own", data\n')]


def fill(store):
    for spec in SPECS:
        store.add(example_run(spec))
    store.add(example_run(SPECS[1], salt="again", device="NVIDIA H200"), again=True)
    store.add(example_run(example_spec(50), epochs=0, outcome="diverged"))
    store.request([example_spec(99)])
    store.add_measurement(SPECS[0].id, "surface", {0: [0.1, 1e-300], 3: {"text": 'a, "b"\n'}})
    store.add_measurement(SPECS[0].id, "surface", {3: 7}, again=True)
    store.add_measurement(example_spec(99).id, "before training", {0: 0.25})
    return store


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "full.sqlite") as store:
        yield fill(store)


@pytest.fixture
def empty(tmp_path):
    with Store(tmp_path / "empty.sqlite") as store:
        yield store


@pytest.mark.parametrize("form", FORMATS)
def test_everything_comes_back(store, empty, tmp_path, form):
    folder = export_store(store, tmp_path / "export", format=form)
    assert sorted(contents(folder)) == sorted([MANIFEST, *(f"{table.name}.{form}" for table in TABLES)])
    empty.request(SPECS)
    assert import_store(empty, folder) == Imported(added=9, present=0, differing=0, measurements=4)
    assert empty.records(every_attempt=True) == store.records(every_attempt=True)
    assert repr(empty.runs()) == repr(store.runs())
    assert empty.measurements() == store.measurements()
    assert empty.pending() == []  # requests here are met, and those of another machine are its affair

    # Twice adds nothing, and the copy exports to the same bytes.
    assert import_store(empty, folder) == Imported(added=0, present=9, differing=0, measurements=0)
    assert contents(export_store(empty, tmp_path / "copy", format=form)) == contents(folder)


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_content_gives_the_same_bytes_whatever_the_order(tmp_path, form, monkeypatch):
    monkeypatch.setattr("asymtrain.lab.store.store._now", lambda: "2025-01-01T00:00:00.000000+00:00")
    folders = []
    for number, specs in enumerate((SPECS, SPECS[::-1])):
        with Store(tmp_path / f"{number}.sqlite") as store:
            for spec in specs:
                store.add(example_run(spec))
                store.add_measurement(spec.id, "norm", {1: 0.5})
            folders += [contents(export_store(store, tmp_path / f"{number}-{again}", format=form)) for again in "ab"]
    assert folders[0] == folders[1] == folders[2] == folders[3]


@pytest.mark.parametrize("form", FORMATS)
def test_a_long_measurement_travels_too(empty, tmp_path, form):
    """As CSV it is longer than Python's reader takes by itself."""
    surface = [number / 7 for number in range(20_000)]
    with Store(tmp_path / "long.sqlite") as store:
        store.add(example_run(SPECS[0]))
        store.add_measurement(SPECS[0].id, "surface", {3: surface})
        limit = csv.field_size_limit()
        assert import_store(empty, export_store(store, tmp_path / "export", format=form)).measurements == 1
    assert [one.value for one in empty.measurements()] == [surface]
    assert csv.field_size_limit() == limit


def test_an_empty_store_travels_too(empty, tmp_path):
    with Store(tmp_path / "other.sqlite") as other:
        for form in FORMATS:
            folder = export_store(empty, tmp_path / form, format=form)
            assert import_store(other, folder) == Imported(0, 0, 0, 0)


def test_a_second_export_replaces_the_first_and_nothing_else(store, tmp_path):
    folder = export_store(store, tmp_path / "export", format="parquet")
    (folder / "README.md").write_text("why these runs were made")
    export_store(store, folder, format="csv")
    assert sorted(contents(folder)) == sorted([MANIFEST, "README.md", *(f"{table.name}.csv" for table in TABLES)])


def test_later_attempts_follow_and_the_stores_own_runs_stay(store, empty, tmp_path):
    import_store(empty, export_store(store, tmp_path / "first"))
    store.add(example_run(SPECS[1], salt="third"), again=True)
    store.add(example_run(SPECS[2], salt="theirs"), again=True)
    empty.add(example_run(SPECS[2], salt="ours"), again=True)
    assert import_store(empty, export_store(store, tmp_path / "second")) == Imported(
        added=1, present=8, differing=2, measurements=0
    )
    assert empty.runs([SPECS[1].id]) == [example_run(SPECS[1], salt="third")]
    assert empty.runs([SPECS[2].id]) == [example_run(SPECS[2], salt="ours")]
    # The other way: the first export is older than what the store has.
    assert import_store(store, tmp_path / "first").added == 0


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "manifest cut", "manifest missing"])
def test_a_damaged_export_is_refused_whole(store, empty, tmp_path, form, damage):
    folder = export_store(store, tmp_path / "export", format=form)
    path = folder / (MANIFEST if "manifest" in damage else f"epochs.{form}")
    content = path.read_bytes()
    if "cut" in damage:
        path.write_bytes(content[: len(content) // 2])
    elif "missing" in damage:
        path.unlink()
    else:
        path.write_bytes(content[:200] + b"7" + content[201:])
    with pytest.raises(StoreError, match="export"):
        import_store(empty, folder)
    assert empty.records() == []


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("table", ["runs", "epochs", "measurements"])
def test_a_whole_table_of_another_export_is_refused(store, empty, tmp_path, table, form):
    """It can be read, and its rows fit the others: only its checksum tells."""
    with Store(tmp_path / "other.sqlite") as other:
        import_store(other, export_store(store, tmp_path / "same"))
        other.add(example_run(SPECS[1], salt="third"), again=True)
        other.add_measurement(SPECS[0].id, "norm", {0: 1.5})
        export_store(other, tmp_path / "other", format=form)
    folder, name = export_store(store, tmp_path / "export", format=form), f"{table}.{form}"
    assert (folder / name).read_bytes() != (tmp_path / "other" / name).read_bytes()
    (folder / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with pytest.raises(StoreError, match="not as it was exported"):
        import_store(empty, folder)
    assert empty.records() == []


def forge(folder, name, content):
    """Change a table and its hash: the content itself must be found wrong."""
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / f"{name}.{manifest['files']}").write_bytes(content)
    manifest["sha256"][name] = hashlib.sha256(content).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_a_forged_footer_is_refused_whatever_pyarrow_thinks_of_it(store, tmp_path):
    folder = export_store(store, tmp_path / "export", format="parquet")
    content, said = (folder / "specs.parquet").read_bytes(), []
    for place, bit in itertools.product(range(len(content) - 600, len(content) - 300), (0, 1)):
        forge(folder, "specs", content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
        try:
            read_export(folder)
        except StoreError as error:
            said.append(str(error))
    assert any("not implemented" in line for line in said), "pyarrow has no such error: this shows nothing"
    assert not any("\n" in line for line in said)


WRONG = {
    "specs": [
        (b'""alpha"":0.1', b'""alpha"":0.2', "reads as"),
        (b'""alpha"":0.1', b'""omega"":0.1', "another version"),
        (b'""alpha"":0.1', b'""alpha"":,', "damaged"),
        (b"\n", b"\n0123456789abcdef,", "not a table"),
    ],
    "runs": [
        (b",finished,", b",lost,", "outcome"),
        (b",2,finished", b",3,finished", "damaged"),
        (b"attempt", b"trial", "columns"),
    ],
    "epochs": [
        (b",1,3,", b",1,4,", "not epochs 1 to 3"),
        (b",1,3,", b",5,3,", "damaged"),
        (b",1,3,0", b",1,3,nan#0", "not a table"),
    ],
    "measurements": [
        (b",0.25,", b",{,", r"row 4 of measurements"),
        (b",0,0.25", b",,0.25", "NOT NULL"),
        (b",0.25,", b",NaN,", r"row 4 of measurements: .*finite"),
        (b",0.25,", b",-Infinity,", r"row 4 of measurements: .*finite"),
        (b",0.25,", b",1e999,", r"row 4 of measurements: .*finite"),
        (b",0.25,", b"," + b"[" * 100_000 + b",", r"row 4 of measurements: .*nested too deeply"),
        (b",0,0.25", b",99999999999999999999,0.25", r"row 4 of measurements: .*64 bits"),
    ],
}


CELLS = [
    *(("epochs", "main_loss", value, rf"row 1 of runs: main_loss of epoch 2 .* {value}") for value in ("nan", "-inf")),
    *(("runs", "seconds", value, rf"row 1 of runs: seconds of .* {value}") for value in ("nan", "inf")),
    ("runs", "classes", "9" * 20, "row 1 of runs: classes of .* 64 bits"),
    *(("runs", "answers", value, "row 1 of runs") for value in ("*AAAA", "AAA!", "éAAAA")),
]


@pytest.mark.parametrize(("table", "column", "value", "match"), CELLS)
def test_a_wrong_cell_is_named_by_its_row(store, empty, tmp_path, table, column, value, match):
    folder = export_store(store, tmp_path / "export")
    rows = list(csv.reader(io.StringIO((folder / f"{table}.csv").read_text(), newline="")))
    rows[2 if table == "epochs" else 1][rows[0].index(column)] = value
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    forge(folder, table, text.getvalue().encode())
    with pytest.raises(StoreError, match=match):
        import_store(empty, folder)
    assert empty.records() == []


@pytest.mark.parametrize(
    ("table", "old", "new", "match"),
    [pytest.param(table, *change, id=f"{table}-{n}") for table in WRONG for n, change in enumerate(WRONG[table])],
)
def test_wrong_content_is_refused_whole(store, empty, tmp_path, table, old, new, match):
    folder = export_store(store, tmp_path / "export")
    content = (folder / f"{table}.csv").read_bytes()
    assert old in content
    forge(folder, table, content.replace(old, new, 1))
    with pytest.raises(UsageError, match=match):
        import_store(empty, folder)
    assert empty.records() == []
    assert empty.measurements() == []


def test_a_value_that_is_nested_too_deeply_is_not_stored(store):
    value = []
    for _ in range(200_000):
        value = [value]
    with pytest.raises(ValueError, match="nested"):
        store.add_measurement(SPECS[0].id, "deep", {0: value})


def test_foreign_folders_and_other_versions_are_refused(store, empty, tmp_path):
    with pytest.raises(StoreError, match="not an asymtrain export"):
        import_store(empty, tmp_path / "nowhere")
    folder = export_store(store, tmp_path / "export")
    manifest = json.loads((folder / MANIFEST).read_text())
    for version in (manifest["version"] - 1, manifest["version"] + 1):
        (folder / MANIFEST).write_text(json.dumps(manifest | {"version": version}))
        with pytest.raises(StoreError, match=rf"export version {version}, .* train its runs again"):
            import_store(empty, folder)
    for text, said in (('{"name": "my-app"}', "another program"), ("[]", "another program"), ("[" * 10**5, "damaged")):
        (folder / MANIFEST).write_text(text)
        with pytest.raises(StoreError, match=said):
            import_store(empty, folder)


def test_a_full_disk_leaves_the_export_before_whole(store, empty, tmp_path, monkeypatch):
    folder = export_store(store, tmp_path / "export")
    before = contents(folder)
    room, written = Path.open, []

    def full_disk(path, *arguments, **options):
        written.append(path)
        if len(written) > 2:
            raise OSError(28, "No space left on device")
        return room(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", full_disk)
    with pytest.raises(StoreError, match="No space left"):
        export_store(empty, folder)
    monkeypatch.undo()
    assert contents(folder) == before


def test_without_pyarrow_csv_still_works(store, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"\[lab\]"):
        export_store(store, tmp_path / "parquet", format="parquet")
    export_store(store, tmp_path / "csv", format="csv")


def test_tables_open_in_pandas(store, tmp_path):
    import pandas as pd

    csv, parquet = (export_store(store, tmp_path / form, format=form) for form in FORMATS)
    for table in ("runs", "epochs"):
        left, right = pd.read_csv(csv / f"{table}.csv"), pd.read_parquet(parquet / f"{table}.parquet")
        pd.testing.assert_frame_equal(left, right, check_dtype=False, check_exact=False)


def test_parquet_keeps_numbers_that_hardly_repeat_in_less_space(store, tmp_path):
    import pyarrow.parquet as pq

    folder = export_store(store, tmp_path / "export", format="parquet")
    epochs = pq.ParquetFile(folder / "epochs.parquet").metadata.row_group(0)
    ways = {epochs.column(place).path_in_schema: epochs.column(place).encodings for place in range(epochs.num_columns)}
    assert "BYTE_STREAM_SPLIT" in ways["main_loss"]
    assert "RLE_DICTIONARY" in ways["spec_id"]
    assert "RLE_DICTIONARY" in ways["epoch"]


def test_text_that_a_spreadsheet_would_compute_is_marked_and_comes_back(empty, tmp_path):
    formula = "=cmd|' /C calc'!A0"
    with Store(tmp_path / "formulas.sqlite") as store:
        store.add(example_run(example_spec(1), device=formula, path=f"'{formula}"))
        store.add_measurement(example_spec(1).id, "-name", {0: 0.5})
        folder = export_store(store, tmp_path / "export", format="csv")
        with (folder / "runs.csv").open(newline="") as file:
            cells = {cell for row in csv.reader(file) for cell in row}
        assert {f"'{formula}", f"''{formula}"} <= cells
        assert formula not in cells
        import_store(empty, folder)
        assert empty.records() == store.records()
        assert empty.measurements() == store.measurements()


def test_text_that_could_steer_a_terminal_is_not_in_an_export_and_comes_back(empty, tmp_path):
    spec = example_spec(1, dataset="folder:\x1b]0;owned\x07")
    with Store(tmp_path / "sent.sqlite") as store:
        store.add(example_run(spec, device="cpu\x1b[2J", path="\x9b31m"))
        store.add_measurement(spec.id, "\x1bname", {0: "\x9b"})
        folder = export_store(store, tmp_path / "export", format="csv")
        for file in folder.iterdir():
            assert printable(file.read_text()) == file.read_text(), file.name
        import_store(empty, folder)
        assert empty.records() == store.records()
        assert empty.measurements() == store.measurements()
