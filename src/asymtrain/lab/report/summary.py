"""What a set of runs says: the comparisons with their words, as the command line, JSON and the page show them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from asymtrain.lab import comparisons as compared
from asymtrain.lab.report.frames import history_frame, rows_frame
from asymtrain.lab.report.table import Cell, Column, Mean, Table, interval, make_rows
from asymtrain.lab.runs import Run

COMPARISON = (
    Column("Backbone"),
    Column("Plain", "number"),
    Column("Asymmetric", "number"),
    Column("Difference (points)", "number", digits=1, signed=True),
    Column("95% interval", "number", digits=1, signed=True),
    Column("p", "p"),
    Column("n", "count"),
    Column("Gradient cosine", "number", digits=2, signed=True),
)


@dataclass(frozen=True)
class Summary:
    """Frames and comparisons of one set of runs."""

    rows: pd.DataFrame  # one for each run
    history: pd.DataFrame  # a row for each epoch of each run
    comparisons: list[dict[str, Any]]  # records of `comparisons.compare` with label, verdict and sentence
    pairs: list[pd.DataFrame]  # for each comparison its pairs, one row for each seed
    waiting: int  # runs without a partner, which are in no comparison
    untested: int  # runs of a search, which are never compared


def summarise(runs: Iterable[Run]) -> Summary:
    """Pair the runs by seed and compare them; runs of different settings are never mixed."""
    runs = list(runs)
    rows, history = rows_frame(runs), history_frame(runs)
    # Test accuracy is what is compared. Runs of a search are never tested, even if they diverge: they are rows only.
    tested = rows[rows["test_accuracy"].notna() | ((rows["outcome"] == "diverged") & (rows["test"] != "never"))]
    pairs, by = compared.paired(tested)
    table = compared.summarised(pairs, by)
    comparisons = [
        {"label": label, **row, "verdict": compared.decision(row).verdict, "sentence": compared.sentence(row, label)}
        for label, row in zip(compared.labels(table), records(table), strict=True)
    ]
    groups = [group for _, group in pairs.groupby(by, sort=False, dropna=False)] if len(pairs) else []
    paired_ids = {*pairs["plain_id"], *pairs["asymmetric_id"]}
    waiting, untested = len(tested) - len(paired_ids), len(rows) - len(tested)
    return Summary(rows, history, comparisons, groups, waiting, untested)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def comparison_table(summary: Summary) -> Table:
    """The comparisons of a summary, one row each."""
    rows = make_rows(
        (
            row["label"],
            *(accuracy_cell(row, side) for side in ("plain", "asymmetric")),
            row["points"],
            interval(row["points_low"], row["points_high"]),
            row["p"],
            row["n"],
            row["cosine"],
        )
        for row in summary.comparisons
    )
    return Table("comparisons", "", COMPARISON, rows)


def accuracy_cell(row: Mapping[str, Any], side: str) -> Cell:
    """The mean of a variant, and how many of its runs diverged or stayed at chance."""
    flags = {"diverged": "diverged", "at_chance": "at chance"}
    marks = [f"{count} {words}" for flag, words in flags.items() if (count := row[f"{side}_{flag}"])]
    mean = Mean(row[f"{side}_mean"], row[f"{side}_std"])
    return Cell(mean, mark=f"({', '.join(marks)})" if marks else "")
