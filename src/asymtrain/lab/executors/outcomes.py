"""What all executors share: the function that they run on a stack, its progress, and its outcome.

- `work` trains a stack and returns its outcome; `held_interrupt` delays a Ctrl-C meanwhile.
- `Waiting` is the queue of stacks; a stack that was lost or too large returns to it.
- `ProgressSum` adds up the reports of stacks for the user: runs, epochs, images per second, time left.
"""

import errno
import gc
import signal
import threading
import time
import traceback
import types
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from asymtrain.errors import UsageError
from asymtrain.lab.devices import is_out_of_memory, one_thread
from asymtrain.lab.engine import Progress, StackPlan, StackProgress, close_checkpoint, load_for, train_stack
from asymtrain.lab.engine.checkpoint import log_epochs, open_checkpoint
from asymtrain.lab.engine.training import model_of
from asymtrain.lab.executors.fingerprints import first_of_each_kind, kind_of, take_fingerprints, with_sources
from asymtrain.lab.runs import Run
from asymtrain.lab.store import Provenance
from asymtrain.lab.store.provenance import current


@dataclass(frozen=True)
class _Ended:
    plan: StackPlan


@dataclass(frozen=True)
class _Broken(_Ended):
    reason: str  # one line


@dataclass(frozen=True)
class Finished(_Ended):
    """All runs of a stack are trained or have diverged; `provenance` names the code."""

    runs: tuple[Run, ...]
    provenance: Provenance


class Stopped(_Ended):
    """The time limit or the user ended the stack, after a checkpoint."""


class TooLarge(_Ended):
    """The stack does not fit into the device's memory; its halves may."""


class Failed(_Broken):
    """The stack cannot be trained here."""


class Lost(_Broken):
    """The stack's process or device failed; another one may work."""


Outcome = Finished | Stopped | Failed  # the end of a stack
Result = Outcome | TooLarge | Lost  # of one attempt
Report = Callable[[StackProgress | str], None]  # progress, or a note for the user
Interrupt = Callable[[], bool]  # whether Ctrl-C was pressed

ATTEMPTS = 3  # a stack whose process or device fails so often has failed
# After one of these errors a process cannot use its device again.
_DEVICE_LOST = ("CUDA error", "CUDA driver", "No CUDA GPUs", "cudaGetDeviceCount", "cuDNN error", "Triton Error [CUDA]")
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True)
class Job:
    """What all stacks of one execution share."""

    data_root: Path | None = None
    checkpoints: Path | None = None
    deadline: float | None = None  # in wall-clock seconds, which processes and machines share
    checkpoint_seconds: float = 60.0

    def is_over(self) -> bool:
        return self.deadline is not None and time.time() > self.deadline


def work(
    stack_plan: StackPlan,
    job: Job,
    device: torch.device,
    report: Report,
    interrupt: Interrupt = lambda: False,
    begin: Callable[[], None] = lambda: None,
) -> Result:
    """Train a stack and return its outcome; an exception of the training becomes an outcome."""
    try:
        with one_thread(device):
            dataset = load_for(stack_plan.specs[0], job.data_root)
            fingerprints = take_fingerprints(stack_plan.specs, dataset)
            runs = train_stack(
                stack_plan,
                dataset,
                device,
                checkpoints=job.checkpoints,
                stop=job.is_over,
                interrupt=interrupt,
                begin=begin,
                progress=report,
                note=report,
                checkpoint_seconds=job.checkpoint_seconds,
                sources={spec.id: fingerprints[kind_of(spec)] for spec in first_of_each_kind(stack_plan.specs)},
            )
        if device.type == "cuda":
            _free(device)  # now: together with the next stack it may be too large
        if runs is None:
            return Stopped(stack_plan)
        return Finished(stack_plan, with_sources(runs, fingerprints, dataset), current())
    except Exception as problem:  # one stack's bug must not stop the others; the reason is recorded
        result = _explain(stack_plan, problem)
    # Not in the handler, where the exception keeps the tensors alive. On a lost device even this may fail.
    if isinstance(result, TooLarge | Lost):
        _free(device)
    return result


