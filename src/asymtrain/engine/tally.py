"""Sums over the steps of an epoch, kept on the device and read once."""

from typing import NamedTuple

import torch
from torch import Tensor


class Totals(NamedTuple):
    """One run's means over an epoch; cosines are None where none was defined."""

    main_loss: float
    auxiliary_loss: float
    accuracy: float
    cosine: float | None
    cosine_min: float | None
    cosine_max: float | None


class Tally:
    """Accumulators of R runs: rows of one tensor, so that reading them is one copy."""

    MAIN, AUXILIARY, CORRECT, COSINE, COUNT, LEAST, MOST = range(7)

    def __init__(self, runs: int, device: torch.device) -> None:
        self.sums = torch.zeros(7, runs, dtype=torch.float64, device=device)
        self.clear()

    def clear(self) -> None:
        """Start an epoch."""
        self.sums.zero_()
        self.sums[self.LEAST].fill_(2.0)
        self.sums[self.MOST].fill_(-2.0)

    def add_losses(self, main: Tensor, auxiliary: Tensor, correct: Tensor, images: Tensor) -> None:
        """Add a step's mean losses (R,), weighted by its number of images, and its right answers."""
        self.sums[: self.COSINE] += torch.stack([main * images, auxiliary * images, correct])

    def add_cosines(self, cosines: Tensor) -> None:
        """Add a step's cosines (R,); an undefined one (NaN) does not count."""
        defined = cosines.isfinite()
        value = cosines.where(defined, 0.0).double()
        self.sums[self.COSINE] += value
        self.sums[self.COUNT] += defined
        self.sums[self.LEAST] = self.sums[self.LEAST].minimum(value.where(defined, 2.0))
        self.sums[self.MOST] = self.sums[self.MOST].maximum(value.where(defined, -2.0))

    def read(self, images: int) -> list[Totals]:
        """Means of each run over an epoch of so many images."""
        rows = self.sums.T.tolist()
        return [
            Totals(
                main / images,
                auxiliary / images,
                correct / images,
                cosine / count if count else None,
                max(-1.0, least) if count else None,
                min(1.0, most) if count else None,
            )
            for main, auxiliary, correct, cosine, count, least, most in rows
        ]

    def state(self) -> dict[str, Tensor]:
        """For checkpoints in the middle of an epoch."""
        return {"tally": self.sums}
