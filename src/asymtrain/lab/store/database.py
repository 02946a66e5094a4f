"""The store's file: its tables, one connection to it, and errors that say what to do.

Writers take the write lock at once (BEGIN IMMEDIATE): a transaction that starts as a reader and wants to write
later fails whenever another process wrote in between. With a write-ahead log, readers never wait for writers.
"""

import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path

from asymtrain.errors import UsageError, UsageWarning
from asymtrain.lab.store import checksums

_READ = "BEGIN"
PATIENCE = 60.0  # seconds to wait for another process's transaction, which takes milliseconds


class StoreError(UsageError):
    """The store's file, or the disk it is on, does not allow this. What was stored before is untouched."""


class NoStoreError(StoreError):
    """There is no file, or it is empty."""


class DamagedError(StoreError):
    """So much of the file is damaged that it cannot be read, or must not be written."""


class StoreWarning(UsageWarning):
    """Something in the store is damaged and was left out when reading; the text names it."""


_UNWRITABLE = "{path} cannot be written: check its permissions, or give another path for the store"
_LOCKED = "{path} has been locked by another process for too long: end that process or try again"

_DAMAGED = "{path} is damaged ({error}): restore a copy, or rescue what is left with `sqlite3 {path} .recover`"

# By primary result code of SQLite; any other error is a bug of ours and keeps its traceback.
_TEXTS = {
    sqlite3.SQLITE_FULL: "the disk is full while writing {path}: what was stored before is safe; "
    "free some space and run again",
    sqlite3.SQLITE_READONLY: _UNWRITABLE,
    sqlite3.SQLITE_PERM: _UNWRITABLE,
    sqlite3.SQLITE_CANTOPEN: "{path} cannot be opened: check that its folder can be read and written",
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_PROTOCOL: "{path} is on a file system whose locks do not work: move the store to a local disk",
    sqlite3.SQLITE_NOTADB: "{path} is not an asymtrain store, nor an SQLite file: give another path",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_TOOBIG: _DAMAGED,  # a stored length was changed
    sqlite3.SQLITE_IOERR: "reading or writing {path} failed ({error}): is its disk full or gone? "
    "What was stored before is safe",
}

# SQLite's messages about tables that were changed; it has no error code for these.
_OTHER_TABLES = re.compile(
    r"no such (table|column|index|view)|unsupported file format|(table|index|view|trigger) \S+ already exists"
    r"|duplicate column name|malformed database schema"
)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors about the file into `StoreError`."""
    try:
        yield
    except UnicodeDecodeError as error:  # SQLite quotes unreadable text in its message
        raise DamagedError(_DAMAGED.format(path=path, error="it holds text that is not in UTF-8")) from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0)  # missing if the error did not come from SQLite itself
        text = _DAMAGED if _OTHER_TABLES.match(str(error)) else _TEXTS.get(code & 0xFF)
        if text is None:
            raise
        kind = DamagedError if text is _DAMAGED else StoreError
        raise kind(text.format(path=path, error=" ".join(str(error).split()))) from error


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

    def writing(self) -> AbstractContextManager[sqlite3.Connection]:
        """A transaction that is stored completely when the block ends, and not at all if it raises."""
        if self.read_only:
            raise StoreError(f"{self.path} was opened to be read only: open it with Store(path) to write")
        return self._transaction("BEGIN IMMEDIATE", "COMMIT")

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """A consistent view of the store, even if others write meanwhile; nested blocks share it."""
        return self._transaction(_READ, "ROLLBACK")  # after a page that could not be read, SQLite refuses to commit

    def close(self) -> None:
        # A forked child must not touch its parent's connection, not even to close it.
        if os.getpid() == self._process:
            with self._lock:
                self._closed = True
                self._connection.close()

    @contextmanager
    def _transaction(self, begin: str, end: str) -> Iterator[sqlite3.Connection]:
        if os.getpid() != self._process:
            raise StoreError(f"{self.path} was opened in another process: open it again after the fork")
        with self._lock, explained(self.path):
            if self._closed:
                raise StoreError(f"{self.path} was closed: open it again with Store(path)")
            if begin == _READ and self._connection.in_transaction:
                yield self._connection
                return
            self._connection.execute(begin)
            try:
                yield self._connection
                self._connection.execute(end)
            except BaseException:
                # On a full disk SQLite has already rolled back.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


def _open_to_write(path: Path) -> sqlite3.Connection:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"the folder of {path} cannot be made ({error.strerror}): give another path") from error
    if path.is_dir():
        raise StoreError(f"{path} is a folder: give the path of a file, such as {path / 'runs.sqlite'}")
    connection = _connect(path, "mode=rwc")
    try:
        # Before anything is written: a file that is not ours stays as it is.
        read_version(connection, path)
        _use_write_ahead_log(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        # Even if there are tables: a store that cannot be written is detected now, not after the training.
        connection.execute("BEGIN IMMEDIATE")
        if read_version(connection, path) == 0:  # again, inside the transaction: another process may have been first
            _create(connection)
        check(connection, path)
        if lost := checksums.check_numbers(connection):
            raise DamagedError(f"{path} is damaged and is not written: {lost[0]}; see `asymtrain store check {path}`")
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def store_exists(path: Path) -> bool:
    """Whether a store exists there. If the disk was full from the start, there is a file without tables: False."""
    try:
        with explained(path):
            _open_to_read(path).close()
    except NoStoreError:
        return False
    return True


def _open_to_read(path: Path) -> sqlite3.Connection:
    with suppress(FileNotFoundError, NotADirectoryError):
        path.stat()  # raises for a name that the system refuses; from Python 3.14 on is_file returns False
    if not path.is_file():
        raise NoStoreError(f"there is no store at {path}: check the path, or run something first")
    connection = _connect(path, "mode=rw")
    try:
        try:
            version = read_version(connection, path)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise
            connection.close()
            connection = _open_unwritable(path)
            version = read_version(connection, path)
        if version == 0:
            raise NoStoreError(f"{path} is empty: nothing was stored in it yet")
        check(connection, path)
        connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _open_unwritable(path: Path) -> sqlite3.Connection:
    """Open a store in a folder that cannot be written. A write-ahead log would need an index file there.

    Without a leftover log, the file is complete and can be read as it is.
    """
    real = path.resolve()  # the log is beside the file itself, not beside a link to it
    log = real.with_name(f"{real.name}-wal")
    if log.exists() and log.stat().st_size:
        raise StoreError(
            f"{path} has a log with its last rows, {log.name}, which cannot be read where it is: copy both files to a "
            "folder that can be written, and read them there"
        )
    return _connect(path, "mode=ro&immutable=1")


def _connect(path: Path, options: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?{options}"
    connection = sqlite3.connect(uri, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
    connection.text_factory = _read_text
    return connection


# Text that is not UTF-8 is damaged. Its checksum shows that; an error would prevent reading all other rows.
_read_text = partial(str, encoding="utf-8", errors="backslashreplace")


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch the log on if the file system supports it; SQLite's ordinary journal works too, only slower."""
    deadline = time.monotonic() + PATIENCE
    while connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            # SQLite does not wait if two processes open a new store at the same moment.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                return
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


