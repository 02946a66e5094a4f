"""What a set of runs says: the comparisons with their words, as the command line, JSON and the page show them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from asymtrain.lab.comparisons import compare, labels, paired, sentence, verdict
from asymtrain.lab.report.tables import history_frame, rows_frame
from asymtrain.lab.runs import Run

HEADINGS = {
    "label": "Backbone",
    "plain": "Plain",
    "asymmetric": "Asymmetric",
    "improvement": "Improvement",
    "interval": "95% interval",
    "p": "p",
    "n": "n",
    "cosine": "Gradient cosine",
}
MISSING = "–"


@dataclass(frozen=True)
class Summary:
    """Frames and comparisons of one set of runs.

    Attributes:
        rows, history: one row for each run, one for each epoch.
        comparisons: records of `comparisons.compare` with label, verdict and sentence.
        pairs: for each comparison its pairs, one row for each seed.
        waiting: runs without a partner, which are in no comparison.
        untested: runs of a search, which are never in one.
    """

    rows: pd.DataFrame
    history: pd.DataFrame
    comparisons: list[dict[str, Any]]
    pairs: list[pd.DataFrame]
    waiting: int
    untested: int


def summarise(runs: Iterable[Run]) -> Summary:
    """Pair the runs by seed and compare them; runs of different settings are never mixed."""
    runs = list(runs)
    rows, history = rows_frame(runs), history_frame(runs)
    # Test accuracy is what is compared. Runs of a search are never tested, also where they diverge: they are rows only.
    tested = rows[rows["test_accuracy"].notna() | ((rows["outcome"] == "diverged") & (rows["test"] != "never"))]
    pairs, by = paired(tested)
    table = compare(tested, by)
    comparisons = [_worded(label, row) for label, row in zip(labels(table), records(table), strict=True)]
    groups = [group for _, group in pairs.groupby(by, sort=False, dropna=False)] if len(pairs) else []
    paired_ids = {*pairs["plain_id"], *pairs["asymmetric_id"]}
    waiting, untested = len(tested) - len(paired_ids), len(rows) - len(tested)
    return Summary(rows, history, comparisons, groups, waiting, untested)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as dictionaries."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def cells(comparison: Mapping[str, Any]) -> dict[str, str]:
    """A comparison as the cells of one table row, in the order of `HEADINGS`."""
    return {
        "label": comparison["label"],
        "plain": spread(comparison["plain_mean"], comparison["plain_std"]),
        "asymmetric": spread(comparison["asymmetric_mean"], comparison["asymmetric_std"]),
        "improvement": percent(comparison["improvement"]),
        "interval": MISSING
        if comparison["low"] is None
        else f"{percent(comparison['low'])} to {percent(comparison['high'])}",
        "p": MISSING if comparison["p"] is None else "<0.001" if comparison["p"] < 0.001 else f"{comparison['p']:.3f}",
        "n": str(comparison["n"]),
        "cosine": MISSING if comparison["cosine"] is None else f"{comparison['cosine']:+.2f}",
    }


def _worded(label: str, row: dict[str, Any]) -> dict[str, Any]:
    words = {"verdict": verdict(row), "sentence": sentence(row, label)}
    return {"label": label, **row, **words}


def spread(mean: float, deviation: float | None) -> str:
    """Mean and standard deviation of an accuracy."""
    return f"{mean:.3f}" if deviation is None else f"{mean:.3f} ± {deviation:.3f}"


def percent(value: float | None) -> str:
    """A signed percentage."""
    return MISSING if value is None else f"{value:+.1f}%"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
