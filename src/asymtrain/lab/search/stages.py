"""A search as a value: which settings are tried at which stage, and which run a trial is. The paper's two orders:

gold    learning rate on Plain  ->  weight decay on Plain  ->  alpha on Asymmetric
                                                               (fair: and regularisers on Plain)
dual    learning rate on each   ->  weight decay on each   ->  alpha on Asymmetric
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

from asymtrain.errors import UsageError
from asymtrain.lab.runs import DEFAULTS, RunSpec
from asymtrain.lab.search import grids
from asymtrain.lab.search.grids import FINAL_SEEDS, SEARCH_SEEDS, option_value

Settings = Mapping[str, float]
Variant = Literal["plain", "asymmetric"]
BOTH: tuple[Variant, ...] = ("plain", "asymmetric")


@dataclass(frozen=True)
class Stage:
    """One grid."""

    name: str  # what is searched
    trains: Variant  # whose runs are trained, with what was chosen for it before
    decides: tuple[Variant, ...]  # the variants that get the chosen settings
    candidates: tuple[Settings, ...]  # ties go to the earliest


@dataclass(frozen=True)
class Search:
    """Rounds of stages for one backbone on one dataset. Stages of a round do not wait for each other."""

    strategy: str
    base: RunSpec  # the final Asymmetric run that the values are for
    rounds: tuple[tuple[Stage, ...], ...]
    start: Settings = field(default_factory=dict)  # of both variants until a stage decides them
    seeds: tuple[int, ...] = SEARCH_SEEDS  # of the search runs; never those of final runs
    epochs: int | None = None  # of the search runs; by default three quarters of the base's
    # Cached trials: a page replays its searches a hundred times, and each new spec is validated.
    _tried: dict[tuple[Any, ...], list[RunSpec]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seeds", tuple(dict.fromkeys(self.seeds)))
        if self.epochs is None:
            object.__setattr__(self, "epochs", grids.search_epochs(self.base.epochs))
        _check(self)

    def trial_specs(self, variant: Variant, settings: Settings) -> list[RunSpec]:
        """The runs of a trial, one for each seed. Their test accuracy is not computed."""
        key = (variant, *settings.items())
        if key not in self._tried:
            # Measured as often as Plain is: a round that trains both sides is then one stack.
            changes: dict[str, Any] = {"epochs": self.epochs, "test": "never", "cosine_every": DEFAULTS["cosine_every"]}
            tried = with_settings(dataclasses.replace(side(self.base, variant), **changes), settings)
            self._tried[key] = [dataclasses.replace(tried, seed=seed) for seed in self.seeds]
        return list(self._tried[key])


def side(base: RunSpec, variant: Variant) -> RunSpec:
    return base.plain() if variant == "plain" else base


def with_settings(spec: RunSpec, settings: Settings) -> RunSpec:
    """The spec with these values: of its fields, or of its backbone's options."""
    fields: dict[str, Any] = {}
    options = dict(spec.arch_options)
    for name, value in settings.items():
        if name in DEFAULTS:
            fields[name] = value
        elif option_value(spec, name) != value:  # a default is not written down, so that the same run keeps the same id
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
    for stage in chain.from_iterable(search.rounds):
        if not stage.candidates:
            raise UsageError(f"there is no {stage.name} to try: give one value or more")
        for candidate in stage.candidates:
            search.trial_specs(stage.trains, candidate)  # raises now for a value that no run can have


def gold_standard(base: RunSpec, **options: Any) -> Search:
    """The paper's Pragmatic Gold Standard: Plain's learning rate and weight decay serve both, then alpha is searched.

    `options` are `learning_rates`, `weight_decays`, `alphas` (None: the paper's grid for this backbone and dataset),
    `fixed_weight_decay` while the learning rate is searched, and those of `Search`: seeds, epochs. With
    `fair=True` Plain gets as many extra trials as alpha has values, of dropout (where the backbone has it) and label
    smoothing.
    """
    return _search("gold", base, {"plain": BOTH}, **options)


def dual_search(base: RunSpec, **options: Any) -> Search:
    """Learning rate and weight decay for Plain and for Asymmetric, separately; options as in `gold_standard`.

    The paper does not say which alpha that search used. Here Asymmetric is searched at the base's alpha, and alpha
    last; `alphas=()` keeps the base's.
    """
    return _search("dual", base, {variant: (variant,) for variant in BOTH}, **options)


def _search(
    strategy: str,
    base: RunSpec,
    decides: Mapping[Variant, tuple[Variant, ...]],
    *,
    learning_rates: Sequence[float] = grids.LEARNING_RATES,
    weight_decays: Sequence[float] = grids.WEIGHT_DECAYS,
    alphas: Sequence[float] | None = None,
    fixed_weight_decay: float = grids.FIXED_WEIGHT_DECAY,
    fair: bool = False,
    **options: Any,
) -> Search:
    """`decides`: the variants on which learning rate and weight decay are searched, and for which each decides."""
    shared = {
        "learning rate": one_by_one("learning_rate", learning_rates),
        "weight decay": one_by_one("weight_decay", weight_decays),
    }
    rounds = [tuple(Stage(name, *sides, grid) for sides in decides.items()) for name, grid in shared.items()]
    # The paper's alphas are linear for the MLP on CIFAR-10, else logarithmic.
    of_paper = grids.LINEAR_ALPHAS if (base.arch, base.dataset) == ("mlp", "cifar10") else grids.LOG_ALPHAS
    tried = one_by_one("alpha", of_paper if alphas is None else alphas)
    if tried or strategy == "gold":  # a gold standard without alphas is refused, like a grid without values
        last = [Stage("alpha", "asymmetric", ("asymmetric",), tried)]
        if fair:
            last.append(Stage("regularisation", "plain", ("plain",), grids.plain_extras(base, len(tried))))
        rounds.append(tuple(last))
    elif fair:
        raise UsageError("Plain gets as many extra trials as alpha has values: without alphas there are none")
    return Search(strategy, base, tuple(rounds), {"weight_decay": fixed_weight_decay}, **options)


STRATEGIES: dict[str, Callable[..., Search]] = {"gold": gold_standard, "dual": dual_search}
