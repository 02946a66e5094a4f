"""Train what a block still needs, wave by wave, since each names the next; the same call goes on where it stopped."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asymtrain.errors import UsageError
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.store import stored_runs
from asymtrain.lab.studies.paper.running import RULE, START, estimate, is_timed
from asymtrain.lab.studies.paper.snapshot import Snapshot
from asymtrain.lab.studies.practice.protocol import BLOCKS, MODELS, Block, Study, Task
from asymtrain.lab.studies.practice.selection import Known, needs


def read_runs(store: Path) -> dict[str, Run]:
    """Runs of a store by spec id; none where there is no store."""
    return {run.spec.id: run for run in stored_runs(store)}


@dataclass(frozen=True)
class Left:
    """How far a block is."""

    stored: tuple[RunSpec, ...]
    specs: tuple[RunSpec, ...]  # missing ones that can be named
    later: tuple[RunSpec, ...]  # stand-ins for the others
    waits_for: tuple[Task, ...]  # tasks of other blocks whose selection is missing

    @property
    def needed(self) -> int:
        """Runs in all; at most, as long as some cannot be named."""
        return len(self.stored) + len(self.specs) + len(self.later)

    @property
    def is_done(self) -> bool:
        return not self.specs and not self.later

    def seconds(self, known: Known, device: str, workers: int) -> float | None:
        """Wall time of the rest; None where the rate of a model is not known yet."""
        specs = [*self.specs, *self.later]
        if not specs:
            return 0.0
        timed = {*RULE[device], *(run.spec.arch for run in known.values() if is_timed(run, device))}
        if not {spec.arch for spec in specs} <= timed:
            return None
        return START[device] + estimate(specs, Snapshot(known), device, workers, small=False).seconds


def left_of(study: Study, tasks: Iterable[Task], known: Known) -> Left:
    wants = [needs(study, task, known) for task in tasks]
    specs = list(dict.fromkeys(spec for want in wants for spec in want.specs))
    later = tuple(spec for want in wants for spec in want.later)
    stored, missing = (tuple(spec for spec in specs if (spec.id in known) == there) for there in (True, False))
    waits = tuple(dict.fromkeys(task for want in wants for task in want.waits_for))
    return Left(stored, missing, later, waits)


def first_unfinished(study: Study, known: Known) -> Block | None:
    """The first block of the protocol that is not finished."""
    return next((block for block in BLOCKS.values() if not left_of(study, block.tasks, known).is_done), None)


def check_block(study: Study, block: Block, known: Known, data_root: Path | None) -> None:
    """Refuse a block whose selections are missing, or whose data cannot be read, before anything is trained."""
    from asymtrain.lab.engine import load_for

    left = left_of(study, block.tasks, known)
    if others := set(left.waits_for) - set(block.tasks):
        owners = [owner.name for owner in BLOCKS.values() if set(owner.tasks) & others]
        raise UsageError(
            f"{block.name} takes what was selected in {', '.join(owners)}: run that first with the same --store, or "
            "import its rows with `asymtrain store import STORE results/practice-*`"
        )
    for spec in {(spec.dataset, spec.dataset_options): spec for spec in left.specs}.values():
        load_for(spec, data_root)


def run_block(
    study: Study,
    block: Block,
    store: Path,
    *,
    minutes: float | None = None,
    on_wave: Callable[[Sequence[Task], Left], None] = lambda tasks, left: None,
    on_run: Callable[[Run, int, int], None] = lambda run, done, total: None,
    **options: Any,
) -> bool:
    """Do what is missing until nothing is, or `minutes` are over; was it interrupted?

    All models are handed over at once, in their order: while one trains on a GPU, the next can be compiled. `options`
    are those of `executors.execute`.
    """
    from asymtrain.lab import executors  # here: torch is loaded to train, not to say what is missing

    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    tried: set[str] = set()  # a training that failed is not asked for again in this call
    with suppress(KeyboardInterrupt), executors.Workers() as workers:
        while True:
            known = read_runs(store)
            left = left_of(study, block.tasks, known)
            specs = [spec for spec in left.specs if spec.id not in tried]
            rest = None if deadline is None else (deadline - time.monotonic()) / 60
            if not specs or (rest is not None and rest <= 0):
                return False
            on_wave([task for task in block.tasks if left_of(study, [task], known).specs], left)
            tried.update(spec.id for spec in specs)
            trained = executors.execute(specs, store=store, minutes=rest, workers=workers, **options)
            for done, run in enumerate(trained, 1):
                on_run(run, done, len(specs))
    return True


def listing(study: Study, known: Known, device: str, workers: int) -> list[dict[str, Any]]:
    """Each block: what it holds, how far it is, how long its runs took, and how long the rest takes."""
    rows, counted = [], set[str]()  # a run that several blocks need is counted in the first
    for block in BLOCKS.values():
        left = left_of(study, block.tasks, known)
        own = {spec.id for spec in left.stored} - counted
        counted |= own
        rows.append(
            {
                "name": block.name,
                "title": block.title,
                "models": list(dict.fromkeys(MODELS[task.model].title for task in block.tasks)),
                "runs_needed": left.needed,
                "runs_there": len(left.stored),
                "seconds_taken": math.fsum(known[spec_id].seconds for spec_id in own),
                "seconds_left": left.seconds(known, device, workers),
                "waits_for": [MODELS[task.model].title for task in left.waits_for],
            }
        )
    return rows
