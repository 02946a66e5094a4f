"""From a layer's output to what its branches read: the layout names its axes, the pool reduces the positions.

A layout is a word with one letter for each axis: B is the batch, C or D the features, every other letter a
position. "BD", "BCHW", "BTD", "TBD" and "BHWC" are the usual ones; "BCT" (1-d convolutions) or "BCTHW" (video) follow
the same rule. Pooling gives one row for each sample, (B, D). Without pooling, one position axis gives tokens
(B, T, D), and several give maps such as (B, D, H, W).
"""

import inspect
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from asymtrain.branches._nested import Selector, select
from asymtrain.errors import UsageError, unknown_name

PoolName = Literal["mean", "class_token", "last_token", "none"]
Resize = Literal["targets", "logits"]


@dataclass(frozen=True)
class Dense:
    """`pool=Dense()`, or `pool="none"`, keeps the positions, and each has a target of its own.

    If targets have another number of positions, `resize` resizes the `targets` (nearest) or the `logits` (linear) to
    match.
    """

    resize: Resize | None = None

    def __post_init__(self) -> None:
        if self.resize is not None and self.resize not in get_args(Resize):
            raise unknown_name("resize", str(self.resize), get_args(Resize))


PoolRule = PoolName | Callable[..., Tensor]  # of the feature, and of the mask if it has an argument `mask`
Pool = PoolRule | Dense


def pool_features(feature: Tensor, layout: str, pool: PoolName) -> Tensor:
    """Reduce a feature with this layout to (B, D).

    The result never shares memory with the input: a later in-place operation of the model (ReLU) must not
    change what the branches read. Means are accumulated at least in float32.
    """
    positions = tuple(axis for axis, letter in enumerate(layout) if letter not in "BCD")
    if not positions:
        rows = feature.clone()
    elif pool == "mean":
        rows = _mean(feature, positions)
    else:
        rows = feature.select(positions[0], 0 if pool == "class_token" else -1).clone()
    letters = [letter for letter in layout if letter in "BCD"]
    return rows if letters[0] == "B" else rows.t()


def keep_positions(feature: Tensor, layout: str) -> Tensor:
    """A view of a feature: (B, T, D) with one position axis, (B, D, H, W) with more."""
    axes = {letter: axis for axis, letter in enumerate(layout)}
    features = axes["C"] if "C" in axes else axes["D"]
    positions = [axis for letter, axis in axes.items() if letter not in "BCD"]
    order = [axes["B"], *positions, features] if len(positions) == 1 else [axes["B"], features, *positions]
    return feature.permute(order)


def _mean(feature: Tensor, axes: tuple[int, ...]) -> Tensor:
    wide = torch.promote_types(feature.dtype, torch.float32)
    if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and feature.requires_grad):
        return feature.mean(axes, dtype=wide)
    if wide == feature.dtype:
        # A sum's gradient is a view of the rows' gradient; a mean's is a copy as large as the feature.
        return feature.sum(axes) / math.prod(feature.shape[axis] for axis in axes)
    rows: Tensor = _HalfMean.apply(feature, axes)  # type: ignore[no-untyped-call]
    return rows


class _HalfMean(torch.autograd.Function):
    """The float32 mean of a half-precision feature; the gradient is cast while it is rows, then expanded."""

    generate_vmap_rule = True

    @staticmethod
    def forward(feature: Tensor, axes: tuple[int, ...]) -> Tensor:
        return feature.mean(axes, dtype=torch.float32)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, tuple[int, ...]], output: Tensor) -> None:
        feature, ctx.axes = inputs
        ctx.shape, ctx.dtype = feature.shape, feature.dtype

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        rows = (gradients[0] / math.prod(ctx.shape[axis] for axis in ctx.axes)).to(ctx.dtype)
        for axis in ctx.axes:
            rows = rows.unsqueeze(axis)
        return rows.expand(ctx.shape), None


def _masked_mean(feature: Tensor, mask: Tensor) -> Tensor:
    """Means (B, D) of (B, T, D) or (B, D, H, W) over the positions whose mask is not 0; 0 if there are none."""
    tokens = feature if feature.ndim == 3 else feature.flatten(2).mT
    keep = (mask != 0).flatten(1).unsqueeze(-1)
    total = (tokens * keep).sum(1, dtype=torch.promote_types(feature.dtype, torch.float32))
    return total / keep.sum(1).clamp(min=1)


def _last_masked(tokens: Tensor, mask: Tensor) -> Tensor:
    """The last token (B, D) of tokens (B, T, D) whose mask is not 0; the padding may be on either side."""
    positions = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    last = ((mask != 0) * positions).amax(1).clamp(min=1) - 1
    return tokens[torch.arange(len(tokens), device=tokens.device), last]


class Pooled(NamedTuple):
    """How a feature becomes rows (B, D): mean over `axes`, or the first position on axis `token`; and the B, D axes."""

    axes: tuple[int, ...] = ()
    token: int | None = None
    batch: int = 0
    width: int = 1


class MemoryLayout(NamedTuple):
    """The memory layout of a layer's feature, and of the gradient by it."""

    width: int
    strides: tuple[int, int, int]  # of the feature, by sample, width and position
    positions: int  # the number that are averaged; 1 for rows
    size: int  # elements of the gradient that are written
    gradient: tuple[tuple[int, ...], tuple[int, ...]]  # its shape and strides


