"""Self-attention of short sequences: one program holds an image's head whole, so nothing is written in between.

The class token is token 0 and is computed beside the P patches, as the first row of a tile of 16, the smallest that
tensor cores take; the other rows are 0. Blocks then have P and 16 rows, where padding the sequence of P + 1 to the next
power of two would waste three quarters of the arithmetic. The backward pass computes the probabilities again; only
queries, keys and values are kept.

Shapes: qkv (R, B T, 3 D) before its bias, bias (R, 3 D), out (R, B T, D); T = P + 1, D = heads * W.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

_WARPS = 4
_REGISTERS = 0  # of a thread at most, in the backward pass: with fewer, more programs are in flight; 0: no limit
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _load(base, bias, rows, lanes, columns, first, stride):
    """Patches (P, W) and the class token's tile (16, W) of one head, bias added, in the type they are stored in."""
    shift = tl.load(bias + first + columns).to(tl.float32)[None, :]
    patches = tl.load(base + (rows[:, None] + 1) * stride + first + columns[None, :])
    token = tl.load(base + first + columns)[None, :].to(tl.float32) + shift
    kind = patches.dtype
    return (patches.to(tl.float32) + shift).to(kind), tl.where(lanes[:, None] == 0, token, 0.0).to(kind)


@triton.jit
def _softmax(q, k, k_class, lanes, scale):
    """Exponentials of each query's scores over the patches and over the class token's tile; one over their sums."""
    # libdevice's exponential takes tiny numbers for 0; Triton's own spends three more operations on them.
    scores, beside = tl.dot(q, tl.trans(k)), tl.dot(q, tl.trans(k_class))
    beside = tl.where(lanes[None, :] == 0, beside, float("-inf"))
    most = (tl.maximum(tl.max(scores, 1), tl.max(beside, 1)) * (scale * _LOG2_E))[:, None]
    p = libdevice.exp2(scores * (scale * _LOG2_E) - most)
    p_class = libdevice.exp2(beside * (scale * _LOG2_E) - most)
    return p, p_class, (1.0 / (tl.sum(p, 1) + tl.sum(p_class, 1)))[:, None]


@triton.jit
def _mix(q, k, k_class, v, v_class, lanes, scale):
    """Values mixed for each query."""
    p, p_class, over = _softmax(q, k, k_class, lanes, scale)
    return ((tl.dot(p.to(v.dtype), v) + tl.dot(p_class.to(v.dtype), v_class)) * over).to(v.dtype)


@triton.jit
def _score_gradients(q, g, k, k_class, v, v_class, lanes, scale):
    """Probabilities of each query and gradients of its scores, over the patches and over the class token's tile."""
    p, p_class, over = _softmax(q, k, k_class, lanes, scale)
    p, p_class = p * over, p_class * over
    dp, dp_class = tl.dot(g, tl.trans(v)), tl.dot(g, tl.trans(v_class))
    mean = (tl.sum(p * dp, 1) + tl.sum(p_class * dp_class, 1))[:, None]
    ds, ds_class = p * ((dp - mean) * scale), p_class * ((dp_class - mean) * scale)
    return p.to(q.dtype), p_class.to(q.dtype), ds.to(q.dtype), ds_class.to(q.dtype)


