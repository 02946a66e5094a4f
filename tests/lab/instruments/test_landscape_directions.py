"""Directions: filters by hand in numpy, streams, and what idle branches add to a norm."""

import numpy as np
import pytest
import torch
from landscape_examples import states_of
from scipy import stats

from asymtrain.lab.instruments.landscape.surface import (
    filter_normalised,
    gaussian_direction,
    idle_squared_norm,
    squared_norm,
)

CENTER = {
    "conv.weight": torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(0)),
    "conv.bias": torch.ones(4),
    "norm.weight": torch.ones(4),
    "token": torch.randn(1, 1, 5, generator=torch.Generator().manual_seed(1)),
    "branch.0": torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(2)),
    "branch.0.bias": torch.ones(2, 3),
}


def test_filters_by_hand():
    direction = gaussian_direction(CENTER, 3, 0, 0)
    found = filter_normalised(direction, CENTER)
    drawn = {name: value.numpy() for name, value in direction.items()}
    kernel, token, branch = (CENTER[name].numpy() for name in ("conv.weight", "token", "branch.0"))
    for i in range(4):
        expected = drawn["conv.weight"][i] * np.linalg.norm(kernel[i]) / np.linalg.norm(drawn["conv.weight"][i])
        np.testing.assert_allclose(found["conv.weight"][i], expected, rtol=1e-5)
    expected = drawn["token"] * np.linalg.norm(token) / np.linalg.norm(drawn["token"])
    np.testing.assert_allclose(found["token"], expected, rtol=1e-5)
    for n in range(2):
        for c in range(3):
            row = drawn["branch.0"][n, c]
            np.testing.assert_allclose(
                found["branch.0"][n, c], row * np.linalg.norm(branch[n, c]) / np.linalg.norm(row), rtol=1e-5
            )
    for name in ("conv.bias", "norm.weight", "branch.0.bias"):
        assert not found[name].any(), name
    assert all(torch.equal(direction[name], torch.from_numpy(drawn[name])) for name in direction)


def test_a_filter_of_zeros_stays_where_it_is():
    center = {"weight": torch.zeros(2, 3)}
    found = filter_normalised({"weight": torch.zeros(2, 3)}, center)
    assert torch.equal(found["weight"], torch.zeros(2, 3))


def test_draws_are_keyed_and_leave_the_global_stream_alone():
    before = torch.random.get_rng_state()
    plain, one, twenty = (state.parameters for state in states_of("mlp", (0, 1, 20)))
    base = gaussian_direction(plain, 5, 2, 0)
    for other in (one, twenty):
        direction = gaussian_direction(other, 5, 2, 0)
        assert all(torch.equal(direction[name], base[name]) for name in base)
    assert all(
        torch.equal(v, gaussian_direction(twenty, 5, 2, 0)[n]) for n, v in gaussian_direction(one, 5, 2, 0).items()
    )
    for seed, draw, axis in ((6, 2, 0), (5, 1, 0), (5, 2, 1)):
        assert not torch.equal(gaussian_direction(plain, seed, draw, axis)["head.weight"], base["head.weight"])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_entries_are_standard_normal():
    drawn = gaussian_direction({"weight": torch.zeros(200, 500)}, 0, 0, 0)["weight"].flatten().double().numpy()
    assert stats.kstest(drawn, "norm").pvalue > 1e-3
    assert squared_norm({"weight": torch.from_numpy(drawn)}) == pytest.approx((drawn**2).sum(), rel=1e-12)


def test_idle_branches_are_chi_square_and_nested():
    size = 60
    drawn = [idle_squared_norm(seed, 0, 0, branches=5, size=size) for seed in range(400)]
    assert stats.kstest(drawn, stats.chi2(5 * size).cdf).pvalue > 1e-3
    # Explicit entries have the same distribution.
    entries = torch.randn(400, 5 * size, generator=torch.Generator().manual_seed(0)).square().sum(1).numpy()
    assert stats.ks_2samp(drawn, entries).pvalue > 1e-3
    sums = [idle_squared_norm(1, 0, 0, branches=n, size=size) for n in range(200)]
    assert stats.kstest(np.diff(sums), stats.chi2(size).cdf).pvalue > 1e-3  # one branch more adds one branch
    assert idle_squared_norm(1, 0, 0, branches=0, size=size) == 0
    assert idle_squared_norm(1, 0, 0, branches=3, size=size) != idle_squared_norm(1, 0, 1, branches=3, size=size)
