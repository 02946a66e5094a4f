"""One connection to the store's file, and the two kinds of transaction on it.

Writers take the write lock at once (BEGIN IMMEDIATE): a transaction that starts as a reader and wants to write
later fails whenever another process wrote in between. With a write-ahead log, readers never wait for writers.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asymtrain.lab.store import schema
from asymtrain.lab.store.problems import StoreError, explained, primary_code

PATIENCE = 60.0  # seconds to wait for another process's transaction, which takes milliseconds


class Database:
    """A connection that may be used from several threads, in the process that opened it."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._closed = False
        with explained(path):
            self._connection = _open_to_read(path) if read_only else _open_to_write(path)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is stored whole when the block ends, and not at all when it raises."""
        if self.read_only:
            raise StoreError(f"{self.path} was opened to be read only: open it with Store(path) to write")
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A view of the store at one moment, whatever others write meanwhile."""
        with self._transaction("BEGIN") as connection:
            yield connection

    def close(self) -> None:
        """Close the file; harmless when it is closed already."""
        # A forked child must not touch its parent's connection, not even to close it.
        if os.getpid() == self._process:
            with self._lock:
                self._closed = True
                self._connection.close()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        if os.getpid() != self._process:
            raise StoreError(f"{self.path} was opened in another process: open it again after the fork")
        with self._lock, explained(self.path):
            if self._closed:
                raise StoreError(f"{self.path} was closed: open it again with Store(path)")
            self._connection.execute(begin)
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # SQLite has rolled back by itself where the disk is full.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


def _open_to_write(path: Path) -> sqlite3.Connection:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"the folder of {path} cannot be made ({error.strerror}): give another place") from error
    if path.is_dir():
        raise StoreError(f"{path} is a folder: give the path of a file, such as {path / 'runs.sqlite'}")
    connection = _connect(path, "mode=rwc")
    try:
        # Before anything is written: a file that is not ours stays as it is.
        _read_version(connection, path)
        _use_write_ahead_log(connection)
        connection.execute("PRAGMA synchronous = FULL")
        # Also when nothing is to be migrated: a place that cannot be written is found now, not after the training.
        connection.execute("BEGIN IMMEDIATE")
        schema.migrate(connection, path)
        connection.execute("COMMIT")
        # Not before: a migration may have to rebuild a table that others refer to.
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _open_to_read(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise StoreError(f"there is no store at {path}: check the path, or run something first")
    connection = _connect(path, "mode=rw")
    try:
        try:
            version = _read_version(connection, path)
        except sqlite3.OperationalError:
            # A write-ahead log needs a file beside the store, which a read-only folder does not allow. Where no log
            # was left, the file is all there is and can be read as it is.
            log = path.with_name(path.name + "-wal")
            if log.exists() and log.stat().st_size:
                raise
            connection.close()
            connection = _connect(path, "mode=ro&immutable=1")
            version = _read_version(connection, path)
        if version == 0:
            raise StoreError(f"{path} is empty: nothing was stored in it yet")
        if version < len(schema.MIGRATIONS):
            connection = _migrated_copy(connection, path)
        connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path, options: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?{options}"
    return sqlite3.connect(uri, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False)


def _read_version(connection: sqlite3.Connection, path: Path) -> int:
    """The schema's version at one moment: another process may be creating the store right now."""
    connection.execute("BEGIN")
    try:
        return schema.read_version(connection, path)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch the log on where the file system can; elsewhere SQLite's ordinary journal does, only slower."""
    deadline = time.monotonic() + PATIENCE
    while connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            # SQLite does not wait by itself when two processes open a new store at the same moment.
            if primary_code(error) != sqlite3.SQLITE_BUSY:
                return
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _migrated_copy(connection: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """A current version of an older store, in memory: reading does not change the file."""
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    with connection, copy:
        connection.backup(copy)
    connection.close()
    schema.migrate(copy, path)
    return copy
