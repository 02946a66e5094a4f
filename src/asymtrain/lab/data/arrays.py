"""What every source of data ends as: one contiguous array of bytes, and labels."""

import operator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from asymtrain.errors import UsageError

Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Masks = npt.NDArray[np.bool_]
_CHUNK = 1024  # images summed at a time; bounds the memory


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images (N, 3, H, W), C-contiguous, labels (N,) and, where the source knows them, object masks (N, H, W)."""

    images: Bytes
    labels: Labels
    masks: Masks | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def channel_sums(self) -> npt.NDArray[np.int64]:
        """Sums of each image's bytes and of their squares in each channel, (N, 3, 2).

        Once for all runs: each of them has statistics of its own images, and a stack may have a hundred runs.
        """
        sums = np.empty((len(self.images), 3, 2), np.int64)
        for start in range(0, len(self.images), _CHUNK):
            chunk = self.images[start : start + _CHUNK].reshape(-1, 3, self.images.shape[2] * self.images.shape[3])
            wide = chunk.astype(np.uint16)  # holds 255 * 255
            sums[start : start + _CHUNK, :, 0] = chunk.sum(2, dtype=np.int64)
            sums[start : start + _CHUNK, :, 1] = (wide * wide).sum(2, dtype=np.int64)
        return sums


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images to train on and images to test on; label k is the class `class_names[k]`."""

    name: str
    train: ImageSet
    test: ImageSet
    class_names: tuple[str, ...]

    @property
    def classes(self) -> int:
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
