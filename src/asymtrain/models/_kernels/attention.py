"""Self-attention of short sequences: one program holds a whole head of an image, so no intermediate is written.

The class token is token 0 and is computed separately from the P patches, so blocks have P rows, a power of two.
Padding the P + 1 tokens to the next power of two would waste three quarters of the arithmetic. The backward pass
computes the probabilities again; only queries, keys and values are kept.

Shapes: qkv (R, B T, 3 D) before its bias, bias (R, 3 D), out (R, B T, D); T = P + 1, D = heads * W.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_WARPS = 4  # of 1, 2, 4 and 8 the fastest for the gradient, each timed once on an H200
# At most per thread, for the gradient, so that more programs run at a time. The fastest of seven limits on an H200,
# where the gradient of 20 runs takes 203 us, and 248 us without a limit.
_REGISTERS = 168


@triton.jit
def _load(base, bias, rows, columns, first, stride):
    """Patches (P, W) and class token (W,) of one head with the bias added, in their stored type."""
    shift = tl.load(bias + first + columns).to(tl.float32)
    patches = tl.load(base + (rows[:, None] + 1) * stride + first + columns[None, :])
    token = tl.load(base + first + columns)
    kind = patches.dtype
    return (patches.to(tl.float32) + shift[None, :]).to(kind), (token.to(tl.float32) + shift).to(kind)


@triton.jit
def _softmax(scores, score_of_class):
    """The probabilities of each row over the patches, and those of the class token."""
    most = tl.maximum(tl.max(scores, 1), score_of_class)
    p = tl.exp(scores - most[:, None])
    p_class = tl.exp(score_of_class - most)
    total = tl.sum(p, 1) + p_class
    return p / total[:, None], p_class / total


@triton.jit
def _class_softmax(scores, score_of_class):
    """The same for the one row whose query is the class token."""
    most = tl.maximum(tl.max(scores, 0), score_of_class)
    p = tl.exp(scores - most)
    p_class = tl.exp(score_of_class - most)
    total = tl.sum(p, 0) + p_class
    return p / total, p_class / total


@triton.jit
def _forward(qkv, bias, out, batch, scale, HEADS: tl.constexpr, P: tl.constexpr, W: tl.constexpr):
    image, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    D: tl.constexpr = HEADS * W
    rows, columns = tl.arange(0, P), tl.arange(0, W)
    base = qkv + image.to(tl.int64) * (P + 1) * 3 * D
    shift = bias + (image // batch) * 3 * D
    q, q0 = _load(base, shift, rows, columns, head * W, 3 * D)
    k, k0 = _load(base, shift, rows, columns, D + head * W, 3 * D)
    v, v0 = _load(base, shift, rows, columns, 2 * D + head * W, 3 * D)
    q0f, k0f, v0f = q0.to(tl.float32), k0.to(tl.float32), v0.to(tl.float32)

    p, p0 = _softmax(tl.dot(q, tl.trans(k)) * scale, tl.sum(q.to(tl.float32) * k0f[None, :], 1) * scale)
    mixed = tl.dot(p.to(v.dtype), v) + p0[:, None] * v0f[None, :]
    c, c0 = _class_softmax(tl.sum(k.to(tl.float32) * q0f[None, :], 1) * scale, tl.sum(q0f * k0f, 0) * scale)
    mixed0 = tl.sum(c[:, None] * v.to(tl.float32), 0) + c0 * v0f

    target = out + image.to(tl.int64) * (P + 1) * D + head * W
    tl.store(target + (rows[:, None] + 1) * D + columns[None, :], mixed.to(v.dtype))
    tl.store(target + columns, mixed0.to(v.dtype))


@triton.jit
def _backward(qkv, bias, grad, out, batch, scale, HEADS: tl.constexpr, P: tl.constexpr, W: tl.constexpr):
    image, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    D: tl.constexpr = HEADS * W
    rows, columns = tl.arange(0, P), tl.arange(0, W)
    base = qkv + image.to(tl.int64) * (P + 1) * 3 * D
    shift = bias + (image // batch) * 3 * D
    q, q0 = _load(base, shift, rows, columns, head * W, 3 * D)
    k, k0 = _load(base, shift, rows, columns, D + head * W, 3 * D)
    v, v0 = _load(base, shift, rows, columns, 2 * D + head * W, 3 * D)
    kind = q.dtype
    q0f, k0f, v0f = q0.to(tl.float32), k0.to(tl.float32), v0.to(tl.float32)
    source = grad + image.to(tl.int64) * (P + 1) * D + head * W
    g = tl.load(source + (rows[:, None] + 1) * D + columns[None, :])
    g0f = tl.load(source + columns).to(tl.float32)
    gf = g.to(tl.float32)

    # Patch queries: recompute probabilities, then the gradients of their scores.
    p, p0 = _softmax(tl.dot(q, tl.trans(k)) * scale, tl.sum(q.to(tl.float32) * k0f[None, :], 1) * scale)
    dp, dp0 = tl.dot(g, tl.trans(v)), tl.sum(gf * v0f[None, :], 1)
    mean = tl.sum(p * dp, 1) + p0 * dp0
    ds = (p * (dp - mean[:, None]) * scale).to(kind)
    ds0 = p0 * (dp0 - mean) * scale
    # The class token's query.
    c, c0 = _class_softmax(tl.sum(k.to(tl.float32) * q0f[None, :], 1) * scale, tl.sum(q0f * k0f, 0) * scale)
    dc, dc0 = tl.sum(v.to(tl.float32) * g0f[None, :], 1), tl.sum(v0f * g0f, 0)
    mean0 = tl.sum(c * dc, 0) + c0 * dc0
    dt = c * (dc - mean0) * scale
    dt0 = c0 * (dc0 - mean0) * scale

    dq = tl.dot(ds, k) + ds0[:, None] * k0f[None, :]
    dk = tl.dot(tl.trans(ds), q) + dt[:, None] * q0f[None, :]
    dv = tl.dot(tl.trans(p.to(kind)), g) + c[:, None] * g0f[None, :]
    dq0 = tl.sum(dt[:, None] * k.to(tl.float32), 0) + dt0 * k0f
    dk0 = tl.sum(ds0[:, None] * q.to(tl.float32), 0) + dt0 * q0f
    dv0 = tl.sum(p0[:, None] * gf, 0) + c0 * g0f

    target = out + image.to(tl.int64) * (P + 1) * 3 * D + head * W
    cells = (rows[:, None] + 1) * 3 * D + columns[None, :]
    tl.store(target + cells, dq.to(kind))
    tl.store(target + D + cells, dk.to(kind))
    tl.store(target + 2 * D + cells, dv.to(kind))
    tl.store(target + columns, dq0.to(kind))
    tl.store(target + D + columns, dk0.to(kind))
    tl.store(target + 2 * D + columns, dv0.to(kind))


def attend(qkv: Tensor, bias: Tensor, batch: int, heads: int) -> Tensor:
    """Mixed values (R, B T, D) of all heads."""
    runs, rows, width = qkv.shape
    out = torch.empty(runs, rows, width // 3, dtype=qkv.dtype, device=qkv.device)
    _launch(_forward, (qkv.contiguous(), bias.contiguous(), out), qkv, batch, heads)
    return out


def attend_gradient(qkv: Tensor, bias: Tensor, grad: Tensor, batch: int, heads: int) -> Tensor:
    """The gradient of qkv (R, B T, 3 D) from the gradient of the mixed values (R, B T, D)."""
    out = torch.empty_like(qkv, memory_format=torch.contiguous_format)
    tensors = qkv.contiguous(), bias.contiguous(), grad.contiguous(), out
    _launch(_backward, tensors, qkv, batch, heads, maxnreg=_REGISTERS)
    return out


def _launch(kernel, tensors, qkv, batch, heads, **options):
    runs, rows, width = qkv.shape
    head_width = width // (3 * heads)
    constants = {"HEADS": heads, "P": rows // batch - 1, "W": head_width}
    kernel[(runs * batch * heads,)](*tensors, batch, head_width**-0.5, **constants, num_warps=_WARPS, **options)
