"""Bootstraps against full enumeration and known variances."""

import itertools
import math

import numpy as np
import pytest

from asymtrain.errors import UsageError
from asymtrain.lab.statistics import bootstrap_images, bootstrap_seeds, unpack_answers


def improvement(plain, asymmetric):
    return 100 * (np.mean(asymmetric) - np.mean(plain)) / np.mean(plain)


def bca_by_hand(plain, asymmetric, confidence=0.95):
    """Efron's formulas over every one of the n^n draws."""
    from scipy.special import ndtr, ndtri

    n, plain, asymmetric = len(plain), np.asarray(plain), np.asarray(asymmetric)
    draws = np.array(list(itertools.product(range(n), repeat=n)))
    values = np.sort([improvement(plain[draw], asymmetric[draw]) for draw in draws])
    seen = improvement(plain, asymmetric)
    shift = ndtri((np.mean(values < seen) + np.mean(values <= seen)) / 2)
    left_out = np.array([improvement(np.delete(plain, i), np.delete(asymmetric, i)) for i in range(n)])
    apart = left_out.mean() - left_out
    pull = (apart**3).sum() / (6 * (apart**2).sum() ** 1.5)
    ends = [ndtri((1 - confidence) / 2), ndtri((1 + confidence) / 2)]
    return [np.quantile(values, ndtr(shift + (shift + z) / (1 - pull * (shift + z)))) for z in ends]


def test_bca_over_every_draw_of_six_seeds():
    plain, asymmetric = [0.50, 0.52, 0.55, 0.48, 0.51, 0.53], [0.56, 0.53, 0.66, 0.5, 0.52, 0.57]
    found = bootstrap_seeds(plain, asymmetric, draws=20000)
    assert found == pytest.approx(bca_by_hand(plain, asymmetric), abs=0.35)
    assert found == bootstrap_seeds(plain, asymmetric, draws=20000)  # the same draws every time


def test_a_constant_change_is_a_point():
    assert bootstrap_seeds([0.4, 0.5], [0.4, 0.5]) == (0, 0)
    assert bootstrap_seeds([0.4, 0.5], [0.44, 0.55]) == pytest.approx((10, 10))
    with pytest.raises(UsageError, match="two pairs"):
        bootstrap_seeds([0.4], [0.5])
    with pytest.raises(UsageError, match="no image right"):
        bootstrap_seeds([0.0, 0.0], [0.5, 0.4])


def test_answers_are_unpacked_to_the_image():
    right = np.random.default_rng(0).random((3, 21)) < 0.5
    packed = [np.packbits(row).tobytes() for row in right]
    assert (unpack_answers(packed, 21) == right).all()
    with pytest.raises(UsageError, match="take 4 bytes"):
        unpack_answers(packed, 30)


def answers(seeds, images, spread, seed=0):
    """Right answers whose chance differs by image (of spread) for both sides alike, and a gain of Asymmetric."""
    rng = np.random.default_rng(seed)
    chance = np.clip(rng.normal(0.5, spread, images), 0, 1)
    plain = rng.random((seeds, images)) < chance
    return plain, plain | (rng.random((seeds, images)) < 0.1)


def test_images_alone_have_the_deviation_of_a_ratio():
    plain, asymmetric = answers(5, 4000, 0.3)
    low, high = bootstrap_images(plain, asymmetric, draws=1500)
    # The delta method: the deviation over images of the mean of (after - ratio * before) / mean before.
    before, after = plain.mean(axis=0), asymmetric.mean(axis=0)
    ratio = after.mean() / before.mean()
    error = 100 * np.std(after - ratio * before, ddof=1) / before.mean() / math.sqrt(4000)
    assert (high - low) / (2 * 1.96) == pytest.approx(error, rel=0.1)
    assert (high + low) / 2 == pytest.approx(100 * (ratio - 1), abs=0.3 * error)


def test_equal_answers_give_a_point_at_zero():
    plain, _ = answers(3, 50, 0.2)
    assert bootstrap_images(plain, plain, draws=50) == (0, 0)
    with pytest.raises(UsageError, match="one shape"):
        bootstrap_images(plain, plain[:2])
    with pytest.raises(UsageError, match="too few images right"):
        bootstrap_images(np.zeros((2, 9), bool), np.ones((2, 9), bool), draws=5)
