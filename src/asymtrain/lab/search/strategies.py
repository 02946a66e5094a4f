"""The orders in which values are searched.

gold    learning rate on Plain  ->  weight decay on Plain  ->  alpha on Asymmetric
                                                               (fair: and regularisers on Plain)
dual    learning rate on each   ->  weight decay on each   ->  alpha on Asymmetric
"""

from collections.abc import Callable, Sequence
from typing import Any

from asymtrain.errors import UsageError
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.search.grids import FIXED_WEIGHT_DECAY, LEARNING_RATES, WEIGHT_DECAYS, alpha_grid, plain_extras
from asymtrain.lab.search.results import SearchResult
from asymtrain.lab.search.stages import BOTH, Search, Settings, Stage, Variant, one_by_one


def gold_standard(
    base: RunSpec,
    *,
    learning_rates: Sequence[float] = LEARNING_RATES,
    weight_decays: Sequence[float] = WEIGHT_DECAYS,
    alphas: Sequence[float] | None = None,
    fixed_weight_decay: float = FIXED_WEIGHT_DECAY,
    fair: bool = False,
    **options: Any,
) -> Search:
    """The paper's Pragmatic Gold Standard: Plain's learning rate and weight decay serve both, then alpha is searched.

    `alphas=None` takes the paper's grid for this backbone and dataset. With `fair` Plain gets as many extra trials as
    alpha has values, of dropout (where the backbone has it) and label smoothing. `options` are those of `Search`:
    seeds, epochs, criterion.
    """
    alphas = alpha_grid(base.arch, base.dataset) if alphas is None else alphas
    last = [_alpha(alphas)]
    if fair:
        extras = plain_extras(base, len(last[0].candidates))
        last.append(Stage("regularisation", "plain", ("plain",), extras))
    rounds = (
        (Stage("learning rate", "plain", BOTH, one_by_one("learning_rate", learning_rates)),),
        (Stage("weight decay", "plain", BOTH, one_by_one("weight_decay", weight_decays)),),
        tuple(last),
    )
    return Search("gold", base, rounds, {"weight_decay": fixed_weight_decay}, **options)


def dual_search(
    base: RunSpec,
    *,
    learning_rates: Sequence[float] = LEARNING_RATES,
    weight_decays: Sequence[float] = WEIGHT_DECAYS,
    alphas: Sequence[float] | None = None,
    fixed_weight_decay: float = FIXED_WEIGHT_DECAY,
    fair: bool = False,
    **options: Any,
) -> Search:
    """Learning rate and weight decay for Plain and for Asymmetric, each by itself.

    The paper does not say which alpha that search had. Asymmetric is searched at the base's alpha, and alpha last;
    `alphas=()` leaves it at the base's. The rest is as in `gold_standard`.
    """
    alphas = alpha_grid(base.arch, base.dataset) if alphas is None else alphas
    rates, decays = one_by_one("learning_rate", learning_rates), one_by_one("weight_decay", weight_decays)
    rounds = [
        tuple(Stage("learning rate", variant, (variant,), rates) for variant in BOTH),
        tuple(Stage("weight decay", variant, (variant,), decays) for variant in BOTH),
    ]
    if len(alphas):
        last = [_alpha(alphas)]
        if fair:
            last.append(Stage("regularisation", "plain", ("plain",), plain_extras(base, len(last[0].candidates))))
        rounds.append(tuple(last))
    elif fair:
        raise UsageError("Plain gets as many extra trials as alpha has values: without alphas there are none")
    return Search("dual", base, tuple(rounds), {"weight_decay": fixed_weight_decay}, **options)


def given_values(base: RunSpec, plain: Settings, asymmetric: Settings) -> SearchResult:
    """Values from elsewhere, such as the paper's own, in the form of a search's result: nothing is trained."""
    chosen: dict[Variant, Settings] = {"plain": dict(plain), "asymmetric": dict(asymmetric)}
    return SearchResult(Search("given", base, (), seeds=()), (), chosen, ())


STRATEGIES: dict[str, Callable[..., Search]] = {"gold": gold_standard, "dual": dual_search}


def _alpha(values: Sequence[float]) -> Stage:
    return Stage("alpha", "asymmetric", ("asymmetric",), one_by_one("alpha", values))
