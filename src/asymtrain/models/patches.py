"""A 3x3 convolution of few channels as a product of patches.

An image has three channels. cuDNN pads them and then uses a small part of a GPU: in bfloat16 such a convolution and its
gradient took longer than one with twenty times its operations. As a product, with the 27 values of a patch filled up to
32, both are bound by the map they write or read.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_WIDTH = 32  # values of a patch, filled up with zeros: what tensor cores take without waste


def suits_patches(maps: Tensor) -> bool:
    """Whether maps (B, C, H, W) are convolved faster this way: few channels, bfloat16 on a GPU."""
    return maps.is_cuda and maps.dtype == torch.bfloat16 and 9 * maps.shape[1] <= _WIDTH


def convolve_patches(maps: Tensor, weight: Tensor) -> Tensor:
    """`conv2d(maps, weight, padding=1)` of maps (B, C, H, W) and weight (O, C, 3, 3), channels last in memory."""
    batch, channels, height, width = maps.shape
    fill = _WIDTH - 9 * channels
    patches = F.pad(F.unfold(maps, 3, padding=1).mT, (0, fill))  # (B, H W, 32)
    kernel = F.pad(weight.flatten(1), (0, fill)).mT  # (32, O)
    # A product for each image: its gradient is then a small product for each image and a sum, which fills the GPU;
    # one product over all positions would be a single tile.
    found = torch.bmm(patches, kernel.expand(batch, -1, -1))
    return found.view(batch, height, width, -1).permute(0, 3, 1, 2)
