"""Linear probes on a frozen network: what can be read off at which depth, and what did training add?

    python examples/linear_probes.py        three seeds, about a minute on a CPU

A small convolutional network learns ten kinds of drawn shapes and is then frozen. `preset="probe"` puts a linear
classifier at every block: the forward needs no gradients, none goes into the network, and all probes train at once. The
untrained network is probed in the same way, since random features are already useful.
"""

import argparse
import copy
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain import attach
from asymtrain.lab.data import load
from asymtrain.lab.report.table import Column, Mean, Table, make_rows
from asymtrain.lab.statistics.estimates import estimate
from asymtrain.lab.terminal import show_table

CLASSES, WIDTHS = 10, (3, 8, 16, 24, 32)
Split = tuple[Tensor, Tensor]


@cache
def shapes(size: int) -> tuple[Split, Split]:
    """Images and labels to train on, and others to test with."""
    data = load("shapes", classes=CLASSES, size=size, test_size=500, image_size=24)
    train, test = (
        (torch.from_numpy(part.images) / 128 - 1, torch.from_numpy(part.labels).long())
        for part in (data.train, data.test)
    )
    return train, test


def block(inputs: int, outputs: int) -> nn.Module:
    """A convolution that halves the resolution."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class Network(nn.Module):
    """Four blocks, mean over positions, classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(block(before, after) for before, after in pairwise(WIDTHS)))
        self.head = nn.Linear(WIDTHS[-1], CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, CLASSES)."""
        return self.head(self.blocks(images).mean((2, 3)))


def batches(data: Split, epochs: int, seed: int) -> Iterator[Split]:
    """Batches of 50 for `epochs` epochs, in random order."""
    images, labels = data
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images), generator=order).split(50):
            yield images[chosen], labels[chosen]


def train(model: nn.Module, data: Split, epochs: int, seed: int) -> None:
    """Ordinary training, without branches."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for images, labels in batches(data, epochs, seed):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()


def probe(model: nn.Module, data: Split, test: Split, epochs: int, seed: int) -> dict[str, float]:
    """Test accuracy of a linear classifier at each block of a model that stays unchanged."""
    model.eval().requires_grad_(False)
    probes = attach(model, at="blocks.*", sample=data[0][:2], classes=CLASSES, preset="probe", seed=seed)
    optimizer = torch.optim.AdamW(probes.parameters(), lr=2e-2)
    for images, labels in batches(data, epochs, seed):
        with torch.no_grad():
            model(images)
        optimizer.zero_grad()
        probes.loss(labels).backward()
        optimizer.step()
    with torch.no_grad():
        model(test[0])
    accuracies = {layer: share.item() for layer, share in probes.accuracies(test[1]).items()}
    probes.strip(optimizer)
    return accuracies


def main() -> None:
    """Train, probe before and after, and print the accuracy by depth."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--epochs", type=int, default=15, help="of the network and of the probes")
    parser.add_argument("--quick", action="store_true", help="two seeds of one epoch: does it run?")
    options = parser.parse_args()
    if options.seeds < 1 or options.epochs < 1:
        parser.error("--seeds and --epochs must be 1 or more")
    seeds, epochs = (2, 1) if options.quick else (options.seeds, options.epochs)
    data, test = shapes(1000)
    before, after = [], []
    for seed in range(42, 42 + seeds):
        torch.manual_seed(seed)
        model = Network()
        fresh = copy.deepcopy(model)
        train(model, data, epochs, seed)
        before.append(probe(fresh, data, test, epochs, seed))
        after.append(probe(model, data, test, epochs, seed))
    columns = (Column("Layer"), Column("Before training", "number"), Column("After training", "number"))
    rows = [[layer, *(spread([run[layer] for run in runs]) for runs in (before, after))] for layer in after[0]]
    title = f"Test accuracy of linear probes, {seeds} seeds (chance: {1 / CLASSES})"
    show_table(Table("probes", title, columns, make_rows(rows)))


def spread(values: list[float]) -> Mean:
    """Mean and deviation over seeds."""
    over_seeds = estimate(values)
    assert over_seeds.mean is not None
    return Mean(over_seeds.mean, over_seeds.std)


if __name__ == "__main__":
    main()
