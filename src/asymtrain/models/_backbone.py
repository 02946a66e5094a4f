"""The interface of every backbone: a module for users, and a pure stacked function for the engine.

A backbone is written twice on purpose. The module (`forward`, made of submodules) is what a user trains and
where `attach` puts branches. The pure function (`stacked`) computes the same for R runs at once
from stacked parameters. A test compares the two.

Axis letters: R runs, B batch, T tokens, D width, C classes, K points.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain.errors import UsageError

Parameters = Mapping[str, Tensor]
Outputs = tuple[Tensor, list[Tensor]]


class Backbone(nn.Module, ABC):
    """A classifier with named attachment points."""

    classes: int
    points: tuple[str, ...]  # module names at which the paper attaches branches
    widths: tuple[int, ...]  # feature width at each point, in the same order
    # The axes of a point's output, and the rule that turns it into features, as arguments of `attach`.
    layout: str
    pool: Literal["mean", "class_token"] = "mean"
    pooled: bool = True  # whether `stacked` gives means as features, or maps (R, B, D, H, W) for heads that read maps
    dropout_width: int = 0  # the number of values that the dropout layer masks for one image; 0 without dropout
    dropout_rate: float = 0.0
    channels_last: bool = False  # whether a GPU is faster with channels as the innermost axis
    batches_well: bool = True  # whether a GPU is faster with one product over all runs than with one for each
    bound_by_calls: bool = False  # whether call overhead dominates the time of a run

    @abstractmethod
    def stacked(self, parameters: Parameters, images: Tensor, keep: Tensor | None = None) -> Outputs:
        """Logits (R, B, C) and features [(R, B, D_k)] of R runs, from parameters with a leading R axis.

        images: (R, B, 3, H, W). keep: (R, B, dropout_width), the scaled dropout mask; None means no dropout.
        Pure: reads the sizes of this module, none of its parameters.
        """

    def features(self, images: Tensor) -> Outputs:
        """Logits (B, C) and the features (B, D_k) that branches read, without dropout."""
        one_run = {name: value[None] for name, value in self.named_parameters()}
        logits, points = self.stacked(one_run, images[None])
        return logits[0], [point[0] for point in points]

    def set_points(self, chosen: Sequence[int], widths: Sequence[int]) -> None:
        """Choose blocks by number as the points; `widths` has the width of every block."""
        if not widths:
            raise UsageError("the backbone has no block: give at least one width, or a depth of 1 or more")
        wrong = [i for i in chosen if not 0 <= i < len(widths)]
        if wrong or not chosen or len(set(chosen)) < len(chosen):
            raise UsageError(f"points must be block numbers in 0..{len(widths) - 1}, each once, got {list(chosen)}")
        self.points, self.widths = tuple(f"blocks.{i}" for i in chosen), tuple(widths[i] for i in chosen)


class KeyedDropout(nn.Dropout):
    """Dropout with an optional given mask, so that a run's masks depend on its seed alone."""

    keep: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Ordinary dropout, or multiplication with `keep` (already scaled) if it is set."""
        if self.training and self.keep is not None:
            return input * self.keep
        return super().forward(input)


def linear_blocks(sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers from each size to the next, each followed by a ReLU."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(d_in, d_out), nn.ReLU()) for d_in, d_out in pairwise(sizes)))


@torch.no_grad()
def trunc_normal_(tensor: Tensor, std: float) -> None:
    """`nn.init.trunc_normal_` as in torch 2.11; torch 2.13 draws other weights from the same seed."""
    tensor.uniform_(-1, 1).erfinv_().mul_(std * 2**0.5).clamp_(-2, 2)


def stacked_linear(parameters: Parameters, name: str, input: Tensor) -> Tensor:
    """`nn.Linear` of R runs: input (R, M, D_in), weight (R, D_out, D_in), bias (R, D_out) -> (R, M, D_out)."""
    weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
    if len(weight) == 1:
        # A batch of one is an ordinary product, for which bmm would choose slower kernels. The gradient of a squeezed
        # view is a view; the gradient of an indexed row is a copy into zeros.
        return F.linear(input.squeeze(0), weight.squeeze(0), bias.squeeze(0))[None]
    if weight.is_cuda:
        # Compiled, the addition fuses with the next elementwise kernel; baddbmm first writes the bias to every row.
        return torch.bmm(input, weight.mT) + bias[:, None]
    return bias[:, None].baddbmm(input, weight.mT)
