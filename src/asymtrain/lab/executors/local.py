"""Stacks on this machine: a single one in this process, several in workers.

On a CPU several single-threaded processes train small networks faster than one process with several threads, so
every core gets a worker, and so does every GPU. Workers share nothing, not even a lock: each has its own pipe, so
killing one never harms another, and its stack goes to a new worker. A worker whose parent has died ends at once.
"""

import multiprocessing
import multiprocessing.resource_tracker
import os
import queue
import signal
import sys
import threading
import time
import types
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Self

import torch

from asymtrain.lab.engine import StackPlan, StackProgress
from asymtrain.lab.executors.outcomes import (
    Finished,
    Job,
    Lost,
    Outcome,
    Report,
    Result,
    Waiting,
    held_interrupt,
    work,
)
from asymtrain.lab.machine import cores

SHUTDOWN_SECONDS = 20.0
STRIKES = 2  # a device that is lost so often in a row is no longer used, as long as there are others
STOP = "stop"  # tells a worker to write a checkpoint and end its stack
_Order = tuple[StackPlan, Job]  # sent to a worker: what to train


@dataclass(frozen=True)
class Local:
    """This machine. `device` without a number stands for all GPUs, or for all cores.

    `in_process` trains on one device and starts no worker: for models or data that another process could not load.
    """

    device: torch.device
    in_process: bool = False
    worker_pool: "Workers | None" = None  # used here, and left alive for the next execution

    @property
    def devices(self) -> list[torch.device]:
        """A device for each stack that can train at the same time."""
        if self.in_process:
            return [self.device]
        if self.device.type == "cpu":
            return [self.device] * cores()
        if str(self.device) == "cuda":
            return [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
        return [self.device]

    @property
    def workers(self) -> int:
        return len(self.devices)

    def run(self, plans: list[StackPlan], job: Job, report: Report) -> Generator[Outcome]:
        slots = self.slots(plans)
        if self.worker_pool is not None and plans and not self.in_process:
            slots = self.worker_pool.take(slots)
        waiting = Waiting(plans, job, report)
        if len(slots) == 1 and slots[0].pipe is None:
            # In this process, until all stacks are done or the device is lost.
            while stack_plan := waiting.take():
                result = _work_here(stack_plan, job, slots[0].device, report)
                yield from waiting.settle(result)
                if isinstance(result, Lost) and not self.in_process:
                    break
        # Also for a single slot: a device that this process has lost may work in a new process.
        try:
            while waiting or any(slot.plan for slot in slots):
                with held_interrupt():
                    _hand_out(slots, waiting, job)
                    results = _collect(slots, waiting)
                for result in results:
                    yield from waiting.settle(result)
        finally:
            _shut_down([slot for slot in slots if slot.plan or self.worker_pool is None])

    def slots(self, plans: list[StackPlan]) -> "list[_Slot]":
        """Slots for these stacks. A single slot without a kept worker means training in this process."""
        return [_Slot(device) for device in self.devices[: max(1, len(plans))]]


class Workers:
    """Workers that several executions share: starting one and loading its data takes seconds.

    A context manager: at its end the workers end.
    """

    def __init__(self) -> None:
        self._slots: list[_Slot] = []

    def take(self, requests: "list[_Slot]") -> "list[_Slot]":
        """Slots like these, with existing workers if possible. Unused GPU workers are ended, to free GPU memory."""
        unused, slots = sorted(self._slots, key=lambda slot: slot.pipe is None), []
        for slot in requests:
            if (old := next((old for old in unused if old.device == slot.device), None)) is not None:
                unused.remove(old)
            slots.append(old or slot)
        self._slots = [*slots, *unused]
        _shut_down([slot for slot in unused if slot.device.type == "cuda"])
        return slots

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _shut_down(self._slots)


@dataclass(eq=False)
class _Slot:
    """A device; if it has a worker, its process and our end of the pipe; and the stack that it trains."""

    device: torch.device
    process: Any = None
    pipe: Connection | None = None
    plan: StackPlan | None = None
    trained: bool = False  # whether its stack has reported a step, so that stopping needs a checkpoint
    strikes: int = 0

    def end(self) -> None:
        """Mark the slot as free."""
        self.plan, self.trained = None, False


def _work_here(stack_plan: StackPlan, job: Job, device: torch.device, report: Report) -> Result:
    """Train a stack in this process; from the first step on, Ctrl-C waits for a checkpoint."""
    begun = threading.Event()
    with held_interrupt(begun.is_set) as interrupted:
        return work(stack_plan, job, device, report, interrupted, begun.set)


def _hand_out(slots: list[_Slot], waiting: Waiting, job: Job) -> None:
    """Give a waiting stack to each free device."""
    for slot in slots:
        if slot.plan is None and (stack_plan := waiting.take()):
            pipe = slot.pipe or _start(slot)
            slot.plan = stack_plan
            _send(pipe, (stack_plan, job))


def _collect(slots: list[_Slot], waiting: Waiting) -> list[Result]:
    """Pass on the workers' messages, and return the results of stacks that ended."""
    workers = [(slot, slot.pipe) for slot in slots if slot.pipe is not None]
    ready = wait([pipe for _, pipe in workers], timeout=0.2)
    results: list[Result] = []
    for slot, pipe in workers:
        if pipe not in ready:
            continue
        message = _receive(pipe)
        if isinstance(message, Result):
            results.append(_judge(slot, slots, message, waiting))
        elif message is not None:
            slot.trained = slot.trained or (isinstance(message, StackProgress) and message.images > 0)
            waiting.report(message)
        else:
            reason = f"its worker on {slot.device} died (killed, or out of memory)"
            lost = None if slot.plan is None else Lost(slot.plan, reason)
            _shut_down([slot])
            if lost is not None:
                results.append(lost)
    return results


def _judge(slot: _Slot, slots: list[_Slot], result: Result, waiting: Waiting) -> Result:
    """Mark the worker as free. It ends if its device was lost; a device that is lost again is removed."""
    slot.end()
    if isinstance(result, Finished):
        slot.strikes = 0
    elif isinstance(result, Lost):
        slot.strikes += 1
        _shut_down([slot])
        if slot.strikes >= STRIKES and len(slots) > 1:
            slots.remove(slot)
            waiting.report(f"{slot.device} failed {STRIKES} times in a row: the other devices go on without it")
    return result


def _start(slot: _Slot) -> Connection:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, slot.device), daemon=True)
    with _child_settings(slot.device):
        process.start()
    theirs.close()  # so that the worker's death shows as the end of the pipe
    slot.process, slot.pipe = process, ours
    return ours


