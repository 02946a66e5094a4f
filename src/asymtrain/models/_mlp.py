"""The MLP: linear layers with ReLU, branches after the first four ReLUs."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from asymtrain.models._backbone import Backbone, Outputs, Parameters, linear_blocks, stacked_linear


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
        self.blocks = linear_blocks(sizes)
        self.head = nn.Linear(sizes[-1], classes)
        # The paper leaves the last hidden layer without a branch.
        self.set_points(range(max(1, len(widths) - 1)) if points is None else points, widths)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, C) of images (B, 3, H, W)."""
        return self.head(self.blocks(images.flatten(1)))

    def stacked(self, parameters: Parameters, images: Tensor, keep: Tensor | None = None) -> Outputs:
        """See `Backbone.stacked`."""
        hidden, outputs = images.flatten(2), {}
        for i in range(len(self.blocks)):
            hidden = torch.relu(stacked_linear(parameters, f"blocks.{i}.0", hidden))
            outputs[f"blocks.{i}"] = hidden
        return stacked_linear(parameters, "head", hidden), [outputs[name] for name in self.points]
