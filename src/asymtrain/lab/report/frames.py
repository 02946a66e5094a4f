"""Runs as frames: one row for each run, one row for each epoch."""

import dataclasses
import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from asymtrain.lab.data import cifar, shapes
from asymtrain.lab.runs import DEFAULTS, Epoch, Run, RunSpec
from asymtrain.models import BACKBONES

# What a reader looks for first; the other settings follow in the order of `RunSpec`.
FIRST = ("dataset", "arch", "variant", "redundancy", "alpha", "seed")
SETTINGS = tuple(name for name in DEFAULTS if name not in FIRST)
RESULTS = (
    "classes",
    "outcome",
    "test_accuracy",
    "validation_accuracy",
    "train_accuracy",
    "best_validation_epoch",
    "best_validation_accuracy",
    "test_accuracy_at_best_validation",
    "mean_cosine",
    "seconds",
    "device",
    "path",
)
MEASURED = tuple(field.name for field in dataclasses.fields(Epoch))


def rows_frame(runs: Iterable[Run]) -> pd.DataFrame:
    """One row for each run: id, settings, results. The order of the runs does not matter."""
    rows = [_row(run) for run in _sorted(runs)]
    return pd.DataFrame(rows, columns=["id", *FIRST, *SETTINGS, *RESULTS])


def history_frame(runs: Iterable[Run]) -> pd.DataFrame:
    """One row for each epoch of each run."""
    rows = [
        {"id": run.spec.id, "variant": run.spec.variant, **_settings(run.spec, ("dataset", "arch", "seed")), **values}
        for run in _sorted(runs)
        for values in map(dataclasses.asdict, run.history)
    ]
    return pd.DataFrame(rows, columns=["id", "dataset", "arch", "variant", "seed", *MEASURED])


def class_count(spec: RunSpec) -> int | None:
    """How many classes the spec's data have, without loading them; None where that cannot be told."""
    if spec.dataset == "shapes":
        default = inspect.signature(shapes.load).parameters["classes"].default
        return int(dict(spec.dataset_options).get("classes", default))
    if spec.dataset in cifar.SOURCES:
        return cifar.SOURCES[spec.dataset].classes
    folder = Path(spec.dataset.partition(":")[2]).expanduser()
    folder = folder / "train" if (folder / "train").is_dir() else folder
    if spec.dataset.startswith("folder:") and folder.is_dir():
        return sum(path.is_dir() and not path.name.startswith(".") for path in folder.iterdir())
    return None


def _sorted(runs: Iterable[Run]) -> list[Run]:
    """Each run once, in an order that depends on the specs alone: the pair of a seed side by side."""
    return sorted({run.spec.id: run for run in runs}.values(), key=_order)


def _order(run: Run) -> tuple[Any, ...]:
    spec, archs = run.spec, list(BACKBONES)
    return (spec.dataset, archs.index(spec.arch), spec.seed, spec.redundancy, spec.alpha, spec.id)


def _row(run: Run) -> dict[str, Any]:
    last, best = run.history[-1] if run.history else None, run.best_validation
    return {
        "id": run.spec.id,
        "variant": run.spec.variant,
        **_settings(run.spec, DEFAULTS),
        "classes": class_count(run.spec),
        "outcome": run.outcome,
        "test_accuracy": run.test_accuracy,
        "validation_accuracy": last and last.validation_accuracy,
        "train_accuracy": last and last.train_accuracy,
        "best_validation_epoch": best and best.epoch,
        "best_validation_accuracy": best and best.validation_accuracy,
        "test_accuracy_at_best_validation": best and best.test_accuracy,
        "mean_cosine": run.mean_cosine,
        "seconds": run.seconds,
        "device": run.device,
        "path": run.path,
    }


def _settings(spec: RunSpec, names: Iterable[str]) -> dict[str, Any]:
    return {name: _cell(getattr(spec, name)) for name in names}


def _cell(value: Any) -> Any:
    """Options as JSON, so that a cell of a CSV file can be read back."""
    if isinstance(value, tuple):
        return json.dumps(dict(value)) if value else ""
    return value
