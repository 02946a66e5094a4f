"""The orders in which values are searched.

gold    learning rate on Plain  ->  weight decay on Plain  ->  alpha on Asymmetric
                                                               (fair: and regularisers on Plain)
dual    learning rate on each   ->  weight decay on each   ->  alpha on Asymmetric
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asymtrain.errors import UsageError
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.search.grids import FIXED_WEIGHT_DECAY, LEARNING_RATES, WEIGHT_DECAYS, alpha_grid, plain_extras
from asymtrain.lab.search.results import SearchResult
from asymtrain.lab.search.stages import BOTH, Search, Settings, Stage, Variant, one_by_one


def gold_standard(base: RunSpec, **options: Any) -> Search:
    """The paper's Pragmatic Gold Standard: Plain's learning rate and weight decay serve both, then alpha is searched.

    `options` are `learning_rates`, `weight_decays`, `alphas` (None: the paper's grid for this backbone and dataset),
    `fixed_weight_decay` while the learning rate is searched, and those of `Search`: seeds, epochs, criterion. With
    `fair=True` Plain gets as many extra trials as alpha has values, of dropout (where the backbone has it) and label
    smoothing.
    """
    return _search("gold", base, {"plain": BOTH}, **options)


def dual_search(base: RunSpec, **options: Any) -> Search:
    """Learning rate and weight decay for Plain and for Asymmetric, each by itself; options as in `gold_standard`.

    The paper does not say which alpha that search had. Asymmetric is searched at the base's alpha, and alpha last;
    `alphas=()` leaves it at the base's.
    """
    return _search("dual", base, {variant: (variant,) for variant in BOTH}, **options)


def _search(
    strategy: str,
    base: RunSpec,
    decides: Mapping[Variant, tuple[Variant, ...]],
    *,
    learning_rates: Sequence[float] = LEARNING_RATES,
    weight_decays: Sequence[float] = WEIGHT_DECAYS,
    alphas: Sequence[float] | None = None,
    fixed_weight_decay: float = FIXED_WEIGHT_DECAY,
    fair: bool = False,
    **options: Any,
) -> Search:
    """`decides`: the variants on which learning rate and weight decay are searched, and for which each decides."""
    shared = {
        "learning rate": one_by_one("learning_rate", learning_rates),
        "weight decay": one_by_one("weight_decay", weight_decays),
    }
    rounds = [tuple(Stage(name, *sides, grid) for sides in decides.items()) for name, grid in shared.items()]
    tried = one_by_one("alpha", alpha_grid(base.arch, base.dataset) if alphas is None else alphas)
    if tried or strategy == "gold":  # a gold standard without alphas is refused, as a grid without values
        last = [Stage("alpha", "asymmetric", ("asymmetric",), tried)]
        if fair:
            last.append(Stage("regularisation", "plain", ("plain",), plain_extras(base, len(tried))))
        rounds.append(tuple(last))
    elif fair:
        raise UsageError("Plain gets as many extra trials as alpha has values: without alphas there are none")
    return Search(strategy, base, tuple(rounds), {"weight_decay": fixed_weight_decay}, **options)


def given_values(base: RunSpec, plain: Settings, asymmetric: Settings) -> SearchResult:
    """Values from elsewhere, such as the paper's own, in the form of a search's result: nothing is trained."""
    chosen: dict[Variant, Settings] = {"plain": dict(plain), "asymmetric": dict(asymmetric)}
    return SearchResult(Search("given", base, (), seeds=()), (), chosen, ())


STRATEGIES: dict[str, Callable[..., Search]] = {"gold": gold_standard, "dual": dual_search}
