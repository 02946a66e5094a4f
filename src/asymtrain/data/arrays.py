"""What every source of data ends as: one contiguous array of bytes, and labels."""

import operator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asymtrain.errors import UsageError

Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Masks = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images (N, 3, H, W), C-contiguous, labels (N,) and, where the source knows them, object masks (N, H, W)."""

    images: Bytes
    labels: Labels
    masks: Masks | None = None

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images to train on and images to test on; label k is the class `class_names[k]`."""

    name: str
    train: ImageSet
    test: ImageSet
    class_names: tuple[str, ...]

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)


def whole_number(option: str, value: object, low: int, high: int | None = None) -> int:
    """The value, if it is an integer from low to high."""
    limits = f"at least {low}" if high is None else f"from {low} to {high}"
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"{option} must be a whole number {limits}, not {value!r}") from None
    if number < low or (high is not None and number > high):
        raise UsageError(f"{option} must be {limits}, not {number}")
    return number
