"""How a vision transformer attends: maps of every layer and head on a sample of images, and how they are spread.

    measure_attention(state, dataset)       a state of a run
    measure_states(states, dataset)         many of them, on the same images
    measure_model(model, images)            any model whose queries and keys can be reached

Nothing is changed: parameters, modes, buffers and random numbers are after a measurement what they were before.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from asymtrain.errors import UsageError, unknown_name
from asymtrain.lab.data import Dataset
from asymtrain.lab.data.normalise import normalise
from asymtrain.lab.engine import default_device
from asymtrain.lab.engine.setup import build_backbone, run_data
from asymtrain.lab.engine.states import State
from asymtrain.lab.instruments.attention.capture import attention_layers, recorded_attention
from asymtrain.lab.instruments.attention.readers import Read
from asymtrain.lab.instruments.attention.regions import saliency_region
from asymtrain.lab.instruments.attention.result import AttentionResult
from asymtrain.lab.instruments.attention.settings import AttentionSettings
from asymtrain.lab.instruments.attention.spread import Spread, check_grid, join, spread
from asymtrain.lab.runs import RunSpec
from asymtrain.models import Backbone, Parameters, build

CHUNK = 256  # images in one forward pass: bounds the memory of the maps


def measure_attention(
    state: State,
    dataset: Dataset,
    settings: AttentionSettings | None = None,
    device: torch.device | str | None = None,
) -> AttentionResult:
    """The attention of one training state on a sample of the dataset's test images."""
    return measure_states([state], dataset, settings, device)[0]


def measure_states(
    states: Sequence[State],
    dataset: Dataset,
    settings: AttentionSettings | None = None,
    device: torch.device | str | None = None,
    *,
    keep: int = 0,
    progress: Callable[[State], None] | None = None,
) -> list[AttentionResult]:
    """The attention of many states of one dataset, each on the same images; maps of the first `keep` are kept.

    `progress` is called with each state that is measured.
    """
    settings, place = settings or AttentionSettings(), default_device(device)
    chosen = settings.indices(len(dataset.test))
    pixels = torch.from_numpy(dataset.test.images[chosen])
    masks = None if dataset.test.masks is None else torch.from_numpy(dataset.test.masks[chosen])
    regions = {name: region.to(place) for name, region in _regions(pixels, masks, settings).items()}
    pixels = pixels.to(place)
    backbones: dict[object, Backbone] = {}
    statistics: dict[object, tuple[Tensor, Tensor]] = {}
    results = []
    for state in states:
        spec = state.spec
        kind = (spec.arch, spec.arch_options)
        trained_on = (spec.validation, spec.split_seed, spec.per_class, spec.seed)
        if kind not in backbones:
            backbones[kind] = build_backbone(spec, dataset).to(place).eval()
            check_spec(spec, dataset, settings)
        if trained_on not in statistics:  # a second for each seed of CIFAR: not for each epoch again
            data = run_data(spec, dataset)
            statistics[trained_on] = (data.mean.to(place), data.std.to(place))
        _check_state(state, backbones[kind])
        images = normalise(pixels, *statistics[trained_on])
        weights = {name: value.to(place) for name, value in state.parameters.items() if not _of_branch(name)}
        call = partial(_call, backbones[kind], weights)
        found = _measure(backbones[kind], call, images, regions, settings, keep=keep)
        results.append(dataclasses.replace(found, images=tuple(chosen), spec=spec, epoch=state.epoch))
        if progress:
            progress(state)
    return results


def has_attention(arch: str) -> bool:
    """Has this backbone attention? Its options and the data do not matter."""
    return bool(attention_layers(build(arch, classes=2, seed=0)))  # the seed keeps torch's random numbers as they are


