"""Which stacks an execution trains: those of an earlier one that it interrupted, then new ones.

    <store>.checkpoints/
        plans-<id>.json     the stacks of an execution, written in one piece before the first of them trains
        <stack id>/         a stack that was begun: engine/checkpoint.py

A run's last bits may depend on its neighbours, so a stack keeps its members from the moment it is planned: after an
interruption the stacks, and with them the rows, are those of an execution that nothing interrupted.
"""

import hashlib
import json
from collections.abc import Container
from contextlib import suppress
from itertools import chain
from pathlib import Path

import torch

from asymtrain.errors import UsageError, error_line
from asymtrain.lab.engine import StackPlan, close_checkpoint, plan, unfinished_plans
from asymtrain.lab.engine.checkpoint import DamagedError, has_state, sweep, write_into_new_folder
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.store import Store

PLANS = "plans-*.json"


def checkpoints_of(store: Path) -> Path:
    return store.with_name(f"{store.name}.checkpoints")


def checkpointed(store: Path) -> set[str]:
    """Ids of the runs whose stack was interrupted and left a checkpoint; the next training of them goes on from it."""
    folder = checkpoints_of(store)
    return _members(*(stack for stack in _begun(folder) if has_state(folder / stack.id)))


def choose_stacks(
    missing: list[RunSpec], record: Store, checkpoints: Path, device: torch.device, workers: int, *, fresh: bool
) -> list[StackPlan]:
    """Stacks that contain every missing run once.

    Those of an earlier execution come with all the members they had, stored ones and unasked ones too, unless the
    runs are to be trained afresh.
    """
    left = {spec.id: spec for spec in missing}
    kept: list[StackPlan] = []
    # The halves of a stack that was too large come before the whole, which may still be there.
    begun = sorted(_begun(checkpoints), key=lambda stack_plan: len(stack_plan.specs))
    # Those that were planned for another kind of device are too small or too large.
    planned = [plans for _, kind, plans in _read_plans(checkpoints) if kind == device.type]
    for old in chain(begun, *planned):
        members = _members(old)
        if members & left.keys() and not members & _members(*kept) and _is_free(old, left, record):
            if fresh:
                close_checkpoint(checkpoints / old.id)
            else:
                kept.append(old)
                for spec_id in members:
                    left.pop(spec_id, None)
    new = plan(list(left.values()), device, workers=workers)
    if new:
        _write_plans(checkpoints, device, new)
    return kept + new


def tidy(record: Store, checkpoints: Path) -> None:
    """Remove the plans and checkpoints whose runs are all stored, and the folder where nothing is left in it."""
    for begun in _begun(checkpoints):
        members = _members(begun)
        if record.finished(members) == members and not record.held(members):  # killed between storing and closing
            close_checkpoint(checkpoints / begun.id)
    sweep(checkpoints)
    for file, _, plans in _read_plans(checkpoints):
        members = _members(*plans)
        if record.finished(members) == members:
            file.unlink(missing_ok=True)
    for torn in checkpoints.glob("plans-*.new"):
        torn.unlink(missing_ok=True)  # of a process that was killed while it wrote
    with suppress(OSError):
        checkpoints.rmdir()


def _begun(checkpoints: Path) -> list[StackPlan]:
    """Stacks that were begun and not closed; the plans of whole executions stand in for a damaged one."""
    known = {stack_plan.id: stack_plan for _, _, plans in _read_plans(checkpoints) for stack_plan in plans}
    return unfinished_plans(checkpoints, known)


def _members(*plans: StackPlan) -> set[str]:
    return {spec.id for stack_plan in plans for spec in stack_plan.specs}


def _is_free(stack_plan: StackPlan, ours: Container[str], record: Store) -> bool:
    """Claim the members that are neither stored nor ours: is no other process training one of them?"""
    stored = record.finished([spec.id for spec in stack_plan.specs])
    others = [spec for spec in stack_plan.specs if spec.id not in stored and spec.id not in ours]
    return not others or len(record.claim(others)) == len(others)


def _read_plans(checkpoints: Path) -> list[tuple[Path, str, list[StackPlan]]]:
    executions = []
    for file in sorted(checkpoints.glob(PLANS)):
        try:
            content = json.loads(file.read_text())
            plans = [StackPlan.from_dict(values) for values in content["stacks"]]
            if file.name != _name(plans):
                raise DamagedError("its stacks are not those that it was written for")
            executions.append((file, torch.device(content["device"]).type, plans))
        except FileNotFoundError:
            continue  # another process has just removed it
        except (ValueError, KeyError, TypeError, RuntimeError) as problem:  # torch's for a device that it does not know
            reason = error_line(problem)
            raise UsageError(f"{file} is not a plan of this version ({reason}): move it away") from problem
    return executions


def _name(plans: list[StackPlan]) -> str:
    """The name of the file of these stacks: a hash of their members."""
    members = ",".join(stack_plan.id for stack_plan in plans)
    return PLANS.replace("*", hashlib.sha256(members.encode()).hexdigest()[:16])


def _write_plans(checkpoints: Path, device: torch.device, plans: list[StackPlan]) -> None:
    file = checkpoints / _name(plans)
    content = json.dumps({"device": device.type, "stacks": [stack_plan.to_dict() for stack_plan in plans]}, indent=1)
    try:
        write_into_new_folder(file, content.encode())
    except OSError as problem:
        raise UsageError(f"{checkpoints} cannot be written ({problem.strerror}): give another place") from problem
