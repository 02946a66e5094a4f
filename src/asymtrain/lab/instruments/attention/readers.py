"""Queries and keys of an attention module, computed once more from the module's own input.

Recognised are this package's ViT, timm's `Attention` (one `qkv` layer or `q_proj`, `k_proj`; with `q_norm` and `k_norm`
where they are), Hugging Face's ViT in both of its naming schemes (`query`, `key`; `q_proj`, `k_proj`), and
`torch.nn.MultiheadAttention`. For any other module give `read_layers(...)`, or a function of your own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain.errors import UsageError

Read = Callable[..., tuple[Tensor, Tensor] | tuple[Tensor, Tensor, float]]
"""(module, *the module's inputs) -> queries and keys (B, heads, T, D / heads), and the scale where it is not usual."""

_HEADS = ("heads", "num_heads", "num_attention_heads")
_PROJECTIONS = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"))
_SCALES = ("scale", "scaling")
_OUTPUTS = ("proj", "o_proj")


@dataclass(frozen=True)
class Reading:
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


def recognised(module: nn.Module) -> bool:
    """Does `reading` know how this module makes its queries and keys?"""
    if isinstance(module, nn.MultiheadAttention):
        return module._qkv_same_embed_dim
    return _heads(module) is not None and (_is_layer(module, "qkv") or _separate(module) is not None)


def reading(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reading:
    """Queries and keys of a recognised module for the inputs that it was called with."""
    if isinstance(module, nn.MultiheadAttention):
        return _multihead(module, *[*args, *(kwargs[name] for name in ("query", "key", "value") if name in kwargs)][:3])
    tokens = _first_tensor(args, kwargs)
    heads = _heads(module)
    assert heads is not None  # `recognised` has said so
    if _is_layer(module, "qkv"):
        query, key, value = _apply(module, "qkv", tokens).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    else:
        names = _separate(module)
        assert names is not None  # likewise
        query, key, value = (split_heads(_apply(module, name, tokens), heads) for name in names)
    if _is_layer(module, "q_norm") and _is_layer(module, "k_norm"):
        query, key = _apply(module, "q_norm", query), _apply(module, "k_norm", key)
    scale = next((s for name in _SCALES if isinstance(s := getattr(module, name, None), float)), None)

    def output(maps: Tensor) -> Tensor:
        mixed = (maps.to(value.dtype) @ value).transpose(1, 2).flatten(2)
        for name in ("norm", *_OUTPUTS):  # timm can normalise before it projects
            mixed = _apply(module, name, mixed) if _is_layer(module, name) else mixed
        return mixed

    return Reading(query, key, query.shape[-1] ** -0.5 if scale is None else scale, output)


def read_layers(query: str, key: str, heads: int | str) -> Read:
    """A reader for modules whose queries and keys come from two layers of these names.

    `heads` is their number, or the name of the attribute that holds it: `read_layers("to_q", "to_k", "n_heads")`.
    """

    def read(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        for name in (query, key):
            if not _is_layer(module, name):
                raise UsageError(f"{type(module).__name__} has no layer {name!r}: give the names of its layers")
        count = getattr(module, heads, None) if isinstance(heads, str) else heads
        if not isinstance(count, int):
            raise UsageError(f"{type(module).__name__} has no number {heads!r}: give heads as a number")
        tokens = _first_tensor(args, kwargs)
        found = [_apply(module, name, tokens) for name in (query, key)]
        if any(x.shape[-1] % count for x in found):
            raise UsageError(f"{found[0].shape[-1]} features do not divide into {count} heads")
        return split_heads(found[0], count), split_heads(found[1], count)

    return read


def split_heads(features: Tensor, heads: int) -> Tensor:
    """Features (B, T, D) as (B, heads, T, D / heads)."""
    return features.unflatten(-1, (heads, -1)).transpose(-3, -2)


def _multihead(module: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor) -> Reading:
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

    return Reading(q, k, q.shape[-1] ** -0.5, output)


def _heads(module: nn.Module) -> int | None:
    return next((n for name in _HEADS if isinstance(n := getattr(module, name, None), int)), None)


def _separate(module: nn.Module) -> tuple[str, str, str] | None:
    return next((names for names in _PROJECTIONS if all(_is_layer(module, name) for name in names)), None)


def _is_layer(module: nn.Module, name: str) -> bool:
    return isinstance(getattr(module, name, None), nn.Module)


def _apply(module: nn.Module, name: str, input: Tensor) -> Tensor:
    # Not by calling the layer: hooks that others hung there must not see this second pass.
    return getattr(module, name).forward(input)


def _first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    found = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
    if found is None or found.ndim != 3:
        raise UsageError("the attention module was not called with tokens (batch, tokens, width): give read=")
    return found
