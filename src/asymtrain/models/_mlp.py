"""The MLP: linear layers with ReLU, branches after the first four ReLUs."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from asymtrain.errors import UsageError
from asymtrain.models._backbone import Backbone, Outputs, Parameters, stacked_linear


class MLP(Backbone):
    """Six linear layers by default; 279,818 parameters at ten classes."""

    layout = "BD"
    bound_by_calls = True

    def __init__(
        self,
        classes: int,
        *,
        widths: Sequence[int] = (64, 128, 256, 128, 64),
        image_size: int = 32,
        channels: int = 3,
        points: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.classes = classes
        sizes = [channels * image_size**2, *widths]
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(d_in, d_out), nn.ReLU()) for d_in, d_out in pairwise(sizes))
        self.head = nn.Linear(sizes[-1], classes)
        # The paper leaves the last hidden layer without a branch.
        self.points, self.widths = choose_points(range(max(1, len(widths) - 1)) if points is None else points, widths)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, C) of images (B, 3, H, W)."""
        hidden = images.flatten(1)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)

    def stacked(self, parameters: Parameters, images: Tensor, keep: Tensor | None = None) -> Outputs:
        """See `Backbone.stacked`."""
        hidden, outputs = images.flatten(2), {}
        for i in range(len(self.blocks)):
            hidden = torch.relu(stacked_linear(parameters, f"blocks.{i}.0", hidden))
            outputs[f"blocks.{i}"] = hidden
        return stacked_linear(parameters, "head", hidden), [outputs[name] for name in self.points]


def choose_points(chosen: Sequence[int], widths: Sequence[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names and widths of the chosen blocks."""
    if not widths:
        raise UsageError("the backbone has no block: give at least one width, or a depth of 1 or more")
    wrong = [i for i in chosen if not 0 <= i < len(widths)]
    if wrong or not chosen or len(set(chosen)) < len(chosen):
        raise UsageError(f"points must be block numbers in 0..{len(widths) - 1}, each once, got {list(chosen)}")
    return tuple(f"blocks.{i}" for i in chosen), tuple(widths[i] for i in chosen)
