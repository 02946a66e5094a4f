"""From stored inputs to a network's inputs: zero mean and unit deviation over the examples a run trains on.

Images have statistics for each channel, vectors for each feature. Tokens are word indices and do not change.
"""

from math import sqrt

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asymtrain.errors import UsageError
from asymtrain.lab.data.arrays import Examples, Vectors

_CHUNK = 1 << 16  # vectors summed at a time, to bound the memory


def statistics(data: Examples, indices: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """The mean and deviation of each channel or feature over the chosen examples, float32; empty for tokens."""
    if data.kind == "images":
        return channel_statistics(data, indices)
    if data.kind == "tokens":
        return torch.zeros(0), torch.ones(0)
    return _feature_statistics(data.inputs, indices)  # type: ignore[arg-type]


def _feature_statistics(vectors: Vectors, indices: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """The mean and deviation (D,) of each feature over the chosen vectors; a constant feature gets a deviation of 1."""
    if len(indices) == 0:
        raise UsageError("statistics need at least one vector")
    first = vectors[indices[0]].astype(np.float64)
    total, squares = np.zeros_like(first), np.zeros_like(first)
    ordered = np.sort(indices)  # since floating-point sums depend on the order
    for start in range(0, len(ordered), _CHUNK):
        # Minus the first vector: a constant feature gives exact zeros, and a large mean cancels no digits.
        shifted = vectors[ordered[start : start + _CHUNK]] - first
        total += shifted.sum(0)
        squares += (shifted * shifted).sum(0)
    n = len(indices)
    std = np.sqrt(np.maximum(squares / n - (total / n) ** 2, 0)).astype(np.float32)
    return torch.from_numpy((first + total / n).astype(np.float32)), torch.from_numpy(np.where(std > 0, std, 1))


def channel_statistics(data: Examples, indices: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """The mean and deviation of each channel over the chosen images, both (C,) float32, for values from 0 to 1.

    The sums are of whole numbers, so the result does not depend on the order or on the machine. A constant channel
    gets a deviation of 1.
    """
    if len(indices) == 0:
        raise UsageError("statistics need at least one image")
    total, squares = data.channel_sums[indices].sum(0).T.tolist()
    n = len(indices) * data.images.shape[2] * data.images.shape[3]
    mean = [t / (255 * n) for t in total]
    std = [sqrt(n * q - t * t) / (255 * n) for t, q in zip(total, squares, strict=True)]
    return torch.tensor(mean), torch.tensor([s or 1.0 for s in std])


def normalise(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """A network's inputs from stored inputs x, in the type of mean; tokens unchanged.

    (x / 255 - mean) / std for bytes x (..., B, C, H, W), (x - mean) / std for vectors x (..., B, D). Mean and std are
    (C,) or (D,), or (R, C) or (R, D) for a stack of runs x (R, B, ...).
    """
    if x.dtype == torch.int64:
        return x
    if x.ndim - mean.ndim < 3:
        mean, std = (s[..., None, :] if s.ndim > 1 else s for s in (mean, std))
        return (x - mean) / std
    mean, std = (s[..., None, :, None, None] if s.ndim > 1 else s[:, None, None] for s in (mean, std))
    # One multiplication and one addition, since on a CPU each pass over a batch of images takes time.
    return torch.addcmul(-mean / std, x.to(mean.dtype), 1 / (255 * std))
