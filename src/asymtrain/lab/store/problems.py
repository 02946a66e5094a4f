"""What can go wrong with a store's file, in words that say what to do."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asymtrain.errors import UsageError


class StoreError(UsageError):
    """The store's file, or the disk it is on, does not allow this. What was stored before is untouched."""


_FULL = "the disk is full while writing {path}: what was stored before is safe; free some space and run again"
_UNWRITABLE = "{path} cannot be written: check its permissions, or give another place for the store"
_DAMAGED = "{path} is damaged ({error}): restore a copy, or rescue what is left with `sqlite3 {path} .recover`"

# By primary result code of SQLite; any other error is a bug of ours and keeps its traceback.
_TEXTS = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _UNWRITABLE,
    sqlite3.SQLITE_PERM: _UNWRITABLE,
    sqlite3.SQLITE_CANTOPEN: "{path} cannot be opened: check that its folder can be read and written",
    sqlite3.SQLITE_BUSY: "{path} has been locked by another process for too long: end that process or try again",
    sqlite3.SQLITE_LOCKED: "{path} has been locked by another process for too long: end that process or try again",
    sqlite3.SQLITE_PROTOCOL: "{path} is on a file system whose locks do not work: move the store to a local disk",
    sqlite3.SQLITE_NOTADB: "{path} is not an asymtrain store, nor an SQLite file: give another path",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_IOERR: "reading or writing {path} failed ({error}): is its disk full or gone? "
    "What was stored before is safe",
}


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's result code without its extension; 0 where the error did not come from SQLite itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors about the file into `StoreError`."""
    try:
        yield
    except sqlite3.Error as error:
        text = _TEXTS.get(primary_code(error))
        if text is None:
            raise
        raise StoreError(text.format(path=path, error=error)) from error
