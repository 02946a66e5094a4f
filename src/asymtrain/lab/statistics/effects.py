"""Effect sizes, corrections, and power.

- Cohen's d, named by its kind: papers that print "d" mean one of these, and they differ by a factor.
- Corrections for many tests. A family is what is read together: a table's cells.
- What a number of seeds can detect: report it beside an unclear result.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from asymtrain.errors import UsageError
from asymtrain.lab.statistics.intervals import ROUNDING

WORDS = ((0.8, "large"), (0.5, "medium"), (0.2, "small"))


def cohen_d_z(plain: Sequence[float], asymmetric: Sequence[float]) -> float | None:
    """Mean difference over the deviation of the differences, as the paired test uses it. None without spread."""
    return _ratio(plain, asymmetric, _deviation(np.asarray(asymmetric, float) - np.asarray(plain, float)))


def cohen_d_av(plain: Sequence[float], asymmetric: Sequence[float]) -> float | None:
    """Mean difference over the mean of both sides' deviations, which the usual words refer to. None without spread."""
    return _ratio(plain, asymmetric, (_deviation(plain) + _deviation(asymmetric)) / 2)


def size_word(d: float | None) -> str:
    """The usual word: small from 0.2 on, medium from 0.5, large from 0.8."""
    if d is None:
        return "undefined"
    return next((word for least, word in WORDS if abs(d) >= least), "negligible")


def _deviation(values: Sequence[float] | NDArray[np.float64]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _ratio(plain: Sequence[float], asymmetric: Sequence[float], spread: float) -> float | None:
    return float(np.mean(asymmetric) - np.mean(plain)) / spread if spread > ROUNDING else None


def bonferroni(p_values: Sequence[float], family: int | None = None) -> list[float]:
    """Each p times the size of the family, at most 1."""
    size = _family_size(p_values, family)
    return [min(1.0, float(p) * size) for p in p_values]


def holm(p_values: Sequence[float], family: int | None = None) -> list[float]:
    """Holm's step-down p: as safe as Bonferroni's and never larger.

    If the family has more tests than known p values, the missing ones count as 1: the known ones are then corrected at
    least as strongly as with all. Written here, since statsmodels' `multipletests` collects garbage at every call; a
    test compares them.
    """
    size = _family_size(p_values, family)
    p = np.array([*p_values, *[1.0] * (size - len(p_values))], float)
    order = np.argsort(p)
    p[order] = np.maximum.accumulate(p[order] * np.arange(size, 0, -1))
    return [float(value) for value in np.minimum(p, 1.0)[: len(p_values)]]


def _family_size(p_values: Sequence[float], family: int | None) -> int:
    size = len(p_values) if family is None else family
    if size < len(p_values):
        raise UsageError(f"a family of {size} tests cannot hold {len(p_values)} p values")
    return size


@cache  # one root search for all cells of a table
def minimum_detectable_d(n: int, power: float = 0.8, alpha: float = 0.05, family: int = 1) -> float:
    """The least |d_z| that a two-tailed paired t-test of `n` pairs finds with this power, Bonferroni over `family`."""
    from statsmodels.stats.power import TTestPower  # takes seconds to load; most commands never need it

    if n < 2:
        raise UsageError("a paired test needs two pairs or more: train more seeds")
    return float(TTestPower().solve_power(None, n, alpha / family, power, "two-sided"))


def minimum_detectable_improvement(
    plain: Sequence[float], asymmetric: Sequence[float], power: float = 0.8, alpha: float = 0.05, family: int = 1
) -> float | None:
    """The same in percent of Plain's mean, at the spread of these pairs; None if Plain got nothing right."""
    base = float(np.mean(plain))
    spread = float(np.std(np.asarray(asymmetric, float) - np.asarray(plain, float), ddof=1))
    return 100 * minimum_detectable_d(len(plain), power, alpha, family) * spread / base if base else None
