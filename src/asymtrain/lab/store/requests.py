"""Requests without a result: pending, in training, or failed and why; and the counts.

A request stays open until its spec has one more run than before. A failure closes one request; requesting again
opens the next, so that a retry is pending and the old reason stays on record.

A claim says which process trains a spec, so that two processes that share a store do not train the same one. It ends
with the run, the failure, the process, or its time. On the same machine the process is looked up, so nothing waits
after a `kill -9`. A claim from another machine is trusted until its time is over, so the training process renews it.
"""

import dataclasses
import math
import os
import socket
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from time import time as clock

from asymtrain.lab.machine import is_running
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.store import checksums
from asymtrain.lab.store.checksums import RUN_COLUMNS, Damage, Key
from asymtrain.lab.store.records import count_attempts, in_order, insert_specs, read_spec


@dataclass(frozen=True)
class Failure:
    """A spec that was requested and could not be trained. `created` is UTC in ISO format."""

    spec: RunSpec
    reason: str
    created: str


@dataclass(frozen=True)
class Counts:
    """Counts of runs of one dataset, backbone and variant. `running` is the part of `pending` being trained now."""

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
class StoreSummary:
    """Counts over the latest attempts. `devices` is (name, runs); `last_write` is UTC in ISO format."""

    path: Path
    groups: tuple[Counts, ...]
    failures: tuple[Failure, ...]
    devices: tuple[tuple[str, int], ...]
    last_write: str | None
    damaged: tuple[Damage, ...] = ()  # not counted

    @property
    def total(self) -> Counts:
        return _sum(self.groups, "all", "all", "all")


def open_requests(connection: sqlite3.Connection, specs: Mapping[str, RunSpec], now: str, *, again: bool) -> None:
    """Request specs, given by id, except those that are already pending or, unless `again`, recorded."""
    insert_specs(connection, specs.values())
    pending = pending_ids(connection)
    for spec_id in specs:
        attempts = count_attempts(connection, spec_id)
        if spec_id not in pending and (again or attempts == 0):
            statement = "INSERT INTO requests (spec_id, runs_before, created) VALUES (?, ?, ?)"
            cursor = connection.execute(statement, (spec_id, attempts, now))
            checksums.add(connection, "request", Key(spec_id, "", cursor.lastrowid or 0))


def fail_requests(connection: sqlite3.Connection, specs: Mapping[str, RunSpec], reason: str, now: str) -> None:
    """Close the specs' requests with a reason, except specs that another process has recorded meanwhile."""
    open_requests(connection, specs, now, again=False)
    pending = pending_ids(connection)
    rows = [(pending[spec_id], reason, now) for spec_id in specs if spec_id in pending]
    connection.executemany("INSERT INTO failures VALUES (?, ?, ?)", rows)
    for spec_id in specs.keys() & pending.keys():
        checksums.add(connection, "failure", Key(spec_id, "", pending[spec_id]))


@dataclass(frozen=True)
class Request:
    """The open request of a spec: failed if it has a reason, else pending."""

    spec: RunSpec
    reason: str | None
    failed: str | None


def select_open(connection: sqlite3.Connection) -> tuple[dict[str, Request], list[Damage]]:
    """Open requests by spec id, in order, and the damage among requests and failures.

    They are the intact rows of the view `open_requests`.
    """
    rows, damaged = checksums.select_intact(connection, "request")
    failures, damaged_failures = checksums.select_intact(connection, "failure")
    latest, _ = checksums.keep_latest(rows, damaged)
    recorded, damaged_runs = checksums.select_recorded(connection)
    runs = Counter(key.spec_id for key in recorded)
    unknown = {(failure.spec_id, failure.number) for failure in damaged_failures}
    requests = {}
    for key, ((*_, text, runs_before, _),) in latest.items():
        if runs_before >= runs[key.spec_id] and (key.spec_id, key.number) not in unknown:
            ((reason, failed),) = failures.get(key, [(None, None)])
            requests[key.spec_id] = Request(read_spec(key.spec_id, text), reason, failed)
    order = in_order({spec_id: request.spec for spec_id, request in requests.items()})
    return {spec_id: requests[spec_id] for spec_id in order}, [*damaged, *damaged_failures, *damaged_runs]


def failures_of(requests: Mapping[str, Request]) -> list[Failure]:
    return [
        Failure(request.spec, request.reason, str(request.failed))
        for request in requests.values()
        if request.reason is not None
    ]


def pending_ids(connection: sqlite3.Connection) -> dict[str, int]:
    """Spec id to request id, for specs that were requested, are not recorded and did not fail."""
    return dict(connection.execute("SELECT spec_id, id FROM open_requests WHERE reason IS NULL"))


