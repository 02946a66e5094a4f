"""Bias, 2 x 2 max-pool and ReLU in one pass over a convolution's result, and their gradient in one more.

The largest map of a CNN is the one before its first pool. Here it is read once, and its gradient is written once;
a byte for each pooled value stores that value's origin. Channels are the innermost axis in memory.

Shapes: maps (B, C, H, W), bias (C,), pooled and origin (B, C, H / 2, W / 2).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
DEAD = 4  # the origin of a value that the ReLU sets to 0


@triton.jit
def _corner(cells, C: tl.constexpr, HALF: tl.constexpr):
    """The offset of the first of a pooled cell's four values, and its channel; map rows are 2 HALF cells of C."""
    channel, column, row = cells % C, cells // C % HALF, cells // (C * HALF)
    return ((row * 2) * (2 * HALF) + column * 2) * C + channel, channel


@triton.jit
def _forward(maps, bias, pooled, origin, count, C: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr):
    cells = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = cells < count
    corner, channel = _corner(cells, C, HALF)
    best = tl.load(maps + corner, mask=inside, other=0.0).to(tl.float32)
    where = tl.zeros((BLOCK,), tl.int32)
    for i in tl.static_range(1, 4):
        value = tl.load(maps + corner + (i // 2 * 2 * HALF + i % 2) * C, mask=inside, other=0.0).to(tl.float32)
        larger = (value > best) | (value != value)  # as in torch: on ties the first wins, and NaN wins over all
        best, where = tl.where(larger, value, best), tl.where(larger, i, where)
    best += tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    positive = best > 0
    # NaN times zero is NaN, so that divergence is visible.
    tl.store(pooled + cells, tl.where(positive, best, best * 0).to(pooled.dtype.element_ty), mask=inside)
    tl.store(origin + cells, tl.where(positive, where, 4).to(tl.int8), mask=inside)


@triton.jit
def _backward(grad, origin, out, count, C: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr):
    cells = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = cells < count
    corner, _ = _corner(cells, C, HALF)
    value = tl.load(grad + cells, mask=inside, other=0.0)
    where = tl.load(origin + cells, mask=inside, other=4)
    for i in tl.static_range(0, 4):
        tl.store(out + corner + (i // 2 * 2 * HALF + i % 2) * C, tl.where(where == i, value, 0.0), mask=inside)


def pool_relu(maps: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """relu(maxpool(maps + bias)) and each value's origin (0 to 3, or DEAD)."""
    maps = maps.contiguous(memory_format=torch.channels_last)
    batch, channels, height, width = maps.shape
    pooled = _empty(maps, batch, channels, height // 2, width // 2)
    origin = torch.empty_like(pooled, dtype=torch.int8)
    sizes = {"C": channels, "HALF": width // 2, "BLOCK": _BLOCK}
    _forward[(triton.cdiv(pooled.numel(), _BLOCK),)](maps, bias.contiguous(), pooled, origin, pooled.numel(), **sizes)
    return pooled, origin


def pool_relu_gradient(grad: Tensor, origin: Tensor) -> Tensor:
    """The gradient of the maps from the gradient of the pooled values."""
    grad = grad.contiguous(memory_format=torch.channels_last)
    batch, channels, height, width = grad.shape
    out = _empty(grad, batch, channels, 2 * height, 2 * width)
    sizes = {"C": channels, "HALF": width, "BLOCK": _BLOCK}
    _backward[(triton.cdiv(grad.numel(), _BLOCK),)](grad, origin, out, grad.numel(), **sizes)
    return out


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)