def _free(device: torch.device) -> None:
    """Free a stack's memory: it and its programs refer to each other, so a collection is needed."""
    gc.collect()
    if device.type == "cuda":
        with suppress(RuntimeError):
            torch.cuda.empty_cache()


def _explain(stack_plan: StackPlan, problem: Exception) -> Result:
    text = str(problem)
    if isinstance(problem, UsageError):
        return Failed(stack_plan, text)
    if is_out_of_memory(problem):
        return TooLarge(stack_plan)
    if isinstance(problem, RuntimeError) and any(part in text for part in _DEVICE_LOST):
        # The compiler wraps errors, so the line with the cause need not be the first.
        return Lost(stack_plan, next(line for line in text.splitlines() if any(part in line for part in _DEVICE_LOST)))
    if isinstance(problem, OSError) and problem.errno in _DISK:
        return Failed(stack_plan, f"no checkpoint can be written ({problem.strerror}): {problem.filename or 'disk'}")
    where = traceback.extract_tb(problem.__traceback__)[-1]
    return Failed(stack_plan, f"{type(problem).__name__}: {text} ({Path(where.filename).name}, line {where.lineno})")


@contextmanager
def held_interrupt(is_due: Callable[[], bool] = lambda: True) -> Iterator[Interrupt]:
    """Delay a Ctrl-C until the end of the block, and yield a function that says whether one came.

    It must not interrupt a training step or a message. A second Ctrl-C is not delayed, nor is any while `is_due` is
    False: then nothing can be lost. The handler runs at once, since it may inform the user; what it raises is delayed.
    """
    handler = signal.getsignal(signal.SIGINT)
    # Python calls handlers only in the main thread. If the process ignores Ctrl-C (in the background), so do we.
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield lambda: False
        return
    came: list[BaseException] = []

    def note(number: int, frame: types.FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt
        try:
            handler(number, frame)
        except BaseException as raised:
            came.append(raised)
            if not is_due():
                raise

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, handler)
    if came:
        raise came[0]


class Waiting:
    """A queue of stacks. A lost stack returns to it; of one that was too large, the halves do."""

    def __init__(self, plans: list[StackPlan], job: Job, report: Report) -> None:
        self.plans, self.job, self.report = deque(plans), job, report
        self.attempts: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self.plans)

    def take(self) -> StackPlan | None:
        """The next stack; None after the deadline."""
        if self.job.is_over():
            self.plans.clear()
        return self.plans.popleft() if self.plans else None

    def settle(self, result: Result) -> list[Outcome]:
        """The stack's outcome; empty if it will be tried again."""
        if isinstance(result, TooLarge):
            return self._halve(result.plan)
        if not isinstance(result, Lost):
            return [result]
        self.attempts[result.plan.id] += 1
        if self.attempts[result.plan.id] >= ATTEMPTS:
            return [Failed(result.plan, f"{result.reason} ({ATTEMPTS} times)")]
        again = "anew" if self.job.checkpoints is None else "from its last checkpoint"
        self.report(f"{result.reason}: the stack starts again {again}")
        self.plans.appendleft(result.plan)
        return []

    def _halve(self, stack_plan: StackPlan) -> list[Outcome]:
        try:
            halves = stack_plan.halves()
        except UsageError as problem:
            return [Failed(stack_plan, str(problem))]
        size = len(stack_plan.specs)
        self.report(StackProgress(stack_plan.id, size, 0, stack_plan.specs[0].epochs, 0))  # its halves start over
        self.report(f"a stack of {size} runs did not fit into memory: going on with two of half the size")
        if self.job.checkpoints is not None:
            # The halves train even if the disk is full.
            with suppress(OSError):
                for half in halves:
                    open_checkpoint(self.job.checkpoints, half)
            close_checkpoint(self.job.checkpoints / stack_plan.id)
        self.plans.extendleft(reversed(halves))
        return []


@dataclass(frozen=True)
class _Span:
    """When a stack was first and last seen training, and the epochs that it had at first, summed over runs."""

    start: float
    end: float
    trained: float


