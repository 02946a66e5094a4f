"""What a store knows of the runs and measurements that recipes ask for, read once."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asymtrain.lab.paper.study import Reading
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.store import Store

CLASSES = {"cifar10": 10, "cifar100": 100}
TEST_IMAGES = 10_000  # of either CIFAR
SHOWN = {"asymtrain": "asymtrain", "torch": "torch", "python": "Python"}


@dataclass(frozen=True)
class Snapshot:
    """Runs by spec id, measured values by spec id and name, and the versions behind each run."""

    runs: Mapping[str, Run] = field(default_factory=dict)
    measured: Mapping[tuple[str, str], Mapping[int, Any]] = field(default_factory=dict)
    versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def has(self, specs: Iterable[RunSpec]) -> bool:
        """Are all of them trained?"""
        return all(spec.id in self.runs for spec in specs)

    def of(self, specs: Iterable[RunSpec]) -> list[Run]:
        """Those that are trained, in order."""
        return [self.runs[spec.id] for spec in specs if spec.id in self.runs]

    def values(self, spec: RunSpec, name: str) -> Mapping[int, Any] | None:
        """What was measured on a spec, by epoch."""
        return self.measured.get((spec.id, name))


def read_store(path: Path, ids: Iterable[str] | None = None) -> Snapshot:
    """What the store at `path` holds (of `ids`); nothing where there is no store."""
    if not path.exists():
        return Snapshot()
    wanted = None if ids is None else list(ids)
    with Store(path, read_only=True) as store:
        records = store.records(wanted)
        measurements = store.measurements(ids=wanted)
    measured: dict[tuple[str, str], dict[int, Any]] = {}
    for value in measurements:
        measured.setdefault((value.spec_id, value.name), {})[value.epoch] = value.value
    versions = {record.run.spec.id: shown_versions(dataclasses.asdict(record.provenance)) for record in records}
    return Snapshot({record.run.spec.id: record.run for record in records}, measured, versions)


def shown_versions(provenance: Mapping[str, Any]) -> dict[str, str]:
    """The versions that a page names, of all that is known about the code."""
    return {shown: str(provenance[name]) for name, shown in SHOWN.items()}


def class_count(spec: RunSpec) -> int:
    """Classes of the data that a recipe's spec names."""
    return CLASSES.get(spec.dataset) or int(dict(spec.dataset_options)["classes"])  # type: ignore[arg-type]


def count_test_images(spec: RunSpec) -> int:
    """Test images of the data that a recipe's spec names."""
    if spec.dataset in CLASSES:
        return TEST_IMAGES
    return int(dict(spec.dataset_options).get("test_size", 1000))  # type: ignore[arg-type]


def accuracy(run: Run, reading: Reading) -> float:
    """Test accuracy as a reading takes it; a diverged run counts at chance."""
    if run.outcome == "diverged":
        return 1 / class_count(run.spec)
    best = run.best_validation if reading.accuracy == "best" else None
    tested = run.test_accuracy if best is None else best.test_accuracy
    assert tested is not None, f"{run.spec.id} was trained without test accuracy"
    return tested


def first_epochs(run: Run, count: int) -> Run:
    """The run as it stood after so many epochs."""
    return dataclasses.replace(run, history=run.history[:count])