def check_spec(spec: RunSpec, dataset: Dataset, settings: AttentionSettings) -> list[str]:
    """The names of the attention layers of a spec; what cannot be measured is refused before it is trained."""
    layers = list(attention_layers(build_backbone(spec, dataset)))
    if not layers:
        raise UsageError(f"{spec.arch} has no attention: measure a vision transformer (vit)")
    _check_layers(layers, settings)
    settings.indices(len(dataset.test))
    return layers


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
    """The attention of any model on images (B, 3, H, W) as it takes them; all of them, `settings.sample` is not read.

    `prefix` tokens stand before the patches; one that leaves no grid is refused where another leaves one. `read` finds
    queries and keys in layers that are not recognised (named in `settings.layers`; the rollout is then one of these
    layers alone). `pixels` are the images before normalisation, for the saliency; `masks` (B, H, W) the objects, bool
    or from 0 to 1. `forward` calls the model where `model(images)` does not. The model is measured in evaluation mode
    and left as it was. Its attention is checked (see `attention_capture`).
    """
    settings = settings or AttentionSettings()
    _check_model(model, settings, read)
    _check_images(images, pixels, masks)
    if prefix < 0:
        raise UsageError(f"prefix is how many tokens stand before the patches, 0 or more: got {prefix}")
    regions = _regions(images if pixels is None else pixels, masks, settings)
    regions = {name: region.to(images.device) for name, region in regions.items()}
    with evaluating(model):
        call = forward or model
        return _measure(model, call, images, regions, settings, prefix=prefix, read=read, check=True, keep=keep)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every module is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


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
    parts: list[Spread] = []
    for start in range(0, len(images), CHUNK):
        chunk = slice(start, start + CHUNK)
        with recorded_attention(model, only, read=read, check=check) as seen:
            call(images[chunk])
        if not any(not settings.layers or name in settings.layers for name in seen):
            raise UsageError(
                "no attention layer that is asked for ran in this forward pass: call the module that holds them"
            )
        attention = {name: found[-1] for name, found in seen.items()}
        if check and not parts:
            check_grid(attention, images.shape[-2:], settings, prefix=prefix)
        inside = {name: region[chunk] for name, region in regions.items()}
        parts.append(spread(attention, inside, settings, prefix=prefix, keep=max(0, keep - start)))
    joined = join(parts)
    shares = {name: float(region.float().mean()) for name, region in regions.items()}
    return AttentionResult(
        settings, joined.layers, joined.patches, joined.scopes, joined.values(), shares, maps=joined.kept_maps()
    )


def _call(model: nn.Module, weights: Parameters, images: Tensor) -> object:
    return functional_call(model, dict(weights), (images,), strict=False)  # buffers stay the module's


def _regions(pixels: Tensor, masks: Tensor | None, settings: AttentionSettings) -> dict[str, Tensor]:
    """Pixels (B, H, W) of 0 and 1 by name: the salient region, and the object where there are masks."""
    found = {"saliency": saliency_region(pixels, settings.saliency_share)}
    return found if masks is None else {"mask": masks.to(torch.float32), **found}


def _recorded_layers(settings: AttentionSettings, read: Read | None) -> tuple[str, ...] | None:
    # A rollout needs every layer, whichever is reported; a reader knows those alone that it is given for.
    return None if read is None else settings.layers or None


def _check_model(model: nn.Module, settings: AttentionSettings, read: Read | None) -> None:
    with recorded_attention(model, _recorded_layers(settings, read), read=read):
        pass  # finding the layers says what is wrong; nothing runs yet
    if read is None:
        _check_layers(attention_layers(model), settings)


def _check_images(images: Tensor, pixels: Tensor | None, masks: Tensor | None) -> None:
    if images.ndim != 4 or not images.numel():
        raise UsageError(f"images must be one or more, as (batch, 3, height, width): got {tuple(images.shape)}")
    if pixels is not None and (pixels.ndim != 4 or len(pixels) != len(images)):
        raise UsageError(
            f"pixels must be those of the {len(images)} images, (batch, 3, height, width): got {tuple(pixels.shape)}"
        )
    if masks is None:
        return
    wanted = (len(images), *images.shape[-2:])
    if masks.shape != wanted:
        raise UsageError(f"masks must be {wanted}, one for each image in its size: got {tuple(masks.shape)}")
    if masks.dtype != torch.bool:
        low, high = masks.min().item(), masks.max().item()
        if not 0 <= low <= high <= 1:
            hint = "divide them by 255" if low >= 0 and 1 < high <= 255 else "give 1 for the object and 0 elsewhere"
            raise UsageError(f"masks must be bool or lie within 0 and 1, got {low:g} to {high:g}: {hint}")


def _check_layers(known: Iterable[str], settings: AttentionSettings) -> None:
    names = list(known)
    for name in settings.layers if names else ():
        if name not in names:
            raise unknown_name("attention layer", name, names)


def _check_state(state: State, backbone: Backbone) -> None:
    wanted = {name: tuple(value.shape) for name, value in backbone.named_parameters()}
    given = {name: tuple(value.shape) for name, value in state.parameters.items() if not _of_branch(name)}
    if given != wanted:
        differing = sorted(name for name in {*given, *wanted} if given.get(name) != wanted.get(name))
        raise UsageError(
            f"the state is from another backbone than its spec {state.spec.id} ({state.spec.arch}): "
            f"{differing[0]} differs; load the state that was saved with this spec"
        )


def _of_branch(name: str) -> bool:
    return name.startswith("branch")
