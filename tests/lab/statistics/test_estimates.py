"""Values over runs: the calibration of their answers."""

import numpy as np
import pytest
from scipy.stats import binned_statistic

from asymtrain.lab.statistics.estimates import CALIBRATION_BINS, calibration_error


def test_calibration_error_against_bins_of_scipy():
    drawn = np.random.default_rng(0)
    confidence, right = drawn.random(500), drawn.random(500) < 0.6
    means, edges, bins = binned_statistic(confidence, confidence, "mean", bins=CALIBRATION_BINS, range=(0, 1))
    accuracies, *_ = binned_statistic(confidence, right, "mean", bins=edges)
    shares = np.bincount(bins - 1, minlength=CALIBRATION_BINS) / 500
    assert calibration_error(confidence, right) == pytest.approx(np.nansum(shares * np.abs(means - accuracies)))


def test_calibration_error_of_the_surest_answers():
    assert calibration_error(np.ones(4, np.float32), np.array([True, True, True, False])) == 0.25
    assert calibration_error(np.ones(4, np.float32), np.ones(4, bool)) == 0.0
    assert calibration_error(np.array([0.5, np.nan]), np.ones(2, bool)) is None
