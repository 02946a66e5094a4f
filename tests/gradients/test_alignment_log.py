"""A log of alignments against numpy."""

import math

import numpy as np
import pytest
from scipy import stats

from asymtrain import UsageError
from asymtrain.gradients import Alignment, AlignmentLog, LayerAlignment
from asymtrain.intervals import batch_means


def seen(cosine, main=1.0, auxiliary=2.0, **layers):
    found = {name: LayerAlignment(value, 1.0, 1.0) for name, value in layers.items()}
    return Alignment(cosine, main, auxiliary, {}, found)


def logged(cosines):
    log = AlignmentLog()
    for value in cosines:
        log.add(seen(value))
    return log.summary()


def test_the_numbers_are_those_of_numpy():
    drawn = np.random.default_rng(0).normal(0.1, 0.3, 100).clip(-1, 1)
    found = logged(drawn.tolist())
    assert found.steps == 100
    assert found.undefined == 0
    assert found.final == drawn[-1]
    assert (found.min, found.max) == (drawn.min(), drawn.max())
    assert found.mean == pytest.approx(drawn.mean(), rel=1e-12)
    assert found.std == pytest.approx(drawn.std(ddof=1), rel=1e-12)
    assert found.conflict == (drawn < 0).mean()
    assert 0 < found.conflict < 1
    assert (found.main_norm, found.auxiliary_norm) == (1.0, 2.0)


def test_undefined_cosines_enter_no_number():
    found = logged([0.5, None, -0.25, None])
    assert (found.steps, found.undefined) == (4, 2)
    assert found.final is None
    assert (found.mean, found.min, found.max, found.conflict) == (0.125, -0.25, 0.5, 0.5)


@pytest.mark.parametrize("cosines", [[], [None], [None, None]])
def test_nothing_defined_is_none_and_not_zero(cosines):
    found = logged(cosines)
    assert found.undefined == found.steps == len(cosines)
    for name in ("final", "mean", "std", "min", "max", "conflict", "low", "high", "autocorrelation"):
        assert getattr(found, name) is None
    assert found.blocks == 0


def test_one_step_has_no_spread():
    found = logged([0.5])
    assert (found.mean, found.std, found.low) == (0.5, None, None)


def test_a_norm_that_is_not_finite_enters_no_mean():
    log = AlignmentLog()
    log.add(seen(0.5, main=3.0))
    log.add(seen(None, main=math.inf))
    log.add(seen(None, main=math.nan))
    assert log.summary().main_norm == 3.0


def test_layers_are_averaged_where_they_are_defined():
    log = AlignmentLog()
    log.add(seen(0.1, first=0.5, second=None))
    log.add(seen(0.1, first=-0.1, third=0.3))
    assert log.summary().by_layer == {"first": pytest.approx(0.2), "second": None, "third": 0.3}


def test_no_interval_of_cosines_leaves_them():
    cosines = [-0.5] * 5 + [0.75] * 5
    low, high, *_ = batch_means(cosines)
    assert (low, high) == pytest.approx((0.125 - 0.625 * stats.t.ppf(0.975, 1), 0.125 + 0.625 * stats.t.ppf(0.975, 1)))
    assert low < -1 < 1 < high
    found = logged(cosines)
    assert (found.mean, found.low, found.high) == (0.125, -1, 1)


@pytest.mark.parametrize("steps", [0, 1, 9, 10, 200])
@pytest.mark.parametrize("confidence", [2, 95, 0.0, 1.0, -0.5, math.nan])
def test_a_summary_refuses_a_bad_confidence_after_any_number_of_steps(steps, confidence):
    log = AlignmentLog()
    for step in range(steps):
        log.add(seen(math.sin(step)))
    with pytest.raises(UsageError, match="confidence between 0 and 1"):
        log.summary(confidence=confidence)
