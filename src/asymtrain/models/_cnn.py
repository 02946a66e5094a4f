"""The CNN: six 3x3 convolutions, two max-pools, one dropout, three linear layers.

Branches are after the ReLU of a convolution, or after the max-pool if one follows, and read the map's mean over
space. The paper's parameter counts fit five points (832 features in all); six are an option.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain.errors import UsageError
from asymtrain.models._backbone import Backbone, KeyedDropout, Outputs, Parameters, linear_blocks, stacked_linear
from asymtrain.models._kernels import pooling_kernels


class CNN(Backbone):
    """2,425,220 parameters at a hundred classes."""

    layout = "BCHW"
    channels_last = True
    batches_well = False

    def __init__(
        self,
        classes: int,
        *,
        widths: Sequence[int] = (64, 256, 256, 128, 128, 32),
        hidden: Sequence[int] = (512, 256),
        pool_after: Sequence[int] = (1, 3),
        dropout: float = 0.5,
        image_size: int = 32,
        channels: int = 3,
        points: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        if not set(pool_after) <= set(range(len(widths))) or len(set(pool_after)) < len(pool_after):
            raise UsageError(f"pool_after must be block numbers in 0..{len(widths) - 1}, each once, got {pool_after}")
        map_size = image_size // 2 ** len(pool_after)
        if map_size < 1 or image_size % 2 ** len(pool_after):
            raise UsageError(
                f"image_size {image_size} cannot be halved {len(pool_after)} times: give a multiple of "
                f"{2 ** len(pool_after)}"
            )
        if not 0 <= dropout < 1:
            raise UsageError(f"dropout must lie in [0, 1), got {dropout}")
        self.classes = classes
        self.pool_after = frozenset(pool_after)
        self.blocks = nn.Sequential()
        for i, (c_in, c_out) in enumerate(pairwise([channels, *widths])):
            pool = [nn.MaxPool2d(2)] if i in self.pool_after else []
            self.blocks.append(nn.Sequential(nn.Conv2d(c_in, c_out, 3, padding=1), nn.ReLU(), *pool))
        self.dropout_width = widths[-1] * map_size**2
        self.dropout_rate = dropout
        self.dropout = KeyedDropout(dropout)
        sizes = [self.dropout_width, *hidden]
        self.classifier = linear_blocks(sizes)
        self.head = nn.Linear(sizes[-1], classes)
        self.set_points(range(max(1, len(widths) - 1)) if points is None else points, widths)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, C) of images (B, 3, H, W)."""
        hidden = self.dropout(self.blocks(images).flatten(1))
        return self.head(self.classifier(hidden))

    def stacked(self, parameters: Parameters, images: Tensor, keep: Tensor | None = None) -> Outputs:
        """See `Backbone.stacked`."""
        maps, outputs = list(images), {}
        for i in range(len(self.blocks)):
            weight, bias = parameters[f"blocks.{i}.0.weight"], parameters[f"blocks.{i}.0.bias"]
            # One convolution for each run; a grouped convolution would be several times slower.
            pool = i in self.pool_after
            maps = [_convolve(m, w, b, pool) for m, w, b in zip(maps, weight, bias, strict=True)]
            outputs[f"blocks.{i}"] = maps
        hidden = torch.stack([m.flatten(1) for m in maps])
        if keep is not None:
            hidden = hidden * keep
        for i in range(len(self.classifier)):
            hidden = torch.relu(stacked_linear(parameters, f"classifier.{i}.0", hidden))
        features = [torch.stack([m.mean((2, 3)) if self.pooled else m for m in outputs[name]]) for name in self.points]
        return stacked_linear(parameters, "head", hidden), features


def _convolve(maps: Tensor, weight: Tensor, bias: Tensor, pool: bool) -> Tensor:
    """Convolution, ReLU and optional max-pool of one run."""
    if not pool:
        return torch.relu(F.conv2d(maps, weight, bias, padding=1))
    kernels = pooling_kernels(maps)
    if kernels is not None:
        return kernels.pool_relu(F.conv2d(maps, weight, padding=1), bias)
    # The maximum of ReLUs is the ReLU of the maximum, on a quarter of the values.
    return torch.relu(F.max_pool2d(F.conv2d(maps, weight, bias, padding=1), 2))
