"""Means, deviations and t intervals with the standard library only, so users need no scipy, and pages no torch.

`batch_means` is for a series whose neighbouring values are similar, such as the steps of a training run.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from asymtrain.errors import UsageError

Bounds = tuple[float, float]
ANYTHING: Bounds = (-math.inf, math.inf)
COSINES: Bounds = (-1.0, 1.0)
BLOCKS = 20  # at most, for the batch-means interval
BLOCK_STEPS = 5  # in each block, at least


@dataclass(frozen=True)
class CosineSummary:
    """Statistics of the cosines of one training run, over the steps with a defined cosine; `None` without such steps.

    The interval of the mean is computed by batch means: the steps are cut into `blocks` of equal length, and the t
    interval uses the blocks' means. Steps close in time are similar, so an interval over single steps would be too
    narrow. A drift during training widens this one.
    """

    undefined: int  # steps without a cosine
    final: float | None
    mean: float | None
    min: float | None
    max: float | None
    conflict: float | None  # share of steps with a negative cosine
    low: float | None  # the interval, cut at -1 and 1; None with too few steps
    high: float | None
    blocks: int
    autocorrelation: float | None  # between neighbouring blocks; well above 0 means that the interval is too narrow
    main_norm: float | None  # mean over the steps whose norm is finite
    auxiliary_norm: float | None


def mean(values: Sequence[float]) -> float | None:
    """The mean; None without values."""
    return math.fsum(values) / len(values) if values else None


def deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation (n - 1); None with fewer than two values."""
    if len(values) < 2:
        return None
    centre = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def batch_means(
    values: Sequence[float], confidence: float = 0.95, least: int = BLOCK_STEPS, within: Bounds = ANYTHING
) -> tuple[float | None, float | None, int, float | None]:
    """The interval of the mean of a series with similar neighbours: low, high, blocks, autocorrelation.

    See `CosineSummary` for their meaning. The interval is around the mean of all values; if the blocks do not fill the
    series, its first values do not count for the spread. A block has at least `least` values. The interval is cut at
    the smallest and the largest possible value (`within`, see `cut`).
    """
    if not 0 < confidence < 1:  # checked first, so that a short trial run shows the mistake too
        raise UsageError(f"an interval needs a confidence between 0 and 1, such as 0.95, got {confidence}")
    count = min(BLOCKS, len(values) // least)
    if count < 2:
        return None, None, 0, None
    length = len(values) // count
    first = len(values) - count * length
    means = [math.fsum(values[i : i + length]) / length for i in range(first, len(values), length)]
    centre, spread = math.fsum(means) / count, deviation(means) or 0.0
    around = [value - centre for value in means]
    square = math.fsum(value * value for value in around)
    lagged = math.fsum(a * b for a, b in itertools.pairwise(around))
    whole = math.fsum(values) / len(values)
    low, high = cut(*student_interval(whole, spread / math.sqrt(count), count - 1, confidence), within)
    return low, high, count, lagged / square if square > 0 and count > 3 else None


def cut(low: float, high: float, within: Bounds) -> tuple[float, float]:
    """An interval, cut at the smallest and the largest value that the quantity can have.

    The true mean lies between these two, as every value does. So the cut interval holds it whenever the whole one
    does, without impossible values such as a negative norm.
    """
    return max(low, within[0]), min(high, within[1])


def student_interval(centre: float, error: float, freedom: float, confidence: float) -> tuple[float, float]:
    """The t interval of an estimate with this standard error, for the library and the lab."""
    half = student_quantile(confidence, freedom) * error
    return centre - half, centre + half


@lru_cache
def student_quantile(confidence: float, freedom: float) -> float:
    """The t for which a Student variable lies in [-t, t] with this probability. Exact, without scipy."""
    if not 0 < confidence < 1 or freedom < 1:
        raise UsageError(
            f"an interval needs a confidence between 0 and 1 and two values, got {confidence} and {freedom}"
        )
    low, high = 0.0, math.pi / 2
    for _ in range(60):  # bisection: the probability outside falls as the angle grows
        middle = (low + high) / 2
        low, high = (middle, high) if _outside(middle, freedom) > 1 - confidence else (low, middle)
    return math.tan((low + high) / 2) * math.sqrt(freedom)


def _outside(angle: float, freedom: float) -> float:
    """P(|T| > tan(angle) * sqrt(freedom)): the regularised incomplete beta function I(cos^2; freedom / 2, 1 / 2)."""
    a, b, x, y = freedom / 2, 0.5, math.cos(angle) ** 2, math.sin(angle) ** 2
    if x <= 0 or y <= 0:
        return 0.0 if x <= 0 else 1.0
    scale = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(y))
    if x < (a + 1) / (a + b + 2):
        return scale * _beta_fraction(a, b, x) / a
    return 1 - scale * _beta_fraction(b, a, y) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of Abramowitz and Stegun, 26.5.8, evaluated from its beginning (modified Lentz)."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = d
    for m in itertools.count(1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = value
        for term in (even, odd):
            c, d = 1 + term / c, 1 / (1 + term * d)
            value *= c * d
        if abs(value - before) <= 1e-16 * abs(value):
            break
    return value
