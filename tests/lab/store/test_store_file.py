"""The file itself: whose it is, its version, what the disk allows."""

import os
import random
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest
from store_examples import example_run, example_spec

from asymtrain.errors import UsageError
from asymtrain.lab.store import Store, StoreError, database, store_exists


def connect(path):
    return sqlite3.connect(path, isolation_level=None)


def noise(count):
    """The same at every call: some bytes in a million would look like a whole page."""
    return random.Random(0).randbytes(count)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("version", [database.VERSION - 1, database.VERSION + 1])
def test_a_store_of_another_version_is_refused_and_untouched(tmp_path, version, read_only):
    path = tmp_path / "s.sqlite"
    Store(path).close()
    connection = connect(path)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=rf"store version {version}, .* read it with that asymtrain"):
        Store(path, read_only=read_only)
    assert path.read_bytes() == before


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("kind", ["foreign", "text", "photo"])
def test_a_file_of_another_program_is_refused_and_untouched(tmp_path, kind, read_only):
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


def test_a_folder_a_missing_file_and_an_empty_file(tmp_path):
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


def test_a_full_disk_loses_nothing(tmp_path):
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


def test_a_locked_store_says_so(tmp_path, monkeypatch):
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


def test_a_file_system_without_shared_memory_does_without_the_log(tmp_path, monkeypatch):
    plain = sqlite3.connect

    def dotfile(database, **options):
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


def test_the_log_is_used_and_leaves_one_file(tmp_path):
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        store.add(example_run(example_spec(1)))
        with store.database.reading() as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        with Store(path, read_only=True) as reader:
            assert len(reader.runs()) == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("statement", ["DELETE FROM runs", "UPDATE epochs SET main_loss = 0", "DELETE FROM specs"])
def test_what_is_stored_cannot_be_changed(store, statement):
    store.add(example_run(example_spec(1)))
    with pytest.raises(sqlite3.IntegrityError, match="append-only"), store.database.writing() as connection:
        connection.execute(statement)
    assert store.runs() == [example_run(example_spec(1))]


def test_a_reader_cannot_write_and_a_closed_store_says_so(tmp_path):
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


def test_a_connection_does_not_cross_a_fork(store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        store.close()
        with pytest.raises(StoreError, match="after the fork"):
            store.runs()
    assert store.runs() == []


def test_threads_may_share_a_store(tmp_path):
    specs = [example_spec(seed) for seed in range(40)]
    with Store(tmp_path / "s.sqlite") as store, ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(lambda spec: store.add(example_run(spec)), specs + specs)) == 40
        assert len(store.runs()) == 40


def test_what_sqlite_says_of_damaged_tables_is_one_line(tmp_path):
    path = tmp_path / "runs.sqlite"
    Store(path).close()
    content = path.read_bytes()
    assert b"outcome TEXT NOT NULL" in content
    path.write_bytes(content.replace(b" outcome TEXT NOT NULL", b"`outcome TEXT NOT NULL", 1))
    with pytest.raises(StoreError, match="is damaged") as caught:
        Store(path, read_only=True)
    assert "\n" not in str(caught.value)


def test_whether_there_is_a_store(tmp_path):
    store, empty, foreign = tmp_path / "s.sqlite", tmp_path / "empty.sqlite", tmp_path / "notes.txt"
    Store(store).close()
    empty.touch()
    foreign.write_text("what I must not forget\n" * 100)
    assert store_exists(store)
    assert not store_exists(empty)
    assert not store_exists(tmp_path / "nothing.sqlite")
    with pytest.raises(StoreError, match="is not an asymtrain store"):
        store_exists(foreign)
