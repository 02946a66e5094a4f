"""Stacks on this machine: a single one in this process, several in workers.

On a CPU several single-threaded processes train small networks faster than one process with several threads, so
every core gets a worker, and so does every GPU. Workers share nothing, not even a lock: each has a pipe of its own, so
killing one at any moment harms no other, and its stack is given to a new one. A worker whose parent is gone ends at
once.
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
STRIKES = 2  # a device that was lost this often in a row is left alone, as long as there are others
STOP = "stop"  # tells a worker to write a checkpoint and end its stack
_Order = tuple[StackPlan, Job]  # to a worker: what it trains


@dataclass(frozen=True)
class Local:
    """This machine. `device` without a number stands for all GPUs, or for all cores.

    `in_process` trains on one of them and starts no worker: for what another process could not build or load.
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
            # In this process, until all are done or the device is lost.
            while stack_plan := waiting.take():
                result = _work_here(stack_plan, job, slots[0].device, report)
                yield from waiting.settle(result)
                if isinstance(result, Lost) and not self.in_process:
                    break
        # Not only with several: a device that this process has lost may work in a new process.
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
        """Where these stacks are trained; in this process where it is one slot, unless that has a kept worker."""
        return [_Slot(device) for device in self.devices[: max(1, len(plans))]]


class Workers:
    """Workers for several executions: starting them, and loading data in each, takes seconds every time.

    A context: its end is theirs.
    """

    def __init__(self) -> None:
        self._slots: list[_Slot] = []

    def take(self, requests: "list[_Slot]") -> "list[_Slot]":
        """Slots like these, with the workers that are there. Others end on a GPU, whose memory they would hold."""
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
    """A device; where it has a worker, the process and this end of its pipe; what it trains."""

    device: torch.device
    process: Any = None
    pipe: Connection | None = None
    plan: StackPlan | None = None
    trained: bool = False  # has its stack reported a step, so that it holds more than its last checkpoint?
    strikes: int = 0

    def end(self) -> None:
        """Its stack has ended."""
        self.plan, self.trained = None, False


def _work_here(stack_plan: StackPlan, job: Job, device: torch.device, report: Report) -> Result:
    """Train a stack in this process; a Ctrl-C is held back from the first step on."""
    begun = threading.Event()
    with held_interrupt(begun.is_set) as interrupted:
        return work(stack_plan, job, device, report, interrupted, begun.set)


def _hand_out(slots: list[_Slot], waiting: Waiting, job: Job) -> None:
    """Give a stack to every device that has none."""
    for slot in slots:
        if slot.plan is None and (stack_plan := waiting.take()):
            pipe = slot.pipe or _start(slot)
            slot.plan = stack_plan
            _send(pipe, (stack_plan, job))


def _collect(slots: list[_Slot], waiting: Waiting) -> list[Result]:
    """Pass on messages of the workers, and return how stacks ended."""
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
    """Mark the worker as free. After a lost device it ends; the device is left out if that happens again."""
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
    """The environment in which workers start."""
    main, threads = sys.modules["__main__"], os.environ.get("OMP_NUM_THREADS")
    # A worker would import the caller's script, and run it where it has no `if __name__ == "__main__"`.
    sys.modules["__main__"] = types.ModuleType("__main__")
    if device.type == "cpu":
        # Threads of several processes would fight for the cores: two by two threads ran 20 times slower than one.
        os.environ["OMP_NUM_THREADS"] = "1"
    # Ctrl-C reaches every process of a terminal; here the parent alone answers it, and asks for checkpoints.
    mask, blocked = getattr(signal, "pthread_sigmask", None), None  # not on every system
    if mask:
        multiprocessing.resource_tracker.ensure_running()  # starting it with the first child would lift the block
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
    sys.stdout = sys.stderr  # a model may print, and stdout is for the answer of the command
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(ImportError):
        # A progress bar, and torch's compiler has one, makes a lock for all processes. This process ends without
        # releasing it, and Python would report a leak.
        from tqdm import tqdm

        tqdm.set_lock(threading.RLock())
    plans: queue.SimpleQueue[_Order] = queue.SimpleQueue()
    stopped = threading.Event()

    def listen() -> None:
        """A second thread: it receives a stop, or sees the parent's end, in the middle of a stack."""
        while (message := _receive(pipe)) is not None:
            if message == STOP:
                stopped.set()
            else:
                plans.put(message)
        os._exit(0)  # files are whole at every moment, and nobody waits for the rest

    threading.Thread(target=listen, daemon=True).start()
    while True:
        stack_plan, job = plans.get()
        result = work(stack_plan, job, device, pipe.send, stopped.is_set)
        pipe.send(result)
        if isinstance(result, Lost):
            return


def _shut_down(slots: list[_Slot]) -> None:
    """End the workers, those that train with a checkpoint; one that starts or compiles has nothing to keep."""
    until = time.monotonic() + SHUTDOWN_SECONDS
    workers = [(slot, slot.pipe) for slot in slots if slot.pipe is not None]
    try:
        for slot, pipe in workers:
            if slot.trained:
                _send(pipe, STOP)
        for slot, pipe in workers:
            # Keep reading: a worker that cannot send cannot end.
            while slot.trained and time.monotonic() < until:
                if pipe.poll(0.1) and isinstance(_receive(pipe), Result | None):
                    slot.end()
    finally:
        # A second Ctrl-C comes here at once.
        for slot, pipe in workers:
            pipe.close()
            slot.end()
        until = time.monotonic() + 1.0  # for all of them: one that starts would import to the end first
        for slot, _ in workers:
            slot.process.join(timeout=max(0.0, until - time.monotonic()))
            if slot.process.is_alive():
                slot.process.kill()
                slot.process.join()
            slot.process = slot.pipe = None


def _send(pipe: Connection, message: _Order | str) -> None:
    with suppress(OSError):  # the worker is dead, which shows when its pipe is read
        pipe.send(message)


def _receive(pipe: Connection) -> Any:
    """The next message of the other end; None if it died, which may be in the middle of a message."""
    try:
        return pipe.recv()
    except (EOFError, OSError):
        return None
