import json
import sqlite3

import pytest

from asymtrain.lab.runs import RunSpec, pairs
from asymtrain.lab.store import Store
from invented_runs import invent


@pytest.fixture
def store(tmp_path):
    """Six specs; one was trained twice, one has a measurement."""
    path = tmp_path / "runs.sqlite"
    specs = pairs(RunSpec(epochs=2), [42, 43, 44])
    with Store(path) as opened:
        for spec in specs:
            opened.add(invent(spec))
        opened.add(invent(specs[1], gain=0.1), again=True)
        opened.add_measurement(specs[1].id, "rank", {0: 3, 2: [1.5, 2.5]})
    return path


def contents(path):
    with Store(path, read_only=True) as opened:
        return opened.records(every_attempt=True), opened.measurements()


def test_check_names_what_is_damaged(cli, refused, store, tmp_path):
    whole = cli("store", "check", store)
    assert (whole.code, whole.err) == (0, "")
    assert whole.out == f"{store}: as stored are 7 runs, 1 measurement, 0 requests, 0 failures\n"

    connection = sqlite3.connect(store, isolation_level=None)
    connection.execute("DROP TRIGGER epochs_no_update")
    connection.execute("UPDATE epochs SET test_accuracy = 0.99 WHERE run_id = 2 AND epoch = 2")
    connection.execute(
        "CREATE TRIGGER epochs_no_update BEFORE update ON epochs BEGIN SELECT raise(ABORT, 'append-only'); END"
    )
    connection.close()
    spec = pairs(RunSpec(epochs=2), [42])[1]
    line = f"history of spec {spec.id}, attempt 1: is not as it was stored"
    checked = cli("store", "check", store)
    assert (checked.code, checked.err) == (1, "")
    assert checked.out.splitlines()[0] == f"damaged: {line}"
    document = json.loads(cli("store", "check", store, "--json").out)
    assert [damage["text"] for damage in document["damaged"]] == [line]
    assert document["intact"] == {"run": 7, "history": 6, "measurement": 1, "request": 0, "failure": 0}

    # Commands that read the store name it in one line, and go on with the rest.
    exported = cli("store", "export", store, "tables")
    assert (exported.code, exported.err.count("\n")) == (0, 1)
    assert exported.err.startswith("asymtrain: ")
    assert line in exported.err
    assert cli("status", "--store", store).code == 0

    store.write_bytes(store.read_bytes()[:20000])
    unreadable = cli("store", "check", store)
    assert (unreadable.code, unreadable.err) == (1, "")
    assert "is damaged" in unreadable.out
    assert "damaged" in refused("store", "export", store, "other")
    assert "no store at absent.sqlite" in refused("store", "check", "absent.sqlite")


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_store_goes_through_a_folder_and_back(cli, store, tmp_path, form):
    exported = cli("store", "export", store, "kept/first", "--format", form)
    assert (exported.code, exported.err) == (0, "")
    assert exported.out == f"Exported 7 runs to kept/first as {form}, with 2 measured values\n"
    names = {"manifest.json", *(f"{table}.{form}" for table in ("specs", "runs", "epochs", "measurements"))}
    assert {path.name for path in (tmp_path / "kept" / "first").iterdir()} == names

    imported = cli("store", "import", "new/place.sqlite", "kept/first")
    assert (imported.code, imported.err) == (0, "")
    assert imported.out == "Imported 7 runs into new/place.sqlite, with 2 measured values\n"
    assert contents(tmp_path / "new" / "place.sqlite") == contents(store)

    with Store(tmp_path / "other.sqlite") as other:
        other.add(invent(RunSpec(epochs=2, seed=7)))
    cli("store", "export", "other.sqlite", "second")
    again = cli("store", "import", "new/place.sqlite", "kept/first", "second")
    assert again.out == "Imported 1 run into new/place.sqlite; 7 runs already there\n"


