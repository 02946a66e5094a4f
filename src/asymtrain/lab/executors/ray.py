"""Stacks on a Ray cluster: a task is one stack, on one GPU or on one core.

    driver (this process)                            a worker, on any node
      submits every stack          -- plan -->         trains it: `outcomes.work`
      shows progress and notes   <-- mailbox --        from its checkpoint, if it sees the driver's folder
      stores the runs            <-- result --

Only the driver writes the store. A stack whose worker or node dies is submitted again. Ray's own retries are off:
they would neither inform the user nor count as attempts.
"""

import logging
import math
import os
import pickle
import socket
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from asymtrain.errors import UsageError, how_to_install
from asymtrain.lab.checkpoints import PLAN
from asymtrain.lab.engine import StackPlan, StackProgress
from asymtrain.lab.engine.checkpoint import open_checkpoint
from asymtrain.lab.executors import outcomes
from asymtrain.lab.executors.local import SHUTDOWN_SECONDS
from asymtrain.lab.executors.outcomes import Failed, Job, Lost, Outcome, Report, Result, Stopped, Waiting
from asymtrain.lab.files import at_home
from asymtrain.lab.machine import cores
from asymtrain.lab.texts import counted

OBJECT_STORE_BYTES = 128 * 2**20  # of a local cluster, through which only plans and rows pass
POLL_SECONDS = 0.2
MAILBOX_SECONDS = 30.0  # a machine with all cores busy answers slowly
LOOK_SECONDS = 10.0  # between checks that the cluster still has what stacks need
PATIENCE = 8.0  # seconds to wait for a connection
# Variables that workers get from the driver: where the data, the sources and compiled code are.
PASSED_ON = ("ASYMTRAIN_DATA", "PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
FORMS = "write host:6379, ray://host:10001, or auto for the cluster of this machine"


@contextmanager
def ray_cluster(address: str | None, device: str | None = None) -> Iterator["RayCluster"]:
    """Join the cluster at `address`, or keep the one that this process is in, or start one on this machine.

    Only a cluster that was started here is shut down at the end.
    """
    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"on a Ray cluster --device is cpu or cuda, got {device!r}: Ray chooses which GPU")
    ray = _import_ray()
    joined = ray.is_initialized()
    if not joined:
        _connect(ray, address)
    try:
        resources = ray.cluster_resources()
        gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
        if device == "cuda" and not gpus:
            raise UsageError("--device cuda was asked for, but the Ray cluster has no GPU: use --device cpu")
        kind, workers = ("cuda", gpus) if gpus and device != "cpu" else ("cpu", cpus)
        if not workers:
            raise UsageError("the Ray cluster has neither a GPU nor a CPU to run on: start its nodes with some")
        yield RayCluster(torch.device(kind), workers)
    finally:
        if not joined:
            ray.shutdown()  # ends a cluster that was started here, and leaves one that was joined


@dataclass(frozen=True)
class RayCluster:
    """A cluster that this process is connected to."""

    device: torch.device
    workers: int

    def run(self, plans: list[StackPlan], job: Job, report: Report) -> Generator[Outcome]:
        if not plans:
            return
        waiting = Waiting(plans, job, report)
        # Workers start in another folder.
        root, checkpoints = job.data_root, job.checkpoints and job.checkpoints.absolute()
        job = replace(job, data_root=root and at_home(root).absolute(), checkpoints=checkpoints)
        driver = _Driver(job, self.device, report)
        try:
            while waiting or driver.running:
                with outcomes.held_interrupt():
                    while stack_plan := waiting.take():
                        driver.submit(stack_plan)
                    results = driver.collect()
                for result in results:
                    yield from waiting.settle(result)
        finally:
            driver.end()


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray prints these to stdout, where results go; we report lost workers ourselves.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "worker died|node with node id|running low on memory")
    # Ray warns that it will leave the devices of tasks without GPUs visible; our tasks name their device.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as problem:
        raise UsageError(f"Ray is not installed: {how_to_install('ray')}, or use --executor local") from problem
    return ray