@contextmanager
def _child_settings(device: torch.device) -> Iterator[None]:
    """A context with the environment in which workers start."""
    main, threads = sys.modules["__main__"], os.environ.get("OMP_NUM_THREADS")
    # Else a worker imports the caller's script, which runs if it lacks `if __name__ == "__main__"`.
    sys.modules["__main__"] = types.ModuleType("__main__")
    if device.type == "cpu":
        # Threads of several processes compete for the cores: two processes with two threads each ran 20 times slower.
        os.environ["OMP_NUM_THREADS"] = "1"
    # Ctrl-C reaches every process of a terminal; only the parent handles it, and asks the workers for checkpoints.
    mask, blocked = getattr(signal, "pthread_sigmask", None), None  # not on every system
    if mask:
        multiprocessing.resource_tracker.ensure_running()  # starting it with the first child would unblock the signal
        blocked = mask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if mask:
            mask(signal.SIG_SETMASK, blocked)
        sys.modules["__main__"] = main
        os.environ.pop("OMP_NUM_THREADS", None)
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = threads


def _serve(pipe: Connection, device: torch.device) -> None:
    """A worker's main loop: take a plan, train it, answer with the result."""
    sys.stdout = sys.stderr  # a model may print, and stdout is for the command's results
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(ImportError):
        # A tqdm bar, which torch's compiler has, makes a lock shared by all processes. This process ends without
        # releasing it, and Python would report a leak.
        from tqdm import tqdm

        tqdm.set_lock(threading.RLock())
    plans: queue.SimpleQueue[_Order] = queue.SimpleQueue()
    stopped = threading.Event()

    def listen() -> None:
        """A second thread, which receives a stop or notices the parent's end while a stack trains."""
        while (message := _receive(pipe)) is not None:
            if message == STOP:
                stopped.set()
            else:
                plans.put(message)
        os._exit(0)  # files are complete at any moment, and the parent is gone

    threading.Thread(target=listen, daemon=True).start()
    while True:
        stack_plan, job = plans.get()
        result = work(stack_plan, job, device, pipe.send, stopped.is_set)
        pipe.send(result)
        if isinstance(result, Lost):
            return


def _shut_down(slots: list[_Slot]) -> None:
    """End the workers. Those that train write a checkpoint; one that starts or compiles has nothing to save."""
    until = time.monotonic() + SHUTDOWN_SECONDS
    workers = [(slot, slot.pipe) for slot in slots if slot.pipe is not None]
    try:
        for slot, pipe in workers:
            if slot.trained:
                _send(pipe, STOP)
        for slot, pipe in workers:
            # Keep reading: a worker blocked in `send` cannot end.
            while slot.trained and time.monotonic() < until:
                if pipe.poll(0.1) and isinstance(_receive(pipe), Result | None):
                    slot.end()
    finally:
        # A second Ctrl-C jumps here.
        for slot, pipe in workers:
            pipe.close()
            slot.end()
        until = time.monotonic() + 1.0  # shared by all: a worker that is starting would first finish its imports
        for slot, _ in workers:
            slot.process.join(timeout=max(0.0, until - time.monotonic()))
            if slot.process.is_alive():
                slot.process.kill()
                slot.process.join()
            slot.process = slot.pipe = None


def _send(pipe: Connection, message: _Order | str) -> None:
    with suppress(OSError):  # the worker has died, which is noticed when its pipe is read
        pipe.send(message)


def _receive(pipe: Connection) -> Any:
    """The other end's next message; None if it died, perhaps in the middle of a message."""
    try:
        return pipe.recv()
    except (EOFError, OSError):
        return None
