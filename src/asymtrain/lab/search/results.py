"""What a set of runs says about a search: stages, trials, what was chosen, what is missing. Nothing here trains."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from asymtrain.errors import UsageError
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.search.stages import BOTH, Search, Settings, Stage, Variant, side, with_settings
from asymtrain.lab.texts import counted


@dataclass(frozen=True)
class Trial:
    """Settings that were tried, and how well they did. Means and deviations are over the runs that are there."""

    settings: Settings  # what sets this trial apart from the others of its stage
    spec_ids: tuple[str, ...]  # one for each seed
    accuracies: tuple[float | None, ...]  # on the validation split, in the same order; None: a run is not there yet
    diverged: int = 0  # how many of the runs diverged; those count at chance accuracy

    @property
    def accuracies_there(self) -> list[float]:
        return [accuracy for accuracy in self.accuracies if accuracy is not None]

    @property
    def mean(self) -> float | None:
        return math.fsum(self.accuracies_there) / len(self.accuracies_there) if self.accuracies_there else None

    @property
    def std(self) -> float | None:
        """Divided by the number of runs less one; None for a single one."""
        from statistics import stdev  # here: it loads fractions and decimals, and few commands show a deviation

        return stdev(self.accuracies_there) if len(self.accuracies_there) > 1 else None

    @property
    def n(self) -> int:
        return len(self.accuracies_there)

    def to_dict(self) -> dict[str, Any]:
        return {
            "settings": dict(self.settings),
            **{name: getattr(self, name) for name in ("mean", "std", "n", "diverged")},
            "accuracies": list(self.accuracies),
            "spec_ids": list(self.spec_ids),
        }


@dataclass(frozen=True)
class StageResult:
    """A grid and its results."""

    stage: Stage
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial | None:
        """The trial with the highest mean accuracy; ties go to the first. None while a run is missing."""
        complete = bool(self.trials) and not any(None in trial.accuracies for trial in self.trials)
        return max(self.trials, key=lambda trial: trial.mean or 0.0) if complete else None

    @property
    def chosen(self) -> Settings | None:
        return None if self.best is None else self.best.settings

    @property
    def edges(self) -> dict[str, str]:
        """Chosen settings at an end of their grid: "highest", "lowest", or "off" for 0, below which nothing lies."""
        ends = {}
        for name, value in (self.chosen or {}).items():
            values = {candidate[name] for candidate in self.stage.candidates}
            if len(values) > 1 and value == min(values):
                ends[name] = "off" if value == 0 else "lowest"
            elif len(values) > 1 and value == max(values):
                ends[name] = "highest"
        return ends

    @property
    def missing(self) -> tuple[str, ...]:
        pairs = (pair for trial in self.trials for pair in zip(trial.spec_ids, trial.accuracies, strict=True))
        return tuple(spec_id for spec_id, accuracy in pairs if accuracy is None)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.stage.name,
            "trains": self.stage.trains,
            "decides": list(self.stage.decides),
            "chosen": None if self.chosen is None else dict(self.chosen),
            "edges": self.edges,
            "missing": list(self.missing),
            "trials": [trial.to_dict() for trial in self.trials],
        }


@dataclass(frozen=True)
class SearchResult:
    """The state of a search."""

    search: Search
    stages: tuple[StageResult, ...]  # the decided ones, and the ones under way
    chosen: Mapping[Variant, Settings]  # what is decided so far
    missing: tuple[RunSpec, ...]  # the runs that the stages under way still need

    @property
    def complete(self) -> bool:
        return not self.missing

    @property
    def runs_left(self) -> int:
        """How many runs are left at most; a later stage may share some with an earlier one."""
        later = [stage for stages in self.search.rounds for stage in stages][len(self.stages) :]
        return len(self.missing) + sum(len(stage.candidates) for stage in later) * len(self.search.seeds)

    @property
    def spec_ids(self) -> tuple[str, ...]:
        """All runs of the known stages, each once."""
        ids = (spec_id for stage in self.stages for trial in stage.trials for spec_id in trial.spec_ids)
        return tuple(dict.fromkeys(ids))

    def to_dict(self) -> dict[str, Any]:
        return {
            "strategy": self.search.strategy,
            "base": self.search.base.to_dict(),
            "start": dict(self.search.start),
            "seeds": list(self.search.seeds),
            "epochs": self.search.epochs,
            "complete": self.complete,
            "runs_left": self.runs_left,
            "chosen": {variant: dict(settings) for variant, settings in self.chosen.items()},
            "stages": [stage.to_dict() for stage in self.stages],
        }


def replay(search: Search, runs: Mapping[str, Run], chance: Callable[[], float] = lambda: 0.0) -> SearchResult:
    """Go through the stages as far as these runs (by spec id) reach. `chance` is called only if a run diverged."""
    decided: dict[Variant, dict[str, float]] = {variant: {} for variant in BOTH}
    results: list[StageResult] = []
    missing: dict[str, RunSpec] = {}
    for stages in search.rounds:
        for stage in stages:
            before = {**search.start, **decided[stage.trains]}
            trials = []
            for candidate in stage.candidates:
                specs = {spec.id: spec for spec in search.trial_specs(stage.trains, {**before, **candidate})}
                runs_there = [runs.get(spec_id) for spec_id in specs]
                accuracies = tuple(None if run is None else _accuracy(run, chance) for run in runs_there)
                diverged = sum(run is not None and run.outcome == "diverged" for run in runs_there)
                trials.append(Trial(candidate, tuple(specs), accuracies, diverged))
                missing.update({spec_id: spec for spec_id, spec in specs.items() if spec_id not in runs})
            results.append(StageResult(stage, tuple(trials)))
        # Only now: stages of one round do not wait for each other.
        for result in results[-len(stages) :]:
            for variant in result.stage.decides:
                decided[variant].update(result.chosen or {})
        if missing:
            break
    return SearchResult(search, tuple(results), decided, tuple(missing.values()))


def chosen_spec(result: SearchResult, variant: Variant, **changes: Any) -> RunSpec:
    """The final run of a variant with the chosen values; `changes` are other fields, such as the seed."""
    if not result.complete:
        raise UsageError(
            f"the search is not finished, with {counted(len(result.missing), 'run')} missing: run it again to continue"
        )
    spec = with_settings(side(result.search.base, variant), result.chosen[variant])
    return dataclasses.replace(spec, **changes)


def final_specs(result: SearchResult, seeds: Iterable[int], **changes: Any) -> list[RunSpec]:
    """Plain and Asymmetric of each seed with the chosen values, side by side."""
    return [chosen_spec(result, variant, **changes, seed=seed) for seed in seeds for variant in BOTH]


def _accuracy(run: Run, chance: Callable[[], float]) -> float:
    if run.outcome == "diverged":
        return chance()
    best = run.best_validation
    assert best is not None, "a search's runs have a validation split"
    assert best.validation_accuracy is not None
    return best.validation_accuracy
