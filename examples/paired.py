"""What the examples share: Plain and Asymmetric of each seed, and the table that `asymtrain run` prints."""

import argparse
from collections.abc import Callable

import pandas as pd

from asymtrain.lab import comparisons
from asymtrain.lab.cli.screen import show_summary
from asymtrain.lab.report.summary import Summary, records

Train = Callable[[int, float, int], tuple[float, float | None]]
"""From a seed, alpha (0: Plain) and a number of epochs to test accuracy and mean gradient cosine."""


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
