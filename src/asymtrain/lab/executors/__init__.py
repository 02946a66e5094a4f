"""Where stacks run, and how their runs get into the store: `execute`.

An executor takes stacks and yields the outcome of each. `execute` does the rest for all executors: it skips runs that
are in the store, resumes interrupted stacks with their original members, stores each run once it is finished, and
records failures without stopping the other stacks.
"""

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Protocol

import torch

from asymtrain.errors import UsageError, unknown_name
from asymtrain.lab.checkpoints import checkpoints_of
from asymtrain.lab.data.registry import SOURCES
from asymtrain.lab.devices import default_device
from asymtrain.lab.engine import Progress, StackPlan, close_checkpoint, plan
from asymtrain.lab.executors.fingerprints import check_data, check_sources
from asymtrain.lab.executors.local import Local, Workers
from asymtrain.lab.executors.outcomes import Failed, Finished, Job, Outcome, ProgressSum, Report
from asymtrain.lab.executors.stacks import choose_stacks, tidy
from asymtrain.lab.functions import check_function, is_function, is_here
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.sources import LIBRARIES
from asymtrain.lab.store import Store, StoreError, store_exists
from asymtrain.lab.store.store import LEASE
from asymtrain.lab.texts import counted

EXECUTORS = ("local", "ray")
RENEW_SECONDS = LEASE / 4  # between renewals of claims: several may fail before other machines take the runs over

__all__ = ["EXECUTORS", "Workers", "check_data", "check_executor", "check_sources", "execute"]


class Executor(Protocol):
    """Trains stacks, on this machine or on a cluster."""

    @property
    def device(self) -> torch.device:
        """The kind of device that stacks are planned for."""

    @property
    def workers(self) -> int:
        """The number of stacks that can train at the same time."""

    def run(self, plans: list[StackPlan], job: Job, report: Report) -> Generator[Outcome]:
        """Train all stacks and yield each outcome as it comes; closing the iterator ends the training."""


def execute(
    specs: list[RunSpec],
    *,
    store: Path | None = None,
    executor: str = "local",
    address: str | None = None,
    device: str | None = None,
    minutes: float | None = None,
    data_root: Path | None = None,
    fresh: bool = False,
    progress: Callable[[Progress], None] | None = None,
    checkpoint_seconds: float = 60.0,
    workers: Workers | None = None,
) -> Iterator[Run]:
    """Train the missing runs and yield every run of `specs`, stored ones first.

    With a `store`, runs and checkpoints outlive this process: the same call resumes where it stopped. `minutes`
    ends it cleanly at the next epoch after that time. `fresh` trains runs again that the store holds. A run that
    another process is training with the same store is left to that process, with a note. `workers` are local workers
    that several calls share. A model that cannot be built, or that differs from the one of the store's runs, is
    refused at once, before anything is written.
    """
    deadline = None if minutes is None else time.time() + 60 * minutes
    missing = list(dict.fromkeys(specs))
    here = [name for spec in missing for name in (spec.dataset, spec.arch) if is_here(name)]
    if here and executor != "local":
        raise UsageError(
            f"{here[0]} is of this process, and {executor} trains in others: name a file (npz:FILE), or a function in "
            "one (package.module:function)"
        )
    check_sources(missing, store, data_root=data_root, fresh=fresh)  # now, not when the iterator is first advanced
    job = Job(data_root, None if store is None else checkpoints_of(store), deadline, checkpoint_seconds)
    where = _open_executor(executor, address, device, bool(here), workers)
    return _execute(missing, store, job, where, fresh, progress)


