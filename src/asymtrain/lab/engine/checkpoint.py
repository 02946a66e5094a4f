"""A stack on disk: one folder that is either the last checkpoint or the one before, never half of one.

    <folder>/<stack id>/
        plan.json             the members and the strategy, written before the first step: stacks keep their members
        state.safetensors     weights, moments and sums, with epoch, step and histories in its header

`state.safetensors` is replaced by a rename, so a kill at any moment leaves a whole file.
"""

import dataclasses
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import cast

from asymtrain.errors import UsageError
from asymtrain.lab.checkpoints import CLOSED, PLAN, STATE, begun_stacks
from asymtrain.lab.engine.losses import Strategy
from asymtrain.lab.engine.plan import StackPlan
from asymtrain.lab.engine.stack import Stack
from asymtrain.lab.runs import Epoch

_TRIES = 100


def open_checkpoint(folder: Path, stack_plan: StackPlan) -> Path:
    own = folder / stack_plan.id
    write_into_new_folder(own / PLAN, json.dumps(stack_plan.to_dict(), indent=1).encode())
    return own


def unfinished_plans(folder: Path) -> list[StackPlan]:
    """Stacks that were begun in this folder and not closed, oldest name first."""
    return [StackPlan(specs, cast(Strategy, strategy)) for _, specs, strategy in begun_stacks(folder)]


def save_checkpoint(folder: Path, stack: Stack) -> None:
    from safetensors.torch import save

    progress = {
        "members": [spec.id for spec in stack.specs],
        "epoch": stack.epoch,
        "step": stack.step,
        "seconds": stack.seconds,
        "diverged": stack.diverged,
        "answers": [None if answers is None else answers.hex() for answers in stack.answers],
        "histories": [[dataclasses.asdict(epoch) for epoch in history] for history in stack.histories],
    }
    tensors = {name: value.cpu() for name, value in stack.state().items()}
    _replace(folder / STATE, save(tensors, {"progress": json.dumps(progress)}))


def load_checkpoint(folder: Path, stack: Stack) -> bool:
    """Bring a fresh stack to its checkpoint; False where there is none yet."""
    from safetensors import SafetensorError, safe_open

    file = folder / STATE
    if not file.exists():
        return False
    try:
        with safe_open(file, "pt") as opened:
            progress = json.loads((opened.metadata() or {})["progress"])
            if progress["members"] != [spec.id for spec in stack.specs]:
                raise ValueError("it has other members, or in another order")
            stored = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  (no dict)
        for name, value in stack.state().items():
            if stored[name].shape != value.shape:
                raise ValueError(f"{name} has the shape {tuple(stored[name].shape)}, not {tuple(value.shape)}")
    except (SafetensorError, KeyError, ValueError) as problem:
        raise UsageError(
            f"{file} is no checkpoint of this stack ({problem}): delete {folder} to start anew"
        ) from problem
    stack.load_state(stored)  # not above: a GPU that is lost here says nothing about the file
    stack.epoch, stack.step, stack.seconds = progress["epoch"], progress["step"], progress["seconds"]
    stack.diverged = progress["diverged"]
    stack.answers = [None if answers is None else bytes.fromhex(answers) for answers in progress["answers"]]
    for history, epochs in zip(stack.histories, progress["histories"], strict=True):
        for values in epochs:
            if values["layer_cosines"] is not None:  # JSON has lists only
                values["layer_cosines"] = tuple(map(tuple, values["layer_cosines"]))
            history.append(Epoch(**values))
    return True


def close_checkpoint(folder: Path) -> None:
    """Forget a stack whose rows are stored.

    It gets another name first: a process that is killed here leaves no half of a checkpoint under the stack's own.
    """
    closed = folder.with_name(f"{folder.name}.{os.getpid()}{CLOSED}")
    with suppress(FileNotFoundError):
        folder.rename(closed)
    shutil.rmtree(closed, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove what killed processes left: stacks that were being closed, folders without a plan."""
    for closed in folder.glob(f"*{CLOSED}"):
        shutil.rmtree(closed, ignore_errors=True)
    for left in folder.glob("*/"):
        with suppress(OSError):  # it is not empty
            left.rmdir()


def write_into_new_folder(file: Path, content: bytes) -> None:
    """Write a file whole, and its folders where they are missing.

    Other processes tidy empty folders away, at any moment until the file is there.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            return _replace(file, content)
        except FileNotFoundError:
            if not tries_left:
                raise


def _replace(file: Path, content: bytes) -> None:
    new = file.with_suffix(f".{os.getpid()}.new")  # two processes may hold one stack for a moment
    new.write_bytes(content)
    new.replace(file)
