"""Searches that cannot be: said at once, in one line."""

import pytest
from search_examples import base_of

from asymtrain.errors import UsageError
from asymtrain.lab.search import SEARCH_SEEDS, dual_search, gold_standard

FINAL = range(42, 52)


def test_the_default_seeds_are_not_those_of_final_runs():
    assert not set(SEARCH_SEEDS) & set(FINAL)


@pytest.mark.parametrize("strategy", [gold_standard, dual_search])
@pytest.mark.parametrize("seed", FINAL)
def test_seeds_of_final_runs_are_refused(strategy, seed):
    with pytest.raises(UsageError, match=f"seed {seed} is one of the final runs"):
        strategy(base_of(), seeds=(1000, seed))


@pytest.mark.parametrize(
    ("base", "options", "text"),
    [
        ({"redundancy": 0}, {}, "redundancy 1 or more"),
        ({"validation": "none"}, {}, "validation='split'"),
        ({}, {"seeds": ()}, "at least one seed"),
        ({}, {"alphas": ()}, "no alpha to try"),
        ({}, {"learning_rates": ()}, "no learning rate to try"),
        ({}, {"learning_rates": (0.0,)}, "learning_rate must be above 0"),
        ({}, {"weight_decays": (-1.0,)}, "weight_decay must be 0 or more"),
        ({}, {"epochs": 0}, "epochs must be 1 or more"),
    ],
)
def test_bad_searches(base, options, text):
    with pytest.raises(UsageError, match=text):
        gold_standard(base_of(**base), **options)


def test_extra_trials_need_alphas():
    with pytest.raises(UsageError, match="without alphas"):
        dual_search(base_of(), alphas=(), fair=True)
