"""Cohen's d, named by its kind: papers that print "d" mean one of these, and they differ by a factor."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asymtrain.lab.statistics.intervals import ROUNDING

WORDS = ((0.8, "large"), (0.5, "medium"), (0.2, "small"))


def cohen_d_z(plain: Sequence[float], asymmetric: Sequence[float]) -> float | None:
    """Mean difference over the deviation of the differences: what the paired test sees. None without spread."""
    return _ratio(plain, asymmetric, _deviation(np.asarray(asymmetric, float) - np.asarray(plain, float)))


def cohen_d_av(plain: Sequence[float], asymmetric: Sequence[float]) -> float | None:
    """Mean difference over the mean of both sides' deviations: what the usual words are for. None without spread."""
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
