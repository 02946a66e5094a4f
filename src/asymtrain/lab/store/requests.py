"""What was asked for and is not there yet: pending, being trained by some process, or failed and why; and the counts.

A request stays open until its spec has one more run than before. A failure closes one request; asking again
opens the next, so that a retry is pending and the old reason stays on record.

A claim says who is training what, so that two processes that share a store do not train the same spec. It ends with
the run, with the failure, with the process, or with its time. On the same machine the process is looked up, so that
nothing waits after a `kill -9`; a claim from another machine is believed until it ends, so whoever trains renews it.
Its time is that of the disk which the store is on: clocks of machines differ.
"""

import json
import os
import socket
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path

from asymtrain.lab.runs import RunSpec
from asymtrain.lab.store.records import count_attempts, insert_specs, select_specs


@dataclass(frozen=True)
class Failure:
    """A spec that was asked for and could not be trained. `created` is UTC in ISO format."""

    spec: RunSpec
    reason: str
    created: str


@dataclass(frozen=True)
class Group:
    """The runs of one dataset, backbone and variant. `running` of the `pending` are being trained now."""

    dataset: str
    arch: str
    variant: str
    finished: int = 0
    diverged: int = 0
    pending: int = 0
    running: int = 0
    failed: int = 0
    epochs: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Summary:
    """Counts over the latest attempts. `devices` is (name, runs); `last_write` is UTC in ISO format."""

    path: Path
    groups: tuple[Group, ...]
    failures: tuple[Failure, ...]
    devices: tuple[tuple[str, int], ...]
    last_write: str | None

    @property
    def total(self) -> Group:
        counts = [field.name for field in fields(Group)][3:]
        return Group("all", "all", "all", *(sum(getattr(group, name) for group in self.groups) for name in counts))


def open_requests(connection: sqlite3.Connection, specs: Mapping[str, RunSpec], now: str, *, again: bool) -> None:
    """Mark specs, given by id, as wanted, except those that are pending already or, unless again, recorded."""
    insert_specs(connection, specs.values())
    pending = pending_ids(connection)
    for spec_id in specs:
        attempts = count_attempts(connection, spec_id)
        if spec_id not in pending and (again or attempts == 0):
            statement = "INSERT INTO requests (spec_id, runs_before, created) VALUES (?, ?, ?)"
            connection.execute(statement, (spec_id, attempts, now))


def fail_requests(connection: sqlite3.Connection, specs: Mapping[str, RunSpec], reason: str, now: str) -> None:
    """Close the specs' requests with a reason; a spec that another process recorded meanwhile did not fail."""
    open_requests(connection, specs, now, again=False)
    pending = pending_ids(connection)
    rows = [(pending[spec_id], reason, now) for spec_id in specs if spec_id in pending]
    connection.executemany("INSERT INTO failures VALUES (?, ?, ?)", rows)


def select_failures(connection: sqlite3.Connection) -> list[Failure]:
    """Specs whose last request failed, in order."""
    rows = connection.execute("SELECT spec_id, reason, failed FROM open_requests WHERE reason IS NOT NULL")
    reasons = {spec_id: (reason, created) for spec_id, reason, created in rows}
    return [Failure(spec, *reasons[spec_id]) for spec_id, spec in select_specs(connection, reasons).items()]


def pending_ids(connection: sqlite3.Connection) -> dict[str, int]:
    """Spec id to request id, for what was asked for, is not recorded and did not fail."""
    return dict(connection.execute("SELECT spec_id, id FROM open_requests WHERE reason IS NULL"))


def this_process() -> str:
    """Machine, process id and start time: a process id alone is soon given to another process."""
    return f"{socket.gethostname()}/{os.getpid()}/{_start_of(os.getpid())}"


def claim(connection: sqlite3.Connection, ids: Iterable[str], seconds: float) -> set[str]:
    """Take the specs that no other live process holds; returns those that are now this process's."""
    held, owner, until = held_claims(connection), this_process(), clock(connection) + seconds
    free = {spec_id for spec_id in ids if held.get(spec_id, owner) == owner}
    rows = [(spec_id, owner, until) for spec_id in free]
    connection.executemany("INSERT OR REPLACE INTO claims VALUES (?, ?, ?)", rows)
    return free


