"""Everything that is said of one cell of a table, from its pairs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asymtrain.errors import UsageError
from asymtrain.lab.statistics.bootstraps import bootstrap_seeds
from asymtrain.lab.statistics.effect_sizes import cohen_d_av, cohen_d_z, size_word
from asymtrain.lab.statistics.intervals import t_interval, wilcoxon_p
from asymtrain.lab.statistics.power import minimum_detectable_improvement


@dataclass(frozen=True)
class Description:
    """One cell over seeds. Improvements and their intervals are in percent of Plain's mean; None where undefined.

    Attributes:
        n: pairs.
        plain_mean: over seeds, as the next three; deviations over n - 1.
        plain_std: None for one pair.
        asymmetric_mean: see plain_mean.
        asymmetric_std: None for one pair.
        improvement: mean of (Asymmetric - Plain).
        interval: t interval, Bonferroni over the family.
        bootstrap: BCa interval over seeds, not corrected.
        p: two-tailed paired t-test.
        p_bonferroni: p corrected for the family.
        p_wilcoxon: two-tailed signed-rank test, from 6 pairs on.
        d_z: Cohen's d of the differences.
        d_av: Cohen's d by the mean deviation of both sides.
        size: the usual word for d_av.
        detectable: the least improvement that this many pairs of this spread find with a power of 80%.
    """

    n: int
    plain_mean: float
    plain_std: float | None
    asymmetric_mean: float
    asymmetric_std: float | None
    improvement: float | None
    interval: tuple[float, float] | None = None
    bootstrap: tuple[float, float] | None = None
    p: float | None = None
    p_bonferroni: float | None = None
    p_wilcoxon: float | None = None
    d_z: float | None = None
    d_av: float | None = None
    size: str = "undefined"
    detectable: float | None = None


def describe(
    plain: Sequence[float], asymmetric: Sequence[float], *, family: int = 1, confidence: float = 0.95
) -> Description:
    """Describe the pairs (`plain[i]`, `asymmetric[i]`) as one of a family of tests."""
    if len(plain) != len(asymmetric) or not len(plain):
        raise UsageError(
            f"pairs need one value on each side: got {len(plain)} of Plain, {len(asymmetric)} of Asymmetric"
        )
    before, after = np.asarray(plain, float), np.asarray(asymmetric, float)
    n, base = len(before), float(before.mean())
    improvement = 100 * float((after - before).mean()) / base if base else None
    if n == 1:
        return Description(n, base, None, float(after.mean()), None, improvement)
    test = t_interval(after - before, confidence, family)
    return Description(
        n,
        base,
        float(before.std(ddof=1)),
        float(after.mean()),
        float(after.std(ddof=1)),
        improvement,
        interval=(100 * test.low / base, 100 * test.high / base) if base else None,
        bootstrap=bootstrap_seeds(plain, asymmetric, confidence) if base else None,
        p=test.p,
        p_bonferroni=min(1.0, family * test.p),
        p_wilcoxon=wilcoxon_p(after - before),
        d_z=cohen_d_z(plain, asymmetric),
        d_av=cohen_d_av(plain, asymmetric),
        size=size_word(cohen_d_av(plain, asymmetric)),
        detectable=minimum_detectable_improvement(plain, asymmetric, family=family),
    )
