"""Stacks on this machine: in this process on one device, or in one process for each of several.

On a CPU several single-threaded processes train small networks faster than one process with several threads, so
every core gets a worker. Workers share nothing, not even a lock: each has a pipe of its own, so killing one at any
moment harms no other, and its stack is given to a new one. A worker whose parent is gone ends at once.
"""

import multiprocessing
import multiprocessing.connection
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
from typing import Any

import torch

from asymtrain.lab.engine import StackPlan
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

SHUTDOWN_SECONDS = 20.0
STRIKES = 2  # a device that was lost this often in a row is left alone, as long as there are others
STOP = "stop"  # tells a worker to write a checkpoint and end its stack


def cores() -> int:
    """Cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(allowed(0)) if allowed else os.cpu_count() or 1


@dataclass(frozen=True)
class Local:
    """This machine. `device` without a number stands for all GPUs, or for all cores."""

    device: torch.device

    @property
    def devices(self) -> list[torch.device]:
        """A device for each stack that can train at the same time."""
        if self.device.type == "cpu":
            return [self.device] * cores()
        if str(self.device) == "cuda":
            return [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
        return [self.device]

    @property
    def workers(self) -> int:
        """How many stacks can train at the same time."""
        return len(self.devices)

    def run(self, plans: list[StackPlan], job: Job, report: Report) -> Generator[Outcome]:
        """Train all stacks and yield what came of each, as it comes."""
        return run_local(plans, job, self.devices[: max(1, len(plans))], report)


def run_local(plans: list[StackPlan], job: Job, devices: list[torch.device], report: Report) -> Generator[Outcome]:
    """Train all stacks on these devices, one stack on each at a time."""
    waiting = Waiting(plans, job, report)
    if len(devices) == 1:
        yield from _run_here(waiting, job, devices[0], report)
    # Not only with several devices: one that this process has lost may work in a new process.
    yield from _run_in_processes(waiting, job, devices, report)


def _run_here(waiting: Waiting, job: Job, device: torch.device, report: Report) -> Generator[Outcome]:
    """Train one stack after the other in this process, until all are done or the device is lost."""
    while stack_plan := waiting.take():
        with held_interrupt() as interrupted:
            result = work(stack_plan, job, device, report, interrupted)
        yield from waiting.settle(result)
        if isinstance(result, Lost):
            return


@dataclass
class _Worker:
    """A process, this end of its pipe, and what it is training."""

    process: Any
    pipe: multiprocessing.connection.Connection
    plan: StackPlan | None = None


@dataclass
class _Slot:
    """A device, and its worker where it has one."""

    device: torch.device
    worker: _Worker | None = None
    strikes: int = 0

    @property
    def is_busy(self) -> bool:
        return self.worker is not None and self.worker.plan is not None


def _run_in_processes(waiting: Waiting, job: Job, devices: list[torch.device], report: Report) -> Generator[Outcome]:
    slots = [_Slot(device) for device in devices]
    try:
        while waiting or any(slot.is_busy for slot in slots):
            with held_interrupt():
                _hand_out(slots, waiting, job)
                results = _collect(slots, report)
            for result in results:
                yield from waiting.settle(result)
    finally:
        _shut_down([slot.worker for slot in slots if slot.worker is not None])


def _hand_out(slots: list[_Slot], waiting: Waiting, job: Job) -> None:
    """Give a stack to every device that has none."""
    for slot in slots:
        stack_plan = None if slot.is_busy else waiting.take()
        if stack_plan is not None:
            slot.worker = slot.worker or _start(job, slot.device)
            slot.worker.plan = stack_plan
            _send(slot.worker, stack_plan)


def _collect(slots: list[_Slot], report: Report) -> list[Result]:
    """Pass on what the workers said within a moment, and return how stacks ended."""
    by_pipe = {slot.worker.pipe: slot for slot in slots if slot.worker is not None}
    results: list[Result] = []
    for pipe in multiprocessing.connection.wait(list(by_pipe), timeout=0.2):
        slot = by_pipe[pipe]  # type: ignore[index]
        message = _receive(slot.worker)
        if isinstance(message, Result):
            results.append(message)
            _judge(slot, slots, message, report)
        elif message is not None:
            report(message)
        else:
            lost = slot.worker.plan if slot.worker else None
            _let_go(slot)
            if lost is not None:
                results.append(Lost(lost, f"its worker on {slot.device} died (killed, or out of memory)"))
    return results


def _judge(slot: _Slot, slots: list[_Slot], result: Result, report: Report) -> None:
    """The worker is free again; after a lost device it goes, and the device with it where that happens again."""
    if slot.worker is not None:
        slot.worker.plan = None
    if isinstance(result, Finished):
        slot.strikes = 0
    elif isinstance(result, Lost):
        slot.strikes += 1
        _let_go(slot)
        if slot.strikes >= STRIKES and len(slots) > 1:
            slots.remove(slot)
            report(f"{slot.device} failed {STRIKES} times in a row: the other devices go on without it")


def _let_go(slot: _Slot) -> None:
    if slot.worker is not None:
        worker, slot.worker = slot.worker, None
        worker.plan = None
        _shut_down([worker])


def _start(job: Job, device: torch.device) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, job, device), daemon=True)
    with _child_settings(device):
        process.start()
    theirs.close()  # so that the worker's death shows as the end of the pipe
    return _Worker(process, ours)


@contextmanager
def _child_settings(device: torch.device) -> Iterator[None]:
    """What a worker takes over from this process at its start."""
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
        if threads is None:
            os.environ.pop("OMP_NUM_THREADS", None)
        else:
            os.environ["OMP_NUM_THREADS"] = threads


def _serve(pipe: multiprocessing.connection.Connection, job: Job, device: torch.device) -> None:
    """A worker's main loop: take a plan, train it, answer with the result."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    plans: queue.SimpleQueue[StackPlan] = queue.SimpleQueue()
    stopped = threading.Event()
    threading.Thread(target=_listen, args=(pipe, plans, stopped), daemon=True).start()
    while True:
        result = work(plans.get(), job, device, pipe.send, stopped.is_set)
        pipe.send(result)
        if isinstance(result, Lost):
            return


def _listen(
    pipe: multiprocessing.connection.Connection, plans: "queue.SimpleQueue[StackPlan]", stopped: threading.Event
) -> None:
    """A worker's second thread: it receives a stop, or sees the parent's end, in the middle of a stack."""
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)  # files are whole at every moment, and nobody waits for the rest
        if message == STOP:
            stopped.set()
        else:
            plans.put(message)


def _shut_down(workers: list[_Worker]) -> None:
    """End workers, those that train with a checkpoint."""
    until = time.monotonic() + SHUTDOWN_SECONDS
    try:
        for worker in workers:
            if worker.plan is not None:
                _send(worker, STOP)
        for worker in workers:
            # Keep reading: a worker that cannot send cannot end.
            while worker.plan is not None and time.monotonic() < until:
                if worker.pipe.poll(0.1) and isinstance(_receive(worker), Result | None):
                    worker.plan = None
    finally:
        # A second Ctrl-C comes here at once.
        for worker in workers:
            worker.pipe.close()
        for worker in workers:
            worker.process.join(timeout=1.0)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


def _send(worker: _Worker, message: StackPlan | str) -> None:
    with suppress(OSError):  # it is dead, which shows when its pipe is read
        worker.pipe.send(message)


def _receive(worker: _Worker | None) -> Any:
    """A worker's message; None where it died, which may be in the middle of one."""
    try:
        return worker.pipe.recv() if worker else None
    except (EOFError, OSError):
        return None
