"""From the blocks of a study to stored runs: what is missing, how long it takes, and the rounds that train it.

A round trains everything that can be named now, in one call of `executors.execute`, so that runs of several parts share
stacks; the next round knows more (what a selection or a search chose). What was stored is never done twice, so the
same call continues where the last one stopped.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asymtrain.errors import UsageError, unknown_name
from asymtrain.lab.report.table import duration
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.studies.snapshot import Snapshot, read_store
from asymtrain.lab.studies.study import Block, Needs, StudyOfBlocks
from asymtrain.lab.studies.timing import START, estimate, has_rates
from asymtrain.lab.texts import counted

Workers = tuple[str, int]  # the kind of device (cpu, cuda), and how many stacks train at the same time


@dataclass(frozen=True)
class Left:
    """The state of some parts: what the store holds of them and what is missing, as far as it can be named."""

    stored: tuple[RunSpec, ...]
    specs: tuple[RunSpec, ...]
    measurements: tuple[Any, ...]
    measured: int  # how many measurements are stored
    later: int  # the largest number of runs that wait for others
    stand_ins: tuple[RunSpec, ...]  # specs in place of some of the later runs
    waits_for: tuple[Any, ...]

    @property
    def is_empty(self) -> bool:
        return not (self.specs or self.measurements or self.later)

    @property
    def to_train(self) -> tuple[RunSpec, ...]:
        """Specs whose time can be estimated: missing ones, and stand-ins."""
        return (*self.specs, *self.stand_ins)

    @property
    def runs(self) -> int:
        """How many runs are missing, named or not."""
        return len(self.specs) + self.later

    @property
    def progress(self) -> dict[str, int]:
        """How many runs (at most) and measurements are needed, and how many are stored."""
        return {
            "runs_needed": len(self.stored) + self.runs,
            "runs_there": len(self.stored),
            "measurements_needed": self.measured + len(self.measurements),
            "measurements_there": self.measured,
        }


def joined(several: Iterable[Needs]) -> Needs:
    """The needs of several parts, each run and measurement once."""
    needs = list(several)
    measurements = {(measuring.spec.id, measuring.name): measuring for part in needs for measuring in part.measurements}
    return Needs(
        tuple(dict.fromkeys(spec for part in needs for spec in part.specs)),
        tuple(measurements.values()),
        {group: count for part in needs for group, count in part.later.items()},
        tuple(spec for part in needs for spec in part.stand_ins),
        tuple(dict.fromkeys(other for part in needs for other in part.waits_for)),
    )


def missing_of(needs: Needs, snapshot: Snapshot) -> Left:
    """What the store lacks of these needs."""
    measurements = tuple(
        measuring for measuring in needs.measurements if snapshot.values(measuring.spec, measuring.name) is None
    )
    return Left(
        tuple(spec for spec in needs.specs if spec.id in snapshot.runs),
        tuple(spec for spec in needs.specs if spec.id not in snapshot.runs),
        measurements,
        len(needs.measurements) - len(measurements),
        sum(needs.later.values()) + len(needs.stand_ins),
        needs.stand_ins,
        needs.waits_for,
    )


def missing(study: StudyOfBlocks, parts: Iterable[Any], scope: Any, snapshot: Snapshot) -> Left:
    """What the store lacks of these parts of blocks."""
    return missing_of(joined(study.needs(part, scope, snapshot) for part in parts), snapshot)


# Blocks


def get_block(study: StudyOfBlocks, *names: str) -> Block:
    """The block of this name; for several names, one that holds them all, in this order."""
    for name in names:
        if name not in study.blocks:
            raise unknown_name(study.blocks_are, name, study.blocks)
    first, *others = [study.blocks[name] for name in dict.fromkeys(names)]
    if not others:
        return first
    parts = dict.fromkeys(part for block in (first, *others) for part in block.parts)
    titles = "; ".join(block.title for block in (first, *others))
    return Block(", ".join(block.name for block in (first, *others)), titles, tuple(parts))


def first_unfinished(study: StudyOfBlocks, scope: Any, snapshot: Snapshot) -> Block | None:
    unfinished = (
        block
        for block in study.blocks.values()
        if not missing(study, block.parts, block.scope(scope), snapshot).is_empty
    )
    return next(unfinished, None)


def listing(study: StudyOfBlocks, scope: Any, snapshot: Snapshot, workers: Workers) -> list[dict[str, Any]]:
    """Each block: its progress, how long its runs took and the rest takes, and the command that does it."""
    rows, counted_ids = list[dict[str, Any]](), set[str]()  # a run that several blocks need is counted in the first
    for block in study.blocks.values():
        own = block.scope(scope)
        left = missing(study, block.parts, own, snapshot)
        new_ids = {spec.id for spec in left.stored} - counted_ids
        counted_ids |= new_ids
        counts: dict[str, float] = {**left.progress}
        if not study.measures:  # otherwise it would take more than its runs did
            counts = {name: count for name, count in counts.items() if "runs" in name}
            counts["seconds_taken"] = math.fsum(snapshot.runs[spec_id].seconds for spec_id in new_ids)
        rated = has_rates(left.to_train, snapshot, workers[0]) and study.is_rated(own, snapshot, workers[0])
        known_time = rated or left.is_empty
        rows.append(
            {
                "name": block.name,
                "title": block.title,
                **counts,
                "seconds_left": seconds_left(study, own, left, snapshot, workers)[0] if known_time else None,
                "waits_for": [part.title for part in left.waits_for],
                "command": f"asymtrain {study.name} {study.run_block} {block.name}",
                **study.row(block),
            }
        )
    return rows


# Time


def seconds_left(
    study: StudyOfBlocks, scope: Any, left: Left, snapshot: Snapshot, workers: Workers
) -> tuple[float, str]:
    """Wall time of what is missing, and the basis of the estimate. Runs without a name yet count as average runs."""
    small, specs = study.is_small(scope), left.to_train
    runs = estimate(specs, snapshot, *workers, small)
    seconds = 0.0 if left.is_empty else START[workers[0]]
    seconds += runs.seconds + study.measurement_seconds(left.measurements, snapshot, *workers, small=small)
    if specs:
        seconds += runs.seconds / len(specs) * (left.later - len(left.stand_ins))
    return seconds, runs.basis if specs else "by a rule of thumb"


def plan_sentence(study: StudyOfBlocks, scope: Any, left: Left, snapshot: Snapshot, workers: Workers) -> str:
    if left.is_empty:
        return "Nothing is missing."
    later = f", up to {left.later} more once earlier ones have chosen" if left.later else ""
    measurements = f", {counted(len(left.measurements), 'measurement')}" if study.measures else ""
    words = f"Missing: {counted(len(left.specs), 'run')}{later}{measurements}."
    if not has_rates(left.to_train, snapshot, workers[0]):
        return words
    seconds, basis = seconds_left(study, scope, left, snapshot, workers)
    device, count = workers
    return f"{words} About {duration(seconds)} on {counted(count, 'core' if device == 'cpu' else 'GPU')}, {basis}."


# Training


def check_ready(study: StudyOfBlocks, name: str, parts: Sequence[Any], left: Left, data_root: Path | None) -> None:
    """Refuse parts that wait for others, or whose data cannot be read, before anything is trained.

    Parts that wait for a search need the search's data.
    """
    from asymtrain.lab.engine import load_for

    if others := set(left.waits_for) - set(parts):
        owners = [owner.name for owner in study.blocks.values() if set(owner.parts) & others]
        rows = f", or import its rows with `asymtrain store import STORE results/{study.in_results}`"
        raise UsageError(
            f"{name} takes what was selected in {', '.join(owners)}: run that first with the same --store"
            f"{rows if study.in_results else ''}"
        )
    specs = [*left.specs, *(measuring.spec for measuring in left.measurements)]
    for spec in {(spec.dataset, spec.dataset_options): spec for spec in specs}.values():
        load_for(spec, data_root)


@dataclass(frozen=True)
class Done:
    """How a call ended: what the store holds, what is left, and whether the user ended it."""

    snapshot: Snapshot
    left: Left
    interrupted: bool


def run_parts(
    study: StudyOfBlocks,
    parts: Sequence[Any],
    scope: Any,
    store: Path,
    *,
    snapshot: Snapshot | None = None,
    minutes: float | None = None,
    device: str | None = None,
    data_root: Path | None = None,
    on_round: Callable[[Left, Snapshot], None] = lambda left, snapshot: None,
    on_run: Callable[[Run, int, int], None] = lambda run, done, total: None,
    on_measurement: Callable[[Any, int, int], None] = lambda measured, done, total: None,
    **options: Any,
) -> Done:
    """Do what is missing, round by round, until nothing is or `minutes` are over.

    `snapshot` is what the store holds, if it was just read: reading half a million epochs takes seconds. `on_round` is
    called before each round but the first. `options` go to `execute`.
    """
    from asymtrain.lab import executors  # here: torch is loaded only to train

    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    tried: set[str] = set()  # a failed training is not tried again in this call
    interrupted = False
    snapshot = read_store(store) if snapshot is None else snapshot
    left = missing(study, parts, scope, snapshot)
    try:
        with executors.Workers() as workers:
            while True:
                specs = [spec for spec in left.specs if spec.id not in tried]
                seconds = _seconds_to(deadline)
                if not specs or seconds <= 0:
                    break
                if tried:
                    on_round(left, snapshot)
                tried.update(spec.id for spec in specs)
                rest = None if deadline is None else max(1e-3, seconds / 60)
                where = {"store": store, "device": device, "data_root": data_root, "workers": workers, **options}
                for done, run in enumerate(executors.execute(specs, minutes=rest, **where), 1):
                    on_run(run, done, len(specs))
                snapshot = read_store(store)
                left = missing(study, parts, scope, snapshot)
        measurements = left.measurements
        for done, measured in enumerate(_until(deadline, study.measure(measurements, store, device, data_root)), 1):
            on_measurement(measured, done, len(measurements))
    except KeyboardInterrupt:
        interrupted = True
    if interrupted or left.measurements:
        snapshot = read_store(store)
        left = missing(study, parts, scope, snapshot)
    return Done(snapshot, left, interrupted)


def _until(deadline: float | None, results: Iterator[Any]) -> Iterator[Any]:
    """The results that come before the deadline; a measurement that has begun is finished."""
    while _seconds_to(deadline) > 0 and (measured := next(results, None)) is not None:
        yield measured


def _seconds_to(deadline: float | None) -> float:
    return float("inf") if deadline is None else deadline - time.monotonic()