def _execute(
    missing: list[RunSpec],
    store: Path | None,
    job: Job,
    where: AbstractContextManager[Executor],
    fresh: bool,
    progress: Callable[[Progress], None] | None,
) -> Iterator[Run]:
    with where as chosen:
        workers = max(1, chosen.workers)
        # Before anything is written. Workers start in this folder with this import path, so they find the same files.
        # If a node of a cluster lacks a file, its first stack fails and says so.
        for name in _functions(missing, None if fresh else store):
            check_function(name)
        if store is None:
            stacks = plan(missing, chosen.device, workers=workers)
            yield from _results(chosen, stacks, job, ProgressSum(stacks, progress, workers=workers))
            return
        with Store(store) as record, _renewed_claims(record):
            checkpoints = checkpoints_of(store)
            all_specs, missing = missing, record.claim(missing, again=fresh)
            claimed_ids = {spec.id for spec in missing}
            stored_runs = record.runs([spec.id for spec in all_specs if spec.id not in claimed_ids])
            yield from stored_runs
            stacks = choose_stacks(missing, record, checkpoints, chosen.device, workers, fresh=fresh)
            total = ProgressSum(stacks, progress, checkpoints, workers)
            elsewhere = len(all_specs) - len(missing) - (0 if fresh else len(stored_runs))
            if elsewhere:
                total(f"{elsewhere} runs are being trained by another process")
            with closing(_results(chosen, stacks, job, total, record, again=fresh)) as runs:
                yield from (run for run in runs if run.spec.id in claimed_ids)
            tidy(record, checkpoints)


def _functions(specs: list[RunSpec], store: Path | None) -> set[str]:
    """Names of functions that make the data or the model of runs that are not in the store."""
    functions = {
        spec: {name for name, others in ((spec.dataset, SOURCES), (spec.arch, LIBRARIES)) if is_function(name, others)}
        for spec in specs
    }
    if store is not None and any(functions.values()) and store_exists(store):
        with Store(store, read_only=True) as record:
            finished_ids = record.finished({spec.id for spec in specs})
        functions = {spec: names for spec, names in functions.items() if spec.id not in finished_ids}
    return set().union(*functions.values())


def _results(
    executor: Executor,
    stacks: list[StackPlan],
    job: Job,
    total: ProgressSum,
    record: Store | None = None,
    *,
    again: bool = False,
) -> Generator[Run]:
    """Train; store and yield finished runs; record failures, and raise the first one if no run was finished.

    It also reports if starting used up the time limit, since the same command would end in the same way again.
    """
    reasons: list[str] = []
    held_back: list[str] = []
    done = 0
    # Closed explicitly: after an error (a full disk) the traceback would keep the iterator and its workers alive.
    with closing(executor.run(stacks, job, total)) as outcomes:
        for outcome in outcomes:
            if isinstance(outcome, Finished):
                if record is not None:
                    for run in outcome.runs:
                        record.add(run, again=again, provenance=outcome.provenance)
                if job.checkpoints is not None:
                    close_checkpoint(job.checkpoints / outcome.plan.id)
                done += len(outcome.runs)
                total.finished(outcome.runs)
                yield from outcome.runs
            elif isinstance(outcome, Failed):
                reasons.append(outcome.reason)
                if record is not None:
                    record.fail(outcome.plan.specs, outcome.reason)
                note = f"{counted(len(outcome.plan.specs), 'run')} failed: {outcome.reason}"
                # For a single stack the error below may say the same.
                (total if len(stacks) > 1 else held_back.append)(note)
    if reasons and not done:
        raise UsageError(reasons[0])
    for note in held_back:
        total(note)
    if stacks and job.is_over() and not done and not total.epochs_here:
        total("time was over before a stack had trained an epoch")


@contextmanager
def _renewed_claims(record: Store) -> Iterator[None]:
    """Renew this process's claims until the block ends.

    A thread of the process that writes the store does it, so it does not matter where stacks train, nor how long a
    step, a compilation or the wait for a node takes. A process that has died or is suspended renews nothing.
    """
    over = threading.Event()

    def renew() -> None:
        while not over.wait(RENEW_SECONDS):
            with suppress(StoreError):  # the disk is full, or the store stays locked: the next renewal may succeed
                record.renew()

    thread = threading.Thread(target=renew, name="renew claims", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def check_executor(name: str, address: str | None) -> None:
    """Refuse an executor that does not exist, and an address that it would not use."""
    if name not in EXECUTORS:
        raise unknown_name("executor", name, EXECUTORS)
    if name == "local" and address is not None:
        raise UsageError("--address needs a Ray cluster: add --executor ray")


def _open_executor(
    name: str, address: str | None, device: str | None, in_process: bool, pool: Workers | None
) -> AbstractContextManager[Executor]:
    check_executor(name, address)
    if name == "local":
        return nullcontext(Local(default_device(device), in_process, pool))
    from asymtrain.lab.executors.ray import ray_cluster

    return ray_cluster(address, device)
