"""A mean over runs with its interval. What is undefined stays out of it, and `n` says how many are in."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from asymtrain.gradients._intervals import ANYTHING, Bounds, cut, deviation, mean, student_interval

SHARES: Bounds = (0.0, 1.0)  # accuracies as well
DIFFERENCES: Bounds = (-1.0, 1.0)  # of two shares
POSITIVE: Bounds = (0.0, math.inf)


@dataclass(frozen=True)
class Estimate:
    """Mean, standard deviation and t interval over `n` values; `None` where there are too few for it."""

    n: int
    mean: float | None
    std: float | None
    low: float | None
    high: float | None


def estimate(values: Iterable[float | None], confidence: float = 0.95, within: Bounds = ANYTHING) -> Estimate:
    """The mean of the values that are not None, with its t interval.

    The interval is cut at the least and the largest value that the quantity can have (`within`; see `cut`). On a
    logarithmic scale the interval of a positive quantity would stay above 0 by itself, but it would be one of the
    geometric mean, and not of the mean that is shown.
    """
    seen = [float(value) for value in values if value is not None]
    centre, spread = mean(seen), deviation(seen)
    if centre is None or spread is None:
        return Estimate(len(seen), centre, None, None, None)
    interval = student_interval(centre, spread / len(seen) ** 0.5, len(seen) - 1, confidence)
    return Estimate(len(seen), centre, spread, *cut(*interval, within))