def this_process() -> str:
    """Machine, process id and start time; the id alone may soon belong to another process."""
    return f"{socket.gethostname()}/{os.getpid()}/{_start_of(os.getpid())}"


def claim(connection: sqlite3.Connection, ids: Iterable[str], seconds: float) -> set[str]:
    """Take the specs that no other live process holds; returns those that this process now holds."""
    claims, owner, until = held_claims(connection), this_process(), clock() + seconds
    free = {spec_id for spec_id in ids if claims.get(spec_id, owner) == owner}
    rows = [(spec_id, owner, until) for spec_id in free]
    connection.executemany("INSERT OR REPLACE INTO claims VALUES (?, ?, ?)", rows)
    return free


def renew(connection: sqlite3.Connection, seconds: float) -> None:
    """Extend this process's claims to `seconds` from now, except those that others have taken since."""
    until = clock() + seconds
    connection.execute("UPDATE claims SET until = ? WHERE owner = ?", (until, this_process()))


def release(connection: sqlite3.Connection, ids: Iterable[str]) -> None:
    connection.executemany("DELETE FROM claims WHERE spec_id = ?", [(spec_id,) for spec_id in ids])


def held_claims(connection: sqlite3.Connection) -> dict[str, str]:
    """Spec id to owner, for claims that are still valid."""
    rows = connection.execute("SELECT spec_id, owner, until FROM claims").fetchall()
    counts = {(owner, until): _counts(owner, until) for _, owner, until in rows}
    return {spec_id: owner for spec_id, owner, until in rows if counts[owner, until]}


def _counts(owner: str, until: float) -> bool:
    machine, process, start = owner.rsplit("/", 2)
    if machine != socket.gethostname() or os.name != "posix":
        return clock() < until
    return is_running(int(process)) and _start_of(int(process)) == start


def _start_of(process: int) -> str:
    """Start time from Linux's /proc; empty on other systems, and for a zombie process."""
    try:
        # The second field is the program's name in parentheses, which may contain anything.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def readable_claims(connection: sqlite3.Connection) -> tuple[dict[str, str], list[Damage]]:
    """The valid claims, and damage if they cannot be read: claims are temporary and have no checksums."""
    try:
        return held_claims(connection), []
    except (AttributeError, OverflowError, TypeError, ValueError):
        return {}, [Damage("file", "a claim cannot be read: what is being trained is not known")]


def summarise(connection: sqlite3.Connection, path: Path) -> StoreSummary:
    intact, damaged = {}, checksums.check_numbers(connection)
    for content in ("run", "measurement", "request", "failure"):
        intact[content], damage = checksums.select_intact(connection, content)
        damaged += damage
    groups: dict[tuple[str, str, str], list[Counts]] = {}
    devices: Counter[str] = Counter()
    latest, _ = checksums.keep_latest(intact["run"], damaged)
    for (row,) in latest.values():
        run = dict(zip(RUN_COLUMNS, row[-len(RUN_COLUMNS) :], strict=True))
        devices[run["device"]] += 1
        outcome, kind = run["outcome"], (row[1], row[2], row[3])
        counts = Counts(*kind, finished=outcome == "finished", diverged=outcome == "diverged", epochs=row[6])
        groups.setdefault(kind, []).append(dataclasses.replace(counts, seconds=run["seconds"]))
    claims, damaged_claims = readable_claims(connection)
    damaged += damaged_claims
    requests, _ = select_open(connection)
    for spec_id, request in requests.items():
        spec, pending = request.spec, request.reason is None
        kind = (spec.dataset, spec.arch, spec.variant)
        counts = Counts(*kind, pending=pending, running=pending and spec_id in claims, failed=not pending)
        groups.setdefault(kind, []).append(counts)
    column = RUN_COLUMNS.index("created") - len(RUN_COLUMNS)
    created = {"run": column, "measurement": -1, "request": -1, "failure": -1}  # index of the column
    moments = [
        row[created[content]] for content, rows in intact.items() for members in rows.values() for row in members
    ]
    return StoreSummary(
        path,
        tuple(_sum(members, *kind) for kind, members in sorted(groups.items())),
        tuple(failures_of(requests)),
        tuple(sorted(devices.items())),
        max(moments, default=None),
        tuple(damaged),
    )


def _sum(groups: Sequence[Counts], dataset: str, arch: str, variant: str) -> Counts:
    counts = {field.name: sum(getattr(group, field.name) for group in groups) for field in fields(Counts)[3:-1]}
    return Counts(dataset, arch, variant, **counts, seconds=math.fsum(group.seconds for group in groups))
