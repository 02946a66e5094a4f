"""Which stacks an execution trains: those of earlier, interrupted executions, then new ones.

lab/checkpoints.py describes the files, and why a stack keeps its members.
"""

import json
from collections.abc import Container
from contextlib import suppress
from itertools import chain
from pathlib import Path

import torch

from asymtrain.errors import UsageError
from asymtrain.lab.checkpoints import EXECUTIONS, StackPlan, begun_stacks, execution_name, planned_executions, set_aside
from asymtrain.lab.engine import close_checkpoint, plan
from asymtrain.lab.engine.checkpoint import sweep, write_into_new_folder
from asymtrain.lab.files import remove_torn
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.store import Store


def choose_stacks(
    missing: list[RunSpec], record: Store, checkpoints: Path, device: torch.device, workers: int, *, fresh: bool
) -> list[StackPlan]:
    """Stacks that contain every missing run once.

    Stacks of an earlier execution keep all their members, even those that are stored or not requested, unless
    `fresh` trains the runs again.
    """
    specs_left = {spec.id: spec for spec in missing}
    reusable: list[StackPlan] = []
    # Smallest first: the halves of a stack that was too large come before the whole, which may still exist.
    begun = sorted(begun_stacks(checkpoints, set_aside), key=lambda stack_plan: len(stack_plan.specs))
    # Stacks that were planned for another kind of device are too small or too large.
    planned = [plans for _, kind, plans in planned_executions(checkpoints) if kind == device.type]
    for old in chain(begun, *planned):
        members = _members(old)
        if members & specs_left.keys() and not members & _members(*reusable) and _is_free(old, specs_left, record):
            if fresh:
                close_checkpoint(checkpoints / old.id)
            else:
                reusable.append(old)
                for spec_id in members:
                    specs_left.pop(spec_id, None)
    new = plan(list(specs_left.values()), device, workers=workers)
    if new:
        _write_plans(checkpoints, device, new)
    return reusable + new


def tidy(record: Store, checkpoints: Path) -> None:
    """Remove plans and checkpoints whose runs are all stored, and the folder if it is then empty."""
    for begun in begun_stacks(checkpoints):
        members = _members(begun)
        if record.finished(members) == members and not record.claimed_ids(
            members
        ):  # a process was killed between storing and closing
            close_checkpoint(checkpoints / begun.id)
    sweep(checkpoints)
    for file, _, plans in planned_executions(checkpoints):
        members = _members(*plans)
        if record.finished(members) == members:
            file.unlink(missing_ok=True)
    remove_torn(checkpoints, EXECUTIONS)
    with suppress(OSError):
        checkpoints.rmdir()


def _members(*plans: StackPlan) -> set[str]:
    return {spec.id for stack_plan in plans for spec in stack_plan.specs}


def _is_free(stack_plan: StackPlan, ours: Container[str], record: Store) -> bool:
    """Claim the members that are neither stored nor ours; False if another process is training one of them."""
    finished_ids = record.finished([spec.id for spec in stack_plan.specs])
    others = [spec for spec in stack_plan.specs if spec.id not in finished_ids and spec.id not in ours]
    return not others or len(record.claim(others)) == len(others)


def _write_plans(checkpoints: Path, device: torch.device, plans: list[StackPlan]) -> None:
    file = checkpoints / execution_name(plans)
    content = json.dumps({"device": device.type, "stacks": [stack_plan.to_dict() for stack_plan in plans]}, indent=1)
    try:
        write_into_new_folder(file, content.encode())
    except OSError as problem:
        raise UsageError(f"{checkpoints} cannot be written ({problem.strerror}): give another path") from problem
