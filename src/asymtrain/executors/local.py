"""Stacks on this machine: in this process on one device, or in one process for each of several.

On a CPU several single-threaded processes train small networks faster than one process with several threads, so
every core gets a worker. Workers talk through pipes of their own: killing one harms no other, and its stack is
given to a new one.
"""

import multiprocessing
import multiprocessing.connection
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from asymtrain.engine import StackPlan
from asymtrain.executors.outcomes import Failed, Finished, Job, Outcome, Report, work

ATTEMPTS = 3  # a stack whose worker dies this often is given up
SHUTDOWN_SECONDS = 20.0


def local_devices(device: torch.device, stacks: int) -> list[torch.device]:
    """Where stacks can train at the same time: every GPU, or a worker for each core of a CPU."""
    if device.type == "cuda":
        if device.index is not None:
            return [device]
        return [torch.device("cuda", i) for i in range(min(torch.cuda.device_count(), max(1, stacks)))]
    return [device] * max(1, min(cores(), stacks))


def cores() -> int:
    """Cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def run_local(plans: list[StackPlan], job: Job, devices: list[torch.device], report: Report) -> Iterator[Outcome]:
    """Train all stacks and yield what came of each, as it comes."""
    if len(devices) == 1:
        for stack_plan in plans:
            if _past(job.deadline):
                return
            yield from work(stack_plan, job, devices[0], report, stop=lambda: _past(job.deadline))
    else:
        yield from _run_in_processes(plans, job, devices, report)


@dataclass
class _Worker:
    process: Any
    pipe: multiprocessing.connection.Connection
    device: torch.device
    plan: StackPlan | None = None


def _run_in_processes(
    plans: list[StackPlan], job: Job, devices: list[torch.device], report: Report
) -> Iterator[Outcome]:
    context = multiprocessing.get_context("spawn")
    interrupted = context.Event()
    waiting, attempts = list(plans), dict.fromkeys((p.id for p in plans), 0)
    workers = [_start(context, job, device, interrupted) for device in devices[: len(plans)]]
    try:
        while waiting or any(worker.plan for worker in workers):
            if _past(job.deadline):
                waiting = []
            for worker in workers:
                if worker.plan is None and waiting:
                    worker.plan = waiting.pop(0)
                    attempts[worker.plan.id] += 1
                    worker.pipe.send(worker.plan)
            for worker, message in _messages(workers):
                if message is None:
                    lost = worker.plan
                    workers[workers.index(worker)] = _start(context, job, worker.device, interrupted)
                    if lost is not None and attempts[lost.id] < ATTEMPTS:
                        report(f"a worker on {worker.device} died: its stack starts again from its last checkpoint")
                        waiting.insert(0, lost)
                    elif lost is not None:
                        yield Failed(lost, f"its worker died {ATTEMPTS} times (killed, or out of memory)")
                elif isinstance(message, list):
                    worker.plan = None
                    yield from message
                else:
                    report(message)
    finally:
        interrupted.set()
        _shut_down(workers)


def _messages(workers: list[_Worker]) -> list[tuple[_Worker, Any]]:
    """What the workers said within a moment; None from one that died."""
    found: list[tuple[_Worker, Any]] = []
    ready = multiprocessing.connection.wait([worker.pipe for worker in workers], timeout=0.2)
    for worker in workers:
        if worker.pipe in ready:
            try:
                found.append((worker, worker.pipe.recv()))
            except (EOFError, OSError):
                found.append((worker, None))
    return found


def _start(context: Any, job: Job, device: torch.device, interrupted: Any) -> _Worker:
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, job, device, interrupted), daemon=True)
    with _single_threaded_children(device):
        process.start()
    theirs.close()  # so that the worker's death shows as the end of the pipe
    return _Worker(process, ours, device)


@contextmanager
def _single_threaded_children(device: torch.device) -> Iterator[None]:
    """Threads of several processes would fight for the cores: two by two threads ran 20 times slower than one."""
    before = os.environ.get("OMP_NUM_THREADS")
    if device.type == "cpu":
        os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("OMP_NUM_THREADS", None)
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _serve(pipe: multiprocessing.connection.Connection, job: Job, device: torch.device, interrupted: Any) -> None:
    """A worker's life: take a plan, train it, answer with outcomes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which asks for a checkpoint
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        while True:
            stack_plan = pipe.recv()
            outcomes = work(
                stack_plan, job, device, pipe.send, stop=lambda: _past(job.deadline), interrupt=interrupted.is_set
            )
            pipe.send(outcomes)
            if any(_device_is_lost(outcome) for outcome in outcomes):
                return
    except (EOFError, BrokenPipeError):
        return  # the parent is gone or has closed the pipe


def _device_is_lost(outcome: Outcome) -> bool:
    """After a CUDA error a process cannot use its device again; a new process may."""
    return isinstance(outcome, Failed) and "CUDA error" in outcome.reason


def _shut_down(workers: list[_Worker]) -> None:
    for worker in workers:
        if worker.plan is None:
            worker.pipe.close()
    until = time.monotonic() + SHUTDOWN_SECONDS
    for worker in workers:
        while worker.plan is not None and worker.process.is_alive() and time.monotonic() < until:
            # Keep reading: a worker that cannot send cannot end.
            if worker.pipe.poll(0.1) and isinstance(_receive(worker), list | None):
                worker.plan = None
        worker.pipe.close()
        worker.process.join(timeout=1.0)
        if worker.process.is_alive():
            worker.process.terminate()


def _receive(worker: _Worker) -> Any:
    try:
        return worker.pipe.recv()
    except (EOFError, OSError):
        return None


def _past(deadline: float | None) -> bool:
    return deadline is not None and time.time() > deadline


__all__ = ["Finished", "cores", "local_devices", "run_local"]
