"""Random flips and shifts, from random bits that the caller brings.

There is no generator here: with bits from `streams.bits`, a run sees the same augmentation alone, in a stack, and on
every device.
"""

import torch
from torch import Tensor

from asymtrain.lab.data.arrays import whole_number


def flip_and_shift(images: Tensor, bits: Tensor, max_shift: int = 4) -> Tensor:
    """Mirror each image or not, then move it by up to max_shift pixels each way, filling with zeros.

    Images (..., B, 3, H, W) of any type, bits (..., B) int64. Bit 0 mirrors left and right; bits 1 to 16 choose the
    shift to the right and bits 17 to 32 the shift downwards, each modulo 2 * max_shift + 1.
    """
    max_shift = whole_number("max_shift", max_shift, 0)
    height, width = images.shape[-2:]
    choices = 2 * max_shift + 1
    right = ((bits >> 1 & 0xFFFF) % choices - max_shift)[..., None]
    down = ((bits >> 17 & 0xFFFF) % choices - max_shift)[..., None]
    column = torch.arange(width, device=images.device) - right  # (..., B, W): where each column comes from
    row = torch.arange(height, device=images.device) - down
    inside = ((row >= 0) & (row < height))[..., :, None] & ((column >= 0) & (column < width))[..., None, :]
    column = torch.where((bits & 1).bool()[..., None], width - 1 - column, column)
    # Gather with an expanded index: no copy of the index is made.
    rows = row.clamp(0, height - 1)[..., None, :, None].expand(images.shape)
    columns = column.clamp(0, width - 1)[..., None, None, :].expand(images.shape)
    moved = images.gather(-2, rows).gather(-1, columns)
    return torch.where(inside[..., None, :, :], moved, torch.zeros((), dtype=images.dtype, device=images.device))
