"""What the examples share: the loop, Plain and Asymmetric of each seed, and the table that `asymtrain run` prints."""

import argparse
from collections.abc import Callable, Iterable

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain import AlignmentLog, Branches, alignment
from asymtrain.lab import comparisons
from asymtrain.lab.cli.screen import show_summary
from asymtrain.lab.report.summary import Summary, records

Train = Callable[[int, float, int], tuple[float, float | None]]
"""From a seed, alpha (0: Plain) and a number of epochs to test accuracy and mean gradient cosine."""
Batches = Callable[[], Iterable[tuple[tuple[Tensor, ...], Tensor]]]
"""Gives the batches of an epoch: what the model is called with, and the labels."""


def fit(model: nn.Module, branches: Branches | None, alpha: float, epochs: int, batches: Batches) -> float | None:
    """Train, with branches where there are any, which are stripped at the end; the mean gradient cosine."""
    optimizer = torch.optim.AdamW([*model.parameters(), *(branches.parameters() if branches else ())], lr=2e-3)
    log = AlignmentLog()
    for _ in range(epochs):
        for i, (inputs, labels) in enumerate(batches()):
            loss = F.cross_entropy(model(*inputs), labels)
            if branches is not None:
                auxiliary = branches.loss(labels)
                if i == 0:
                    log.add(alignment(loss, auxiliary, model))
                loss = loss + alpha * auxiliary
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if branches is not None:
        branches.strip(optimizer)
    return log.summary().mean


def main(label: str, train: Train, *, alpha: float, epochs: int, description: str | None) -> None:
    """Read the options, train every pair, print the comparison."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--alpha", type=float, default=alpha, help="weight of the auxiliary objective")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--quick", action="store_true", help="two seeds of one epoch: does it run?")
    options = parser.parse_args()
    if options.seeds < 1 or options.epochs < 1 or not options.alpha > 0:
        parser.error("--seeds and --epochs must be 1 or more, and --alpha above 0 (0 is Plain, which is always run)")
    seeds, epochs = (2, 1) if options.quick else (options.seeds, options.epochs)
    rows = []
    for seed in range(42, 42 + seeds):
        for variant, weight in (("plain", 0.0), ("asymmetric", options.alpha)):
            accuracy, cosine = train(seed, weight, epochs)
            run = {"id": f"{variant}-{seed}", "dataset": "example", "arch": label, "variant": variant, "seed": seed}
            rows.append({**run, "outcome": "finished", "test_accuracy": accuracy, "mean_cosine": cosine})
    show_summary(summary(pd.DataFrame(rows), label))


def summary(rows: pd.DataFrame, label: str) -> Summary:
    """The paired comparison, as `asymtrain run` makes it of its runs."""
    pairs, by = comparisons.paired(rows)
    worded = [
        {"label": label, **row, "verdict": comparisons.verdict(row), "sentence": comparisons.sentence(row, label)}
        for row in records(comparisons.compare(rows, by))
    ]
    return Summary(rows, pd.DataFrame(), worded, [pairs], waiting=0, untested=0)
