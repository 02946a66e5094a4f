"""A mean over runs with its interval. What is undefined stays out of it, and `n` says how many are in."""

from collections.abc import Iterable
from dataclasses import dataclass

from asymtrain.alignment.intervals import deviation, mean, student_quantile


@dataclass(frozen=True)
class Estimate:
    """Mean, standard deviation and t interval over `n` values; `None` where there are too few for it."""

    n: int
    mean: float | None
    std: float | None
    low: float | None
    high: float | None


def estimate(values: Iterable[float | None], confidence: float = 0.95) -> Estimate:
    """The mean of the values that are not None, with its t interval."""
    seen = [float(value) for value in values if value is not None]
    centre, spread = mean(seen), deviation(seen)
    if centre is None or spread is None:
        return Estimate(len(seen), centre, None, None, None)
    half = student_quantile(confidence, len(seen) - 1) * spread / len(seen) ** 0.5
    return Estimate(len(seen), centre, spread, centre - half, centre + half)
