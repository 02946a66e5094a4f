"""Intervals against scipy and numpy, and how often that of a series with memory holds its mean."""

import math

import numpy as np
import pytest
from scipy import stats

from asymtrain import UsageError
from asymtrain.intervals import batch_means, student_quantile


def test_the_interval_is_a_t_interval_of_block_means():
    drawn = np.random.default_rng(1).normal(size=103)
    low, high, blocks, _ = batch_means(drawn.tolist(), confidence=0.9)
    assert blocks == 20
    means = drawn[3:].reshape(20, 5).mean(1)
    half = stats.t.ppf(0.95, 19) * means.std(ddof=1) / math.sqrt(20)
    assert (low, high) == pytest.approx((drawn.mean() - half, drawn.mean() + half), rel=1e-10)


@pytest.mark.parametrize(("steps", "blocks"), [(9, 0), (10, 2), (24, 4), (99, 19), (100, 20), (5000, 20)])
def test_a_block_has_five_steps_or_more(steps, blocks):
    drawn = np.random.default_rng(2).normal(size=steps).tolist()
    low, _, found, autocorrelation = batch_means(drawn)
    assert found == blocks
    assert (low is None) == (blocks == 0)
    assert (autocorrelation is None) == (blocks < 4)


def test_it_covers_the_mean_of_a_series_with_memory_where_single_steps_would_not():
    """An AR(1) series with coefficient 0.8 around 0: independent steps would claim three times the precision."""
    rng, covered, naive = np.random.default_rng(3), 0, 0
    for _ in range(200):
        noise, series = rng.normal(size=1000), np.zeros(1000)
        for i in range(1, 1000):
            series[i] = 0.8 * series[i - 1] + noise[i]
        low, high, _, _ = batch_means(series.tolist())
        covered += low < 0 < high
        half = 1.96 * series.std(ddof=1) / math.sqrt(1000)
        naive += abs(series.mean()) < half
    assert covered / 200 > 0.88
    assert naive / 200 < 0.6


def test_a_drift_shows_as_autocorrelation_of_the_blocks():
    *_, drifting = batch_means([i / 200 for i in range(200)])
    *_, constant = batch_means([0.5] * 200)
    *_, alternating = batch_means([(-1.0) ** (i // 10) for i in range(200)])
    assert drifting > 0.7
    assert constant is None
    assert alternating < -0.9


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 5.37, 9, 10, 17.2, 19, 30, 99, 500, 5000])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999, 1 - 0.05 / 144])
def test_student_s_quantile_is_that_of_scipy(freedom, confidence):
    expected = stats.t.ppf((1 + confidence) / 2, freedom)
    assert student_quantile(confidence, freedom) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(("confidence", "freedom"), [(0.0, 3), (1.0, 3), (95, 3), (0.95, 0)])
def test_an_interval_of_nothing_is_refused(confidence, freedom):
    with pytest.raises(UsageError, match="confidence between 0 and 1"):
        student_quantile(confidence, freedom)
