"""Models that are no backbone, each with something of its own that a stack must get right; small enough for a CPU."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn


class ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, maps):
        inner = torch.relu(self.norm1(self.first(maps)))
        return torch.relu(maps + self.norm2(self.second(inner)))


class ResNet(nn.Module):
    """Batch normalisation: statistics that a step changes."""

    def __init__(self, classes: int, width: int = 6, depth: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(*(ResidualBlock(width) for _ in range(depth)))
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


class MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int, drop_path: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across, self.along = nn.Linear(tokens, tokens), nn.Linear(width, width)
        self.drop_path = drop_path

    def dropped(self, values):
        """Stochastic depth, as timm draws it."""
        if not self.training or not self.drop_path:
            return values
        kept = values.new_empty(len(values), 1, 1).bernoulli_(1 - self.drop_path)
        return values * kept / (1 - self.drop_path)

    def forward(self, tokens):
        tokens = tokens + self.dropped(self.across(self.norm1(tokens).mT).mT)
        return tokens + self.dropped(F.gelu(self.along(self.norm2(tokens))))


class Mixer(nn.Module):
    """Stochastic depth, tokens, and a dictionary for output."""

    def __init__(self, classes: int, width: int = 8, drop_path: float = 0.2) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 2, stride=2)
        self.blocks = nn.ModuleList(MixerBlock(16, width, drop_path) for _ in range(3))
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        tokens = self.embed(images).flatten(2).mT
        for block in self.blocks:
            tokens = block(tokens)
        return {"logits": self.head(tokens.mean(1)), "tokens": tokens}


class TextTransformer(nn.Module):
    """Tokens in; dropout, in attention too; a tied and a frozen weight; a tuple out."""

    def __init__(self, classes: int, vocabulary: int = 12, width: int = 8, dropout: float = 0.1) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(1, 32, width), requires_grad=False)
        layers = (nn.TransformerEncoderLayer(width, 2, 16, dropout, batch_first=True) for _ in range(3))
        self.layers = nn.ModuleList(layers)
        self.project, self.head = nn.Linear(width, width), nn.Linear(width, classes)
        self.again = nn.Linear(width, width)
        self.again.weight = self.project.weight

    def forward(self, tokens):
        hidden = self.embed(tokens) + self.positions[:, : tokens.shape[1]]
        for layer in self.layers:
            hidden = layer(hidden)
        pooled = self.again(torch.tanh(self.project(hidden.mean(1))))
        return self.head(pooled), hidden


def resnet(classes, width=6, depth=3):
    return ResNet(classes, width, depth)


def mixer(classes, drop_path=0.2):
    return Mixer(classes, drop_path=drop_path)


def text_transformer(classes, dropout=0.1):
    return TextTransformer(classes, dropout=dropout)


def vector_network(classes):
    """Vectors in; the widths differ from layer to layer."""
    sizes = (10, 12, 14, 16)
    blocks = [nn.Sequential(nn.Linear(a, b, bias=False), nn.BatchNorm1d(b), nn.ReLU()) for a, b in pairwise(sizes)]
    return nn.Sequential(nn.Sequential(*blocks), nn.Linear(sizes[-1], classes))


class Centred(nn.Module):
    """A buffer that a forward replaces, one that is infinite by intent, and a first block that is not trained."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(10, 10), nn.ReLU()) for _ in range(3)))
        self.blocks[0].requires_grad_(False)
        self.head = nn.Linear(10, classes)
        self.register_buffer("centre", torch.zeros(10))
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))

    def forward(self, vectors):
        if self.training:
            self.centre = 0.9 * self.centre + 0.1 * vectors.mean(0)
        return self.head(self.blocks(vectors - self.centre))


def centred(classes):
    return Centred(classes)


class HostReader(ResNet):
    """What it computes depends on a value that goes to the host."""

    def forward(self, images):
        maps = self.blocks(self.stem(images))
        return self.head(maps.mean((2, 3)) if maps.mean().item() > 0 else maps.amax((2, 3)))


def host_reader(classes):
    return HostReader(classes)
