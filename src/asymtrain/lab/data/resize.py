"""Resize images: scaled to cover a square with antialiasing, and cropped at the centre, as for folders."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from asymtrain.errors import UsageError
from asymtrain.lab.data.arrays import Bytes, Dataset, Examples, whole_number

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 1024  # pixels
_CHUNK = 1 << 22  # numbers scaled at a time, to bound the memory
_NUDGE = 1e-6  # rounds halves between two bytes up on every machine, despite differences in the last bits


def resized(dataset: Dataset, image_size: int | None) -> Dataset:
    """The dataset with square images of this size; None leaves it as it is."""
    if image_size is None:
        return dataset
    side = whole_number("image_size", image_size, 1, LARGEST)
    if dataset.kind != "images":
        raise UsageError(f"image_size is of images, and {dataset.name} holds {dataset.kind}: leave it out")
    return replace(dataset, train=_resize(dataset.train, side), test=_resize(dataset.test, side))


def _resize(data: Examples, side: int) -> Examples:
    """The images as squares; unchanged if they already have the size."""
    return data if data.images.shape[2:] == (side, side) else Examples(resize_bytes(data.images, side), data.labels)


def resize_bytes(images: Bytes, side: int) -> Bytes:
    """Images (N, C, H, W) as (N, C, S, S), on a GPU if one is free."""
    import torch

    if torch.cuda.is_available():
        try:
            return _resize_on("cuda", images, side)
        except RuntimeError:  # the GPU is lost, or its memory in use: the CPU gives the same bytes
            pass
    return _resize_on("cpu", images, side)


def _resize_on(device: str, images: Bytes, side: int) -> Bytes:
    import torch

    count, channels, height, width = images.shape
    scale = side / min(height, width)
    sides = max(side, round(height * scale)), max(side, round(width * scale))
    step = max(1, _CHUNK // (channels * max(height * width, sides[0] * sides[1])))
    squares = np.empty((count, channels, side, side), np.uint8)
    for start in range(0, count, step):
        # In float64, so that devices agree on every byte.
        chunk = torch.from_numpy(images[start : start + step]).to(device, torch.float64)
        squares[start : start + step] = _scale_and_crop(chunk, sides, side).to(torch.uint8).cpu().numpy()
    return squares


def _scale_and_crop(chunk: "Tensor", sides: tuple[int, int], side: int) -> "Tensor":
    from torch.nn.functional import interpolate

    scaled = interpolate(chunk, sides, mode="bilinear", antialias=True)
    top, left = ((long - side) // 2 for long in sides)
    cropped = scaled[..., top : top + side, left : left + side]
    return (cropped + (0.5 + _NUDGE)).floor_().clamp_(0, 255)
