"""Train and measure what recipes need: what is missing, how long it will take, and the loop that does it.

A round trains everything that can be named now, in one call of `executors.execute`, so that runs of several recipes
share stacks; the next round knows more (the choices of a search). What was stored is never done twice, so the same
call goes on where the last one stopped.
"""

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asymtrain.lab import executors
from asymtrain.lab.engine import load_for
from asymtrain.lab.paper.known import Snapshot, read_store
from asymtrain.lab.paper.measuring import Place, take
from asymtrain.lab.paper.recipe import Measuring, Needs, Recipe
from asymtrain.lab.paper.study import Study
from asymtrain.lab.runs import Run, RunSpec


@dataclass(frozen=True)
class Missing:
    """What is still to be done, as far as it can be named."""

    specs: tuple[RunSpec, ...]
    measurements: tuple[Measuring, ...]
    later: int  # trainings that wait for others, at most


def needs_of(recipes: Iterable[Recipe], study: Study, known: Snapshot) -> Needs:
    """The needs of several recipes, each run and measurement once."""
    found = [recipe.needs(study, known) for recipe in recipes]
    specs = dict.fromkeys(spec for one in found for spec in one.specs)
    measurements = {(one.spec.id, one.name): one for needs in found for one in needs.measurements}
    later = {name: count for one in found for name, count in one.later.items()}
    return Needs(tuple(specs), tuple(measurements.values()), later)


def of_archs(needs: Needs, archs: Collection[str] | None) -> Needs:
    """The needs of these backbones alone; all where none is named."""
    if archs is None:
        return needs
    wanted = set(archs)
    return Needs(
        tuple(spec for spec in needs.specs if spec.arch in wanted),
        tuple(one for one in needs.measurements if one.spec.arch in wanted),
        {name: count for name, count in needs.later.items() if wanted & set(re.findall(r"\w+", name))},
    )


def missing(recipes: Sequence[Recipe], study: Study, known: Snapshot, archs: Collection[str] | None = None) -> Missing:
    """What the store does not hold; of these backbones, where some are named."""
    needs = of_archs(needs_of(recipes, study, known), archs)
    return Missing(
        tuple(spec for spec in needs.specs if spec.id not in known.runs),
        tuple(one for one in needs.measurements if known.values(one.spec, one.name) is None),
        sum(needs.later.values()),
    )


def check_data(
    recipes: Sequence[Recipe], study: Study, data_root: Path | None, archs: Collection[str] | None = None
) -> None:
    """Load every dataset that is needed, so that missing files show before anything is trained."""
    whole = missing(recipes, study, Snapshot(), archs)
    wanted = [*whole.specs, *(one.spec for one in whole.measurements)]
    for spec in {(spec.dataset, spec.dataset_options): spec for spec in wanted}.values():
        load_for(spec, data_root)


@dataclass(frozen=True)
class Done:
    """How a call ended: what is left, and whether time or the user ended it."""

    left: Missing
    interrupted: bool


def run_recipes(
    recipes: Sequence[Recipe],
    study: Study,
    store: Path,
    *,
    archs: Collection[str] | None = None,
    minutes: float | None = None,
    device: str | None = None,
    data_root: Path | None = None,
    on_round: Callable[[Missing], None] = lambda _: None,
    on_run: Callable[[Run, int, int], None] = lambda run, done, total: None,
    on_measurement: Callable[[Measuring, int, int], None] = lambda one, done, total: None,
    **options: Any,
) -> Done:
    """Do what is missing, round by round, until nothing is or `minutes` are over.

    Of some backbones where `archs` names them. `options` are those of `execute`.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    tried: set[str] = set()  # a training that failed is not asked for again in this call
    place = Place(store, device, data_root)
    try:
        while True:
            left = missing(recipes, study, read_store(store), archs)
            specs = [spec for spec in left.specs if spec.id not in tried]
            if not specs or _seconds_left(deadline) <= 0:
                break
            on_round(left)
            tried.update(spec.id for spec in specs)
            trained = executors.execute(
                specs, store=store, device=device, data_root=data_root, minutes=_minutes(deadline), **options
            )
            for done, run in enumerate(trained, 1):
                on_run(run, done, len(specs))
        wanted = left.measurements
        for done, one in enumerate(_until(deadline, take(wanted, place)), 1):
            on_measurement(one, done, len(wanted))
    except KeyboardInterrupt:
        return Done(missing(recipes, study, read_store(store), archs), interrupted=True)
    return Done(missing(recipes, study, read_store(store), archs), interrupted=False)


def _until(deadline: float | None, taken: Iterator[Measuring]) -> Iterator[Measuring]:
    """What is taken until time is over; a measurement that has begun is finished."""
    while _seconds_left(deadline) > 0:
        one = next(taken, None)
        if one is None:
            return
        yield one


def _seconds_left(deadline: float | None) -> float:
    return float("inf") if deadline is None else deadline - time.monotonic()


def _minutes(deadline: float | None) -> float | None:
    return None if deadline is None else max(1e-3, _seconds_left(deadline) / 60)