APPLICATION_ID = 0x4153594D  # "ASYM", in the file's header: identifies our SQLite files
VERSION = 6  # of the tables: increase it with every change to them
# The lowest byte of `user_version`, in the file's header, is the version. The others are random, and part of the
# checksum of the tables, so that the first page cannot come from another store either.
_VERSION_BITS = 0xFF

# Columns of measured numbers have no declared type, because SQLite would turn -0.0 into 0.0 in a REAL column.

_TABLES = (
    # dataset, arch, variant and seed repeat values of the JSON, for people who use sqlite3.
    """CREATE TABLE specs (
        id TEXT PRIMARY KEY, dataset TEXT NOT NULL, arch TEXT NOT NULL, variant TEXT NOT NULL, seed INTEGER,
        spec TEXT NOT NULL) WITHOUT ROWID""",
    # `answers` is a bit array in base 64.
    """CREATE TABLE runs (
        id INTEGER PRIMARY KEY, spec_id TEXT NOT NULL REFERENCES specs, attempt INTEGER NOT NULL,
        outcome TEXT NOT NULL, device TEXT NOT NULL, path TEXT NOT NULL, seconds NOT NULL,
        python TEXT NOT NULL, torch TEXT NOT NULL, asymtrain TEXT NOT NULL,
        "commit" TEXT NOT NULL, dirty INTEGER NOT NULL, source TEXT NOT NULL, created TEXT NOT NULL,
        answers TEXT, model_fingerprint TEXT, data_fingerprint TEXT, calibration_error, classes INTEGER, largest_class,
        UNIQUE (spec_id, attempt))""",
    """CREATE TABLE epochs (
        run_id INTEGER NOT NULL REFERENCES runs, epoch INTEGER NOT NULL,
        main_loss NOT NULL, auxiliary_loss, train_accuracy NOT NULL, validation_accuracy, test_accuracy,
        cosine, cosine_min, cosine_max, seconds NOT NULL, cosine_std, conflict, main_norm, auxiliary_norm,
        PRIMARY KEY (run_id, epoch)) WITHOUT ROWID""",
    """CREATE TABLE measurements (
        spec_id TEXT NOT NULL REFERENCES specs, name TEXT NOT NULL, attempt INTEGER NOT NULL,
        epoch INTEGER NOT NULL, value TEXT NOT NULL, created TEXT NOT NULL,
        PRIMARY KEY (spec_id, name, attempt, epoch)) WITHOUT ROWID""",
    # A request is fulfilled once the spec has more runs than `runs_before`, so no clocks are compared.
    """CREATE TABLE requests (
        id INTEGER PRIMARY KEY, spec_id TEXT NOT NULL REFERENCES specs, runs_before INTEGER NOT NULL,
        created TEXT NOT NULL)""",
    "CREATE INDEX requests_by_spec ON requests (spec_id)",
    """CREATE TABLE failures (
        request_id INTEGER PRIMARY KEY REFERENCES requests, reason TEXT NOT NULL, created TEXT NOT NULL)""",
    # Who is training what now: the only table whose rows are removed.
    """CREATE TABLE claims (
        spec_id TEXT PRIMARY KEY REFERENCES specs, owner TEXT NOT NULL, until NOT NULL) WITHOUT ROWID""",
    # See checksums.py.
    """CREATE TABLE checksums (
        id INTEGER PRIMARY KEY AUTOINCREMENT, content TEXT NOT NULL, spec_id TEXT NOT NULL, name TEXT NOT NULL,
        number INTEGER NOT NULL, digest TEXT NOT NULL, UNIQUE (content, spec_id, name, number))""",
    "CREATE TABLE salt (value TEXT NOT NULL)",
    "INSERT INTO salt VALUES (hex(randomblob(8)))",
)

