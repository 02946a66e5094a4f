"""When a run does what, from its spec alone: steps of an epoch, rates and alphas, what is measured and tested when."""

import math

import numpy as np
import numpy.typing as npt

from asymtrain.errors import UsageError
from asymtrain.lab.runs import RunSpec

BALANCE_EVERY = 16  # steps; what `GradientRatio` of the library does


def steps_of(spec: RunSpec, images: int) -> tuple[int, int]:
    """Steps of an epoch over so many images, and how many of them it trains on; in each pass anew."""
    images *= spec.passes
    if spec.last_batch == "keep":
        return -(-images // spec.batch), images
    if images < spec.batch:
        raise UsageError(
            f"{images} images are fewer than one batch of {spec.batch}, and last_batch=drop: give a smaller batch"
        )
    return images // spec.batch, images // spec.batch * spec.batch


def learning_rates(spec: RunSpec, epoch: int, steps: int) -> npt.NDArray[np.float64]:
    """The rate at each of the steps of an epoch (from 0): one for the whole epoch, or one for each step.

    After the warm-up, a rise in equal parts, the schedule takes the updates that are left: constant, or a cosine that
    falls to zero.
    """
    by_step = spec.schedule_by == "step"
    unit = steps if by_step else 1  # moves of the rate in an epoch
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
    """Is the cosine measured at this step (from 0) of training? At every so many, and at the first of each epoch."""
    return bool(every) and (step % every == 0 or step % steps == 0)


def balances_at(spec: RunSpec, step: int) -> bool:
    """Are the gradients measured at this step (from 0), which brings those of the next steps into their ratio?"""
    return spec.balance == "norms" and step % BALANCE_EVERY == 0


def tests_at(spec: RunSpec, epoch: int) -> bool:
    """Are the test images classified after this epoch (from 0)?"""
    return spec.test == "every" or (spec.test == "last" and epoch + 1 == spec.epochs)