def _connect(ray: Any, address: str | None) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address in (None, "local"):
        refusal, hint, address = "a local Ray cluster cannot be started", "", "local"
        options |= {"num_cpus": cores(), "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        options["_node_ip_address"] = "127.0.0.1"
    else:
        refusal = f"the Ray cluster at {address} cannot be joined"
        hint = " (check that Ray has the same version here, and RAY_AUTH_MODE=token where the cluster wants a token)"
        check_address(str(address))
    try:
        ray.init(address=address, **options)
    except Exception as problem:  # Ray raises many kinds: another version, no token, no answer
        ray.shutdown()
        raise UsageError(f"{refusal}: {' '.join(str(problem).split())}{hint}") from problem


class _Driver:
    """The driver's side: tasks that run, and the mailbox that workers write to."""

    def __init__(self, job: Job, device: torch.device, report: Report) -> None:
        import ray
        from ray.util.queue import Queue

        self.ray, self.job, self.device, self.report = ray, job, device, report
        # A mailbox that dies with its node restarts empty: progress is lost, rows are not.
        self.mailbox = Queue(actor_options={"num_cpus": 0, "max_restarts": -1})
        resources = {"num_gpus": 1, "num_cpus": 0} if device.type == "cuda" else {"num_cpus": 1}
        # max_calls: a worker is reused for the next stack, also on a GPU, with its compiled programs.
        self.task = ray.remote(max_retries=0, max_calls=0, **resources)(_train).options(
            runtime_env={"env_vars": _environment(device)}
        )
        self.running: dict[Any, StackPlan] = {}
        self.cancelled: set[Any] = set()
        self.reporting: set[str] = set()  # stacks that have reported, so they train
        self.last_words: dict[str, str] = {}
        self.looked_at, self.empty = -math.inf, False

    def submit(self, stack_plan: StackPlan) -> None:
        if self.job.checkpoints is not None:
            # Workers look for this file; if it is missing, they do not share the driver's disk.
            with suppress(OSError):
                open_checkpoint(self.job.checkpoints, stack_plan)
        self.reporting.discard(stack_plan.id)
        self.last_words.pop(stack_plan.id, None)
        ref = self.task.remote(stack_plan, self.job, self.device.type, self.mailbox, str(Path.cwd()))
        self.running[ref] = stack_plan

    def collect(self) -> list[Result]:
        """Pass on the workers' reports, and return the results of stacks that ended."""
        if not self.running:
            return []
        done, _ = self.ray.wait(list(self.running), num_returns=1, timeout=POLL_SECONDS)
        self._read_mailbox()
        if time.monotonic() - self.looked_at > LOOK_SECONDS:
            self._look_at_the_cluster()
        if self.job.is_over():
            # Training stacks end by themselves at their next epoch; the others would wait for a free worker.
            for ref, stack_plan in self.running.items():
                if stack_plan.id not in self.reporting:
                    self._cancel(ref)
        return [self._result(ref) for ref in done]

    def _look_at_the_cluster(self) -> None:
        """Report if the cluster has no node for the stacks; Ray waits silently, since one may join."""
        kind = "GPU" if self.device.type == "cuda" else "CPU"
        empty = not self.ray.cluster_resources().get(kind)
        if empty and not self.empty:
            stacks = counted(len(self.running), "stack")
            self.report(
                f"the Ray cluster has no {kind} now: {stacks} will wait for a node that has one (Ctrl-C ends it)"
            )
        self.looked_at, self.empty = time.monotonic(), empty

    def end(self) -> None:
        """Ask running stacks for a checkpoint, wait a little, and cancel the rest."""
        with suppress(self.ray.exceptions.RayError):
            for ref in self.running:
                self._cancel(ref)
            late = list(self.running)
            if late:
                _, late = self.ray.wait(late, num_returns=len(late), timeout=SHUTDOWN_SECONDS)
            for ref in late:
                self.ray.cancel(ref, force=True)
        with suppress(self.ray.exceptions.RayError):
            self.mailbox.shutdown(force=True)

    def _cancel(self, ref: Any) -> None:
        """Cancel a task once: a second cancellation would not wait for the checkpoint."""
        if ref not in self.cancelled:
            self.cancelled.add(ref)
            self.ray.cancel(ref)

    def _read_mailbox(self) -> None:
        ray, actor = self.ray, self.mailbox.actor
        try:
            count = ray.get(actor.qsize.remote(), timeout=MAILBOX_SECONDS)
            letters = ray.get(actor.get_nowait_batch.remote(count), timeout=MAILBOX_SECONDS) if count else []
        except ray.exceptions.RayError:
            return  # it is being restarted
        for stack, message in map(pickle.loads, letters):
            self.reporting.add(stack)
            if isinstance(message, Lost):
                self.last_words[stack] = message.reason
            else:
                self.report(message)

    def _result(self, ref: Any) -> Result:
        stack_plan, errors = self.running.pop(ref), self.ray.exceptions
        try:
            return self.ray.get(ref)
        except errors.TaskCancelledError:
            return Stopped(stack_plan)
        except (errors.RayTaskError, errors.RuntimeEnvSetupError) as problem:
            text = str(problem).strip().splitlines()[-1]
            return Failed(stack_plan, f"{text}: is the same asymtrain installed on every node?")
        except errors.RayError as problem:
            reason = self.last_words.get(stack_plan.id)
            return Lost(stack_plan, reason or f"its worker or its node died ({type(problem).__name__})")


def _train(stack_plan: StackPlan, job: Job, device: str, mailbox: Any, folder: str) -> Result:
    """The task of a worker: train one stack."""
    import ray

    node = ray.util.get_node_ip_address()
    last_message: list[Any] = []
    with suppress(OSError):  # relative paths of datasets refer to the driver's folder, if it exists here
        os.chdir(folder)

    def send(message: StackProgress | str | Lost) -> None:
        # As bytes, so the mailbox need not import torch. The call does not wait, so a dead mailbox does no harm.
        last_message[:] = [mailbox.actor.put_nowait.remote(pickle.dumps((stack_plan.id, message)))]

    if job.is_over():
        return Stopped(stack_plan)
    if device == "cuda" and not torch.cuda.is_available():
        return Failed(stack_plan, f"torch sees no GPU on node {node}: install a CUDA build there, or --device cpu")
    if job.checkpoints is not None and not (job.checkpoints / stack_plan.id / PLAN).exists():
        send(f"node {node} does not see {job.checkpoints}: a stack that it loses starts anew")
        job = replace(job, checkpoints=None)
    with outcomes.held_interrupt() as interrupted:  # Ray cancels a task by KeyboardInterrupt
        result = outcomes.work(stack_plan, job, torch.device(device), send, interrupted)
    if isinstance(result, Lost):
        send(Lost(stack_plan, f"{result.reason} (on node {node})"))
    if last_message:
        ray.wait(last_message, timeout=MAILBOX_SECONDS)  # the driver reads the mailbox once it sees the result
    if isinstance(result, Lost):
        os._exit(1)  # this process has lost its GPU; Ray would reuse it for the next stack
    return Failed(stack_plan, f"{result.reason} (on node {node})") if isinstance(result, Failed) else result


def _environment(device: torch.device) -> dict[str, str]:
    """The environment variables that workers get from the driver."""
    variables = {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}
    source = Path(__file__).resolve().parents[3]
    if "site-packages" not in source.parts:
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(source), variables.get("PYTHONPATH")]))
    if device.type == "cpu":
        variables["OMP_NUM_THREADS"] = "1"
    return variables


def check_address(address: str) -> None:
    """Raise a UsageError if nothing answers there; Ray itself would try for minutes."""
    target = os.environ.get("RAY_ADDRESS") or address if address == "auto" else address
    if target == "auto":
        return  # if no cluster runs on this machine, Ray reports it at once
    try:
        parts = urlsplit(target if "://" in target else f"//{target}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise UsageError(f"{target!r} is no address of a Ray cluster: {FORMS}")
    try:
        socket.create_connection((host, port), timeout=PATIENCE).close()
    except OSError as problem:
        reason = "timed out" if isinstance(problem, TimeoutError) else problem.strerror or str(problem)
        raise UsageError(
            f"no Ray cluster answers at {target} ({reason}): check host and port ({FORMS}), that `ray status` works "
            "on the head node, and that no firewall is between"
        ) from problem
