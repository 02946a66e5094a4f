"""From the attention of a forward pass to numbers: every metric of every layer, head and of the rollout, by image."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asymtrain.errors import UsageError
from asymtrain.lab.instruments.attention.maps import from_class_token, over_queries, rollout
from asymtrain.lab.instruments.attention.metrics import all_metrics
from asymtrain.lab.instruments.attention.regions import patch_shares
from asymtrain.lab.instruments.attention.result import Floats
from asymtrain.lab.instruments.attention.settings import AttentionSettings

MOST_PREFIX = 8  # tokens before the patches that models have: a class token, registers, a distillation token


@dataclass(frozen=True)
class Spread:
    """The metrics of some images, on the device: {metric: (scopes, images)}; see `AttentionResult` for the scopes."""

    layers: tuple[str, ...]
    patches: int
    scopes: tuple[str, ...]
    metrics: Mapping[str, Tensor]
    kept: Mapping[str, Tensor]  # maps of the first images, by layer

    def values(self) -> dict[str, Floats]:
        """The metrics as numpy arrays."""
        return {name: value.double().cpu().numpy() for name, value in self.metrics.items()}

    def kept_maps(self) -> dict[str, Floats]:
        """The kept maps as numpy arrays."""
        return {name: value.double().cpu().numpy() for name, value in self.kept.items()}


def spread(
    attention: Mapping[str, Tensor],
    regions: Mapping[str, Tensor],
    settings: AttentionSettings,
    *,
    prefix: int = 1,
    keep: int = 0,
) -> Spread:
    """Metrics of attention {layer: (B, heads, T, T)} in the order of the layers.

    regions: pixels (B, H, W) of 0 and 1, by "mask" and "saliency". A region is left out where the patches are no grid
    over the pixels, and the rollout where the layers do not have the same tokens.
    """
    reduce = from_class_token if settings.query == "class_token" else over_queries
    layers = tuple(name for name in attention if not settings.layers or name in settings.layers)
    # The average of the heads first, then each head: (B, 1 + heads, patches).
    maps = {}
    for name in layers:
        heads = reduce(attention[name], prefix=prefix, renormalise=settings.renormalise)
        mean = reduce(attention[name].mean(1, keepdim=True), prefix=prefix, renormalise=settings.renormalise)
        maps[name] = torch.cat([mean, heads], 1)
    if len({one.shape[-2:] for one in attention.values()}) == 1:
        flow = rollout(list(attention.values()))
        maps["rollout"] = reduce(flow, prefix=prefix, renormalise=settings.renormalise)[:, None]
    found = {name: _metrics(one, regions, settings) for name, one in maps.items()}
    scopes = ["mean", *(["rollout"] if "rollout" in maps else [])]
    for name in layers:
        scopes += [name, *(f"{name}:{head}" for head in range(maps[name].shape[1] - 1))]
    common = [metric for metric in found[layers[0]] if all(metric in one for one in found.values())]
    metrics = {}
    for metric in common:
        by_layer = [found[name][metric] for name in layers]
        mean = torch.stack([one[:, 0] for one in by_layer]).mean(0)
        rows = [mean[:, None], *([found["rollout"][metric]] if "rollout" in found else []), *by_layer]
        metrics[metric] = torch.cat(rows, 1).mT
    kept = {name: one[:keep, 0] for name, one in maps.items()}
    return Spread(layers, maps[layers[0]].shape[-1], tuple(scopes), metrics, kept)


def join(parts: Sequence[Spread]) -> Spread:
    """The parts of a sample as one."""
    first = parts[0]
    metrics = {name: torch.cat([part.metrics[name] for part in parts], 1) for name in first.metrics}
    kept = {name: torch.cat([part.kept[name] for part in parts]) for name in first.kept}
    return Spread(first.layers, first.patches, first.scopes, metrics, kept)


def patch_grid(patches: int, height: int, width: int) -> tuple[int, int] | None:
    """Rows and columns of square patches over an image; None where this number of patches is no such grid."""
    rows = math.isqrt(patches * height // width)
    if rows and patches % rows == 0 and rows * width == patches // rows * height:
        return rows, patches // rows
    return None


def check_grid(
    attention: Mapping[str, Tensor], size: Sequence[int], settings: AttentionSettings, *, prefix: int
) -> None:
    """Refuse a prefix that leaves no grid over images of this size where another one does: it was miscounted.

    The first layer that is reported decides: later ones may have merged or dropped tokens. Where no prefix leaves a
    grid, the tokens are of another kind, and nothing is said.
    """
    first = next(name for name in attention if not settings.layers or name in settings.layers)
    tokens, (height, width) = attention[first].shape[-1], size
    if prefix >= tokens or _covers(tokens - prefix, height, width):  # that no patch is left is said with the maps
        return
    better = {
        other: tokens - other
        for other in range(min(MOST_PREFIX, tokens - 2) + 1)  # a single patch is no grid
        if _is_square(tokens - other) or patch_grid(tokens - other, height, width)
    }
    if better:
        # Patches that cut the image evenly are the likelier ones, then the nearest count.
        best = min(better, key=lambda other: (not _cuts_evenly(better[other], height, width), abs(other - prefix)))
        alone = ', with query="mean" as there is no class token' if not best and settings.query != "mean" else ""
        raise UsageError(
            f"{tokens} tokens with prefix={prefix} leave {tokens - prefix} patches, which are no grid: "
            f"prefix={best} leaves {better[best]}{alone}"
        )


def _is_square(patches: int) -> bool:
    return math.isqrt(patches) ** 2 == patches


def _cuts_evenly(patches: int, height: int, width: int) -> bool:
    side = math.isqrt(patches)
    rows, columns = patch_grid(patches, height, width) or (side, side)
    return height % rows == 0 and width % columns == 0


def _covers(patches: int, height: int, width: int) -> bool:
    """Could this be a grid over the image? Square patches may leave a margin, or go beyond it."""
    if _is_square(patches) or patch_grid(patches, height, width):
        return True
    sides = range(1, max(height, width) + 1)
    return any(
        patches in ((height // side) * (width // side), -(-height // side) * -(-width // side)) for side in sides
    )


def _metrics(maps: Tensor, regions: Mapping[str, Tensor], settings: AttentionSettings) -> dict[str, Tensor]:
    shares: dict[str, Tensor] = {}
    for name, region in regions.items():
        height, width = region.shape[-2:]
        grid = patch_grid(maps.shape[-1], height, width)
        if grid is not None and height % grid[0] == 0 and width % grid[1] == 0:
            shares[name] = patch_shares(region, *grid)[:, None]
        elif name == "mask":
            raise UsageError(
                f"{maps.shape[-1]} patches are no grid over masks of {height} x {width} pixels: leave out masks"
            )
    return all_metrics(maps, threshold=settings.threshold, mask=shares.get("mask"), salient=shares.get("saliency"))
