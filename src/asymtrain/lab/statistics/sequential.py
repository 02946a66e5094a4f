"""A t-test that allows a look after every pair: the interval holds at any stopping time.

An interval for one look errs more often than it says if one looks repeatedly and stops at a convenient answer. This one
is a confidence sequence: the probability that it *ever* excludes the true mean is at most `LEVEL`, for any number of
pairs and any stopping time, now or after another call. So it is wider than an interval for one look.

It is the t-test with a normal mixture over the effect size d = mean / deviation, d ~ N(0, SPREAD). For n values with t
statistic t, the likelihood ratio against "the mean is 0" is, with v = 1 + n * SPREAD,

    evidence = v^(-1/2) * [(n - 1 + t^2) / (n - 1 + t^2 / v)]^(n/2)

and by Ville's inequality it reaches 1 / LEVEL with probability at most LEVEL if the mean is 0 (T. L. Lai, "On
confidence sequences", Ann. Statist. 4, 1976; M. F. Perez-Ortiz et al., "E-statistics, group invariance and
anytime-valid testing", Ann. Statist. 52, 2024; H. Wang and A. Ramdas, "Anytime-valid t-tests and confidence sequences
for Gaussian means with unknown variance", 2025). The interval holds each mean against which the evidence is below
1 / LEVEL.

Assumptions: values are independent and normal, with any deviation; the decision to stop depends only on the values seen
so far. For eight paired differences, symmetry about their mean is enough, which holds if both sides are drawn alike:
the tests simulate it. SPREAD changes how wide the interval is at each n, not whether it is valid: 10 is close to the
narrowest from 4 to 8 values. Fewer than three values give no interval.
"""

import math
from collections.abc import Sequence

from asymtrain.errors import UsageError
from asymtrain.intervals import deviation
from asymtrain.lab.statistics.decisions import LEVEL
from asymtrain.lab.statistics.intervals import ROUNDING

SPREAD = 10.0
LEAST = 3  # fewer values have no interval


def half_width(n: int, level: float = LEVEL) -> float:
    """Half the width of the interval of n values, in units of their deviation; infinite for too few values."""
    if not 0 < level < 1:
        raise UsageError(f"a level lies between 0 and 1, got {level}")
    v = 1 + n * SPREAD
    ratio = (math.sqrt(v) / level) ** (2 / n) if n else math.inf
    if n < LEAST or ratio >= v:
        return math.inf
    return math.sqrt((n - 1) * (ratio - 1) / (1 - ratio / v) / n)


def sequential_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
    """The interval of the mean after these values; None if they are too few, or have no spread."""
    spread, half = deviation(values), half_width(len(values), level)
    if spread is None or spread <= ROUNDING or math.isinf(half):
        return None
    centre = math.fsum(values) / len(values)
    return centre - half * spread, centre + half * spread


def values_to_decide(centre: float, spread: float, margin: float, most: int = 1000) -> int | None:
    """How many values decide if later ones have this mean and deviation; None if `most` do not.

    Decided: the interval excludes 0, or lies within the margin on both sides of it.
    """
    for n in range(LEAST, most + 1):
        half = half_width(n) * spread
        if half < abs(centre) or half + abs(centre) < margin:
            return n
    return None
