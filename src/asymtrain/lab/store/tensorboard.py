"""Histories as TensorBoard logs: one folder for each run, one step for each epoch."""

import json
import re
from collections.abc import Iterable
from os import PathLike
from pathlib import Path

from asymtrain.errors import UsageError
from asymtrain.lab.runs import Run

# Field of an epoch to the name of its curve; what stands before the slash is TensorBoard's group.
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
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError('TensorBoard logs need tensorboard: pip install "asymtrain[tensorboard]"') from error
    logs = []
    for run in runs:
        spec = run.spec
        name = f"{spec.dataset}-{spec.arch}-{spec.variant}-seed{spec.seed}-{spec.id}"
        log = Path(folder) / re.sub(r"[^\w.=-]+", "_", name)
        # TensorBoard draws every event file of a folder: a second one would draw each curve twice.
        for old in log.glob("events.out.tfevents.*"):
            old.unlink()
        with SummaryWriter(str(log)) as writer:
            writer.add_text("spec", f"```json\n{json.dumps(spec.to_dict(), indent=2, sort_keys=True)}\n```")
            for epoch in run.history:
                values = {curve: getattr(epoch, field) for field, curve in CURVES.items()}
                for curve, value in values.items():
                    if value is not None:
                        writer.add_scalar(curve, value, epoch.epoch)
        logs.append(log)
    return logs
