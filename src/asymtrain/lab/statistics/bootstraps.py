"""Bootstraps of the improvement: over seeds, and over test images.

Seeds share one test set, so an interval over seeds says nothing about other images. The bootstrap over images draws
images anew.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from asymtrain.errors import UsageError
from asymtrain.lab.statistics.intervals import ROUNDING


def bootstrap_seeds(
    plain: Sequence[float], asymmetric: Sequence[float], confidence: float = 0.95, draws: int = 9999, seed: int = 0
) -> tuple[float, float]:
    """BCa interval, over seeds drawn as pairs, of the mean difference in percent of Plain's mean.

    Plain's mean is resampled too, while the t interval takes it as known.
    """
    before, after = np.asarray(plain, float), np.asarray(asymmetric, float)
    if before.shape != after.shape or before.ndim != 1 or len(before) < 2:
        raise UsageError("a bootstrap over seeds needs two pairs or more: train more seeds")
    if not before.mean():
        raise UsageError("Plain got no image right, so an improvement cannot be given as a share of it")
    ratio = 100 * float(after.mean() - before.mean()) / float(before.mean())
    # Without spread in the change every resample gives the same number, and BCa divides by that spread.
    if np.std(after - (1 + ratio / 100) * before) <= ROUNDING:
        return ratio, ratio
    from scipy import stats  # takes half a second to load; many commands never need it

    interval = stats.bootstrap(
        (before, after),
        lambda first, second, axis: 100 * (second - first).mean(axis=axis) / first.mean(axis=axis),
        paired=True,
        vectorized=True,
        n_resamples=draws,
        confidence_level=confidence,
        method="BCa",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def unpack_answers(answers: Sequence[bytes], images: int) -> NDArray[np.bool_]:
    """Which test images each run got right, (runs, images), from `Run.answers`."""
    short = [len(packed) for packed in answers if len(packed) != (images + 7) // 8]
    if short:
        raise UsageError(f"{images} test images take {(images + 7) // 8} bytes of answers, got {short[0]}")
    rows = [np.unpackbits(np.frombuffer(packed, np.uint8), count=images) for packed in answers]
    return np.array(rows, bool).reshape(len(rows), images)


def bootstrap_images(
    plain: NDArray[np.bool_],
    asymmetric: NDArray[np.bool_],
    *,
    confidence: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of the improvement (percent of Plain) over test images.

    `plain` and `asymmetric` are right answers (seeds, images) from `unpack_answers`, of the same seeds and images.
    """
    if plain.shape != asymmetric.shape or plain.ndim != 2 or not plain.size:
        raise UsageError("answers of Plain and Asymmetric must have one shape, (seeds, images)")
    seeds, images = plain.shape
    drawn = _draw_images(images, draws, seed)
    right = np.concatenate([plain, asymmetric]).astype(np.float32)  # float32 sums of counts are exact
    counts = np.concatenate([part.astype(np.float32) @ right.T for part in np.array_split(drawn, 1 + draws // 100)])
    counts = counts.reshape(draws, 2, seeds)
    before, after = counts.mean(axis=2, dtype=np.float64).T
    if not before.all():
        raise UsageError("Plain got too few images right for an improvement as a share of it")
    improvements = 100 * (after - before) / before
    low, high = np.quantile(improvements, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


@lru_cache(maxsize=4)  # 20 MB for a test set of 10,000; a table's cells ask for the same draws
def _draw_images(images: int, draws: int, seed: int) -> NDArray[np.uint8]:
    """How often each draw contains each image, (draws, images)."""
    rng = np.random.default_rng(seed)
    drawn = np.empty((draws, images), np.uint8)
    for draw in range(draws):
        drawn[draw] = np.bincount(rng.integers(images, size=images), minlength=images)
    return drawn
