"""What a number of seeds can detect at all: an unclear result is news only beside this."""

from collections.abc import Sequence

import numpy as np

from asymtrain.errors import UsageError


def minimum_detectable_d(n: int, power: float = 0.8, alpha: float = 0.05, family: int = 1) -> float:
    """The least |d_z| that a two-tailed paired t-test of `n` pairs finds with this power, Bonferroni over `family`."""
    from statsmodels.stats.power import TTestPower  # takes seconds to load; most commands never ask

    if n < 2:
        raise UsageError("a paired test needs two pairs or more: train more seeds")
    return float(TTestPower().solve_power(None, n, alpha / family, power, "two-sided"))


def minimum_detectable_improvement(
    plain: Sequence[float], asymmetric: Sequence[float], power: float = 0.8, alpha: float = 0.05, family: int = 1
) -> float | None:
    """The same in percent of Plain's mean, at the spread of these pairs; None where Plain got nothing right."""
    base = float(np.mean(plain))
    spread = float(np.std(np.asarray(asymmetric, float) - np.asarray(plain, float), ddof=1))
    return 100 * minimum_detectable_d(len(plain), power, alpha, family) * spread / base if base else None
