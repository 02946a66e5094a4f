"""From bytes to what a network sees: zero mean and unit deviation in each channel of the training images."""

from math import sqrt

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asymtrain.errors import UsageError
from asymtrain.lab.data.arrays import ImageSet


def channel_statistics(data: ImageSet, indices: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel over the chosen images, both (3,) float32, on the scale of 0 to 1.

    The sums are of whole numbers, so the result does not depend on the order of adding or on the machine. A channel
    without any variation gets a deviation of 1.
    """
    if len(indices) == 0:
        raise UsageError("statistics need at least one image")
    total, squares = data.channel_sums[indices].sum(0).T.tolist()
    n = len(indices) * data.images.shape[2] * data.images.shape[3]
    mean = [t / (255 * n) for t in total]
    std = [sqrt(n * q - t * t) / (255 * n) for t, q in zip(total, squares, strict=True)]
    return torch.tensor(mean), torch.tensor([s or 1.0 for s in std])


def normalise(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(x / 255 - mean) / std for bytes x (..., B, 3, H, W), in the type of mean.

    Mean and std are (3,), or (R, 3) for a stack of runs x (R, B, 3, H, W).
    """
    mean, std = (s[..., None, :, None, None] if s.ndim > 1 else s[:, None, None] for s in (mean, std))
    # One multiplication and one addition: on a CPU each pass over a batch of images counts.
    return torch.addcmul(-mean / std, x.to(mean.dtype), 1 / (255 * std))
