"""A run's schedule, from its spec alone: steps of an epoch, rates and alphas, when it measures and tests."""

import math

import numpy as np
import numpy.typing as npt

from asymtrain.errors import UsageError
from asymtrain.lab.runs import RunSpec

BALANCE_EVERY = 16  # steps; the default of the library's `GradientRatio`


def steps_of(spec: RunSpec, images: int) -> tuple[int, int]:
    """The steps of an epoch over this number of images, and how many images it trains on; each pass counts anew."""
    images *= spec.passes
    if spec.last_batch == "keep":
        return -(-images // spec.batch), images
    if images < spec.batch:
        raise UsageError(
            f"{images} images are fewer than one batch of {spec.batch}, and last_batch=drop: give a smaller batch"
        )
    return images // spec.batch, images // spec.batch * spec.batch


def learning_rates(spec: RunSpec, epoch: int, steps: int) -> npt.NDArray[np.float64]:
    """The learning rate at each step of an epoch (from 0): constant within the epoch, or changing by step.

    The warm-up rises in equal parts; the schedule covers the rest: constant, or a cosine that falls to zero.
    """
    by_step = spec.schedule_by == "step"
    unit = steps if by_step else 1  # changes of the rate in an epoch
    at = epoch * unit + np.arange(unit, dtype=np.float64)
    warm = spec.warmup * unit
    steps_done, remaining = np.maximum(at - warm, 0), spec.epochs * unit - warm
    if spec.schedule == "cosine":
        rates = spec.learning_rate * 0.5 * (1 + np.cos(np.pi * steps_done / remaining))
    else:
        rates = np.full(unit, spec.learning_rate)
    if warm:
        rates = rates * np.minimum(1, (at + 1) / warm)
    return rates if by_step else np.repeat(rates, steps)


def alpha_at(spec: RunSpec, epoch: int) -> float:
    """The weight of the auxiliary objective in an epoch (from 0)."""
    part = epoch / spec.epochs
    shares = {
        "constant": 1.0,
        "linear": 1 - part,
        "cosine": 0.5 * (1 + math.cos(math.pi * part)),
        "early": float(part < 0.5),
    }
    return spec.alpha * shares[spec.alpha_schedule]


def measures_at(every: int, step: int, steps: int) -> bool:
    """Whether this step (from 0) of training measures the cosine: each multiple of `every`, and an epoch's first."""
    return bool(every) and (step % every == 0 or step % steps == 0)


def balances_at(spec: RunSpec, step: int) -> bool:
    """Whether this step (from 0) measures the gradients, to scale those of the next steps to their ratio."""
    return spec.balance == "norms" and step % BALANCE_EVERY == 0


def tests_at(spec: RunSpec, epoch: int) -> bool:
    """Whether the test images are classified after this epoch (from 0)."""
    return spec.test == "every" or (spec.test == "last" and epoch + 1 == spec.epochs)