class ProgressSum:
    """Adds up the reports of all stacks and passes them on; also logs epochs beside the checkpoints."""

    def __init__(
        self,
        plans: list[StackPlan],
        show: Callable[[Progress], None] | None,
        checkpoints: Path | None = None,
        workers: int = 1,
    ) -> None:
        self.show, self.checkpoints, self.workers = show, checkpoints, workers
        self.stacks, self.runs_total = len(plans), sum(len(p.specs) for p in plans)
        self.epochs_total = sum(s.epochs for p in plans for s in p.specs)
        self.runs_done = 0
        self.latest: dict[str, StackProgress] = {}
        self.first_epochs: dict[str, int] = {}
        self.start = time.monotonic()
        self.epochs_of: Counter[object] = Counter()  # in all, by model
        for stack_plan in plans:
            self.epochs_of[model_of(stack_plan.specs[0])] += sum(spec.epochs for spec in stack_plan.specs)
        self.spans: dict[str, _Span] = {}

    def __call__(self, message: StackProgress | str) -> None:
        if isinstance(message, StackProgress):
            here = message.epoch * message.runs
            # A lost stack may resume from an older checkpoint than it started with, or start over.
            self.first_epochs[message.stack] = min(here, self.first_epochs.get(message.stack, here))
            self._time(message)
            self.latest[message.stack] = message
            if self.checkpoints is not None:
                log_epochs(self.checkpoints / message.stack, message.recorded)
        if self.show is not None:
            note, recorded = (message, ()) if isinstance(message, str) else ("", message.recorded)
            self.show(replace(self.current(), note=note, recorded=recorded))

    def finished(self, runs: tuple[Run, ...]) -> None:
        self.runs_done += len(runs)
        if self.show is not None:
            self.show(replace(self.current(), finished=runs))

    @property
    def epochs_done(self) -> int:
        return sum(progress.epoch * progress.runs for progress in self.latest.values())

    @property
    def epochs_here(self) -> int:
        """The epochs that this execution trained, summed over runs, without those of checkpoints."""
        return self.epochs_done - sum(self.first_epochs.values())

    def current(self) -> Progress:
        seconds = max(1e-9, time.monotonic() - self.start)
        images = sum(progress.images for progress in self.latest.values())
        done, here = self.epochs_done, self.epochs_here
        rate, left = images / seconds, self._seconds_left()
        return Progress(self.runs_total, self.runs_done, self.epochs_total, done, rate, left, epochs_here=here)

    def _time(self, message: StackProgress) -> None:
        """Note since when a stack trains; its start, which compiles code, is not counted: it says nothing on speed."""
        now, trained = time.monotonic(), message.trained
        before, span = self.latest.get(message.stack), _Span(now, now, message.trained)
        # A new span if the stack starts, restarts after a loss, or reports for the first time after its start.
        if before is not None and before.trained <= trained and (before.images or message.epoch == message.epochs):
            span = replace(self.spans[message.stack], end=now)
        self.spans[message.stack] = span

    def _seconds_left(self) -> float | None:
        """An estimate from the speed of each model; None while a model has no speed yet.

        Per model, since an MLP's epochs say nothing about a CNN's: one common speed would be wrong once the CNN starts.
        """
        epochs_left = dict[object, float](self.epochs_of)
        here, seconds = defaultdict[object, float](float), defaultdict[object, float](float)
        for stack, message in self.latest.items():
            epochs_left[message.model] = epochs_left.get(message.model, 0.0) - message.trained
            here[message.model] += message.trained - self.spans[stack].trained
            seconds[message.model] += self.spans[stack].end - self.spans[stack].start
        models = [model for model, epochs in epochs_left.items() if epochs > 0]
        if any(here[model] <= 0 for model in models):
            return None
        work = sum(epochs_left[model] * seconds[model] / here[model] for model in models)
        at_end = sum(message.epoch == message.epochs for message in self.latest.values())
        return work / max(1, min(self.workers, self.stacks - at_end))
