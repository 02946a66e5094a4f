"""A mean over runs with its interval, without undefined values (`n` counts the others); calibration."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asymtrain.intervals import ANYTHING, Bounds, cut, deviation, mean, student_interval

SHARES: Bounds = (0.0, 1.0)  # accuracies as well
DIFFERENCES: Bounds = (-1.0, 1.0)  # between two shares
POSITIVE: Bounds = (0.0, math.inf)
CALIBRATION_BINS = 15


@dataclass(frozen=True)
class Estimate:
    """Mean, standard deviation and t interval over `n` values; `None` if there are too few for it."""

    n: int
    mean: float | None
    std: float | None
    low: float | None
    high: float | None


def estimate(values: Iterable[float | None], confidence: float = 0.95, within: Bounds = ANYTHING) -> Estimate:
    """The mean of the values that are not None, with its t interval.

    The interval is clipped to the smallest and largest possible value (`within`; see `cut`). On a logarithmic scale, a
    positive quantity's interval would stay above 0 by itself, but it would belong to the geometric mean instead of the
    mean that is shown.
    """
    numbers = [float(value) for value in values if value is not None]
    centre, spread = mean(numbers), deviation(numbers)
    if centre is None or spread is None:
        return Estimate(len(numbers), centre, None, None, None)
    interval = student_interval(centre, spread / len(numbers) ** 0.5, len(numbers) - 1, confidence)
    return Estimate(len(numbers), centre, spread, *cut(*interval, within))


def calibration_error(confidence: NDArray[np.floating], right: NDArray[np.bool_]) -> float | None:
    """Expected calibration error: the distance of confidence and accuracy in bins of equal width, weighted by size.

    None for a diverged run, whose confidence is not a number.
    """
    if not np.isfinite(confidence).all():
        return None
    bins = np.minimum((confidence * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, weights=confidence.astype(float) - right, minlength=CALIBRATION_BINS)
    return float(np.abs(gaps).sum() / len(right))
