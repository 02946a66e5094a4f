"""How an attention map is spread: pure functions of maps (..., T), T patches with weights of 0 or more.

A map is a distribution over patches (it sums to one). The uniform map has 1 / T everywhere, the one-hot map has
everything on one patch.

Below them: regions of an image as shares of patches, from the object's mask or from the image's own saliency.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from asymtrain.errors import UsageError
from asymtrain.lab.instruments.attention.result import DEFAULT_THRESHOLD

_BINOMIAL = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16


def peak_strength(maps: Tensor) -> Tensor:
    """The largest weight of a map. Range 1 / T to 1; uniform: 1 / T; one-hot: 1."""
    return maps.amax(-1)


def entropy(maps: Tensor) -> Tensor:
    """-sum of p ln p over patches, in nats, with 0 ln 0 = 0. Range 0 to ln T; uniform: ln T; one-hot: 0."""
    return torch.special.entr(maps).sum(-1)


def gini(maps: Tensor) -> Tensor:
    """Gini coefficient: the mean absolute difference of two patches, divided by twice the mean.

    Range 0 to 1 - 1 / T; uniform: 0; one-hot: 1 - 1 / T. Not a number for a map of zeros.
    """
    count = maps.shape[-1]
    rank = torch.arange(1, count + 1, device=maps.device, dtype=maps.dtype)
    ordered = maps.sort(-1).values
    return ((2 * rank - count - 1) * ordered).sum(-1) / (count * ordered.sum(-1))


def coverage_above(maps: Tensor, threshold: float = DEFAULT_THRESHOLD) -> Tensor:
    """Share of the patches whose weight is above `threshold` times the uniform value 1 / T.

    Range 0 to 1; uniform: 1 for a threshold below 1, else 0; one-hot: 1 / T for a threshold below T.

    The default is 0.5: a patch counts as attended if it gets more than half of its weight in a uniform map. In
    multiples of 1 / T the threshold means the same for every patch size.

    The paper prints "object coverage" of .84 (Plain) and .94 to .96 (Asymmetric) beside Gini .37 and .25 to .30. Weight
    inside a region that holds a share s of the patches is at most s + Gini (the Lorenz curve). So if these values were
    weight inside an object, objects would have to fill 47% (Plain) and 64 to 71% (Asymmetric) of the image, and
    attention would never leave them. As a share of patches they are ordinary: with log-normal weights, each of the six
    printed pairs would follow from a threshold between 0.36 and 0.57.
    """
    share = (maps > threshold / maps.shape[-1]).to(maps.dtype).mean(-1)
    return share.where(~maps.isnan().any(-1), torch.nan)  # a comparison with NaN is False, which would look like a 0


def coverage_of_mask(maps: Tensor, mask: Tensor) -> Tensor:
    """Weight inside a region: sum over patches of the weight times the share of the patch that is inside.

    mask: (..., T), shares of 0 to 1, as `patch_shares` makes them from pixels: of the object or, for images without
    masks, of the salient region (`saliency_region`). Range 0 to 1; uniform: the region's share of the image; one-hot:
    the region's share of that patch, so 1 inside and 0 outside.
    """
    return (maps * mask).sum(-1)


def all_metrics(
    maps: Tensor, *, threshold: float = DEFAULT_THRESHOLD, mask: Tensor | None = None, salient: Tensor | None = None
) -> dict[str, Tensor]:
    """Every metric of maps (..., T) by name; metrics of a region only if the region is given."""
    values = {name: METRICS[name](maps) for name in ("peak_strength", "entropy", "gini")}
    further = {"coverage_above": threshold, "coverage_of_mask": mask, "coverage_of_saliency": salient}
    return values | {name: METRICS[name](maps, argument) for name, argument in further.items() if argument is not None}


METRICS: Mapping[str, Callable[..., Tensor]] = {
    "peak_strength": peak_strength,
    "entropy": entropy,
    "gini": gini,
    "coverage_above": coverage_above,
    "coverage_of_mask": coverage_of_mask,
    "coverage_of_saliency": coverage_of_mask,
}
"""By name, in the order of tables and figures."""


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


def saliency_region(images: Tensor) -> Tensor:
    """The most salient quarter of each image's pixels, (B, H, W) of 0 and 1; ties go to the earlier pixel.

    A fixed share (at least one pixel) instead of a fixed level: the uniform map then has the same value on every image,
    and every image has a region.
    """
    # Always on the CPU: ties and last bits must not change the region between devices.
    order = saliency(images.cpu()).flatten(1).argsort(dim=1, descending=True, stable=True)
    chosen = order[:, : max(1, round(order.shape[1] / 4))]
    region = torch.zeros(order.shape).scatter_(1, chosen, 1.0)
    return region.view(len(images), *images.shape[-2:]).to(images.device)