def memory_layout(feature: Tensor, pooled: Pooled) -> MemoryLayout | None:
    """The memory layout of a feature that is rows or is averaged.

    None if the feature is empty, if memory holds negated values (`is_neg`), or if positions have no single stride.
    """
    axes = [axis for axis in pooled.axes if feature.shape[axis] > 1]
    if not feature.numel() or feature.is_neg():
        return None
    if any(feature.stride(a) != feature.stride(b) * feature.shape[b] for a, b in pairwise(axes)):
        return None
    shape, batch, width = tuple(feature.shape), feature.shape[pooled.batch], feature.shape[pooled.width]
    strides = feature.stride(pooled.batch), feature.stride(pooled.width), feature.stride(axes[-1]) if axes else 0
    spread = tuple({pooled.batch: width, pooled.width: 1}.get(axis, 0) for axis in range(len(shape)))
    positions = math.prod(shape[axis] for axis in pooled.axes)
    return MemoryLayout(width, strides, positions, batch * width, (shape, spread))


@dataclass(frozen=True)
class Reader:
    """Reads the branches' input from a layer's output."""

    layout: str | None  # None if not known yet, or not needed: a user's own pool takes the feature as it is
    pool: PoolRule
    output: Selector | None = None
    detach: bool = False  # whether no gradient goes back into the model
    masked: bool | None = True  # whether the model's mask is about its positions; None if unknown
    takes_mask: bool = field(init=False, default=False)  # whether the user's pool has an argument `mask`

    def __post_init__(self) -> None:
        with suppress(TypeError, ValueError):  # for functions without a readable signature
            takes = callable(self.pool) and "mask" in inspect.signature(self.pool).parameters
            object.__setattr__(self, "takes_mask", takes)

    @property
    def positions(self) -> int:
        """The number of position axes that are kept."""
        return 0 if self.pool != "none" or self.layout is None else len(self.layout) - 2

    @property
    def counts_positions(self) -> bool:
        """Whether a mask of positions changes the result: what is pooled, or what is learnt at each position."""
        return self.layout is not None and len(self.layout) > 2 and self.pool in ("mean", "last_token", "none")

    @property
    def pooled(self) -> Pooled | None:
        """How a feature becomes rows (B, D); None unless by a mean or a class token, and with the batch axis first."""
        axes = [axis for axis, letter in enumerate(self.layout or "") if letter in "BCD"]
        if self.layout is None or self.pool not in ("mean", "class_token") or self.layout[axes[0]] != "B":
            return None
        positions = tuple(axis for axis in range(len(self.layout)) if axis not in axes)
        if self.pool == "mean" or not positions:
            return Pooled(positions, None, *axes)
        return Pooled((), positions[0], *axes) if len(positions) == 1 else None

    def check(self) -> None:
        """Raise a `UsageError` if the layout or the pooling rule is invalid."""
        letters = list(self.layout) if isinstance(self.layout, str) else []
        once = len(set(letters)) == len(letters) and "B" in letters and len({"C", "D"} & set(letters)) == 1
        if self.layout is not None and not once:
            raise UsageError(
                f"layout {self.layout!r} is not one letter an axis with one B (batch) and one C or D (features): "
                "write for example 'BD', 'BCHW', 'BTD', 'TBD' or 'BHWC'"
            )
        if isinstance(self.pool, nn.Module):
            raise UsageError(
                f"pool is a module ({type(self.pool).__name__}), whose weights would never be trained: give it as "
                "`head` with pool='none', or a function from the feature to (B, D) as `pool`"
            )
        if not callable(self.pool) and self.pool not in get_args(PoolName):
            raise unknown_name("pool", str(self.pool), get_args(PoolName))

    def read(self, output: object, mask: Tensor | None = None) -> Tensor | str:
        """Rows (B, D), tokens (B, T, D) or maps (B, D, H, W); or what is wrong with the output.

        Does not raise: a hook must not break a forward whose branches may never be used.
        """
        feature = select(output, self.output)
        if feature is None:
            return f"gives no floating-point tensor (its output is a {type(output).__name__})"
        if feature.is_nested:
            return "gives a nested tensor (build the encoder with enable_nested_tensor=False)"
        if feature.layout is not torch.strided:
            return f"gives a tensor of layout {feature.layout}: choose a module whose output is dense"
        if callable(self.pool):
            rows = self.pool(feature, mask=mask) if self.takes_mask else self.pool(feature)
            dense = isinstance(rows, Tensor) and rows.layout is torch.strided and not rows.is_nested
            if not dense or rows.ndim != 2 or rows.is_complex():
                return "has a `pool` function that does not return a tensor of shape (rows, features)"
            # The user's function may return a view.
            return rows.clone()
        assert self.layout is not None
        if feature.ndim != len(self.layout):
            return f"gives shape {tuple(feature.shape)}, which does not have the axes of layout {self.layout!r}"
        if mask is not None and self.masked is None:
            return (
                "has positions, and nothing shows that the model's mask is about them: attach with a sample that has "
                "the mask, with mask=, a function of the model's arguments that returns it, or with mask=None"
            )
        if self.pool == "none" and feature.ndim > 2:
            by_position = keep_positions(feature, self.layout)
            # A compiled graph cannot detect that the model changes it in place afterwards.
            return by_position.clone() if torch.compiler.is_compiling() else by_position
        if mask is None or not self.masked or not self.counts_positions:
            return pool_features(feature, self.layout, self.pool)
        by_position = keep_positions(feature, self.layout)
        positions = by_position.shape[1:2] if by_position.ndim == 3 else by_position.shape[2:]
        if mask.shape != (by_position.shape[0], *positions):
            return (
                f"has {' x '.join(map(str, positions))} positions for each of {by_position.shape[0]} samples, and the "
                f"mask has shape {tuple(mask.shape)}: give mask=None to attach, or a function that returns the mask"
            )
        return _masked_mean(by_position, mask) if self.pool == "mean" else _last_masked(by_position, mask)
