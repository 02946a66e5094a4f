"""The attention maps of any model, by hooks: the model computes as usual, and the maps are collected.

    output, maps = attention_maps(model, images)            # {"blocks.0.attention": (B, heads, T, T), ...}

Each map is softmax(scale q k^T) from the module's own input and its own layers. In evaluation mode it is checked: the
values mixed by that map must give the module's output. So a module with a mask, a position bias or rotary positions is
refused, and never read wrongly; give a `read` function for it.

Recognised are this package's ViT, timm's `Attention` (one `qkv` layer or `q_proj`, `k_proj`; `q_norm` and `k_norm` if
present), Hugging Face's ViT in both of its naming schemes (`query`, `key`; `q_proj`, `k_proj`), and
`torch.nn.MultiheadAttention`. For any other module give a function of your own (`Read`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain.errors import UsageError, unknown_name

Read = Callable[..., tuple[Tensor, Tensor] | tuple[Tensor, Tensor, float]]
"""(module, *the module's inputs) -> queries and keys (B, heads, T, D / heads), and the scale if it is unusual."""

# Largest distance of the output from the one that the map explains, as a share of its norm.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3}
_COARSE = 3e-2  # half precision
_HEADS = ("heads", "num_heads", "num_attention_heads")
_PROJECTIONS = (("qkv",), ("q_proj", "k_proj", "v_proj"), ("query", "key", "value"))
_SCALES = ("scale", "scaling")
_OUTPUTS = ("proj", "o_proj")


@dataclass(frozen=True)
class QueriesAndKeys:
    """Queries, keys (B, heads, T, D / heads) and their scale; `output` mixes values by maps as the module would."""

    query: Tensor
    key: Tensor
    scale: float
    output: Callable[[Tensor], Tensor] | None = None

    def maps(self) -> Tensor:
        """Attention weights (B, heads, T, T) in float32 (or float64): rows are queries and sum to one."""
        if self.query.shape[:2] != self.key.shape[:2] or self.query.shape[-1:] != self.key.shape[-1:]:
            raise UsageError(
                f"queries {tuple(self.query.shape)} and keys {tuple(self.key.shape)} do not belong together: "
                "both must be (batch, heads, tokens, width of a head)"
            )
        with torch.autocast(self.query.device.type, enabled=False):
            query, key = (x if x.dtype == torch.float64 else x.float() for x in (self.query, self.key))
            return (query @ key.mT * self.scale).softmax(-1)


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The model's attention modules with reachable queries and keys, by name, in the order of the modules."""

    def recognised(module: nn.Module) -> bool:
        if isinstance(module, nn.MultiheadAttention):
            return module._qkv_same_embed_dim
        return _projections(module) is not None

    return {name: module for name, module in model.named_modules() if recognised(module)}


def reading(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> QueriesAndKeys:
    """Queries and keys of a recognised module for the inputs it was called with."""
    if isinstance(module, nn.MultiheadAttention):
        return _multihead(module, *[*args, *(kwargs[name] for name in ("query", "key", "value") if name in kwargs)][:3])
    tokens = _first_tensor(args, kwargs)
    projections = _projections(module)
    assert projections is not None  # `attention_layers` made sure of it
    heads, names = projections
    layers = [_apply(module, name, tokens) for name in names]
    parts = layers[0].chunk(3, -1) if len(layers) == 1 else layers
    query, key, value = (split_heads(part, heads) for part in parts)
    if _is_layer(module, "q_norm") and _is_layer(module, "k_norm"):
        query, key = _apply(module, "q_norm", query), _apply(module, "k_norm", key)
    scale = next((s for name in _SCALES if isinstance(s := getattr(module, name, None), float)), None)

    def output(maps: Tensor) -> Tensor:
        mixed = (maps.to(value.dtype) @ value).transpose(1, 2).flatten(2)
        for name in ("norm", *_OUTPUTS):  # timm can normalise before it projects
            mixed = _apply(module, name, mixed) if _is_layer(module, name) else mixed
        return mixed

    return QueriesAndKeys(query, key, query.shape[-1] ** -0.5 if scale is None else scale, output)


def split_heads(features: Tensor, heads: int) -> Tensor:
    """Features (B, T, D) as (B, heads, T, D / heads)."""
    return features.unflatten(-1, (heads, -1)).transpose(-3, -2)


def _multihead(module: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor) -> QueriesAndKeys:
    inputs = [query, key, value]
    if query.ndim == 2:
        inputs = [x[None] for x in inputs]
    elif not module.batch_first:
        inputs = [x.transpose(0, 1) for x in inputs]
    weights = module.in_proj_weight.chunk(3)
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    projected = [F.linear(x, weight, bias) for x, weight, bias in zip(inputs, weights, biases, strict=True)]
    q, k, v = (split_heads(x, module.num_heads) for x in projected)

    def output(maps: Tensor) -> Tensor:
        mixed = module.out_proj.forward((maps.to(v.dtype) @ v).transpose(1, 2).flatten(2))
        return mixed[0] if query.ndim == 2 else mixed if module.batch_first else mixed.transpose(0, 1)

    return QueriesAndKeys(q, k, q.shape[-1] ** -0.5, output)


def _projections(module: nn.Module) -> tuple[int, tuple[str, ...]] | None:
    """The number of heads, and the layers that make queries, keys and values, if both have known names."""
    heads = next((n for name in _HEADS if isinstance(n := getattr(module, name, None), int)), None)
    names = next((names for names in _PROJECTIONS if all(_is_layer(module, name) for name in names)), None)
    return None if heads is None or names is None else (heads, names)


def _is_layer(module: nn.Module, name: str) -> bool:
    return isinstance(getattr(module, name, None), nn.Module)


def _apply(module: nn.Module, name: str, input: Tensor) -> Tensor:
    # Bypass `__call__`: hooks that others registered on the layer must not see this second pass.
    return getattr(module, name).forward(input)


def _first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    tokens = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
    if tokens is None or tokens.ndim != 3:
        raise UsageError("the attention module was not called with tokens (batch, tokens, width): give read=")
    return tokens


def attention_maps(
    model: nn.Module,
    *inputs: Any,
    layers: Sequence[str] | None = None,
    read: Read | None = None,
    check: bool = True,
    **keywords: Any,
) -> tuple[Any, dict[str, Tensor]]:
    """The output of `model(*inputs, **keywords)`, bit-equal, and the attention (B, heads, T, T) of its layers by name.

    `layers` are module names; None means all recognised ones. `read` finds queries and keys in modules that are not
    recognised, and needs `layers`. The maps carry no gradient; the model's mode, its parameters and the random numbers
    stay as they are. A layer that runs several times appears as name, name#2, ...
    """
    with recorded_attention(model, layers, read=read, check=check) as maps_by_layer:
        output = getattr(model, "_orig_mod", model)(*inputs, **keywords)  # hooks do not reach into compiled code
    maps = {f"{name}#{i}": weights for name, passes in maps_by_layer.items() for i, weights in enumerate(passes, 1)}
    maps = {name.removesuffix("#1"): weights for name, weights in maps.items()}
    if not maps:
        raise UsageError("no attention layer ran in this forward pass: call the module that holds them")
    return output, maps


@contextmanager
def recorded_attention(
    model: nn.Module, layers: Sequence[str] | None = None, *, read: Read | None = None, check: bool = True
) -> Iterator[Mapping[str, list[Tensor]]]:
    """Inside the block, each forward pass adds the maps of its layers to the yielded lists; see `attention_maps`."""
    maps_by_layer: dict[str, list[Tensor]] = {}

    def look(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        device = next((x.device for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), torch.device("cpu"))
        gpus = [device] if device.type == "cuda" else []
        # A query layer may hold dropout: measuring must not change the random numbers of training.
        with torch.no_grad(), torch.random.fork_rng(gpus, enabled=module.training):
            parts = reading(module, args, kwargs) if read is None else _read_by(read, module, args, kwargs)
            maps = parts.maps()
            if check and not module.training and parts.output is not None:
                _check(name, parts.output(maps), output)
        maps_by_layer.setdefault(name, []).append(maps)

    handles = [
        # After the forward pass: under autocast a first use without gradient would leave casts without gradient behind.
        module.register_forward_hook(partial(look, name), with_kwargs=True)
        for name, module in _choose(getattr(model, "_orig_mod", model), layers, read).items()
    ]
    try:
        yield maps_by_layer
    finally:
        for handle in handles:
            handle.remove()


def _choose(model: nn.Module, layers: Sequence[str] | None, read: Read | None) -> dict[str, nn.Module]:
    modules, found_layers = dict(model.named_modules()), attention_layers(model)
    if layers is None:
        if read is not None:
            raise UsageError("read= needs layers=: the names of the modules that it reads")
        if not found_layers:
            raise UsageError(
                f"{type(model).__name__} has no attention whose queries and keys are known: measure a vision "
                "transformer, or give layers= and read="
            )
        return found_layers
    for name in layers:
        if name not in modules:
            raise unknown_name("attention layer", name, found_layers or modules)
        if read is None and name not in found_layers:
            raise UsageError(f"{name} is no attention layer whose queries and keys are known: give read=")
    return {name: modules[name] for name in layers}


def _read_by(read: Read, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> QueriesAndKeys:
    query, key, *scale = read(module, *args, **kwargs)
    if query.ndim != 4:
        raise UsageError(
            f"read= gave queries {tuple(query.shape)}: they must be (batch, heads, tokens, width of a head)"
        )
    return QueriesAndKeys(query, key, scale[0] if scale else query.shape[-1] ** -0.5)


def _check(name: str, explained: Tensor, output: Any) -> None:
    maps = output[0] if isinstance(output, tuple | list) else output
    same = explained.shape == maps.shape
    if same:
        error = (explained.double() - maps.double()).norm() / maps.double().norm().clamp_min(1e-30)
        same = not bool(error > _TOLERANCE.get(explained.dtype, _COARSE))  # NaN passes: a diverged network has NaN maps
    if not same:
        raise UsageError(
            f"the output of {name} does not follow from its queries and keys alone (a mask, a position bias, rotary "
            "positions?): give read= for it, or check=False"
        )


def from_class_token(attention: Tensor, *, prefix: int = 1) -> Tensor:
    """What the first token attends to among the patches, as a distribution; NaN if it attends to none."""
    if prefix < 1:
        raise UsageError('there is no class token: use query="mean", the average over all queries')
    return _over_patches(attention[..., 0, :], prefix)


def over_queries(attention: Tensor, *, prefix: int = 1) -> Tensor:
    """What all tokens (including those before the patches) attend to among the patches, averaged."""
    return _over_patches(attention.mean(-2), prefix)


def rollout(attention: Sequence[Tensor]) -> Tensor:
    """Attention rollout (Abnar and Zuidema 2020): layers of (B, heads, T, T), first to last -> (B, T, T).

    Heads of a layer are averaged, the residual connection enters as the identity with half of the weight, and the
    layers are multiplied. Rows sum to one. Row 0 says how much of each input token reaches the class token.
    """
    averaged = [layer.mean(-3) for layer in attention]
    steps = [0.5 * heads + 0.5 * torch.eye(heads.shape[-1]).to(heads) for heads in averaged]
    return reduce(lambda flow, step: step @ flow, steps)


def _over_patches(rows: Tensor, prefix: int) -> Tensor:
    if prefix >= rows.shape[-1]:
        raise UsageError(f"{prefix} of {rows.shape[-1]} tokens stand before the patches: no patch is left")
    patches = rows[..., prefix:]
    return patches / patches.sum(-1, keepdim=True)
