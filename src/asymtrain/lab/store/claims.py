"""Who is training what, so that two processes that share a store do not train the same spec.

A claim ends with the run, with the failure, with the process, or with its time. On the same machine the process
is looked up, so that nothing waits after a `kill -9`; a claim from another machine is believed until it ends.
"""

import os
import socket
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path


def this_process() -> str:
    """Machine, process id and start time: a process id alone is soon given to another process."""
    return f"{socket.gethostname()}/{os.getpid()}/{_start_of(os.getpid())}"


def claim(connection: sqlite3.Connection, ids: Iterable[str], owner: str, seconds: float) -> set[str]:
    """Take the specs that no other live process holds; returns those that are now the owner's."""
    held, taken, until = held_claims(connection), set(), time.time() + seconds
    for spec_id in ids:
        if held.get(spec_id, owner) == owner:
            connection.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?)", (spec_id, owner, until))
            taken.add(spec_id)
    return taken


def release(connection: sqlite3.Connection, ids: Iterable[str]) -> None:
    """Forget who holds these specs."""
    connection.executemany("DELETE FROM claims WHERE spec_id = ?", [(spec_id,) for spec_id in ids])


def release_all(connection: sqlite3.Connection, owner: str) -> None:
    """Forget everything that the owner holds."""
    connection.execute("DELETE FROM claims WHERE owner = ?", (owner,))


def held_claims(connection: sqlite3.Connection) -> dict[str, str]:
    """Spec id to owner, for claims that still count."""
    rows = connection.execute("SELECT spec_id, owner, until FROM claims").fetchall()
    counts = {(owner, until): _counts(owner, until) for _, owner, until in rows}
    return {spec_id: owner for spec_id, owner, until in rows if counts[owner, until]}


def _counts(owner: str, until: float) -> bool:
    machine, process, start = owner.rsplit("/", 2)
    if machine == socket.gethostname() and os.name == "posix":
        return _is_alive(int(process)) and _start_of(int(process)) == start
    return time.time() < until


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _start_of(process: int) -> str:
    """Start time from Linux's /proc; empty elsewhere, and for a process that has ended and was not collected."""
    try:
        # The second field is the program's name in parentheses, which may contain anything.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
