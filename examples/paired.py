"""Shared by the examples: the loop, Plain and Asymmetric of each seed, and the table that `asymtrain run` prints."""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain import AlignmentLog, Branches, alignment
from asymtrain.lab import comparisons
from asymtrain.lab.cli.screen import show_summary
from asymtrain.lab.report.summary import Summary, records
from asymtrain.lab.report.table import Column, Mean, Table, interval, make_rows
from asymtrain.lab.statistics import FEWEST, decide
from asymtrain.lab.statistics.estimates import estimate
from asymtrain.lab.terminal import show_table


@dataclass(frozen=True)
class Measure:
    """What a model is judged by on unseen data."""

    name: str
    lower_is_better: bool = False


ACCURACY = Measure("accuracy")
Train = Callable[[int, float, int], tuple[float, float | None]]
"""From a seed, a strength (0: Plain) and a number of epochs to the measure on unseen data and the mean cosine."""
Batches = Callable[[], Iterable[tuple[tuple[Tensor, ...], Tensor]]]
"""Gives the batches of an epoch: what the model is called with, and the labels."""


def fit(
    model: nn.Module,
    branches: Branches | None,
    epochs: int,
    batches: Batches,
    main_loss: Callable[[Any, Tensor], Tensor] = F.cross_entropy,
    lr: float = 2e-3,
    last_lr: float | None = None,
) -> float | None:
    """Train, with branches if given, which are stripped at the end; return the mean gradient cosine.

    The learning rate goes from `lr` in the first epoch to `last_lr` in the last, if that is given.
    """
    optimizer = torch.optim.AdamW([*model.parameters(), *(branches.parameters() if branches else ())], lr=lr)
    end = 1.0 if last_lr is None else last_lr / lr
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, end, total_iters=max(epochs - 1, 1))
    log = AlignmentLog()
    for _ in range(epochs):
        for i, (inputs, labels) in enumerate(batches()):
            loss = main_loss(model(*inputs), labels)
            if branches is not None:
                auxiliary = branches.loss(labels)
                if i == 0:
                    log.add(alignment(loss, auxiliary, model))
                loss = loss + auxiliary
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    if branches is not None:
        branches.strip(optimizer)
    return log.summary().mean


def main(
    label: str, train: Train, *, strength: float, epochs: int, description: str | None, measure: Measure = ACCURACY
) -> None:
    """Read the options, train every pair, print the comparison."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--strength", type=float, default=strength, help="of the branches beside the main loss")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--quick", action="store_true", help="two seeds of one epoch: does it run?")
    options = parser.parse_args()
    if options.seeds < 1 or options.epochs < 1 or not options.strength > 0:
        parser.error("--seeds and --epochs must be 1 or more, and --strength above 0 (0 is Plain, which is always run)")
    seeds, epochs = (2, 1) if options.quick else (options.seeds, options.epochs)
    rows = []
    for seed in range(42, 42 + seeds):
        for variant, weight in (("plain", 0.0), ("asymmetric", options.strength)):
            value, cosine = train(seed, weight, epochs)
            run = {"id": f"{variant}-{seed}", "dataset": "example", "arch": label, "variant": variant, "seed": seed}
            rows.append({**run, "outcome": "finished", "test_accuracy": value, "mean_cosine": cosine})
    if measure == ACCURACY:
        show_summary(summary(pd.DataFrame(rows), label))
    else:
        show_measure(pd.DataFrame(rows), label, measure)


def summary(rows: pd.DataFrame, label: str) -> Summary:
    """The paired comparison, as `asymtrain run` makes it from its runs."""
    pairs, by = comparisons.paired(rows)
    worded = [
        {
            "label": label,
            **row,
            "verdict": comparisons.decision(row).verdict,
            "sentence": comparisons.sentence(row, label),
        }
        for row in records(comparisons.compare(rows, by))
    ]
    return Summary(rows, pd.DataFrame(), worded, [pairs], waiting=0, untested=0)


def show_measure(rows: pd.DataFrame, label: str, measure: Measure) -> None:
    """The same comparison for another measure, in the measure's own unit."""
    plain, asymmetric = (rows[rows["variant"] == variant]["test_accuracy"] for variant in ("plain", "asymmetric"))
    pairs = [second - first for first, second in zip(plain, asymmetric, strict=True)]
    both = [Mean(values.mean(), values.std() if len(values) > 1 else None) for values in (plain, asymmetric)]
    change, cosine = estimate(pairs), estimate(rows["mean_cosine"].dropna())
    columns = (
        Column(measure.name),
        Column("Plain", "number"),
        Column("Asymmetric", "number"),
        Column("Difference", "number", signed=True),
        Column("95% interval", "number", signed=True),
        Column("n", "count"),
        Column("Gradient cosine", "number", digits=2, signed=True),
    )
    cells = (label, *both, change.mean, interval(change.low, change.high), change.n, cosine.mean)
    show_table(Table("comparison", "", columns, make_rows([cells])))
    print(f"\n{label}: {in_words(pairs, measure)}.")


def in_words(pairs: list[float], measure: Measure) -> str:
    """The conclusion from the differences between Asymmetric and Plain, by the rule of `asymtrain run`."""
    change = estimate(pairs)
    size = f"{change.mean:+.3f} {measure.name}"
    if change.low is None or change.high is None:
        return f"{size} in one seed; a single pair cannot tell an effect from chance"
    ends = f"95% interval {change.low:+.3f} to {change.high:+.3f}, {change.n} seeds"
    sign = -1 if measure.lower_is_better else 1
    low, high = sorted((sign * change.low, sign * change.high))
    result = decide(sign * change.mean, low, high, change.n)
    few = f"; an effect is called from {FEWEST} seeds on" if result.reason == "few seeds" else ""
    return f"{result.verdict}, {size} ({ends}){few}"
