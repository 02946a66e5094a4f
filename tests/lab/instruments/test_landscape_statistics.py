"""Statistics of a surface against closed forms and numpy, intervals against scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from asymtrain.intervals import ANYTHING
from asymtrain.lab.instruments.landscape.result import STATISTICS, fitted_plane, over_draws, surface_statistics

INDEX = np.arange(51) - 25.0


def test_a_plane_in_closed_form():
    p, q = 3e-5, -4e-5
    found = surface_statistics(4.6 + p * INDEX[:, None] + q * INDEX)
    assert found.mean_gradient == pytest.approx(5e-5, rel=1e-9)
    assert found.std == pytest.approx(5e-5 * math.sqrt((51**2 - 1) / 12), rel=1e-9)
    assert found.range == pytest.approx(50 * 7e-5, rel=1e-9)
    assert found.plane_r2 == pytest.approx(1, abs=1e-12)
    assert found.residual_std == pytest.approx(0, abs=1e-14)
    assert found.center == 4.6
    # The paper's rows satisfy this: its surfaces are nearly planes.
    assert found.mean_gradient == pytest.approx(found.std * 2 * math.sqrt(3) / 50, rel=0.03)


def test_a_bowl_has_no_plane_in_it():
    found = surface_statistics(1 + 1e-3 * (INDEX[:, None] ** 2 + INDEX**2))
    assert found.plane_r2 == pytest.approx(0, abs=1e-12)
    assert found.residual_std == pytest.approx(found.std, rel=1e-12)
    assert found.range == pytest.approx(1.25, rel=1e-12)


def test_against_least_squares_and_a_loop_of_differences():
    losses = np.random.default_rng(0).normal(size=(6, 9))
    found = surface_statistics(losses)
    x, y = np.meshgrid(np.arange(6), np.arange(9), indexing="ij")
    design = np.stack([np.ones(54), x.ravel(), y.ravel()], 1)
    fit, *_ = np.linalg.lstsq(design, losses.ravel(), rcond=None)
    np.testing.assert_allclose(fitted_plane(losses).ravel(), design @ fit, atol=1e-12)
    residual = losses.ravel() - design @ fit
    assert found.plane_r2 == pytest.approx(1 - residual.var() / losses.var(), rel=1e-12)
    assert found.residual_std == pytest.approx(residual.std(), rel=1e-12)
    assert (found.std, found.range) == (pytest.approx(losses.std()), pytest.approx(losses.max() - losses.min()))

    def slope(line, i):
        if i in (0, len(line) - 1):
            return line[1] - line[0] if i == 0 else line[-1] - line[-2]
        return (line[i + 1] - line[i - 1]) / 2

    lengths = [math.hypot(slope(losses[:, j], i), slope(losses[i], j)) for i in range(6) for j in range(9)]
    assert found.mean_gradient == pytest.approx(np.mean(lengths), rel=1e-12)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_loss_that_is_not_finite_is_counted_and_nothing_is_made_of_it(wrong):
    losses = np.ones((3, 3))
    losses[0, 1] = wrong
    found = surface_statistics(losses)
    assert found.non_finite == 1
    assert (found.std, found.range, found.mean_gradient, found.plane_r2, found.residual_std) == (None,) * 5


def test_a_constant_surface_has_no_r2():
    found = surface_statistics(np.full((5, 5), 2.3))
    assert (found.std, found.mean_gradient, found.plane_r2) == (0, 0, None)


def test_intervals_against_scipy_and_numpy():
    values = list(np.random.default_rng(1).normal(size=12))
    found = over_draws([[*values, None]])
    low, high = stats.t.interval(0.95, 11, np.mean(values), stats.sem(values))
    assert found.n == 12
    assert (found.mean, found.low, found.high) == (
        pytest.approx(np.mean(values)),
        pytest.approx(low),
        pytest.approx(high),
    )
    expected = np.quantile(values, [0.025, 0.975])
    assert (found.percentile_low, found.percentile_high) == tuple(map(pytest.approx, expected))


@pytest.mark.parametrize(("values", "mean"), [([], None), ([None], None), ([2.0], 2.0)])
def test_too_few_draws_have_no_interval(values, mean):
    found = over_draws([values])
    assert (found.mean, found.low, found.high, found.percentile_low) == (mean, None, None, None)


def test_several_seeds_have_an_interval_over_their_means_and_a_range_of_all_draws():
    draws = np.random.default_rng(2).normal(size=(3, 40)).tolist()
    found = over_draws([[*draws[0], None], *draws[1:], [None]])
    means = [np.mean(group) for group in draws]
    low, high = stats.t.interval(0.95, 2, np.mean(means), stats.sem(means))
    assert (found.n, found.mean) == (3, pytest.approx(np.mean(means)))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    expected = np.quantile(np.ravel(draws), [0.025, 0.975])
    assert (found.percentile_low, found.percentile_high) == tuple(map(pytest.approx, expected))


def test_the_interval_of_a_positive_quantity_ends_at_0():
    free, positive = (over_draws([[0.1, 0.2, 0.9]], within) for within in (ANYTHING, STATISTICS["std"]))
    assert free.low < 0
    assert (positive.low, positive.high, positive.mean) == (0, free.high, free.mean)
