"""What a store knows of the runs and measurements that recipes ask for, read once."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asymtrain.lab.data import registry, shapes
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.store import Store, store_exists
from asymtrain.lab.studies.paper.study import Reading

LAST = 20  # epochs behind the reading `last20`


@dataclass(frozen=True)
class Snapshot:
    """Runs by spec id, measured values by spec id and name, and the versions behind each run."""

    runs: Mapping[str, Run] = field(default_factory=dict)
    measured: Mapping[tuple[str, str], Mapping[int, Any]] = field(default_factory=dict)
    versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def of(self, specs: Iterable[RunSpec]) -> list[Run]:
        return [self.runs[spec.id] for spec in specs if spec.id in self.runs]

    def values(self, spec: RunSpec, name: str) -> Mapping[int, Any] | None:
        return self.measured.get((spec.id, name))


def read_store(path: Path) -> Snapshot:
    """What the store at `path` holds; nothing where there is no store."""
    if not store_exists(path):
        return Snapshot()
    with Store(path, read_only=True) as store:
        records, measurements = store.records(), store.measurements()
    measured: dict[tuple[str, str], dict[int, Any]] = {}
    for value in measurements:
        measured.setdefault((value.spec_id, value.name), {})[value.epoch] = value.value
    versions = {record.run.spec.id: record.provenance.versions for record in records}
    return Snapshot({record.run.spec.id: record.run for record in records}, measured, versions)


def class_count(spec: RunSpec) -> int:
    count = registry.class_count(spec.dataset, dict(spec.dataset_options))
    assert count is not None, f"{spec.dataset} does not tell how many classes it has"
    return count


def image_counts(spec: RunSpec) -> tuple[int, int]:
    """Images to train and to test on; where a source does not tell, as many as `shapes` has."""
    size = registry.size_of(spec.dataset, dict(spec.dataset_options))
    return (size and size.train) or shapes.SIZE, (size and size.test) or shapes.TEST_SIZE


def count_test_images(spec: RunSpec) -> int:
    return image_counts(spec)[1]


def accuracy(run: Run, reading: Reading) -> float:
    """Test accuracy as a reading takes it; a diverged run counts at chance."""
    if run.outcome == "diverged":
        return 1 / class_count(run.spec)
    if reading.accuracy == "last20":
        tail = [epoch.test_accuracy for epoch in run.history[-LAST:]]
        assert None not in tail, f"{run.spec.id} was not tested at every epoch"
        return sum(tail) / len(tail)  # type: ignore[arg-type]
    best = run.best_validation if reading.accuracy == "best" else None
    tested = run.test_accuracy if best is None else best.test_accuracy
    assert tested is not None, f"{run.spec.id} was trained without test accuracy"
    return tested


def first_epochs(run: Run, count: int) -> Run:
    return dataclasses.replace(run, history=run.history[:count])
