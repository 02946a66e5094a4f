"""The stacks that were planned and started beside a store, and their runs; read without torch.

    <store>.checkpoints/
        plans-<id>.json     the stacks of an execution, written in one piece before the first of them trains
        <stack id>/         a stack that was started: engine/checkpoint.py

The last bits of a run's numbers may depend on its neighbours, so a stack keeps its members once it is planned: after an
interruption the stacks, and so the rows, are those of an uninterrupted execution.

Readers leave out a damaged plan. Training sets it aside, and plans its runs again.
"""

import hashlib
import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from asymtrain.errors import UsageError, UsageWarning
from asymtrain.lab.runs import RunSpec

PLAN, STATE, EPOCHS, CLOSED = "plan.json", "state.safetensors", "epochs.jsonl", ".closed"
EXECUTIONS = "plans-*.json"
# The fields that a stack's runs share. They decide which code runs, and a plan may come from others, so it is checked.
_SOURCES = ("dataset", "dataset_options", "arch", "arch_options", "initial_weights")
_DAMAGE = (ValueError, KeyError, TypeError, RecursionError)

Strategy = Literal["batched", "side_by_side"]


@dataclass(frozen=True)
class StackPlan:
    """Specs that train together, and their strategy."""

    specs: tuple[RunSpec, ...]
    strategy: Strategy

    def to_dict(self) -> dict[str, Any]:
        # Stored under the strategy's original name.
        return {"path": self.strategy, "specs": [spec.to_dict() for spec in self.specs]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "StackPlan":
        specs = tuple(RunSpec.from_dict(spec) for spec in values["specs"])
        if len({tuple(getattr(spec, name) for name in _SOURCES) for spec in specs}) != 1:
            raise ValueError("its runs have several models or data")
        return cls(specs, values["path"])

    @property
    def id(self) -> str:
        """A hash of the members and the strategy: the same members have the same id."""
        text = ",".join(sorted(spec.id for spec in self.specs))
        return hashlib.sha256(f"{self.strategy}:{text}".encode()).hexdigest()[:16]

    def halves(self) -> tuple["StackPlan", "StackPlan"]:
        """Two stacks of half the size, for a device whose memory is too small for this one."""
        if len(self.specs) < 2:
            raise UsageError(
                f"one run of {self.specs[0].arch} does not fit into this device's memory: "
                "take a smaller batch, a smaller backbone or a larger device"
            )
        middle = len(self.specs) // 2
        return StackPlan(self.specs[:middle], self.strategy), StackPlan(self.specs[middle:], self.strategy)


def checkpoints_of(store: Path) -> Path:
    return store.with_name(f"{store.name}.checkpoints")


def checkpointed(store: Path) -> set[str]:
    """Ids of the runs whose interrupted stack left a checkpoint, from which their next training resumes."""
    folder = checkpoints_of(store)
    stacks = [stack for stack in begun_stacks(folder) if has_state(folder / stack.id)]
    return {spec.id for stack in stacks for spec in stack.specs}


def has_state(folder: Path) -> bool:
    """Whether there is a checkpoint to resume from; it is not read."""
    return (folder / STATE).is_file()


def set_aside(plan: Path) -> None:
    """Rename a damaged plan, with a warning."""
    damaged = plan.with_name(f"{plan.name}.damaged")
    with suppress(FileNotFoundError):  # another process was first
        plan.replace(damaged)
        text = f"{plan} is damaged and was set aside as {damaged.name}: its runs are planned anew"
        warnings.warn(text, UsageWarning, stacklevel=2)


def begun_stacks(folder: Path, on_damage: Callable[[Path], None] = lambda plan: None) -> list[StackPlan]:
    """Stacks that were started in this folder and not closed, sorted by name.

    A damaged plan is replaced by the execution's plan file; without one it is left out.
    """
    planned = {stack.id: stack for _, _, stacks in planned_executions(folder, on_damage) for stack in stacks}
    begun = []
    for file in sorted(folder.glob(f"*/{PLAN}")):
        if file.parent.suffix == CLOSED:
            continue
        try:
            stack = StackPlan.from_dict(json.loads(file.read_text()))
            if stack.id != file.parent.name:  # the id is a hash of the members
                raise ValueError(f"it reads as that of {stack.id}")
            begun.append(stack)
        except FileNotFoundError:
            continue  # another process has just closed it
        except _DAMAGE:
            if file.parent.name in planned:
                begun.append(planned[file.parent.name])
            else:
                on_damage(file)
    return begun


def begun_sources(folder: Path) -> list[tuple[RunSpec, str, str]]:
    """Fingerprints of the model and the data with which checkpoints in this folder started, each with one spec."""
    sources = []
    for stack in begun_stacks(folder):
        with suppress(OSError, *_DAMAGE):  # damaged plans are reported elsewhere
            by_id = (
                json.loads((folder / stack.id / PLAN).read_text())["sources"] if has_state(folder / stack.id) else {}
            )
            sources += [(spec, *by_id[spec.id]) for spec in stack.specs if spec.id in by_id]
    return sources


def planned_executions(
    folder: Path, on_damage: Callable[[Path], None] = lambda plan: None
) -> list[tuple[Path, str, list[StackPlan]]]:
    """For each execution its file, the kind of device it was planned for, and its stacks."""
    executions = []
    for file in sorted(folder.glob(EXECUTIONS)):
        try:
            content = json.loads(file.read_text())
            stacks = [StackPlan.from_dict(values) for values in content["stacks"]]
            if file.name != execution_name(stacks):
                raise ValueError("its stacks are not those that it was written for")
            if content["device"] not in ("cpu", "cuda", "mps", "xpu"):
                raise ValueError(f"{content['device']!r} is no kind of device")
            executions.append((file, content["device"], stacks))
        except FileNotFoundError:
            continue  # another process has just removed it
        except _DAMAGE:
            on_damage(file)
    return executions


def execution_name(stacks: list[StackPlan]) -> str:
    """The file name for these stacks: a hash of their members."""
    members = ",".join(stack.id for stack in stacks)
    return EXECUTIONS.replace("*", hashlib.sha256(members.encode()).hexdigest()[:16])