def test_an_export_leaves_out_what_others_hold(cli, refused, store, tmp_path):
    results = tmp_path / "results"
    assert cli("store", "export", store, results / "first").code == 0
    later = RunSpec(epochs=2, seed=50)
    again = pairs(RunSpec(epochs=2), [43])[1]
    with Store(store) as opened:
        opened.add(invent(later))
        opened.add(invent(again, gain=0.1), again=True)
        opened.add_measurement(later.id, "rank", {0: 3})

    # Twice: an export that grows is not held against itself. A run that was trained again comes with both attempts.
    for _ in range(2):
        shown = cli("store", "export", store, results / "second", "--without", results)
        assert shown.out == f"Exported 3 runs to {results / 'second'} as csv, with 1 measured value\n", shown.err
    assert cli("store", "import", tmp_path / "both.sqlite", results / "first", results / "second").code == 0
    assert contents(tmp_path / "both.sqlite") == contents(store)

    shown = cli("store", "export", store, tmp_path / "rest", "--without", results, "--without", results / "first")
    assert shown.out == f"Exported 0 runs to {tmp_path / 'rest'} as csv\n"
    missing = tmp_path / "missing"
    assert "name what `store export` wrote" in refused("store", "export", store, tmp_path / "x", "--without", missing)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert f"{loop} cannot be written" in refused("store", "export", store, loop, "--force", "--without", results)


def test_an_export_does_not_replace_rows_that_the_store_lacks(cli, refused, store, tmp_path):
    cli("store", "export", store, "tables")
    before = {path: path.read_bytes() for path in (tmp_path / "tables").iterdir()}
    with Store(tmp_path / "other.sqlite") as other:
        other.add(invent(RunSpec(epochs=2, seed=7)))
    text = refused("store", "export", "other.sqlite", "tables")
    # Seven runs and two measured values.
    assert "tables holds an export with 9 rows that other.sqlite does not have" in text
    assert "--force" in text
    assert {path: path.read_bytes() for path in (tmp_path / "tables").iterdir()} == before
    assert cli("store", "export", "other.sqlite", "tables", "--force").out == "Exported 1 run to tables as csv\n"


def test_an_export_does_not_replace_files_of_another_program(cli, refused, store, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "runs.csv").write_text("name,distance\n")
    assert "mine/runs.csv is not of a whole export" in refused("store", "export", store, "mine")
    assert (tmp_path / "mine" / "runs.csv").read_text() == "name,distance\n"
    # Files of other names are no concern of it.
    (tmp_path / "mine" / "runs.csv").rename(tmp_path / "mine" / "walks.csv")
    assert cli("store", "export", store, "mine").code == 0
    assert (tmp_path / "mine" / "walks.csv").is_file()


def test_a_run_of_its_own_stays_and_is_counted(cli, store, tmp_path):
    with Store(tmp_path / "other.sqlite") as other:
        other.add(invent(RunSpec(epochs=2, seed=44), gain=0.1))
    before, _ = contents(tmp_path / "other.sqlite")
    cli("store", "export", store, "tables")
    result = cli("store", "import", "other.sqlite", "tables")
    assert result.code == 0
    assert "Imported 6 runs into other.sqlite" in result.out
    assert "1 run left out: the store has its own of the same spec" in result.out
    assert before[0] in contents(tmp_path / "other.sqlite")[0]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("export absent.sqlite tables", "no store at absent.sqlite"),
        ("export letter.txt tables", "letter.txt is not an asymtrain store"),
        ("export runs.sqlite letter.txt", "letter.txt cannot be written"),
        ("export runs.sqlite tables --format xls", "'csv', 'parquet', got 'xls'"),
        ("export runs.sqlite", "FOLDER"),
        ("import letter.txt kept", "letter.txt is not an asymtrain store"),
        ("import kept kept", "kept is a folder: give the store first"),
        ("import letter.txt/new.sqlite kept", "letter.txt/new.sqlite"),
        ("import deep/new.sqlite kept absent", "absent is not an asymtrain export"),
        ("tensorboard absent.sqlite logs", "no store at absent.sqlite"),
        ("tensorboard runs.sqlite letter.txt", "letter.txt"),
    ],
)
def test_what_cannot_be_read_or_written_is_refused(cli, refused, store, tmp_path, words, text):
    pytest.importorskip("tensorboard")
    assert cli("store", "export", store, "kept").code == 0
    (tmp_path / "letter.txt").write_text("dear reader, this is no store\n" * 50)
    assert text in refused("store", *words.split())


def test_tensorboard_logs_hold_the_curves(cli, store, tmp_path):
    pytest.importorskip("tensorboard")
    result = cli("store", "tensorboard", store, "logs")
    assert result.code == 0, result.err
    assert result.out == "Wrote the curves of 6 runs to logs: tensorboard --logdir logs\n"
    assert len(list((tmp_path / "logs").glob("*/events.*"))) == 6
