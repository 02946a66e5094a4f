"""How an attention map is spread: pure functions of maps (..., T), T patches with weights of 0 or more.

A map is a distribution over patches (it sums to one) unless the caller left out the renormalisation; each value is of
the map as it is given. The uniform map has 1 / T everywhere, the one-hot map has everything on one patch.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from asymtrain.gradients._intervals import Bounds

DEFAULT_THRESHOLD = 0.5


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

    The default is 0.5: a patch counts as attended where it gets more than half of what a map without preference would
    give it. In multiples of 1 / T the threshold means the same for every patch size.

    The paper prints "object coverage" of .84 (Plain) and .94 to .96 (Asymmetric) beside Gini .37 and .25 to .30. Weight
    inside a region that holds a share s of the patches is at most s + Gini (the Lorenz curve), so as weight inside an
    object these values would need objects that fill 47% (Plain) and 64 to 71% (Asymmetric) of the image, and attention
    that never leaves them. As a share of patches they are ordinary: were the weights log-normal, the six printed pairs
    would each follow from a threshold between 0.36 and 0.57.
    """
    share = (maps > threshold / maps.shape[-1]).to(maps.dtype).mean(-1)
    return share.where(~maps.isnan().any(-1), torch.nan)  # a comparison with NaN is False, and would look like a 0


def coverage_of_mask(maps: Tensor, mask: Tensor) -> Tensor:
    """Weight inside the object: sum over patches of the weight times the share of the patch that is object.

    mask: (..., T), shares of 0 to 1, as `attention_regions.patch_shares` makes them from pixels. Range 0 to 1; uniform:
    the object's share of the image; one-hot: the object's share of that patch, so 1 inside and 0 outside.
    """
    return (maps * mask).sum(-1)


def coverage_of_saliency(maps: Tensor, salient: Tensor) -> Tensor:
    """Weight inside the salient region of the image itself, for images without masks.

    salient: (..., T), the share of each patch inside the region (`attention_regions.saliency_region`). Range 0 to 1;
    uniform: the region's share of the image; one-hot: the region's share of that patch.
    """
    return (maps * salient).sum(-1)


def all_metrics(
    maps: Tensor, *, threshold: float = DEFAULT_THRESHOLD, mask: Tensor | None = None, salient: Tensor | None = None
) -> dict[str, Tensor]:
    """Every metric of maps (..., T) by name; those of a region only where the region is given."""
    found = {
        "peak_strength": peak_strength(maps),
        "entropy": entropy(maps),
        "gini": gini(maps),
        "coverage_above": coverage_above(maps, threshold),
    }
    if mask is not None:
        found["coverage_of_mask"] = coverage_of_mask(maps, mask)
    if salient is not None:
        found["coverage_of_saliency"] = coverage_of_saliency(maps, salient)
    return found


METRICS: Mapping[str, Callable[..., Tensor]] = {
    "peak_strength": peak_strength,
    "entropy": entropy,
    "gini": gini,
    "coverage_above": coverage_above,
    "coverage_of_mask": coverage_of_mask,
    "coverage_of_saliency": coverage_of_saliency,
}
"""By name, in the order of tables and figures."""


def bounds(metric: str, patches: int) -> Bounds:
    """The least and the largest value of a metric, of maps with this many patches."""
    return 0.0, math.log(patches) if metric == "entropy" else 1.0


LABELS = {
    "peak_strength": "peak strength",
    "entropy": "map entropy (nats)",
    "gini": "sparsity (Gini)",
    "coverage_above": "patches above threshold",
    "coverage_of_mask": "weight on the object",
    "coverage_of_saliency": "weight on the salient region",
}
"""What tables and figures call them."""
