"""Small models and batches for the tests of the probe."""

import torch
from torch import Tensor, nn

from asymtrain import streams

CLASSES = 4


class Blocks(nn.Module):
    """Four blocks with dropout and batch norm: whatever touches the random state or the buffers shows."""

    def __init__(self, width: int = 12, dropout: float = 0.2) -> None:
        super().__init__()
        self.stem = nn.Linear(6, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(dropout))
            for _ in range(4)
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build(seed: int = 0, **options: float) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Blocks(**options)


def learnable(count: int = 20, size: int = 16, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Batches whose class is the largest of four sums of the inputs."""
    source = streams.generator(seed, "test batches")
    x = torch.randn(count * size, 6, generator=source)
    y = (x @ torch.randn(6, CLASSES, generator=source)).argmax(-1)
    return [(x[i : i + size], y[i : i + size]) for i in range(0, count * size, size)]
