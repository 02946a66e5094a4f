"""The test that may be looked at after every pair: its boundary, and its error rates by simulation."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

from asymtrain import UsageError
from asymtrain.lab.statistics import LEVEL, decide, half_width, sequential_interval, values_to_decide
from asymtrain.lab.statistics.sequential import LEAST, SPREAD

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
DRAWS = 20_000


def test_at_its_ends_the_likelihood_ratio_of_t_with_a_normal_mixture_is_one_over_the_level():
    """Against an integral over the noncentral t of scipy."""
    values = [0.4, 1.1, 0.7, 1.9, 0.2]
    for end in sequential_interval(values):
        n, t = len(values), stats.ttest_1samp(values, end).statistic
        mixed, _ = integrate.quad(
            lambda d, n=n, t=t: stats.nct.pdf(t, n - 1, d * math.sqrt(n)) * stats.norm.pdf(d, scale=math.sqrt(SPREAD)),
            -15, 15,
        )  # fmt: skip
        assert mixed / stats.t.pdf(t, n - 1) == pytest.approx(1 / LEVEL, rel=1e-6)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [1.0, 1.0, 1.0]])
def test_too_few_values_or_no_spread_have_no_interval(values):
    assert sequential_interval(values) is None


def test_fewer_values_need_more_and_a_level_is_one():
    halves = [half_width(n) for n in range(LEAST, 50)]
    assert halves == sorted(halves, reverse=True)
    assert math.isinf(half_width(LEAST - 1))
    with pytest.raises(UsageError, match="between 0 and 1"):
        half_width(5, 1.0)


def ever(draw, most, first=LEAST):
    """The share of series whose interval excludes 0 at any look up to `most` values."""
    values = draw(np.random.default_rng(0), (DRAWS, most))
    sums, squares = values.cumsum(1), (values**2).cumsum(1)
    out = np.zeros(DRAWS, bool)
    for n in range(first, most + 1):
        mean = sums[:, n - 1] / n
        spread = np.sqrt((squares[:, n - 1] - n * mean**2) / (n - 1))
        out |= np.abs(mean) > half_width(n) * spread
    return out.mean()


@pytest.mark.parametrize("most", [8, 300])
def test_without_an_effect_it_errs_at_any_stopping_time_in_at_most_5_percent(most):
    assert ever(lambda rng, size: rng.normal(size=size), most) < LEVEL


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, size: rng.uniform(-1, 1, size),
        lambda rng, size: rng.standard_t(3, size),
        lambda rng, size: rng.exponential(size=size) - rng.exponential(size=size),
    ],
    ids=["uniform", "heavy tails", "of skewed accuracies"],
)
def test_differences_that_are_not_normal_stay_below_it_within_eight(draw):
    """Without an effect both sides of a pair are drawn alike, so whatever they are, differences are symmetric."""
    assert ever(draw, 8) < LEVEL


def test_looking_again_and_again_at_the_usual_interval_would_err_far_more():
    """What this test is for."""
    values = np.random.default_rng(0).normal(size=(DRAWS, 8))
    out = np.zeros(DRAWS, bool)
    for n in range(LEAST, 9):
        out |= stats.ttest_1samp(values[:, :n], 0, axis=1).pvalue < LEVEL
    assert out.mean() > 2 * LEVEL


def test_two_points_are_found_within_eight_pairs_at_the_deviation_of_the_practice_rows():
    import tune as benchmark

    spread = benchmark.deviation_of(benchmark.read_cases())
    assert 0.3 < spread < 1.5
    assert ever(lambda rng, size: rng.normal(2, spread, size), 8) > 0.8


def test_how_many_values_decide():
    n = values_to_decide(2.0, 1.0, 1.0)
    assert half_width(n) < 2 <= half_width(n - 1)
    n = values_to_decide(0.1, 1.0, 1.0)
    assert half_width(n) + 0.1 < 1 <= half_width(n - 1) + 0.1
    assert values_to_decide(1.0, 1e9, 0.5) is None
    assert decide(2.0, 2 - half_width(9), 2 + half_width(9), 9, margin=1.0).verdict == "helps"
