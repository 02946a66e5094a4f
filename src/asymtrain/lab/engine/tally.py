"""Sums over the steps of an epoch, kept on the device and read once."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asymtrain.lab.runs import Epoch, RunSpec

Accuracies = tuple[float | None, float | None]  # on validation and on test images
_OF_BRANCHES = (
    "auxiliary_loss", "cosine", "cosine_min", "cosine_max", "cosine_std", "conflict", "auxiliary_norm",
)  # fmt: skip


class Totals(NamedTuple):
    """One run's means over an epoch, with the names of `Epoch`; None if not measured or undefined."""

    main_loss: float
    auxiliary_loss: float
    train_accuracy: float
    cosine: float | None
    cosine_min: float | None
    cosine_max: float | None
    cosine_std: float | None
    conflict: float | None
    main_norm: float | None
    auxiliary_norm: float | None


class Tally:
    """Accumulators of R runs: rows of one tensor, so that reading them takes one copy."""

    MAIN, AUXILIARY, CORRECT, COSINE, SQUARE, COUNT, NEGATIVE, LEAST, MOST, STEPS, MAIN_NORM, AUXILIARY_NORM = range(12)

    def __init__(self, runs: int, device: torch.device) -> None:
        self.sums = torch.zeros(12, runs, dtype=torch.float64, device=device)
        self.clear()

    def clear(self) -> None:
        self.sums.zero_()
        self.sums[self.LEAST].fill_(2.0)
        self.sums[self.MOST].fill_(-2.0)

    def add_losses(self, main: Tensor, auxiliary: Tensor, correct: Tensor, images: Tensor) -> None:
        """Add a step's mean losses (R,), weighted by its number of images, and its right answers."""
        self.sums[: self.COSINE] += torch.stack([main * images, auxiliary * images, correct])

    def add_alignment(self, sums: Tensor) -> None:
        """Add a measured step from its `parameters.alignment_sums` (3, R, L); undefined cosines do not count."""
        product, main, auxiliary = sums.sum(2)
        value = (product / (main * auxiliary).sqrt()).clamp(-1, 1)
        defined = value.isfinite()
        value = value.where(defined, 0.0)
        self.sums[self.COSINE] += value
        self.sums[self.SQUARE] += value.square()
        self.sums[self.COUNT] += defined
        self.sums[self.NEGATIVE] += value < 0
        self.sums[self.LEAST] = self.sums[self.LEAST].minimum(value.where(defined, 2.0))
        self.sums[self.MOST] = self.sums[self.MOST].maximum(value.where(defined, -2.0))
        self.sums[self.STEPS] += 1
        self.sums[self.MAIN_NORM] += main.sqrt()
        self.sums[self.AUXILIARY_NORM] += auxiliary.sqrt()

    def read(self, images: int) -> list[Totals]:
        """Each run's means over an epoch of this number of images."""
        return [_totals(row, images) for row in self.sums.T.tolist()]

    def state(self) -> dict[str, Tensor]:
        return {"tally": self.sums}


def epoch_record(spec: RunSpec, number: int, totals: Totals, accuracies: Accuracies, seconds: float) -> Epoch:
    """The record of a run's epoch; a Plain run has no auxiliary values."""
    values = totals._asdict() | ({} if spec.redundancy else dict.fromkeys(_OF_BRANCHES))
    validation, test = accuracies
    return Epoch(epoch=number, validation_accuracy=validation, test_accuracy=test, seconds=seconds, **values)


def _totals(row: Sequence[float], images: int) -> Totals:
    main, auxiliary, correct, cosine, square, count, negative, least, most, steps, main_norm, auxiliary_norm = row
    mean = cosine / count if count else None
    return Totals(
        main / images,
        auxiliary / images,
        correct / images,
        mean,
        least if count else None,
        most if count else None,
        math.sqrt(max(0.0, square - cosine * cosine / count) / (count - 1)) if count > 1 else None,
        negative / count if count else None,
        main_norm / steps if steps else None,
        auxiliary_norm / steps if steps else None,
    )
