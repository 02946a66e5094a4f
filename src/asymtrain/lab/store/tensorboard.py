"""Histories as TensorBoard logs: one folder for each run, one step for each epoch."""

import json
import re
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from asymtrain.errors import UsageError, how_to_install
from asymtrain.lab.runs import Epoch, Run, RunSpec
from asymtrain.lab.texts import without_folders

# Field of an epoch to the name of its curve; the part before the slash is TensorBoard's group.
CURVES = {
    "main_loss": "loss/main",
    "auxiliary_loss": "loss/auxiliary",
    "train_accuracy": "accuracy/train",
    "validation_accuracy": "accuracy/validation",
    "test_accuracy": "accuracy/test",
    "cosine": "cosine/mean",
    "cosine_min": "cosine/min",
    "cosine_max": "cosine/max",
    "cosine_std": "cosine/std",
    "conflict": "cosine/conflict",
    "main_norm": "norm/main",
    "auxiliary_norm": "norm/auxiliary",
    "seconds": "time/seconds",
}


def write_tensorboard(runs: Iterable[Run], folder: str | PathLike[str]) -> list[Path]:
    """Write the runs' curves under a folder, and return the folder of each; logs of the same specs are replaced."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise UsageError(f"TensorBoard logs need tensorboard: {how_to_install('tensorboard')}") from error
    logs = []
    for run in runs:
        with open_log(run.spec, folder) as log:
            for epoch in run.history:
                write_epoch(log, epoch)
        logs.append(Path(log.log_dir))
    return logs


def open_log(spec: RunSpec, folder: str | PathLike[str]) -> Any:
    """A `SummaryWriter` for the run of a spec, in its own folder; replaces an earlier log of that spec."""
    from torch.utils.tensorboard import SummaryWriter

    log = Path(folder) / re.sub(r"[^\w.=-]+", "_", run_name(spec))
    # TensorBoard draws every event file in a folder, so a second one would draw each curve twice.
    for old in log.glob("events.out.tfevents.*"):
        old.unlink()
    writer = SummaryWriter(str(log))
    writer.add_text("spec", f"```json\n{json.dumps(spec.to_dict(), indent=2, sort_keys=True)}\n```")
    return writer


def write_epoch(log: Any, epoch: Epoch) -> None:
    for curve, value in curve_values(epoch).items():
        log.add_scalar(curve, value, epoch.epoch)


def run_name(spec: RunSpec) -> str:
    return f"{group_name(spec)}-{spec.variant}-seed{spec.seed}-{spec.id}"


def group_name(spec: RunSpec) -> str:
    """The name that runs of one comparison share; without folders, since a tracker may send it elsewhere."""
    return f"{without_folders(spec.dataset)}-{without_folders(spec.arch)}"


def curve_values(epoch: Epoch) -> dict[str, float]:
    """The measured values of an epoch, by the names of the curves."""
    values = {curve: getattr(epoch, field) for field, curve in CURVES.items()}
    return {curve: value for curve, value in values.items() if value is not None}
