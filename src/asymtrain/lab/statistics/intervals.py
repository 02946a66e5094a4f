"""Intervals and tests of a mean over seeds, such as the mean of paired differences.

Without spread there is nothing to divide by, and the answer is exact: the interval is a point, and p is 1 if the mean
is 0, else 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asymtrain.errors import UsageError
from asymtrain.intervals import student_interval

ROUNDING = 1e-12  # accuracies and cosines are of order one: a deviation below this is rounding
MOST_SIGNED = 13  # differences for which every combination of signs is tried
LEAST_WILCOXON = 6  # with five differences the smallest two-sided p is 1/16: the test cannot reach 5%


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval and the two-tailed p of "it is 0", not corrected."""

    estimate: float
    low: float
    high: float
    p: float
    n: int  # values, or pairs


def t_interval(values: Sequence[float], confidence: float = 0.95, family: int = 1) -> Interval:
    """The mean of `values` and its t interval, Bonferroni-corrected for a family of tests.

    For paired differences this is the paired t-test.
    """
    if not 0 < confidence < 1 or family < 1:
        raise UsageError(f"confidence lies between 0 and 1, a family has 1 test or more: got {confidence}, {family}")
    mean, error, n = _mean_and_error(values)
    if error <= ROUNDING:
        return Interval(mean, mean, mean, 1.0 if abs(mean) <= ROUNDING else 0.0, n)
    p, level = 2 * _t_tail(abs(mean) / error, n - 1), 1 - (1 - confidence) / family
    return Interval(mean, *student_interval(mean, error, n - 1, level), p, n)


def equivalence_p(values: Sequence[float], margin: float) -> float:
    """Twice the larger p of "the mean is not above -margin" and "not below margin".

    Below 1 - confidence exactly if the t interval of that confidence lies within the margin on both sides of 0.
    """
    mean, error, n = _mean_and_error(values)
    if error <= ROUNDING:
        return 0.0 if abs(mean) < margin else 1.0
    one_sided = [_t_tail((margin - side * mean) / error, n - 1) for side in (1, -1)]
    return min(1.0, 2 * max(one_sided))


def wilcoxon_p(differences: Sequence[float]) -> float | None:
    """Two-tailed Wilcoxon signed-rank p without zeros; None if fewer than 6 differences are left.

    Exact without ties, and with ties up to 13 differences (every sign is tried); beyond that from 9999 drawn signs.
    """
    # Differences that are equal as counts of images may differ in their last bits: rounding makes them ties again.
    sample = np.round(np.asarray(differences, float), 12)
    sample = sample[sample != 0]
    if len(sample) < LEAST_WILCOXON:
        return None
    values, positions, counts = np.unique(np.abs(sample), return_inverse=True, return_counts=True)
    if len(sample) <= MOST_SIGNED:
        ranks = (2 * np.cumsum(counts) - counts + 1)[positions]  # twice the mean rank of ties, a whole number
        signs = np.arange(2 ** len(sample))[:, None] >> np.arange(len(sample)) & 1
        sums, ours = signs @ ranks, ranks[sample > 0].sum()
        return min(1.0, 2 * float(min(np.mean(sums <= ours), np.mean(sums >= ours))))
    from scipy import stats  # takes a second to load; most commands never need it

    method = stats.PermutationMethod(n_resamples=9999, rng=np.random.default_rng(0))
    return float(stats.wilcoxon(sample, method=method if len(values) < len(sample) else "exact").pvalue)


def _mean_and_error(values: Sequence[float]) -> tuple[float, float, int]:
    """The mean, its standard error, and how many values there are."""
    sample = np.asarray(values, np.float64)
    if sample.ndim != 1 or len(sample) < 2:
        raise UsageError("an interval needs two values or more: train more seeds")
    if not np.isfinite(sample).all():
        raise UsageError("a value is not finite: a diverged run counts at chance accuracy")
    return float(sample.mean()), float(sample.std(ddof=1)) / len(sample) ** 0.5, len(sample)


def _t_tail(t: float, freedom: float) -> float:
    """Equals `scipy.stats.t.sf`, without scipy.stats, which takes a second to load."""
    from scipy.special import stdtr

    return float(stdtr(freedom, -t))
