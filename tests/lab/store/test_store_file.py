"""The file itself: whose it is, its version, what the disk allows."""

import dataclasses
import os
import random
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from store_examples import example_run, example_spec

from asymtrain.errors import UsageError
from asymtrain.lab.runs import Run
from asymtrain.lab.store import Store, StoreError, database, store_exists

VERSION_1, VERSION_3, VERSION_4 = (Path(__file__).with_name(f"store_version_{version}.sql") for version in (1, 3, 4))


def connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def noise(count: int) -> bytes:
    """The same at every call: some bytes in a million would look like a whole page."""
    return random.Random(0).randbytes(count)


def old_store(path: Path, dump: Path = VERSION_1) -> Path:
    connection = connect(path)
    connection.executescript(dump.read_text())
    connection.close()
    return path


@pytest.mark.parametrize("read_only", [True, False])
def test_a_store_without_fingerprints_is_read_and_keeps_its_checksums(tmp_path: Path, read_only) -> None:
    """The dump was written when version 3 was current."""
    without = {"model_fingerprint": None, "data_fingerprint": None, "calibration_error": None}
    with Store(old_store(tmp_path / "old.sqlite", VERSION_3), read_only=read_only) as store:
        plain, asymmetric = example_spec(2, epochs=2, redundancy=0), example_spec(1, epochs=2)
        assert store.runs() == [example_run(asymmetric, **without), example_run(plain, **without)]
        assert store.check().damaged == ()
        assert store.fingerprints() == []
        if not read_only:
            store.add(run := example_run(example_spec(4, epochs=2)))
            assert store.fingerprints() == [(run.spec, run.model_fingerprint, run.data_fingerprint)]
            store.add(example_run(run.spec, **without), again=True)
            assert store.fingerprints() == []  # those of the latest attempts


@pytest.mark.parametrize("read_only", [True, False])
def test_a_store_without_calibration_errors_is_read_and_keeps_its_checksums(tmp_path: Path, read_only) -> None:
    """The dump was written when version 4 was current."""
    with Store(old_store(tmp_path / "old.sqlite", VERSION_4), read_only=read_only) as store:
        specs = example_spec(1, epochs=2), example_spec(2, epochs=2, redundancy=0)
        assert store.runs() == [example_run(spec, calibration_error=None) for spec in specs]
        assert store.check().damaged == ()
        if not read_only:
            store.add(run := example_run(example_spec(4, epochs=2)))
            assert run in store.runs()


LATER = dict.fromkeys(("model_fingerprint", "data_fingerprint", "calibration_error"))


def as_version_1(run: Run) -> Run:
    """The run without what was not recorded then."""
    later = dict.fromkeys(("cosine_std", "conflict", "main_norm", "auxiliary_norm"))
    history = tuple(dataclasses.replace(epoch, **later) for epoch in run.history)
    return dataclasses.replace(run, history=history, answers=None, **LATER)


def test_a_store_of_version_1_is_read(tmp_path: Path) -> None:
    """The dump was written when version 1 was current; what it holds must always come back."""
    with Store(old_store(tmp_path / "old.sqlite")) as store:
        assert store.runs() == [
            as_version_1(example_run(example_spec(1, epochs=2), salt="again")),
            as_version_1(
                example_run(
                    example_spec(2, epochs=2), epochs=1, outcome="diverged", device="NVIDIA H200", path="stacked"
                )
            ),
        ]
        assert [value.value for value in store.measurements("sharpness")] == [0.1, [1, None]]
        assert store.pending() == [example_spec(3, epochs=2)]
        assert [failure.reason for failure in store.failures()] == ["out of memory"]
        assert {record.provenance.commit for record in store.records(every_attempt=True)} == {"source-0123456789abcdef"}


