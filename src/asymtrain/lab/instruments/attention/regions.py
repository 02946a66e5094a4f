"""Regions of an image as shares of patches: the object's mask, and what stands out of the image itself."""

import torch
import torch.nn.functional as F
from torch import Tensor

from asymtrain.errors import UsageError

_BINOMIAL = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16


def patch_shares(pixels: Tensor, rows: int, columns: int) -> Tensor:
    """The share of each patch that is inside: pixels (B, H, W) of 0 and 1 -> (B, rows * columns).

    Patches are counted row by row, as a vision transformer reads them.
    """
    height, width = pixels.shape[-2:]
    if height % rows or width % columns:
        raise UsageError(f"{height} x {width} pixels do not divide into {rows} x {columns} patches")
    cut = pixels.to(torch.float32).unflatten(-1, (columns, -1)).unflatten(-3, (rows, -1))
    return cut.mean((-3, -1)).flatten(-2)


def saliency(images: Tensor) -> Tensor:
    """How far each pixel's colour is from the image's mean colour: images (B, 3, H, W) -> (B, H, W).

    Frequency-tuned saliency (Achanta et al. 2009) in RGB: the image is smoothed with the 5 x 5 binomial filter (edges
    mirrored), and the saliency of a pixel is the Euclidean distance of its colour from the mean over the image.
    """
    pixels = images.to(torch.float32)
    kernel = _BINOMIAL.to(pixels.device).expand(pixels.shape[1], 1, 1, 5)
    smooth = F.pad(pixels, (2, 2, 2, 2), mode="reflect")
    smooth = F.conv2d(smooth, kernel, groups=pixels.shape[1])
    smooth = F.conv2d(smooth, kernel.mT, groups=pixels.shape[1])
    return (smooth - pixels.mean((-2, -1), keepdim=True)).square().sum(1).sqrt()


def saliency_region(images: Tensor, share: float = 0.25) -> Tensor:
    """The most salient pixels of each image, (B, H, W) of 0 and 1; the earlier of equals is taken first.

    A fixed share of the pixels (a quarter by default, at least one pixel) and not a fixed level: the uniform map then
    has the same value on every image, and no image is left without a region.
    """
    if not 0 < share <= 1:
        raise UsageError(f"the salient share must be above 0 and at most 1, got {share:g}")
    # On the CPU, whatever the images lie on: a tie or a last bit must not change the region from device to device.
    order = saliency(images.cpu()).flatten(1).argsort(dim=1, descending=True, stable=True)
    chosen = order[:, : max(1, round(share * order.shape[1]))]
    region = torch.zeros(order.shape).scatter_(1, chosen, 1.0)
    return region.view(len(images), *images.shape[-2:]).to(images.device)
