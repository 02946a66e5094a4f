"""What a store holds, counted: the content of `asymtrain status`."""

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from asymtrain.lab.store.claims import held_claims
from asymtrain.lab.store.requests import Failure, select_failures


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
        """The sum of all groups."""
        counts = ("finished", "diverged", "pending", "running", "failed", "epochs")
        sums = {name: sum(getattr(group, name) for group in self.groups) for name in counts}
        return Group("all", "all", "all", **sums, seconds=sum(group.seconds for group in self.groups))


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
    """Count what the store holds."""
    held = json.dumps(list(held_claims(connection)))
    groups = tuple(Group(*row) for row in connection.execute(_COUNTS, (held,)))
    devices = connection.execute("SELECT device, count(*) FROM latest_runs GROUP BY device ORDER BY device").fetchall()
    tables = ("runs", "measurements", "requests", "failures")
    moments = " UNION ALL ".join(f"SELECT max(created) AS moment FROM {table}" for table in tables)
    (last,) = connection.execute(f"SELECT max(moment) FROM ({moments})").fetchone()
    return Summary(path, groups, tuple(select_failures(connection)), tuple(devices), last)
