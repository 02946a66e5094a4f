"""Numbers of a series and of paired differences: pure functions of lists, without scipy."""

import math
import statistics
from collections.abc import Sequence

from asymtrain.gradients._intervals import BLOCK_STEPS, BLOCKS, deviation, mean, student_inside, student_interval

MOST_Z = 3.0  # a handful of seeds cannot say more than this
NORMAL = statistics.NormalDist()


def floored_interval(
    values: Sequence[float], confidence: float = 0.95, floor: float = 0.0
) -> tuple[float | None, float | None]:
    """The t interval of the mean; None of fewer than two values. `floor` is the least deviation that is believed."""
    centre, spread = mean(values), deviation(values)
    if centre is None or spread is None:
        return None, None
    return student_interval(centre, max(spread, floor) / math.sqrt(len(values)), len(values) - 1, confidence)


def trend(values: Sequence[float], confidence: float = 0.95) -> tuple[float | None, float | None, float | None]:
    """Change from the first to the last value along a line through the means of blocks, with its interval.

    Blocks are those of `batch_means`: neighbours resemble each other, so the line's error is taken from their means.
    None where there are fewer than three blocks.
    """
    count = min(BLOCKS, len(values) // BLOCK_STEPS)
    if count < 3:
        return None, None, None
    length = len(values) // count
    first = len(values) - count * length
    heights = [math.fsum(values[i : i + length]) / length for i in range(first, len(values), length)]
    places = [first + (length - 1) / 2 + i * length for i in range(count)]
    slope, intercept = statistics.linear_regression(places, heights)
    rest = math.fsum((h - intercept - slope * p) ** 2 for p, h in zip(places, heights, strict=True))
    error = math.sqrt(rest / (count - 2) / ((count - 1) * statistics.variance(places)))
    low, high = student_interval(slope, error, count - 2, confidence)
    span = len(values) - 1
    return slope * span, low * span, high * span


def z_score(differences: Sequence[float], floor: float) -> float:
    """How clearly a mean of paired differences is above 0, as a normal score between -3 and 3.

    The probability of the t statistic, as the normal deviate of the same probability: few seeds say less. `floor` is
    the least standard deviation that is believed: accuracies on few images often agree by chance.
    """
    centre, spread = mean(differences), deviation(differences)
    if centre is None or spread is None:
        return 0.0
    t, freedom = centre / (max(spread, floor) / math.sqrt(len(differences))), len(differences) - 1
    inside = student_inside(math.atan(abs(t) / math.sqrt(freedom)), freedom)
    score = NORMAL.inv_cdf(min(0.5 + inside / 2, NORMAL.cdf(MOST_Z)))
    return math.copysign(score, t)


def median(values: Sequence[float]) -> float | None:
    """The middle value; None of nothing."""
    return statistics.median(values) if values else None