def migrations() -> tuple[tuple[str, ...], ...]:
    """A next version that adds a column, and changes rows of a table that is otherwise append-only."""
    keep = "CREATE TRIGGER runs_no_update BEFORE UPDATE ON runs BEGIN SELECT raise(ABORT, 'append-only'); END"
    return (
        *database.MIGRATIONS,
        (
            "ALTER TABLE runs ADD COLUMN note TEXT",
            "DROP TRIGGER runs_no_update",
            "UPDATE runs SET note = 'from version 1'",
            keep,
        ),
    )


def test_an_older_store_is_migrated_when_it_is_opened_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = old_store(tmp_path / "old.sqlite")
    monkeypatch.setattr(database, "MIGRATIONS", migrations())
    for number in range(2):
        with Store(path) as store:
            assert len(store.runs()) == 2 + number
            assert store.add(example_run(example_spec(9 + number)))
    connection = connect(path)
    assert connection.execute("PRAGMA user_version").fetchone()[0] % 256 == len(database.MIGRATIONS)
    notes = [row[0] for row in connection.execute("SELECT note FROM runs")]
    assert notes.count("from version 1") == 3
    connection.close()


def test_reading_an_older_store_leaves_it_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = old_store(tmp_path / "old.sqlite")
    before = path.read_bytes()
    monkeypatch.setattr(database, "MIGRATIONS", migrations())
    with Store(path, read_only=True) as store:
        assert len(store.runs()) == 2
        with store.database.reading() as connection:
            assert connection.execute("SELECT note FROM runs LIMIT 1").fetchone() == ("from version 1",)
    assert path.read_bytes() == before


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = old_store(tmp_path / "old.sqlite")
    good = database.MIGRATIONS
    monkeypatch.setattr(database, "MIGRATIONS", (*good, ("ALTER TABLE runs ADD COLUMN note TEXT", "NOT SQL")))
    with pytest.raises(sqlite3.OperationalError, match="syntax"):
        Store(path)
    monkeypatch.setattr(database, "MIGRATIONS", good)
    with Store(path) as store, store.database.reading() as connection:
        assert "note" not in [row[1] for row in connection.execute("PRAGMA table_info(runs)")]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_store_is_refused(tmp_path: Path, read_only: bool) -> None:
    path = old_store(tmp_path / "s.sqlite")
    connection = connect(path)
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(StoreError, match=r"store version 7.*upgrade asymtrain"):
        Store(path, read_only=read_only)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("kind", ["foreign", "text", "photo"])
def test_a_file_of_another_program_is_refused_and_untouched(tmp_path: Path, kind: str, read_only: bool) -> None:
    path = tmp_path / "s.sqlite"
    if kind == "foreign":
        connection = connect(path)
        connection.execute("CREATE TABLE cookies (name)")
        connection.close()
    else:
        path.write_bytes(b"seed,accuracy\n1,0.5\n" if kind == "text" else noise(8192))
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program" if kind == "foreign" else "not an asymtrain store"):
        Store(path, read_only=read_only)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_store_says_so(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        for seed in range(50):
            store.add(example_run(example_spec(seed, epochs=20)))
    content = bytearray(path.read_bytes())
    content[4096 * 2 :] = noise(len(content) - 4096 * 2)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"), Store(path) as store:
        store.runs()


def test_a_folder_a_missing_file_and_an_empty_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder"):
        Store(tmp_path)
    with pytest.raises(StoreError, match="there is no store at"):
        Store(tmp_path / "none.sqlite", read_only=True)
    assert list(tmp_path.iterdir()) == []
    empty = tmp_path / "empty.sqlite"
    empty.touch()
    with pytest.raises(StoreError, match="empty"):
        Store(empty, read_only=True)
    with Store(empty) as store:
        assert store.add(example_run(example_spec(1)))
    with pytest.raises(StoreError, match="cannot be made"):
        Store(empty / "deeper" / "s.sqlite")
    with Store(tmp_path / "new" / "folder ?#%20" / "s.sqlite") as store:
        assert store.path.is_file()


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        connection = store.database._connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 10}")
        runs = [example_run(example_spec(seed, epochs=50)) for seed in range(100)]
        with pytest.raises(StoreError, match=r"disk is full.*safe") as raised:
            all(store.add(run) for run in runs)
        assert isinstance(raised.value, UsageError)
        count = len(store.finished())
        assert 0 < count < 100
        assert store.runs() == runs[:count]
        connection.execute("PRAGMA max_page_count = 100000")
        assert store.add(runs[count])  # room was made: the same run goes in
        assert store.runs() == runs[: count + 1]


