"""Hand-written Triton kernels for stacks in bfloat16, for operations in which torch's kernels leave the GPU idle.

attention.py   self-attention over 2^k patches and a class token, one program for an image and head
gelu.py        bias and GELU of a feed-forward layer
pooling.py     bias, max-pool and ReLU after a convolution
operators.py   all of them as torch operators with gradients, for autograd and torch.compile

The engine loads them on a GPU (`load_kernels`); importing the package does not. GPU tests compare them with torch.
"""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

_OPERATORS: ModuleType | None = None


def load_kernels(device: torch.device) -> None:
    """Make the kernels available on a GPU that Triton can compile for; elsewhere do nothing."""
    global _OPERATORS
    if device.type == "cuda" and torch.version.hip is None and find_spec("triton") is not None:
        _OPERATORS = import_module("asymtrain.models._kernels.operators")


def attention_kernels(tokens: Tensor, count: int, heads: int) -> ModuleType | None:
    """The kernels, if they support tokens (R, B T, D) with `count` tokens per image; else None, and torch is used."""
    suits = count - 1 in (16, 32, 64) and tokens.shape[-1] // heads in (16, 32, 64)
    return _OPERATORS if suits and _half_on_gpu(tokens) else None


def gelu_kernels(tokens: Tensor, width: int) -> ModuleType | None:
    """The kernels, if they support tokens (R, M, D) and a hidden layer of `width`; else None, and torch is used."""
    return _OPERATORS if width in (64, 128, 256, 512, 1024) and _half_on_gpu(tokens) else None


def pooling_kernels(maps: Tensor) -> ModuleType | None:
    """The kernels, if they support maps (B, C, H, W); else None, and torch is used."""
    suits = maps.shape[2] % 2 == 0 and maps.shape[3] % 2 == 0
    return _OPERATORS if suits and _half_on_gpu(maps) else None


def _half_on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda and tensor.dtype == torch.bfloat16
