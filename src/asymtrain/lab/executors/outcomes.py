"""What an executor says of a stack, and the one function that every executor runs on it."""

import errno
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from asymtrain.errors import UsageError
from asymtrain.lab.devices import one_thread
from asymtrain.lab.engine import StackPlan, StackProgress, load_for, train_stack
from asymtrain.lab.runs import Run
from asymtrain.lab.store import Provenance
from asymtrain.lab.store.provenance import current


@dataclass(frozen=True)
class Finished:
    """All runs of a stack are trained, diverged ones included, by the code that `provenance` names."""

    plan: StackPlan
    runs: tuple[Run, ...]
    provenance: Provenance


@dataclass(frozen=True)
class Stopped:
    """The stack was ended by the time limit or by the user, with a checkpoint behind it."""

    plan: StackPlan


@dataclass(frozen=True)
class Failed:
    """The stack cannot be trained here; `reason` is one line."""

    plan: StackPlan
    reason: str


@dataclass(frozen=True)
class TooLarge:
    """The device's memory cannot hold the stack: its halves may fit."""

    plan: StackPlan


@dataclass(frozen=True)
class Lost:
    """The stack's process or device broke: another one may do better."""

    plan: StackPlan
    reason: str


Outcome = Finished | Stopped | Failed  # the end of a stack
Result = Outcome | TooLarge | Lost  # of one try
Report = Callable[[StackProgress | str], None]  # progress, or a note for the user

_OUT_OF_MEMORY = (
    "CUDA out of memory", "CUDA error: out of memory", "Triton Error [CUDA]: out of memory", "_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
)  # fmt: skip
# After one of these a process cannot use its device again.
_DEVICE_LOST = ("CUDA error", "CUDA driver", "No CUDA GPUs", "cudaGetDeviceCount", "cuDNN error", "Triton Error [CUDA]")
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True)
class Job:
    """What all stacks of one execution share."""

    data_root: Path | None = None
    checkpoints: Path | None = None
    deadline: float | None = None  # seconds of the wall clock: processes and machines share it
    checkpoint_seconds: float = 60.0

    def is_over(self) -> bool:
        """Is the deadline past?"""
        return self.deadline is not None and time.time() > self.deadline


def work(
    stack_plan: StackPlan,
    job: Job,
    device: torch.device,
    report: Report,
    interrupt: Callable[[], bool] = lambda: False,
) -> Result:
    """Train a stack and say what came of it; no exception of the training leaves this function."""
    try:
        with one_thread(device):
            dataset = load_for(stack_plan.specs[0], job.data_root)
            runs = train_stack(
                stack_plan,
                dataset,
                device,
                checkpoints=job.checkpoints,
                stop=job.is_over,
                interrupt=interrupt,
                progress=report,
                checkpoint_seconds=job.checkpoint_seconds,
            )
        return Stopped(stack_plan) if runs is None else Finished(stack_plan, tuple(runs), current())
    except Exception as problem:  # one stack's bug must not cost the others their work; the reason is recorded
        result = _explain(stack_plan, problem)
    # Not in the handler: the exception holds the tensors that must go. A lost device may refuse even that.
    if isinstance(result, TooLarge | Lost) and device.type == "cuda":
        with suppress(RuntimeError):
            torch.cuda.empty_cache()
    return result


def _explain(stack_plan: StackPlan, problem: Exception) -> Result:
    text = str(problem)
    if isinstance(problem, UsageError):
        return Failed(stack_plan, text)
    if isinstance(problem, torch.OutOfMemoryError | MemoryError) or any(part in text for part in _OUT_OF_MEMORY):
        return TooLarge(stack_plan)
    if isinstance(problem, RuntimeError) and any(part in text for part in _DEVICE_LOST):
        # The compiler wraps errors: the line that says what happened need not be the first.
        return Lost(stack_plan, next(line for line in text.splitlines() if any(part in line for part in _DEVICE_LOST)))
    if isinstance(problem, OSError) and problem.errno in _DISK:
        return Failed(stack_plan, f"no checkpoint can be written ({problem.strerror}): {problem.filename or 'disk'}")
    where = traceback.extract_tb(problem.__traceback__)[-1]
    return Failed(stack_plan, f"{type(problem).__name__}: {text} ({Path(where.filename).name}, line {where.lineno})")
