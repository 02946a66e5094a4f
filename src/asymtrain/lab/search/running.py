"""Results of searches: train what is missing, read what a store holds, or take values from elsewhere."""

import functools
import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from asymtrain.errors import UsageError
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.search.results import SearchResult, replay
from asymtrain.lab.search.stages import BOTH, Search
from asymtrain.lab.store import stored_runs

Fetch = Callable[[list[RunSpec]], Iterable[Run]]


def run_searches(
    searches: Sequence[Search],
    *,
    store: Path | None = None,
    minutes: float | None = None,
    data_root: Path | None = None,
    on_run: Callable[[Run, int, int], None] = lambda run, done, total: None,
    **options: Any,
) -> list[SearchResult]:
    """Train the rounds of all searches side by side, each round in one call of `executors.execute`.

    With a `store` the same call continues where it stopped. After `minutes` the results say what is missing. `on_run`
    gets each run that was not stored, how many runs of its round are finished, and how many the round has. `options` go
    to `execute`.
    """
    from asymtrain.lab import executors  # here: torch is loaded to train, not to read results

    deadline = None if minutes is None else time.monotonic() + 60 * minutes

    def train(specs: list[RunSpec], workers: executors.Workers) -> Iterable[Run]:
        minutes = None if deadline is None else (deadline - time.monotonic()) / 60
        runs_there = [] if store is None or options.get("fresh") else stored_runs(store, (spec.id for spec in specs))
        if minutes is not None and minutes <= 0:
            yield from runs_there
            return
        stored_ids = {run.spec.id for run in runs_there}
        where = {"store": store, "data_root": data_root, "workers": workers, **options}
        trained = executors.execute(specs, minutes=minutes, **where)
        for done, run in enumerate(trained, 1):
            if run.spec.id not in stored_ids:
                on_run(run, done, len(specs))
            yield run

    with executors.Workers() as workers:
        return _drive(searches, functools.partial(train, workers=workers), data_root)


def read_searches(searches: Sequence[Search], store: Path, *, data_root: Path | None = None) -> list[SearchResult]:
    """What a store says about these searches; trains nothing."""
    return _drive(searches, lambda specs: stored_runs(store, (spec.id for spec in specs)), data_root)


def chosen_values(folder: Path) -> list[SearchResult]:
    """What the finished searches chose whose page is in this folder."""
    file = folder / "search.json"
    try:
        searches = json.loads(file.read_bytes())["searches"]
        if not all(search["complete"] for search in searches):
            raise UsageError(f"the search in {folder} is not finished: run it again to continue")
        return [
            SearchResult(
                Search("given", RunSpec.from_dict(search["base"]), (), seeds=()),
                (),
                {variant: dict(search["chosen"][variant]) for variant in BOTH},
                (),
            )
            for search in searches
        ]
    except FileNotFoundError:
        raise UsageError(f"{folder} has no search.json: give the folder that asymtrain search wrote to") from None
    except (OSError, ValueError, KeyError, TypeError) as problem:
        if isinstance(problem, UsageError):
            raise
        raise UsageError(f"{file} cannot be read ({type(problem).__name__}): run the search again") from problem


def _drive(searches: Sequence[Search], fetch: Fetch, data_root: Path | None) -> list[SearchResult]:
    """Fetch the runs that the next rounds need, until there is nothing new to ask for."""
    runs: dict[str, Run] = {}
    asked_ids: set[str] = set()
    while True:
        results = [replay(search, runs, functools.partial(_chance, search, data_root)) for search in searches]
        # A run that was requested and did not come (time is over, it failed) is not requested again.
        specs_by_id = {spec.id: spec for result in results for spec in result.missing if spec.id not in asked_ids}
        if not specs_by_id:
            return results
        asked_ids.update(specs_by_id)
        runs.update({run.spec.id: run for run in fetch(list(specs_by_id.values()))})


def _chance(search: Search, data_root: Path | None) -> float:
    from asymtrain.lab.engine import load_for

    return 1 / load_for(search.base, data_root).classes
