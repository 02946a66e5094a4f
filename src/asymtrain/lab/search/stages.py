"""A search as a value: which settings are tried at which stage, and which run a trial is."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, get_args

from asymtrain.errors import UsageError, unknown_name
from asymtrain.lab.runs import DEFAULTS, RunSpec
from asymtrain.lab.search.grids import FINAL_SEEDS, SEARCH_SEEDS, option_value, search_epochs

Settings = Mapping[str, float]
Variant = Literal["plain", "asymmetric"]
Criterion = Literal["best", "last"]
BOTH: tuple[Variant, ...] = ("plain", "asymmetric")


@dataclass(frozen=True)
class Stage:
    """One grid."""

    name: str  # what is searched
    trains: Variant  # whose runs are trained, with what was chosen for it before
    decides: tuple[Variant, ...]  # who takes the chosen settings over
    candidates: tuple[Settings, ...]  # of equals the earliest is chosen


@dataclass(frozen=True)
class Search:
    """Rounds of stages for one backbone on one dataset. Stages of a round do not wait for each other."""

    strategy: str
    base: RunSpec  # the final Asymmetric run that the values are for
    rounds: tuple[tuple[Stage, ...], ...]
    start: Settings = field(default_factory=dict)  # of both variants until a stage decides them
    seeds: tuple[int, ...] = SEARCH_SEEDS  # of the search runs; never those of final runs
    epochs: int | None = None  # of the search runs; by default three quarters of the base's
    criterion: Criterion = "best"  # validation accuracy of each run's best epoch, or of its last

    def __post_init__(self) -> None:
        object.__setattr__(self, "seeds", tuple(dict.fromkeys(self.seeds)))
        object.__setattr__(self, "epochs", search_epochs(self.base.epochs) if self.epochs is None else self.epochs)
        _check(self)

    def trial_specs(self, variant: Variant, settings: Settings) -> list[RunSpec]:
        """The runs of a trial, one for each seed. Their test accuracy is not computed."""
        # Measured as often as Plain is: a round that trains both sides is then one stack.
        recorded = {name: DEFAULTS[name] for name in ("cosine_every", "cosine_by")}
        changes: dict[str, Any] = {"epochs": self.epochs, "test": "never", **recorded}
        tried = with_settings(dataclasses.replace(side(self.base, variant), **changes), settings)
        return [dataclasses.replace(tried, seed=seed) for seed in self.seeds]


def side(base: RunSpec, variant: Variant) -> RunSpec:
    return base.plain() if variant == "plain" else base


def with_settings(spec: RunSpec, settings: Settings) -> RunSpec:
    """The spec with these values: of its fields, or of its backbone's options."""
    fields: dict[str, Any] = {}
    options = dict(spec.arch_options)
    for name, value in settings.items():
        if name in DEFAULTS:
            fields[name] = value
        elif option_value(spec, name) != value:  # a default is not written down: the same run keeps the same id
            fields["arch_options"] = options = {**options, name: value}
    return dataclasses.replace(spec, **fields)


def one_by_one(name: str, values: Iterable[float]) -> tuple[Settings, ...]:
    """A grid over one field, smallest value first."""
    return tuple({name: value} for value in sorted({float(value) for value in values}))


def _check(search: Search) -> None:
    if search.base.redundancy == 0:
        raise UsageError("a search needs redundancy 1 or more: 0 is Plain, which is searched anyway")
    if search.base.validation == "none":
        raise UsageError("a search chooses by validation accuracy: it needs validation='split'")
    if search.rounds and not search.seeds:
        raise UsageError("a search needs at least one seed")
    if final := sorted(FINAL_SEEDS.intersection(search.seeds)):
        raise UsageError(
            f"seed {final[0]} is one of the final runs ({min(FINAL_SEEDS)} to {max(FINAL_SEEDS)}): "
            f"give the search others, such as {SEARCH_SEEDS[0]}"
        )
    if search.criterion not in get_args(Criterion):
        raise unknown_name("criterion of a search", search.criterion, get_args(Criterion))
    for stage in chain.from_iterable(search.rounds):
        if not stage.candidates:
            raise UsageError(f"there is no {stage.name} to try: give one value or more")
        for candidate in stage.candidates:
            search.trial_specs(stage.trains, candidate)  # a value that no run can have shows now