_VIEWS = (
    """CREATE VIEW latest_runs AS
        SELECT * FROM runs AS run
        WHERE attempt = (SELECT max(attempt) FROM runs WHERE spec_id = run.spec_id)""",
    """CREATE VIEW open_requests AS
        SELECT request.id, request.spec_id, request.created, failure.reason, failure.created AS failed
        FROM requests AS request LEFT JOIN failures AS failure ON failure.request_id = request.id
        WHERE request.id = (SELECT max(id) FROM requests WHERE spec_id = request.spec_id)
          AND request.runs_before >= (SELECT count(*) FROM runs WHERE spec_id = request.spec_id)""",
    """CREATE VIEW results AS
        SELECT spec.dataset, spec.arch, spec.variant, spec.seed, run.outcome, last.epoch AS epochs,
               last.validation_accuracy, last.test_accuracy, last.cosine, round(run.seconds, 1) AS seconds,
               run.device, spec.id AS spec_id
        FROM latest_runs AS run JOIN specs AS spec ON spec.id = run.spec_id
        LEFT JOIN epochs AS last ON last.run_id = run.id
          AND last.epoch = (SELECT max(epoch) FROM epochs WHERE run_id = run.id)
        ORDER BY spec.dataset, spec.arch, spec.variant, spec.seed, spec.id""",
)


_APPEND_ONLY = tuple(
    f"CREATE TRIGGER {table}_no_{change} BEFORE {change} ON {table} BEGIN SELECT raise(ABORT, 'append-only'); END"
    for table in ("specs", "runs", "epochs", "measurements", "requests", "failures", "checksums", "salt")
    for change in ("update", "delete")
)

_SCHEMA = (*_TABLES, *_VIEWS, *_APPEND_ONLY)
# The names of everything in the schema; users may add tables with sqlite3.
_NAMES = [match[1] for statement in _SCHEMA if (match := re.match(r"CREATE \w+ (\w+)", statement))]


def read_version(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the file's schema, 0 for an empty file; raises for another version or a foreign file."""
    # A single statement, since another process may be creating the store right now.
    application, version, objects = connection.execute(
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master) "
        "FROM pragma_application_id, pragma_user_version"
    ).fetchone()
    if application == version == objects == 0:
        return 0
    version &= _VERSION_BITS
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is an SQLite file of another program: give another path for the store")
    if version < 1:
        raise DamagedError(_DAMAGED.format(path=path, error="its version is lost"))
    if version != VERSION:
        raise StoreError(
            f"{path} was written by another asymtrain (store version {version}, this one reads {VERSION}): "
            "read it with that asymtrain, or give another path for the store"
        )
    return int(version)


def _create(connection: sqlite3.Connection) -> None:
    """Create the tables; the caller holds the write transaction."""
    for statement in _SCHEMA:
        connection.execute(statement)
    stamp = int.from_bytes(os.urandom(2)) + 1
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {stamp * (_VERSION_BITS + 1) + VERSION}")
    checksums.add_schema(connection, _NAMES, VERSION)


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `DamagedError` unless the tables are as they were created."""
    if not checksums.check_schema(connection, _NAMES, VERSION):
        raise DamagedError(_DAMAGED.format(path=path, error="its tables are not as they were made"))
