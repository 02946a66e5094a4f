"""A stack on disk: one folder with its last checkpoint.

    <folder>/<stack id>/
        plan.json             the members and the strategy, written before the first step since a resumed stack has the
                              same members; and fingerprints of the models and data that they started with
        state.safetensors     weights, moments and sums, with epoch, step and histories in its header; for a finished
                              stack, which needs no weights any more, only the header
        epochs.jsonl          every finished epoch, for live displays: training resumes from the state alone

A file is complete on disk before it gets its name, so a kill or a power cut never leaves half a file. A state carries
a checksum of its whole file. A damaged state is not used: the stack starts over and gives the same rows.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from asymtrain.errors import UsageError
from asymtrain.lab.checkpoints import CLOSED, EPOCHS, PLAN, STATE, StackPlan, begun_stacks
from asymtrain.lab.engine.stack import Stack
from asymtrain.lab.files import sync_folder, write_whole
from asymtrain.lab.runs import Epoch, RunSpec

_TRIES = 100
_PROGRESS = ("epoch", "step", "seconds", "diverged", "calibration")  # a stack's attributes, stored as they are
# In a header these bytes occur only at the checksum: quotation marks inside texts are escaped there.
_SEAL, _BLANK = b'"sha256":"', b"0" * 64


def open_checkpoint(
    folder: Path, stack_plan: StackPlan, sources: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> Path:
    own = folder / stack_plan.id
    content = {**stack_plan.to_dict(), "sources": dict(sources)}
    write_into_new_folder(own / PLAN, json.dumps(content, indent=1).encode())
    return own


def save_checkpoint(folder: Path, stack: Stack) -> None:
    progress = {
        **{name: getattr(stack, name) for name in _PROGRESS},
        "members": [spec.id for spec in stack.specs],
        "answers": [None if answers is None else answers.hex() for answers in stack.answers],
        "histories": [[epoch._asdict() for epoch in history] for history in stack.histories],
    }
    tensors = {} if stack.finished else {name: value.cpu().contiguous() for name, value in stack.state().items()}
    write_whole({folder / STATE: sealed(tensors, {"progress": json.dumps(progress)})})


def load_checkpoint(folder: Path, stack: Stack, note: Callable[[str], None] = lambda _: None) -> bool:
    """Bring a fresh stack to its checkpoint; False if there is no complete one.

    `note` is called with one line about a damaged checkpoint.
    """
    file = folder / STATE
    try:
        tensors, members, progress = _read(file)
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError) as problem:
        note(f"{file} cannot be used ({problem}): the stack starts anew")
        return False
    if misfit := _misfit(tensors, members, stack):
        raise UsageError(f"{file} is no checkpoint of this stack ({misfit}): delete {folder} to start anew")
    if tensors:
        stack.load_state(tensors)
    for name, value in progress.items():
        setattr(stack, name, value)
    return True


def _read(file: Path) -> tuple[dict[str, Tensor], list[str], dict[str, Any]]:
    """The tensors of a checkpoint, the ids of its members, and the other values of a stack, by name."""
    tensors, metadata = unsealed(file.read_bytes())
    position = json.loads(metadata["progress"])
    progress = {
        **{name: position[name] for name in _PROGRESS},
        "answers": [None if answers is None else bytes.fromhex(answers) for answers in position["answers"]],
        "histories": [[Epoch(**values) for values in epochs] for epochs in position["histories"]],
    }
    return tensors, position["members"], progress


def _misfit(tensors: Mapping[str, Tensor], members: list[str], stack: Stack) -> str:
    """What in a checkpoint does not fit this stack, or "". The checkpoint of a finished stack has no tensors."""
    if members != [spec.id for spec in stack.specs]:
        return "it has other members, or in another order"
    for name, value in stack.state().items() if tensors else ():
        if name not in tensors or tensors[name].shape != value.shape or tensors[name].dtype != value.dtype:
            return f"{name} is missing, or has another shape than {tuple(value.shape)}"
    return ""


def sealed(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytearray:
    """A safetensors file whose header has a checksum of all its bytes, computed with zeros in the checksum's place."""
    from safetensors.torch import save

    content = bytearray(save(tensors, {**metadata, "sha256": _BLANK.decode()}))
    at = content.index(_SEAL) + len(_SEAL)
    content[at : at + len(_BLANK)] = hashlib.sha256(content).hexdigest().encode()
    return content


def unsealed(content: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Inverse of `sealed`; raises a ValueError if the content is damaged."""
    from safetensors.torch import load

    end = 8 + int.from_bytes(content[:8], "little")  # of the header
    at = content.find(_SEAL, 8, end) + len(_SEAL)
    if at < len(_SEAL):
        raise ValueError("it has no checksum")
    digest, rest = hashlib.sha256(memoryview(content)[:at]), memoryview(content)[at + len(_BLANK) :]
    digest.update(_BLANK)
    digest.update(rest)
    if digest.hexdigest().encode() != content[at : at + len(_BLANK)]:
        raise ValueError("its checksum does not match")
    return load(content), json.loads(content[8:end])["__metadata__"]


def log_epochs(folder: Path, recorded: Iterable[tuple[RunSpec, Epoch]]) -> None:
    """Add epochs to the log of a stack. If the disk is full or the stack was closed, they are dropped."""
    lines = [json.dumps({"spec": spec.id, **epoch._asdict()}) + "\n" for spec, epoch in recorded]
    if lines:
        with suppress(OSError), (folder / EPOCHS).open("a") as log:
            log.write("".join(lines))


def begun_runs(folder: Path) -> list[tuple[StackPlan, dict[RunSpec, list[Epoch]]]]:
    """The stacks that were started in this folder, and the epochs that each of their runs has finished so far."""
    begun = []
    for stack_plan in begun_stacks(folder):
        epochs: dict[str, dict[int, Epoch]] = {spec.id: {} for spec in stack_plan.specs}
        with suppress(FileNotFoundError):
            for line in (folder / stack_plan.id / EPOCHS).read_text().splitlines():
                with suppress(ValueError, KeyError, TypeError):  # the last line may be half written
                    values = json.loads(line)
                    history = epochs[values.pop("spec")]
                    # A stack that resumed from an older checkpoint logs epochs again: the later ones count.
                    history[values["epoch"]] = Epoch(**values)
        begun.append((stack_plan, {spec: [*epochs[spec.id].values()] for spec in stack_plan.specs}))
    return begun


def close_checkpoint(folder: Path) -> None:
    """Delete the checkpoint of a stack whose rows are stored.

    The folder is renamed first: a process that is killed here leaves no partial checkpoint under the stack's name.
    """
    closed = folder.with_name(f"{folder.name}.{os.getpid()}{CLOSED}")
    with suppress(FileNotFoundError):
        folder.rename(closed)
    shutil.rmtree(closed, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove what killed processes left: half-deleted stacks, and folders without a plan."""
    for closed in folder.glob(f"*{CLOSED}"):
        shutil.rmtree(closed, ignore_errors=True)
    for leftover in folder.glob("*/"):
        with suppress(OSError):  # it is not empty
            leftover.rmdir()


def write_into_new_folder(file: Path, content: bytes) -> None:
    """Write a file atomically, and create its folders if they are missing.

    Other processes may remove an empty folder at any moment before the file is there, so this retries.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole({file: content})
            return sync_folder(file.parent.parent)
        except FileNotFoundError:
            if not tries_left:
                raise
