"""The result of every data source: arrays of inputs of one kind, and labels."""

import hashlib
import operator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from asymtrain.errors import UsageError

Bytes = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Masks = npt.NDArray[np.bool_]
Inputs = Bytes | Vectors | npt.NDArray[np.int64]
Kind = Literal["images", "vectors", "tokens"]
_CHUNK = 1024  # images summed at a time, to bound the memory


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs of one kind, C-contiguous, labels (N,) and, if the source knows them, object masks (N, H, W).

    Images are bytes (N, C, H, W), vectors float32 (N, D), sequences of tokens int64 (N, T), padded with 0.
    """

    inputs: Inputs
    labels: Labels
    masks: Masks | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def largest_class(self) -> float:
        """The share of the most frequent class: the accuracy of always naming it."""
        return float(np.bincount(self.labels).max() / len(self))

    @property
    def kind(self) -> Kind:
        if self.inputs.ndim == 4:
            return "images"
        return "vectors" if self.inputs.dtype == np.float32 else "tokens"

    @property
    def images(self) -> Bytes:
        """The inputs, for code that works only on images."""
        if self.kind != "images":
            raise UsageError(f"this works on images, and the dataset holds {self.kind}: choose a dataset of images")
        return self.inputs  # type: ignore[return-value]

    @cached_property
    def channel_sums(self) -> npt.NDArray[np.int64]:
        """Sums of each image's bytes and of their squares in each channel, (N, C, 2).

        Computed once: each run has statistics of its own images, and a stack may have a hundred runs.
        """
        count, channels, height, width = self.images.shape
        sums = np.empty((count, channels, 2), np.int64)
        for start in range(0, count, _CHUNK):
            chunk = self.images[start : start + _CHUNK].reshape(-1, channels, height * width)
            wide = chunk.astype(np.uint16)  # holds 255 * 255
            sums[start : start + _CHUNK, :, 0] = chunk.sum(2, dtype=np.int64)
            sums[start : start + _CHUNK, :, 1] = (wide * wide).sum(2, dtype=np.int64)
        return sums


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples to train on and to test on; label k is the class `class_names[k]`."""

    name: str
    train: Examples
    test: Examples
    class_names: tuple[str, ...]

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def kind(self) -> Kind:
        return self.train.kind

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that depend on every input, label and class name, but not on the machine."""
        shapes = [part.inputs.shape for part in (self.train, self.test)]
        digest = hashlib.sha256(repr((self.kind, shapes, self.class_names)).encode())
        for part in (self.train, self.test):
            for array in (part.inputs, part.labels):
                # A fixed byte order gives the same digits on big-endian machines.
                digest.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data)
        return digest.hexdigest()[:16]


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
