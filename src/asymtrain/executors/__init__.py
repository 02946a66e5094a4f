"""Where stacks run, and how their runs come into the store: `execute`.

An executor takes stacks and yields what came of each. `execute` does the rest for all of them: it skips what the
store has, continues stacks that were interrupted with the members they had, stores each run as it is finished,
and records failures without stopping the others.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import torch

from asymtrain.engine import Progress, StackPlan, close_checkpoint, default_device, plan, unfinished_plans
from asymtrain.errors import UsageError, unknown_name
from asymtrain.executors.local import cores, local_devices, run_local
from asymtrain.executors.outcomes import Failed, Finished, Job, Outcome
from asymtrain.executors.progress import ProgressSum
from asymtrain.runs import Run, RunSpec
from asymtrain.store import Store

EXECUTORS = ("local", "ray")

__all__ = ["EXECUTORS", "execute"]


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
) -> Iterator[Run]:
    """Train what is missing and yield every run of `specs`, stored ones first.

    With a `store`, runs and checkpoints outlive this process: the same call goes on where it stopped. `minutes`
    ends it cleanly at the next epoch. `fresh` trains again what the store holds.
    """
    if executor not in EXECUTORS:
        raise unknown_name("executor", executor, EXECUTORS)
    if address is not None and executor != "ray":
        raise UsageError("--address is of a Ray cluster: add --executor ray")
    place = _device(device)
    deadline = None if minutes is None else time.time() + 60 * minutes
    with Store(store) if store is not None else nullcontext() as record:
        checkpoints = None if store is None else store.with_name(store.name + ".checkpoints")
        if fresh and checkpoints is not None:
            shutil.rmtree(checkpoints, ignore_errors=True)
        missing = list(dict.fromkeys(specs))
        if record is not None:
            missing = record.claim(specs, again=fresh)
            skipped = {spec.id for spec in missing}
            yield from record.runs([spec.id for spec in specs if spec.id not in skipped])
        stacks = _stacks(missing, checkpoints, place, cores() if place.type == "cpu" else torch.cuda.device_count())
        job = Job(data_root, checkpoints, deadline, checkpoint_seconds)
        total = ProgressSum(stacks, progress)
        if executor == "local":
            outcomes = run_local(stacks, job, local_devices(place, len(stacks)), total)
        else:
            from asymtrain.executors.ray import run_on_ray

            outcomes = run_on_ray(stacks, job, address, total)
        yield from _record(outcomes, missing, record, total, checkpoints, fresh)


def _record(
    outcomes: Iterator[Outcome],
    missing: list[RunSpec],
    record: Store | None,
    total: ProgressSum,
    checkpoints: Path | None,
    again: bool,
) -> Iterator[Run]:
    """Store and yield what is finished; remember what failed, and say so at the end if nothing else came."""
    wanted = {spec.id for spec in missing}
    reasons: list[str] = []
    done = 0
    for outcome in outcomes:
        if isinstance(outcome, Finished):
            runs = [run for run in outcome.runs if run.spec.id in wanted]
            for run in runs:
                if record is not None:
                    record.add(run, again=again)
            if checkpoints is not None:
                close_checkpoint(checkpoints / outcome.plan.id)
            done += len(runs)
            total.finished(len(outcome.plan.specs))
            yield from runs
        elif isinstance(outcome, Failed):
            reasons.append(outcome.reason)
            if record is not None:
                record.fail([spec for spec in outcome.plan.specs if spec.id in wanted], outcome.reason)
            total(f"{len(outcome.plan.specs)} runs failed: {outcome.reason}")
    if reasons and not done:
        raise UsageError(reasons[0])


def _stacks(missing: list[RunSpec], checkpoints: Path | None, device: torch.device, workers: int) -> list[StackPlan]:
    """Interrupted stacks first, with the members they had; then new stacks for the rest."""
    left = {spec.id: spec for spec in missing}
    kept = []
    for begun in unfinished_plans(checkpoints) if checkpoints is not None else []:
        if any(spec.id in left for spec in begun.specs):
            kept.append(begun)
            for spec in begun.specs:
                left.pop(spec.id, None)
    return kept + plan(list(left.values()), device, workers=max(1, workers))


def _device(name: str | None) -> torch.device:
    try:
        device = default_device(name)
    except RuntimeError as problem:
        raise UsageError(f"unknown device {name!r}: use cpu, cuda or cuda:0") from problem
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device {name!r} was asked for, but torch sees no GPU: use --device cpu")
    return device