@triton.jit
def _forward(qkv, bias, out, batch, scale, HEADS: tl.constexpr, P: tl.constexpr, W: tl.constexpr):
    image, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    D: tl.constexpr = HEADS * W
    rows, lanes, columns = tl.arange(0, P), tl.arange(0, 16), tl.arange(0, W)
    base = qkv + image.to(tl.int64) * (P + 1) * 3 * D
    shift = bias + (image // batch) * 3 * D
    q, q0 = _load(base, shift, rows, lanes, columns, head * W, 3 * D)
    k, k0 = _load(base, shift, rows, lanes, columns, D + head * W, 3 * D)
    v, v0 = _load(base, shift, rows, lanes, columns, 2 * D + head * W, 3 * D)

    target = out + image.to(tl.int64) * (P + 1) * D + head * W
    cells, first = (rows[:, None] + 1) * D + columns[None, :], lanes[:, None] * D + columns[None, :]
    tl.store(target + cells, _mix(q, k, k0, v, v0, lanes, scale))
    tl.store(target + first, _mix(q0, k, k0, v, v0, lanes, scale), mask=lanes[:, None] == 0)


@triton.jit
def _backward(qkv, bias, grad, out, batch, scale, HEADS: tl.constexpr, P: tl.constexpr, W: tl.constexpr):
    image, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    D: tl.constexpr = HEADS * W
    rows, lanes, columns = tl.arange(0, P), tl.arange(0, 16), tl.arange(0, W)
    is_token = lanes[:, None] == 0
    base = qkv + image.to(tl.int64) * (P + 1) * 3 * D
    shift = bias + (image // batch) * 3 * D
    q, q0 = _load(base, shift, rows, lanes, columns, head * W, 3 * D)
    k, k0 = _load(base, shift, rows, lanes, columns, D + head * W, 3 * D)
    v, v0 = _load(base, shift, rows, lanes, columns, 2 * D + head * W, 3 * D)
    source = grad + image.to(tl.int64) * (P + 1) * D + head * W
    g = tl.load(source + (rows[:, None] + 1) * D + columns[None, :])
    g0 = tl.load(source + lanes[:, None] * D + columns[None, :], mask=is_token, other=0.0)

    p, p0, ds, ds0 = _score_gradients(q, g, k, k0, v, v0, lanes, scale)  # of the patches' queries
    c, c0, dt, dt0 = _score_gradients(q0, g0, k, k0, v, v0, lanes, scale)  # of the class token's

    target = out + image.to(tl.int64) * (P + 1) * 3 * D + head * W
    cells, first = (rows[:, None] + 1) * 3 * D + columns[None, :], lanes[:, None] * D + columns[None, :]
    kind = q.dtype
    tl.store(target + cells, (tl.dot(ds, k) + tl.dot(ds0, k0)).to(kind))
    tl.store(target + D + cells, (tl.dot(tl.trans(ds), q) + tl.dot(tl.trans(dt), q0)).to(kind))
    tl.store(target + 2 * D + cells, (tl.dot(tl.trans(p), g) + tl.dot(tl.trans(c), g0)).to(kind))
    tl.store(target + first, (tl.dot(dt, k) + tl.dot(dt0, k0)).to(kind), mask=is_token)
    tl.store(target + D + first, (tl.dot(tl.trans(ds0), q) + tl.dot(tl.trans(dt0), q0)).to(kind), mask=is_token)
    tl.store(target + 2 * D + first, (tl.dot(tl.trans(p0), g) + tl.dot(tl.trans(c0), g0)).to(kind), mask=is_token)


def attend(qkv: Tensor, bias: Tensor, batch: int, heads: int) -> Tensor:
    """Mixed values (R, B T, D) of all heads."""
    runs, rows, width = qkv.shape
    out = torch.empty(runs, rows, width // 3, dtype=qkv.dtype, device=qkv.device)
    _launch(_forward, (qkv.contiguous(), bias.contiguous(), out), qkv, batch, heads)
    return out


def attend_gradient(qkv: Tensor, bias: Tensor, grad: Tensor, batch: int, heads: int) -> Tensor:
    """Gradient of qkv (R, B T, 3 D) for the gradient of the mixed values (R, B T, D)."""
    out = torch.empty_like(qkv, memory_format=torch.contiguous_format)
    tensors = (qkv.contiguous(), bias.contiguous(), grad.contiguous(), out)
    _launch(_backward, tensors, qkv, batch, heads, maxnreg=_REGISTERS or None)
    return out


def _launch(kernel, tensors, qkv, batch, heads, **options):
    runs, rows, width = qkv.shape
    head_width = width // (3 * heads)
    constants = {"HEADS": heads, "P": rows // batch - 1, "W": head_width}
    kernel[(runs * batch * heads,)](*tensors, batch, head_width**-0.5, **constants, num_warps=_WARPS, **options)
