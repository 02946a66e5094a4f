"""The runs and measurements that a store holds of a study, read once."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.store import Store, store_exists


@dataclass(frozen=True, eq=False)  # compared by identity, so that computed results can be cached
class Snapshot:
    """Runs by spec id, measured values by spec id and name, and the versions behind each run."""

    runs: Mapping[str, Run] = field(default_factory=dict)
    measured: Mapping[tuple[str, str], Mapping[int, Any]] = field(default_factory=dict)
    versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def of(self, specs: Iterable[RunSpec]) -> list[Run]:
        return [self.runs[spec.id] for spec in specs if spec.id in self.runs]

    def values(self, spec: RunSpec, name: str) -> Mapping[int, Any] | None:
        return self.measured.get((spec.id, name))


def read_store(path: Path, epochs_of: Callable[[RunSpec], bool] | None = None) -> Snapshot:
    """What the store at `path` holds; empty without a store. `epochs_of` as in `Store.records`."""
    if not store_exists(path):
        return Snapshot()
    with Store(path, read_only=True) as store:
        records, measurements = store.records(epochs_of=epochs_of), store.measurements()
    measured: dict[tuple[str, str], dict[int, Any]] = {}
    for value in measurements:
        measured.setdefault((value.spec_id, value.name), {})[value.epoch] = value.value
    versions = {record.run.spec.id: record.provenance.versions for record in records}
    return Snapshot({record.run.spec.id: record.run for record in records}, measured, versions)
