"""What every backbone offers: a module for users, and a pure stacked function for the engine.

A backbone is written twice on purpose. The module (`forward`, made of submodules) is what a user trains and
where `attach` hangs its branches. The pure function (`stacked`) computes the same thing for R runs at once
from stacked parameters. A test holds the two together.

Axis letters: R runs, B batch, T tokens, D width, C classes, K points.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Parameters = Mapping[str, Tensor]
Outputs = tuple[Tensor, list[Tensor]]


class Backbone(nn.Module, ABC):
    """A classifier with named attachment points.

    Attributes:
        classes: number of output classes.
        points: module names at which the paper attaches branches.
        widths: feature width at each point, in the same order.
        layout, pool: the axes of a point's output and the rule that turns it into features, as `attach` takes them.
        dropout_width: how many values the dropout layer masks for one image; 0 where there is none.
        dropout_rate: its rate.
        channels_last: whether a GPU computes it faster with channels as the innermost axis.
        batches_well: whether a GPU gains from one product over all runs instead of one for each.
        bound_by_calls: whether one run is so small that starting its operations costs more than doing them.
    """

    classes: int
    points: tuple[str, ...]
    widths: tuple[int, ...]
    layout: str
    pool: Literal["mean", "class_token"] = "mean"
    dropout_width: int = 0
    dropout_rate: float = 0.0
    channels_last: bool = False
    batches_well: bool = True
    bound_by_calls: bool = False

    @abstractmethod
    def stacked(self, parameters: Parameters, images: Tensor, keep: Tensor | None = None) -> Outputs:
        """Logits (R, B, C) and features [(R, B, D_k)] of R runs, from parameters with a leading R axis.

        images: (R, B, 3, H, W). keep: (R, B, dropout_width), the scaled dropout mask; None means no dropout.
        Pure: reads the sizes of this module, none of its parameters.
        """

    def features(self, images: Tensor) -> Outputs:
        """Logits (B, C) and the features (B, D_k) that branches see, without dropout."""
        one_run = {name: value[None] for name, value in self.named_parameters()}
        logits, points = self.stacked(one_run, images[None])
        return logits[0], [point[0] for point in points]


class KeyedDropout(nn.Dropout):
    """Dropout that can be given its mask, so that a run's masks depend on its seed alone."""

    keep: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Ordinary dropout, or multiplication with `keep` (already scaled) where it is set."""
        if self.training and self.keep is not None:
            return input * self.keep
        return super().forward(input)


def stacked_linear(parameters: Parameters, name: str, input: Tensor) -> Tensor:
    """`nn.Linear` of R runs: input (R, M, D_in), weight (R, D_out, D_in), bias (R, D_out) -> (R, M, D_out)."""
    weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
    if len(weight) == 1:
        # A batch of one is an ordinary product; bmm would choose slower kernels for it.
        return F.linear(input[0], weight[0], bias[0])[None]
    if weight.is_cuda:
        # Compiled, the addition joins the next elementwise kernel; baddbmm would first write the bias to every row.
        return torch.bmm(input, weight.mT) + bias[:, None]
    return bias[:, None].baddbmm(input, weight.mT)
