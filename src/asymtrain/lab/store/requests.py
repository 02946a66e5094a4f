"""What was asked for and is not there yet: pending, or failed and why.

A request stays open until its spec has one more run than before. A failure closes one request; asking again
opens the next, so that a retry is pending and the old reason stays on record.
"""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from asymtrain.lab.runs import RunSpec
from asymtrain.lab.store.records import count_attempts, insert_specs, select_specs


@dataclass(frozen=True)
class Failure:
    """A spec that was asked for and could not be trained. `created` is UTC in ISO format."""

    spec: RunSpec
    reason: str
    created: str


def open_requests(connection: sqlite3.Connection, specs: Iterable[RunSpec], now: str, *, again: bool) -> None:
    """Mark specs as wanted, except those that are pending already or, unless again, recorded."""
    specs = list(specs)
    insert_specs(connection, specs)
    pending = _pending_ids(connection)
    for spec_id in dict.fromkeys(spec.id for spec in specs):
        attempts = count_attempts(connection, spec_id)
        if spec_id not in pending and (again or attempts == 0):
            connection.execute(
                "INSERT INTO requests (spec_id, runs_before, created) VALUES (?, ?, ?)", (spec_id, attempts, now)
            )


def fail_requests(connection: sqlite3.Connection, specs: Iterable[RunSpec], reason: str, now: str) -> None:
    """Close the specs' requests with a reason; a spec that another process recorded meanwhile did not fail."""
    specs = list(specs)
    open_requests(connection, specs, now, again=False)
    pending = _pending_ids(connection)
    for spec_id in dict.fromkeys(spec.id for spec in specs):
        if spec_id in pending:
            connection.execute("INSERT INTO failures VALUES (?, ?, ?)", (pending[spec_id], reason, now))


def select_pending(connection: sqlite3.Connection) -> list[RunSpec]:
    """Specs that were asked for, are not recorded and did not fail, in order."""
    return list(select_specs(connection, _pending_ids(connection)).values())


def select_failures(connection: sqlite3.Connection) -> list[Failure]:
    """Specs whose last request failed, in order."""
    rows = connection.execute("SELECT spec_id, reason, failed FROM open_requests WHERE reason IS NOT NULL")
    found = {spec_id: (reason, created) for spec_id, reason, created in rows}
    return [Failure(spec, *found[spec_id]) for spec_id, spec in select_specs(connection, found).items()]


def _pending_ids(connection: sqlite3.Connection) -> dict[str, int]:
    """Spec id to request id."""
    return dict(connection.execute("SELECT spec_id, id FROM open_requests WHERE reason IS NULL"))
