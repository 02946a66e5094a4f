"""What an executor says of a stack, and the one function that every executor runs on it."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from asymtrain.engine import StackPlan, StackProgress, load_for, train_stack
from asymtrain.errors import UsageError
from asymtrain.runs import Run


@dataclass(frozen=True)
class Finished:
    """All runs of a stack are trained, diverged ones included."""

    plan: StackPlan
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Stopped:
    """The stack was ended by the time limit or by the user, with a checkpoint behind it."""

    plan: StackPlan


@dataclass(frozen=True)
class Failed:
    """The stack cannot be trained here; `reason` is one line."""

    plan: StackPlan
    reason: str


Outcome = Finished | Stopped | Failed
Report = Callable[[StackProgress | str], None]  # progress, or a note for the user


@dataclass(frozen=True)
class Job:
    """What all stacks of one execution share."""

    data_root: Path | None = None
    checkpoints: Path | None = None
    deadline: float | None = None  # seconds of the wall clock: processes and machines share it
    checkpoint_seconds: float = 60.0


def work(
    stack_plan: StackPlan,
    job: Job,
    device: torch.device,
    report: Report,
    stop: Callable[[], bool],
    interrupt: Callable[[], bool] = lambda: False,
) -> list[Outcome]:
    """Train a stack, in halves where the device cannot hold it, and say what came of each part."""
    try:
        dataset = load_for(stack_plan.specs[0], job.data_root)
        runs = train_stack(
            stack_plan,
            dataset,
            device,
            checkpoints=job.checkpoints,
            stop=stop,
            interrupt=interrupt,
            progress=report,
            checkpoint_seconds=job.checkpoint_seconds,
        )
        return [Stopped(stack_plan) if runs is None else Finished(stack_plan, tuple(runs))]
    except torch.OutOfMemoryError:
        pass  # leave the handler first: the exception holds the tensors that must go
    except UsageError as problem:
        return [Failed(stack_plan, str(problem))]
    except Exception as problem:  # one stack's bug must not cost the others their work; the reason is recorded
        where = traceback.extract_tb(problem.__traceback__)[-1]
        name = Path(where.filename).name
        return [Failed(stack_plan, f"{type(problem).__name__}: {problem} ({name}, line {where.lineno})")]
    try:
        halves = stack_plan.halves()
    except UsageError as problem:
        return [Failed(stack_plan, str(problem))]
    torch.cuda.empty_cache()
    report(f"a stack of {len(stack_plan.specs)} runs did not fit into memory: going on with two of half the size")
    return [outcome for half in halves for outcome in work(half, job, device, report, stop, interrupt)]