def test_a_locked_store_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asymtrain.lab.store.database.PATIENCE", 0.1)
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        other = connect(path)
        other.execute("BEGIN IMMEDIATE")
        assert store.runs() == []  # readers do not wait
        with pytest.raises(StoreError, match="locked"):
            store.add(example_run(example_spec(1)))
        other.execute("ROLLBACK")
        other.close()
        assert store.add(example_run(example_spec(1)))


def test_a_file_system_without_shared_memory_does_without_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = sqlite3.connect

    def dotfile(database: str, **options: Any) -> sqlite3.Connection:
        return plain(f"{database}&vfs=unix-dotfile", **options)

    path = tmp_path / "s.sqlite"
    monkeypatch.setattr(sqlite3, "connect", dotfile)
    run = example_run(example_spec(1))
    with Store(path) as store:
        assert store.add(run)
        with store.database.reading() as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    with Store(path, read_only=True) as store:
        assert store.runs() == [run]


def test_the_log_is_used_and_leaves_one_file(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        store.add(example_run(example_spec(1)))
        with store.database.reading() as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        with Store(path, read_only=True) as reader:
            assert len(reader.runs()) == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("statement", ["DELETE FROM runs", "UPDATE epochs SET main_loss = 0", "DELETE FROM specs"])
def test_what_is_stored_cannot_be_changed(tmp_path: Path, statement: str) -> None:
    with Store(tmp_path / "s.sqlite") as store:
        store.add(example_run(example_spec(1)))
        with pytest.raises(sqlite3.IntegrityError, match="append-only"), store.database.writing() as connection:
            connection.execute(statement)
        assert store.runs() == [example_run(example_spec(1))]


def test_a_reader_cannot_write_and_a_closed_store_says_so(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    store = Store(path)
    store.claim([example_spec(1)])
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.runs()
    with Store(path, read_only=True) as reader:
        with pytest.raises(StoreError, match="read only"):
            reader.add(example_run(example_spec(1)))
        with pytest.raises(StoreError, match="read only"):
            reader.claim([example_spec(1)])


def test_a_connection_does_not_cross_a_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path / "s.sqlite") as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            store.close()
            with pytest.raises(StoreError, match="after the fork"):
                store.runs()
        assert store.runs() == []


def test_threads_may_share_a_store(tmp_path: Path) -> None:
    specs = [example_spec(seed) for seed in range(40)]
    with Store(tmp_path / "s.sqlite") as store, ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(lambda spec: store.add(example_run(spec)), specs + specs)) == 40
        assert len(store.runs()) == 40


def test_what_sqlite_says_of_damaged_tables_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    Store(path).close()
    content = path.read_bytes()
    assert b"outcome TEXT NOT NULL" in content
    path.write_bytes(content.replace(b" outcome TEXT NOT NULL", b"`outcome TEXT NOT NULL", 1))
    with pytest.raises(StoreError, match="is damaged") as caught:
        Store(path, read_only=True)
    assert "\n" not in str(caught.value)


def test_whether_there_is_a_store(tmp_path: Path) -> None:
    store, empty, foreign = tmp_path / "s.sqlite", tmp_path / "empty.sqlite", tmp_path / "notes.txt"
    Store(store).close()
    empty.touch()
    foreign.write_text("what I must not forget\n" * 100)
    assert store_exists(store)
    assert not store_exists(empty)
    assert not store_exists(tmp_path / "nothing.sqlite")
    with pytest.raises(StoreError, match="is not an asymtrain store"):
        store_exists(foreign)
