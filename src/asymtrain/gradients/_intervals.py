"""Means of a series and their intervals, without scipy: a training loop needs torch alone."""

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

from asymtrain.errors import UsageError

Bounds = tuple[float, float]
ANYTHING: Bounds = (-math.inf, math.inf)
COSINES: Bounds = (-1.0, 1.0)
BLOCKS = 20  # of the batch-means interval, at most
BLOCK_STEPS = 5  # in each block, at least


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return math.fsum(values) / len(values) if values else None


def deviation(values: Sequence[float]) -> float | None:
    """Standard deviation over the number less one; None of fewer than two values."""
    if len(values) < 2:
        return None
    centre = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def batch_means(
    values: Sequence[float], confidence: float = 0.95, least: int = BLOCK_STEPS, within: Bounds = ANYTHING
) -> tuple[float | None, float | None, int, float | None]:
    """Interval of the mean of a series whose neighbours resemble each other: low, high, blocks, autocorrelation.

    See `AlignmentSummary` for what they mean. The interval is around the mean of all values; where the blocks do not
    fill the series, its first values take no part in the spread. `least` values make a block. The interval is cut at
    the least and the largest value that there can be (`within`, see `cut`).
    """
    if not 0 < confidence < 1:  # not only once there are values enough: a short trial would hide the mistake
        raise UsageError(f"an interval needs a confidence between 0 and 1, such as 0.95, got {confidence}")
    count = min(BLOCKS, len(values) // least)
    if count < 2:
        return None, None, 0, None
    length = len(values) // count
    first = len(values) - count * length
    means = [math.fsum(values[i : i + length]) / length for i in range(first, len(values), length)]
    centre, spread = math.fsum(means) / count, deviation(means) or 0.0
    half = student_quantile(confidence, count - 1) * spread / math.sqrt(count)
    around = [value - centre for value in means]
    square = math.fsum(value * value for value in around)
    lagged = math.fsum(a * b for a, b in itertools.pairwise(around))
    whole = math.fsum(values) / len(values)
    low, high = cut(whole - half, whole + half, within)
    return low, high, count, lagged / square if square > 0 and count > 3 else None


def cut(low: float, high: float, within: Bounds) -> tuple[float, float]:
    """An interval, cut at the least and the largest value that the quantity can have.

    The true mean lies between these two as every value does. So the cut interval holds it whenever the whole one
    would, and does not name values, such as a negative norm, that nothing can have.
    """
    return max(low, within[0]), min(high, within[1])


@lru_cache
def student_quantile(confidence: float, freedom: int) -> float:
    """The t for which a Student variable lies in [-t, t] with this probability. Exact, and needs no scipy."""
    if not 0 < confidence < 1 or freedom < 1:
        raise UsageError(
            f"an interval needs a confidence between 0 and 1 and two values, got {confidence} and {freedom}"
        )
    low, high = 0.0, math.pi / 2
    for _ in range(60):  # bisection: the probability grows with the angle
        middle = (low + high) / 2
        low, high = (middle, high) if student_inside(middle, freedom) < confidence else (low, middle)
    return math.tan((low + high) / 2) * math.sqrt(freedom)


def student_inside(angle: float, freedom: int) -> float:
    """P(|T| <= tan(angle) * sqrt(freedom)), by the finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    odd, cos, sin = freedom % 2, math.cos(angle), math.sin(angle)
    term, total = (cos, 0.0) if odd else (1.0, 0.0)
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= cos * cos * k / (k + 1)
    return 2 / math.pi * (angle + sin * total) if odd else sin * total
