"""`Store`: a thin object over one file. Each method is one transaction; other modules make and read the rows."""

import dataclasses
import json
import sqlite3
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypeVar

from asymtrain.errors import UsageError, unknown_name
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.store import checksums, records, requests
from asymtrain.lab.store.checksums import Check, Damage
from asymtrain.lab.store.database import DamagedError, Database, StoreError, StoreWarning, store_exists
from asymtrain.lab.store.provenance import Provenance, current
from asymtrain.lab.store.records import Measurement, Record
from asymtrain.lab.store.requests import Failure, StoreSummary

LEASE = 3600.0  # seconds for which a claim from another machine is trusted without renewal
NAMED = 3  # damaged items in a warning; `asymtrain store check` names all

T = TypeVar("T")
_OF_RUNS = ("outcome", "device", "path")
_FILTERS = {*(field.name for field in dataclasses.fields(RunSpec)), "variant", *_OF_RUNS}


class Store:
    """The record of what was run, in one file that several processes may read and write.

    `Store(path)` opens or creates it. With `read_only` the file must exist; even a store on a read-only disk can be
    read.
    """

    def __init__(self, path: str | PathLike[str], *, read_only: bool = False) -> None:
        self.path = Path(path)
        self.database = Database(self.path, read_only=read_only)  # for the modules of this package
        self._claimed = False
        self._damage_named: set[Damage] = set()
        if not read_only:
            current()  # now, while the source files are still those that this process imported

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release claims without a recorded run, and close the file; calling it twice is harmless."""
        if self._claimed:
            self._claimed = False
            # If the disk is full, the claims stay until this process ends.
            with suppress(StoreError), self.database.writing() as connection:
                connection.execute("DELETE FROM claims WHERE owner = ?", (requests.this_process(),))
        self.database.close()

    def snapshot(self) -> AbstractContextManager[object]:
        """A context in which all reads see one state, even if other processes write meanwhile."""
        return self.database.reading()

    # Requests.

    def know(self, specs: Iterable[RunSpec]) -> None:
        """Make specs known without requesting them: they can be measured, and need not be trained."""
        with self.database.writing() as connection:
            records.insert_specs(connection, specs)

    def request(self, specs: Iterable[RunSpec], *, again: bool = False) -> None:
        """Request specs: they are pending until they are recorded or fail."""
        with self.database.writing() as connection:
            requests.open_requests(connection, {spec.id: spec for spec in specs}, _now(), again=again)

    def claim(self, specs: Iterable[RunSpec], *, again: bool = False, lease: float = LEASE) -> list[RunSpec]:
        """Request specs, and claim those that are neither recorded (unless `again`) nor held by another live process.

        Call `renew` within `lease` seconds to keep specs that other machines might claim.
        """
        unique = {spec.id: spec for spec in specs}
        with self.database.writing() as connection:
            if damaged := requests.readable_claims(connection)[1]:
                raise DamagedError(f"{self.path} is damaged: {damaged[0]}; see `asymtrain store check {self.path}`")
            requests.open_requests(connection, unique, _now(), again=again)
            recorded_ids = set() if again else {key.spec_id for key in checksums.select_recorded(connection, unique)[0]}
            claimed_ids = requests.claim(connection, unique.keys() - recorded_ids, lease)
        self._claimed = True
        return [spec for spec_id, spec in unique.items() if spec_id in claimed_ids]

    def renew(self, lease: float = LEASE) -> None:
        """Keep this process's claims for `lease` seconds from now."""
        with self.database.writing() as connection:
            requests.renew(connection, lease)

    def claimed_ids(self, ids: Iterable[str]) -> set[str]:
        """The ids of specs that a live process, this one or another, is training."""
        with self.database.reading() as connection:
            claims, damaged = requests.readable_claims(connection)
        self.name_damage(damaged)
        return set(ids) & claims.keys()

    def fail(self, specs: Iterable[RunSpec], reason: str) -> None:
        """Record that specs could not be trained, and why; a later `add` or `request` supersedes it."""
        unique = {spec.id: spec for spec in specs}
        with self.database.writing() as connection:
            requests.fail_requests(connection, unique, reason, _now())
            requests.release(connection, unique)

    def pending(self) -> list[RunSpec]:
        """Specs that were requested, are not recorded and did not fail."""
        open_requests = self._read(requests.select_open)
        return [request.spec for request in open_requests.values() if request.reason is None]

    def failures(self) -> list[Failure]:
        """Specs that failed and were neither recorded nor requested since."""
        return requests.failures_of(self._read(requests.select_open))

    # Runs.

    def add(self, run: Run, *, again: bool = False, provenance: Provenance | None = None) -> bool:
        """Store a run with all its epochs, or nothing.

        Returns False if the spec is already recorded, perhaps by another process. With `again` the run becomes the
        next attempt, and readers see the latest.
        """
        records.check_whole(run)
        with self.database.writing() as connection:
            requests.release(connection, [run.spec.id])
            attempts = records.count_attempts(connection, run.spec.id)
            if attempts and not again:
                return False
            records.insert_record(connection, Record(run, attempts + 1, provenance or current(), _now()))
        return True

    def finished(self, ids: Iterable[str] | None = None) -> set[str]:
        """Ids of the specs that are recorded, including diverged runs: they need no training."""
        recorded = self._read(partial(checksums.select_recorded, ids=None if ids is None else list(ids)))
        return {key.spec_id for key in recorded}

    def runs(self, ids: Iterable[str] | None = None, **where: Any) -> list[Run]:
        """The latest attempt of each spec, ordered by dataset, arch, variant, seed and id.

        `where` names fields of a spec, `variant`, `outcome`, `device` or `path`: `runs(arch="mlp", seed=3)`.
        """
        return [record.run for record in self.records(ids, **where)]

    def records(
        self,
        ids: Iterable[str] | None = None,
        *,
        every_attempt: bool = False,
        epochs_of: Callable[[RunSpec], bool] | None = None,
        **where: Any,
    ) -> list[Record]:
        """Like `runs`, each with its attempt, its provenance and its time of storing.

        With `epochs_of` the epochs of other runs are neither read nor checked; only their number is known.
        """
        for name in where:
            if name not in _FILTERS:
                raise unknown_name("field of a run", name, _FILTERS)
        ids = None if ids is None else list(ids)
        select = partial(records.select_records, ids=ids, every_attempt=every_attempt, epochs_of=epochs_of)
        all_records = self._read(select)

        def matches(run: Run) -> bool:
            return all(getattr(run if name in _OF_RUNS else run.spec, name) == value for name, value in where.items())

        return [record for record in all_records if matches(record.run)]

    def fingerprints(self) -> list[tuple[RunSpec, str | None, str | None]]:
        """Each recorded spec that has fingerprints, with those of its model and its data, as `runs` reads them."""
        statement = (
            "SELECT run.spec_id, model_fingerprint, data_fingerprint FROM latest_runs AS run "
            "WHERE coalesce(model_fingerprint, data_fingerprint) IS NOT NULL"
        )
        with self.database.reading() as connection:
            rows = connection.execute(statement).fetchall()
            specs, _ = records.select_specs(connection, [row[0] for row in rows])
        return [(specs[spec_id], model, data) for spec_id, model, data in rows if spec_id in specs]

    # Measurements.

    def add_measurement(self, spec_id: str, name: str, values: Mapping[int, Any], *, again: bool = False) -> bool:
        """Store an instrument's JSON values by epoch (0: before training), or nothing.

        Returns False if the spec already has a measurement of this name; with `again` the new one supersedes it.
        """
        key = (spec_id, name)
        with self.database.writing() as connection:
            if not connection.execute("SELECT 1 FROM specs WHERE id = ?", (spec_id,)).fetchone():
                raise UsageError(
                    f"the store does not know spec {spec_id!r}: add its run, request it or make it known first"
                )
            statement = "SELECT coalesce(max(attempt), 0) FROM measurements WHERE spec_id = ? AND name = ?"
            (attempts,) = connection.execute(statement, key).fetchone()
            if attempts and not again:
                return False
            now = _now()
            rows = [(*key, attempts + 1, epoch, records.value_text(values[epoch]), now) for epoch in sorted(values)]
            records.insert_measurement_rows(connection, rows)
        return bool(rows)

    def measurements(self, name: str | None = None, ids: Iterable[str] | None = None) -> list[Measurement]:
        """Measured values of the latest attempts, ordered by spec id, name and epoch."""
        ids = None if ids is None else list(ids)
        with self.database.reading() as connection:
            rows, damaged = records.select_measurements(connection, ids)
            damaged += checksums.check_numbers(connection)
        self.name_damage([one for one in damaged if name is None or one.name in (name, "")])
        return [Measurement(row[0], row[1], row[3], json.loads(row[4])) for row in rows if name in (None, row[1])]

    def summary(self) -> StoreSummary:
        """Counts of stored, pending and failed runs."""
        with self.database.reading() as connection:
            summary = requests.summarise(connection, self.path)
        self.name_damage(summary.damaged)
        return summary

    def check(self) -> Check:
        """Read everything, and find all damage."""
        with self.database.reading() as connection:
            return checksums.check_all(connection)

    def _read(self, select: Callable[[sqlite3.Connection], tuple[T, list[Damage]]]) -> T:
        """The intact rows that a function selects; a warning names the damage."""
        with self.database.reading() as connection:
            rows, damaged = select(connection)
            damaged += checksums.check_numbers(connection)
        self.name_damage(damaged, stacklevel=4)
        return rows

    def name_damage(self, damaged: Sequence[Damage], stacklevel: int = 3) -> None:
        """Warn, in one line, about damage that was not named before."""
        new = [damage for damage in damaged if damage not in self._damage_named]
        self._damage_named.update(new)
        if new:
            first = "; ".join(map(str, new[:NAMED])) + (f"; {len(new) - NAMED} more" if new[NAMED:] else "")
            text = f"{self.path} is damaged, only the rest is read: {first}. See `asymtrain store check {self.path}`"
            warnings.warn(text, StoreWarning, stacklevel=stacklevel)


def stored_runs(path: Path, ids: Iterable[str] | None = None) -> list[Run]:
    """The result of `Store.runs`; empty if there is no store."""
    if not store_exists(path):
        return []
    with Store(path, read_only=True) as store:
        return store.runs(ids)


def failure_reasons(path: Path, ids: Collection[str]) -> list[str]:
    """The reason why each of these specs failed; empty if there is no store."""
    if not store_exists(path):
        return []
    with Store(path, read_only=True) as store:
        return [failure.reason for failure in store.failures() if failure.spec.id in ids]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
