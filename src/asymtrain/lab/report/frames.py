"""Runs as frames: one row for each run, one row for each epoch."""

import json
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import pandas as pd

from asymtrain.lab.data import class_count
from asymtrain.lab.runs import DEFAULTS, Epoch, Run, RunSpec
from asymtrain.models import backbone_names

# What a reader looks for first; the other settings follow in the order of `RunSpec`.
FIRST = ("dataset", "arch", "variant", "redundancy", "alpha", "seed")
SETTINGS = tuple(name for name in DEFAULTS if name not in FIRST)
RESULTS: dict[str, Callable[[Run], Any]] = {
    "classes": lambda run: _classes(run),
    "largest_class": lambda run: run.largest_class or 0.0,
    "outcome": attrgetter("outcome"),
    "test_accuracy": attrgetter("test_accuracy"),
    "validation_accuracy": lambda run: run.history[-1].validation_accuracy if run.history else None,
    "train_accuracy": lambda run: run.history[-1].train_accuracy if run.history else None,
    "best_validation_epoch": lambda run: run.best_validation and run.best_validation.epoch,
    "best_validation_accuracy": lambda run: run.best_validation and run.best_validation.validation_accuracy,
    "test_accuracy_at_best_validation": lambda run: run.best_validation and run.best_validation.test_accuracy,
    "calibration_error": attrgetter("calibration_error"),
    "mean_cosine": attrgetter("mean_cosine"),
    "seconds": attrgetter("seconds"),
    "device": attrgetter("device"),
    "path": attrgetter("path"),
}
MEASURED = Epoch._fields


def rows_frame(runs: Iterable[Run]) -> pd.DataFrame:
    """One row for each run: id, settings, results. The order of the runs does not matter."""
    rows = [
        {
            "id": run.spec.id,
            "variant": run.spec.variant,
            **_settings(run.spec, DEFAULTS),
            **{name: result(run) for name, result in RESULTS.items()},
        }
        for run in _sorted(runs)
    ]
    return pd.DataFrame(rows, columns=["id", *FIRST, *SETTINGS, *RESULTS])


def history_frame(runs: Iterable[Run]) -> pd.DataFrame:
    """One row for each epoch of each run."""
    rows = [
        {"id": run.spec.id, "variant": run.spec.variant, **_settings(run.spec, ("dataset", "arch", "seed")), **values}
        for run in _sorted(runs)
        for values in map(Epoch._asdict, run.history)
    ]
    return pd.DataFrame(rows, columns=["id", "dataset", "arch", "variant", "seed", *MEASURED])


def _classes(run: Run) -> int | None:
    """By the name of the data; if that does not tell, as recorded when the run was trained."""
    counted = class_count(run.spec.dataset, dict(run.spec.dataset_options))
    return run.classes if counted is None else counted


def _sorted(runs: Iterable[Run]) -> list[Run]:
    """Each run once, in an order that depends on the specs alone: the pair of a seed side by side."""

    backbones = backbone_names()

    def order(spec: RunSpec) -> tuple[Any, ...]:
        # Models by name come after the backbones.
        index = backbones.index(spec.arch) if spec.arch in backbones else len(backbones)
        return (spec.dataset, index, spec.arch, spec.seed, spec.redundancy, spec.alpha, spec.id)

    return sorted({run.spec.id: run for run in runs}.values(), key=lambda run: order(run.spec))


def _settings(spec: RunSpec, names: Iterable[str]) -> dict[str, Any]:
    """Options as JSON, so that a cell of a CSV file can be read back; other tuples as names with commas."""
    values = {name: getattr(spec, name) for name in names}
    texts = {
        name: json.dumps(dict(value)) if value and name.endswith("_options") else ", ".join(value)
        for name, value in values.items()
        if isinstance(value, tuple)
    }
    return {**values, **texts}
