"""The branches of one place: their weights, and the logits of those that are live.

Axis letters: B batch, N branches, C classes, D width.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain.branches._drawing import Activation, choose_branch


class Head(nn.Module):
    """N linear maps from D features to C classes, without bias unless one is given.

    What can be live is a parameter, the rest a buffer: an optimizer, DDP's reducer and autograd meet live
    weights only.

    | activation | `live` | `idle` |
    |---|---|---|
    | last | (C, D), the last branch | (N-1, C, D) |
    | all, random, cycle | (N, C, D) | none |

    `bias` is (C,) or (N, C), like the live weights; idle branches have none.
    """

    live: nn.Parameter
    idle: Tensor | None
    bias: nn.Parameter | None

    def __init__(
        self, weights_NCD: Tensor, activation: Activation, place_key: int, bias_C: Tensor | None = None
    ) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.redundancy = len(weights_NCD)
        self.place_key = place_key
        if activation == "last":
            self.live = nn.Parameter(weights_NCD[-1].clone())
            self.register_buffer("idle", weights_NCD[:-1].clone() if self.redundancy > 1 else None)
        else:
            self.live = nn.Parameter(weights_NCD.clone())
            self.register_buffer("idle", None)

        shape = self.live.shape[:-1]
        self.bias = None if bias_C is None else nn.Parameter(bias_C.to(self.live.dtype).expand(shape).clone())

    @property
    def weights(self) -> Tensor:
        """All branches (N, C, D), live and idle."""
        live = self.live.detach()
        if self.activation != "last":
            return live
        return live[None] if self.idle is None else torch.cat([self.idle, live[None]])

    @property
    def width(self) -> int:
        """D."""
        return self.live.shape[-1]

    def extra_repr(self) -> str:
        """Sizes."""
        return f"{self.width} features to {self.live.shape[-2]} classes, {self.redundancy} branches"

    def forward(self, feature_BD: Tensor, step: Tensor | None) -> Tensor:
        """Logits (B, C) of the live branch; (N, B, C) where all are live."""
        weight, bias = self.live, self.bias
        if self.activation in ("random", "cycle"):
            assert step is not None
            # An index tensor, not a Python number: a compiled graph must not be rebuilt for every choice.
            index = choose_branch(self.activation, self.place_key, step, self.redundancy)
            weight_CD = weight.index_select(0, index.reshape(1)).squeeze(0)
            bias_C = None if bias is None else bias.index_select(0, index.reshape(1)).squeeze(0)
            return _linear(feature_BD, weight_CD, bias_C)
        if self.activation == "last":
            return _linear(feature_BD, weight, bias)
        flat = None if bias is None else bias.flatten()
        joint_BNC = _linear(feature_BD, weight.flatten(0, 1), flat).unflatten(-1, weight.shape[:2])
        return joint_BNC.transpose(0, 1)


def _linear(feature: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    # In the weights' own precision, so that the loss is the same inside and outside autocast.
    with _without_autocast(weight.device.type):
        return F.linear(feature.to(weight.dtype), weight, bias)


def _without_autocast(device: str) -> AbstractContextManager[object]:
    # torch 2.11 cannot trace the question; what is compiled is on a device that has autocast.
    if torch.compiler.is_compiling() or torch.amp.is_autocast_available(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
