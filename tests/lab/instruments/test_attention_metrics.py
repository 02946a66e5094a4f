"""Each metric at the two ends of its range, against a plain loop, and what the printed coverages imply."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch

from asymtrain.lab.instruments.attention import metrics
from asymtrain.lab.instruments.attention.result import LABELS, bounds

PATCHES = 64
UNIFORM = torch.full((PATCHES,), 1 / PATCHES, dtype=torch.float64)
ONE_HOT = torch.eye(PATCHES, dtype=torch.float64)[5]
OBJECT = (torch.arange(PATCHES) < 16).double()  # a quarter of the image, patch 5 inside

ENDS = {
    "peak_strength": (1 / PATCHES, 1.0),
    "entropy": (math.log(PATCHES), 0.0),
    "gini": (0.0, 1 - 1 / PATCHES),
    "coverage_above": (1.0, 1 / PATCHES),
    "coverage_of_mask": (0.25, 1.0),
    "coverage_of_saliency": (0.25, 1.0),
}


def random_maps(*shape):
    raw = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).log().square()
    return raw / raw.sum(-1, keepdim=True)


def regions(name):
    return [OBJECT] if name in ("coverage_of_mask", "coverage_of_saliency") else []


@pytest.mark.parametrize("name", metrics.METRICS)
def test_the_uniform_and_the_one_hot_map(name):
    uniform, one_hot = (metrics.METRICS[name](m, *regions(name)).item() for m in (UNIFORM, ONE_HOT))
    assert (uniform, one_hot) == pytest.approx(ENDS[name], abs=1e-12)


@pytest.mark.parametrize("name", metrics.METRICS)
def test_the_bounds_hold_the_ends_closely(name):
    low, high = bounds(name, PATCHES)
    assert low <= min(ENDS[name]) <= max(ENDS[name]) <= high
    assert max(ENDS[name]) >= high - 1 / PATCHES


def slow(name, p, inside):
    n = len(p)
    if name == "peak_strength":
        return max(p)
    if name == "entropy":
        return -sum(x * math.log(x) for x in p if x > 0)
    if name == "gini":
        return sum(abs(x - y) for x in p for y in p) / (2 * n * sum(p))
    if name == "coverage_above":
        return sum(x > 0.5 / n for x in p) / n
    return sum(x * y for x, y in zip(p, inside, strict=True))


@pytest.mark.parametrize("name", metrics.METRICS)
def test_against_a_loop(name):
    maps = random_maps(3, 2, 17)
    maps[0, 0, :5] = 0
    inside = torch.rand(3, 2, 17, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    got = metrics.METRICS[name](maps, *([inside] if regions(name) else []))
    assert got.shape == (3, 2)
    for i in range(3):
        for j in range(2):
            assert got[i, j].item() == pytest.approx(slow(name, maps[i, j].tolist(), inside[i, j].tolist()), abs=1e-12)


def test_the_threshold_is_in_multiples_of_the_uniform_value():
    map_ = torch.tensor([0.1, 0.2, 0.3, 0.4])
    assert [metrics.coverage_above(map_, t).item() for t in (0.3, 0.5, 1.0, 1.5, 2.0)] == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert metrics.coverage_above(torch.full((4,), 0.25), 1.0) == 0


def test_undefined_stays_undefined():
    """A diverged net has maps of NaN: no metric may make a number of them."""
    maps = torch.full((2, PATCHES), torch.nan)
    found = metrics.all_metrics(maps, mask=torch.ones(PATCHES), salient=torch.ones(PATCHES))
    assert list(found) == list(metrics.METRICS) == list(LABELS)
    for value in found.values():
        assert value.isnan().all()


def test_a_region_holds_at_most_its_share_plus_gini():
    """The bound in the docstring of `coverage_above`, on random maps and on the map that reaches it."""
    maps = random_maps(200, PATCHES).sort(-1, descending=True).values
    bound = 0.25 + metrics.gini(maps)
    assert (metrics.coverage_of_mask(maps, OBJECT) <= bound + 1e-12).all()
    two_levels = torch.where(OBJECT > 0, 0.7 / 16, 0.3 / 48)
    assert metrics.coverage_of_mask(two_levels, OBJECT).item() == pytest.approx(0.25 + metrics.gini(two_levels).item())


def test_the_printed_coverages_fit_a_threshold_near_half_of_uniform():
    printed = [(0.471, 0.58), (0.415, 0.70), (0.374, 0.84), (0.254, 0.96), (0.287, 0.95), (0.302, 0.94)]
    normal = NormalDist()
    for gini, coverage in printed:
        sigma = math.sqrt(2) * normal.inv_cdf((1 + gini) / 2)  # of log-normal weights with this Gini
        threshold = math.exp(-(sigma**2) / 2 - sigma * normal.inv_cdf(coverage))
        assert 0.36 < threshold < 0.57
        weights = np.random.default_rng(0).lognormal(-(sigma**2) / 2, sigma, 200_000)
        maps = torch.from_numpy(weights / weights.sum())
        assert metrics.gini(maps).item() == pytest.approx(gini, abs=0.01)
        assert metrics.coverage_above(maps, threshold).item() == pytest.approx(coverage, abs=0.01)
    assert [round(c - g, 2) for g, c in printed[2:]] == [0.47, 0.71, 0.66, 0.64]  # least share of an object
