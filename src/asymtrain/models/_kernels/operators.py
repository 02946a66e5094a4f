"""The kernels as torch operators with gradients, for autograd and torch.compile."""

import torch
from torch import Tensor

from asymtrain.models._kernels import attention, gelu, pooling


@torch.library.custom_op("asymtrain::attend", mutates_args=())
def attend(qkv: Tensor, bias: Tensor, batch: int, heads: int) -> Tensor:
    """Self-attention; see `attention.py`."""
    return attention.attend(qkv, bias, batch, heads)


@torch.library.custom_op("asymtrain::attend_gradient", mutates_args=())
def attend_gradient(qkv: Tensor, bias: Tensor, grad: Tensor, batch: int, heads: int) -> Tensor:
    """The gradient of `attend` with respect to qkv."""
    return attention.attend_gradient(qkv, bias, grad, batch, heads)


@torch.library.custom_op("asymtrain::bias_gelu", mutates_args=())
def bias_gelu(raw: Tensor, bias: Tensor) -> Tensor:
    """Bias and GELU; see `gelu.py`."""
    return gelu.bias_gelu(raw, bias)


@torch.library.custom_op("asymtrain::bias_gelu_gradient", mutates_args=())
def bias_gelu_gradient(raw: Tensor, bias: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of `bias_gelu`; the bias's as partial sums."""
    return gelu.bias_gelu_gradient(raw, bias, grad)


@torch.library.custom_op("asymtrain::pool_relu", mutates_args=())
def pool_with_origin(maps: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Bias, max-pool and ReLU; see `pooling.py`."""
    return pooling.pool_relu(maps, bias)


@torch.library.custom_op("asymtrain::pool_relu_gradient", mutates_args=())
def pool_relu_gradient(grad: Tensor, origin: Tensor) -> Tensor:
    """The gradient of `pool_with_origin` with respect to the maps."""
    return pooling.pool_relu_gradient(grad, origin)


def pool_relu(maps: Tensor, bias: Tensor) -> Tensor:
    """relu(maxpool(maps + bias)) of maps (B, C, H, W)."""
    # The layout is set here, where the compiler sees it, so the maps can be written in this layout directly.
    pooled, _ = pool_with_origin(maps.contiguous(memory_format=torch.channels_last), bias)
    return pooled


@attend.register_fake
def _(qkv: Tensor, bias: Tensor, batch: int, heads: int) -> Tensor:
    return qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3)


@attend_gradient.register_fake
def _(qkv: Tensor, bias: Tensor, grad: Tensor, batch: int, heads: int) -> Tensor:
    return qkv.new_empty(qkv.shape)


@bias_gelu.register_fake
def _(raw: Tensor, bias: Tensor) -> Tensor:
    return raw.new_empty(raw.shape)


@bias_gelu_gradient.register_fake
def _(raw: Tensor, bias: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return raw.new_empty(raw.shape), raw.new_empty(gelu.parts_shape(raw), dtype=torch.float32)


@pool_with_origin.register_fake
def _(maps: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    batch, channels, height, width = maps.shape
    pooled = torch.empty(
        (batch, channels, height // 2, width // 2),
        dtype=maps.dtype,
        device=maps.device,
        memory_format=torch.channels_last,
    )
    return pooled, torch.empty_like(pooled, dtype=torch.int8)


@pool_relu_gradient.register_fake
def _(grad: Tensor, origin: Tensor) -> Tensor:
    batch, channels, height, width = grad.shape
    shape = (batch, channels, 2 * height, 2 * width)
    return torch.empty(shape, dtype=grad.dtype, device=grad.device, memory_format=torch.channels_last)


def _keep_attention(ctx, inputs, output):
    qkv, bias, ctx.batch, ctx.heads = inputs
    ctx.save_for_backward(qkv, bias)


def _attention_backward(ctx, grad):
    qkv, bias = ctx.saved_tensors
    gradient = attend_gradient(qkv, bias, grad, ctx.batch, ctx.heads)
    return gradient, gradient.sum(1), None, None


def _keep_gelu(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _gelu_backward(ctx, grad):
    raw, bias = ctx.saved_tensors
    gradient, parts = bias_gelu_gradient(raw, bias, grad)
    return gradient, parts.sum(1).to(bias.dtype)


def _keep_pooling(ctx, inputs, output):
    _, origin = output
    ctx.mark_non_differentiable(origin)
    ctx.save_for_backward(origin)


def _pooling_backward(ctx, grad, _):
    (origin,) = ctx.saved_tensors
    grad = grad.contiguous(memory_format=torch.channels_last)
    live = torch.where(origin < pooling.DEAD, grad, 0)
    return pool_relu_gradient(grad, origin), live.sum((0, 2, 3))


attend.register_autograd(_attention_backward, setup_context=_keep_attention)
bias_gelu.register_autograd(_gelu_backward, setup_context=_keep_gelu)
pool_with_origin.register_autograd(_pooling_backward, setup_context=_keep_pooling)