def renew(connection: sqlite3.Connection, seconds: float) -> None:
    """Give this process's claims so many seconds from now; those that others have taken since are theirs."""
    until = clock(connection) + seconds
    connection.execute("UPDATE claims SET until = ? WHERE owner = ?", (until, this_process()))


def release(connection: sqlite3.Connection, ids: Iterable[str]) -> None:
    connection.executemany("DELETE FROM claims WHERE spec_id = ?", [(spec_id,) for spec_id in ids])


def held_claims(connection: sqlite3.Connection) -> dict[str, str]:
    """Spec id to owner, for claims that still count."""
    rows = connection.execute("SELECT spec_id, owner, until FROM claims").fetchall()
    now = cache(partial(clock, connection))  # looked at only where a claim of another machine is
    counts = {(owner, until): _counts(owner, until, now) for _, owner, until in rows}
    return {spec_id: owner for spec_id, owner, until in rows if counts[owner, until]}


def clock(connection: sqlite3.Connection) -> float:
    """Seconds by the clock that stamps files beside the store: of its server, where it is on a network disk."""
    (path,) = connection.execute("SELECT file FROM pragma_database_list WHERE name = 'main'").fetchone()
    try:
        with tempfile.TemporaryFile(dir=Path(path).parent) as file:
            os.utime(file.fileno())
            return os.fstat(file.fileno()).st_mtime
    except OSError:  # it cannot be written there, or the disk is full
        return time.time()


def _counts(owner: str, until: float, now: Callable[[], float]) -> bool:
    machine, process, start = owner.rsplit("/", 2)
    if machine != socket.gethostname() or os.name != "posix":
        return now() < until
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is alive, and another user's
    return _start_of(int(process)) == start


def _start_of(process: int) -> str:
    """Start time from Linux's /proc; empty elsewhere, and for a process that has ended and was not collected."""
    try:
        # The second field is the program's name in parentheses, which may contain anything.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


_COUNTS = """
SELECT spec.dataset, spec.arch, spec.variant,
       count(*) FILTER (WHERE run.outcome = 'finished'),
       count(*) FILTER (WHERE run.outcome = 'diverged'),
       count(*) FILTER (WHERE request.id IS NOT NULL AND request.reason IS NULL),
       count(*) FILTER (WHERE request.id IS NOT NULL AND request.reason IS NULL
                        AND spec.id IN (SELECT value FROM json_each(?))),
       count(*) FILTER (WHERE request.reason IS NOT NULL),
       coalesce(sum(run.epochs), 0), coalesce(sum(run.seconds), 0.0)
FROM specs AS spec
LEFT JOIN (SELECT *, (SELECT count(*) FROM epochs WHERE run_id = latest_runs.id) AS epochs FROM latest_runs) AS run
  ON run.spec_id = spec.id
LEFT JOIN open_requests AS request ON request.spec_id = spec.id
WHERE run.id IS NOT NULL OR request.id IS NOT NULL
GROUP BY spec.dataset, spec.arch, spec.variant
ORDER BY spec.dataset, spec.arch, spec.variant
"""


def summarise(connection: sqlite3.Connection, path: Path) -> Summary:
    held = json.dumps(list(held_claims(connection)))
    groups = tuple(Group(*row) for row in connection.execute(_COUNTS, (held,)))
    devices = connection.execute("SELECT device, count(*) FROM latest_runs GROUP BY device ORDER BY device").fetchall()
    tables = ("runs", "measurements", "requests", "failures")
    moments = " UNION ALL ".join(f"SELECT max(created) AS moment FROM {table}" for table in tables)
    (last,) = connection.execute(f"SELECT max(moment) FROM ({moments})").fetchone()
    return Summary(path, groups, tuple(select_failures(connection)), tuple(devices), last)
