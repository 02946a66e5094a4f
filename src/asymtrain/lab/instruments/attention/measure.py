"""How a vision transformer attends: maps of every layer and head on a sample of images, and how they are spread.

    measure_states(states, dataset)         states of runs, all on the same images
    measure_model(model, images)            any model whose queries and keys can be reached

Parameters, modes, buffers and random numbers are the same after a measurement as before it.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from asymtrain.errors import UsageError, unknown_name
from asymtrain.lab.data import Dataset
from asymtrain.lab.data.normalise import normalise
from asymtrain.lab.devices import default_device, evaluating
from asymtrain.lab.engine.setup import build_backbone, run_data
from asymtrain.lab.engine.states import State, check_state
from asymtrain.lab.instruments.attention.maps import (
    Read,
    attention_layers,
    from_class_token,
    over_queries,
    recorded_attention,
    rollout,
)
from asymtrain.lab.instruments.attention.metrics import all_metrics, patch_shares, saliency_region
from asymtrain.lab.instruments.attention.result import AttentionResult, AttentionSettings, patch_grid
from asymtrain.lab.runs import RunSpec
from asymtrain.models import Backbone, build

CHUNK = 256  # images in one forward pass: limits the memory of the maps
MOST_PREFIX = 8  # tokens before the patches that models have: a class token, registers, a distillation token


def measure_states(
    states: Sequence[State],
    dataset: Dataset,
    settings: AttentionSettings | None = None,
    device: torch.device | str | None = None,
    *,
    keep: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[AttentionResult]:
    """The attention of many states on the same images of one dataset; maps of the first `keep` images are kept.

    `progress` is called with the numbers of measured and of wanted states.
    """
    settings, where = settings or AttentionSettings(), default_device(device)
    chosen = settings.indices(len(dataset.test))
    pixels = torch.from_numpy(dataset.test.images[chosen])
    masks = None if dataset.test.masks is None else torch.from_numpy(dataset.test.masks[chosen])
    regions = {name: region.to(where) for name, region in _regions(pixels, masks).items()}
    pixels = pixels.to(where)
    backbones: dict[object, Backbone] = {}
    statistics: dict[object, tuple[Tensor, Tensor]] = {}
    results = []
    for state in states:
        spec = state.spec
        kind = (spec.arch, spec.arch_options)
        trained_on = (spec.validation, spec.per_class, spec.seed)
        if kind not in backbones:
            backbones[kind] = build_backbone(spec, dataset).to(where).eval()
            check_spec(spec, dataset, settings)
        if trained_on not in statistics:  # takes a second for each seed of CIFAR: not again for each epoch
            data = run_data(spec, dataset)
            statistics[trained_on] = (data.mean.to(where), data.std.to(where))
        weights = {name: value.to(where) for name, value in state.backbone.items()}
        check_state(state, backbones[kind])
        call = partial(functional_call, backbones[kind], weights, strict=False)  # buffers stay the module's
        images = normalise(pixels, *statistics[trained_on])
        result = _measure(backbones[kind], call, images, regions, settings, keep=keep)
        results.append(dataclasses.replace(result, images=tuple(chosen), spec=spec, epoch=state.epoch))
        if progress:
            progress(len(results), len(states))
    return results


def has_attention(arch: str) -> bool:
    """Does this backbone have attention? Its options and the data do not matter."""
    return bool(attention_layers(build(arch, classes=2, seed=0)))  # with a seed, torch's random state does not change


def check_spec(spec: RunSpec, dataset: Dataset, settings: AttentionSettings) -> None:
    """Refuse what cannot be measured, before it is trained."""
    layers = list(attention_layers(build_backbone(spec, dataset)))
    if not layers:
        raise UsageError(f"{spec.arch} has no attention: measure a vision transformer (vit)")
    _check_layers(layers, settings)
    settings.indices(len(dataset.test))


def measure_model(
    model: nn.Module,
    images: Tensor,
    settings: AttentionSettings | None = None,
    *,
    prefix: int = 1,
    read: Read | None = None,
    pixels: Tensor | None = None,
    masks: Tensor | None = None,
    forward: Callable[[Tensor], object] | None = None,
    keep: int = 0,
) -> AttentionResult:
    """The attention of any model on images (B, 3, H, W) as it takes them; uses all, and ignores `settings.sample`.

    `prefix` tokens stand before the patches; a prefix that leaves no grid is refused if another one does. `read` finds
    queries and keys in layers that are not recognised (named in `settings.layers`; the rollout is then of these layers
    alone). `pixels` are the images before normalisation, for the saliency; `masks` (B, H, W) the objects, bool or from
    0 to 1. `forward` calls the model if `model(images)` does not work. The model is measured in evaluation mode and
    left as it was. Its attention is checked (see `maps`).
    """
    settings = settings or AttentionSettings()
    with recorded_attention(model, _recorded_layers(settings, read), read=read):
        pass  # finding the layers says what is wrong; nothing runs yet
    if read is None:
        _check_layers(attention_layers(model), settings)
    _check_images(images, pixels, masks)
    if prefix < 0:
        raise UsageError(f"prefix is how many tokens stand before the patches, 0 or more: got {prefix}")
    regions = _regions(images if pixels is None else pixels, masks)
    regions = {name: region.to(images.device) for name, region in regions.items()}
    with evaluating(model):
        call = forward or model
        return _measure(model, call, images, regions, settings, prefix=prefix, read=read, check=True, keep=keep)


@torch.no_grad()
def _measure(
    model: nn.Module,
    call: Callable[[Tensor], object],
    images: Tensor,
    regions: Mapping[str, Tensor],
    settings: AttentionSettings,
    *,
    prefix: int = 1,
    read: Read | None = None,
    check: bool = False,
    keep: int = 0,
) -> AttentionResult:
    only = _recorded_layers(settings, read)
    parts: list[AttentionResult] = []
    for start in range(0, len(images), CHUNK):
        chunk = slice(start, start + CHUNK)
        with recorded_attention(model, only, read=read, check=check) as maps_by_layer:
            call(images[chunk])
        if not (set(maps_by_layer) & set(settings.layers or maps_by_layer)):
            raise UsageError(
                "no attention layer that is asked for ran in this forward pass: call the module that holds them"
            )
        attention = {name: passes[-1] for name, passes in maps_by_layer.items()}
        if check and not parts:
            # The first layer that is reported decides: later ones may have merged or dropped tokens.
            first = next(name for name in attention if not settings.layers or name in settings.layers)
            check_grid(attention[first].shape[-1], images.shape[-2:], prefix)
        inside = {name: region[chunk] for name, region in regions.items()}
        parts.append(_spread(attention, inside, settings, prefix, keep=max(0, keep - start)))
    values = {metric: np.concatenate([part.values[metric] for part in parts], 1) for metric in parts[0].values}
    maps = {name: np.concatenate([part.maps[name] for part in parts]) for name in parts[0].maps}
    shares = {name: float(region.float().mean()) for name, region in regions.items()}
    return dataclasses.replace(parts[0], values=values, maps=maps, shares=shares)


def _regions(pixels: Tensor, masks: Tensor | None) -> dict[str, Tensor]:
    """Pixels (B, H, W) of 0 and 1 by name: the salient region, and the object if there are masks."""
    salient = {"saliency": saliency_region(pixels)}
    return salient if masks is None else {"mask": masks.to(torch.float32), **salient}


def _recorded_layers(settings: AttentionSettings, read: Read | None) -> tuple[str, ...] | None:
    # A rollout needs every layer; a `read` function knows only the layers it is given for.
    return None if read is None else settings.layers or None


def _check_images(images: Tensor, pixels: Tensor | None, masks: Tensor | None) -> None:
    if images.ndim != 4 or not images.numel():
        raise UsageError(f"images must be one or more, as (batch, 3, height, width): got {tuple(images.shape)}")
    if pixels is not None and (pixels.ndim != 4 or len(pixels) != len(images)):
        raise UsageError(f"pixels must be those of the {len(images)} images, got {tuple(pixels.shape)}")
    if masks is not None and masks.shape != (len(images), *images.shape[-2:]):
        raise UsageError(f"masks must be one for each image, in its size: got {tuple(masks.shape)}")
    if masks is not None and not ((masks >= 0) & (masks <= 1)).all():
        raise UsageError("masks must be bool or lie within 0 and 1: 1 for the object and 0 elsewhere")


def _check_layers(layer_names: Iterable[str], settings: AttentionSettings) -> None:
    names = list(layer_names)
    for name in settings.layers:
        if name not in names:
            raise unknown_name("attention layer", name, names)


def _spread(
    attention: Mapping[str, Tensor], regions: Mapping[str, Tensor], settings: AttentionSettings, prefix: int, keep: int
) -> AttentionResult:
    """Metrics of attention {layer: (B, heads, T, T)} in the order of the layers, and the first `keep` maps.

    regions: pixels (B, H, W) of 0 and 1, by "mask" and "saliency". A region is left out if the patches form no grid
    over the pixels, and the rollout if the layers do not have the same tokens.
    """
    by_query = from_class_token if settings.query == "class_token" else over_queries
    reduce = partial(by_query, prefix=prefix)
    layers = tuple(name for name in attention if not settings.layers or name in settings.layers)
    # The average of the heads first, then each head: (B, 1 + heads, patches).
    maps = {
        name: torch.cat([reduce(attention[name].mean(1, keepdim=True)), reduce(attention[name])], 1) for name in layers
    }
    rolled = []
    if len({layer.shape[-2:] for layer in attention.values()}) == 1:
        maps["rollout"], rolled = reduce(rollout(list(attention.values())))[:, None], ["rollout"]
    metrics = {name: _metrics(values, regions, settings) for name, values in maps.items()}
    scopes = ["mean", *rolled]
    for name in layers:
        scopes += [name, *(f"{name}:{head}" for head in range(maps[name].shape[1] - 1))]
    values = {}
    for metric in metrics[layers[0]]:
        if all(metric in by_metric for by_metric in metrics.values()):
            parts = [metrics[name][metric] for name in (*rolled, *layers)]
            mean = torch.stack([metrics[name][metric][:, 0] for name in layers]).mean(0)
            values[metric] = torch.cat([mean[:, None], *parts], 1).mT.double().cpu().numpy()
    arrays = {name: averaged[:keep, 0].double().cpu().numpy() for name, averaged in maps.items()}
    return AttentionResult(settings, layers, maps[layers[0]].shape[-1], tuple(scopes), values, {}, maps=arrays)


def check_grid(tokens: int, size: Sequence[int], prefix: int) -> None:
    """Refuse a prefix that leaves no grid over images of this size if another prefix does: it was miscounted.

    If no prefix leaves a grid, the tokens are of another kind, and nothing is refused.
    """
    height, width = size

    def is_grid(patches: int) -> bool:
        """Square patches over the image, with a margin or beyond it, or as many rows as columns."""
        sides = range(1, max(height, width) + 1)
        covering = [(height // side) * (width // side) for side in sides]
        covering += [-(-height // side) * -(-width // side) for side in sides]
        return patches in covering or math.isqrt(patches) ** 2 == patches

    if tokens <= prefix or is_grid(tokens - prefix):  # the maps report it if no patch is left
        return
    fitting = [other for other in range(min(MOST_PREFIX, tokens - 2) + 1) if is_grid(tokens - other)]
    if fitting:
        sizes = " or ".join(f"{other} (leaves {tokens - other})" for other in fitting)
        raise UsageError(
            f"{tokens} tokens with prefix={prefix} leave {tokens - prefix} patches, which are no grid: give prefix "
            f'{sizes}; a model without a class token needs query="mean"'
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
