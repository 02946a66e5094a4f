"""What a set of runs says: the comparisons with their words, as the command line, JSON and the page show them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from asymtrain.lab import statistics
from asymtrain.lab.report.frames import history_frame, rows_frame
from asymtrain.lab.report.table import Column, Mean, Table, interval, make_rows
from asymtrain.lab.runs import DEFAULTS, Run, RunSpec

COMPARISON = (
    Column("Backbone"),
    Column("Plain", "number"),
    Column("Asymmetric", "number"),
    Column("Improvement", "number", "%", 1, signed=True),
    Column("95% interval", "number", "%", 1, signed=True),
    Column("p", "p"),
    Column("n", "count"),
    Column("Gradient cosine", "number", digits=2, signed=True),
)


@dataclass(frozen=True)
class Summary:
    """Frames and comparisons of one set of runs.

    Attributes:
        rows, history: one row for each run, one for each epoch.
        comparisons: records of `statistics.compare` with label, verdict and sentence.
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
    pairs, by = statistics.paired(tested)
    table = statistics.compare(tested, by)
    comparisons = [
        {"label": label, **row, "verdict": statistics.verdict(row), "sentence": statistics.sentence(row, label)}
        for label, row in zip(statistics.labels(table), records(table), strict=True)
    ]
    groups = [group for _, group in pairs.groupby(by, sort=False, dropna=False)] if len(pairs) else []
    paired_ids = {*pairs["plain_id"], *pairs["asymmetric_id"]}
    waiting, untested = len(tested) - len(paired_ids), len(rows) - len(tested)
    return Summary(rows, history, comparisons, groups, waiting, untested)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as dictionaries."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def comparison_table(summary: Summary) -> Table:
    """A row for each comparison."""
    rows = make_rows(
        (
            row["label"],
            Mean(row["plain_mean"], row["plain_std"]),
            Mean(row["asymmetric_mean"], row["asymmetric_std"]),
            row["improvement"],
            interval(row["low"], row["high"]),
            row["p"],
            row["n"],
            row["cosine"],
        )
        for row in summary.comparisons
    )
    return Table("comparisons", "", COMPARISON, rows)


def spec_labels(specs: Sequence[RunSpec], without: Sequence[str] = ()) -> list[str]:
    """A short name for each spec: its backbone, and every setting in which specs of that backbone differ.

    The seed and the fields in `without` are never named; the dataset is where there are several.
    """
    skipped = {"arch", "seed", "dataset", *without}
    shown: dict[str, list[str]] = {}
    for arch in dict.fromkeys(spec.arch for spec in specs):
        alike = [spec for spec in specs if spec.arch == arch]
        names = [name for name in DEFAULTS if name not in skipped]
        shown[arch] = [name for name in names if len({getattr(spec, name) for spec in alike}) > 1]
    several = len({spec.dataset for spec in specs}) > 1

    def label(spec: RunSpec) -> str:
        parts = [statistics.NAMES.get(spec.arch, spec.arch), *([spec.dataset] if several else ())]
        return ", ".join([*parts, *(f"{name.replace('_', ' ')} {getattr(spec, name)}" for name in shown[spec.arch])])

    return [label(spec) for spec in specs]


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


# Of tables that are still made of text elsewhere.
MISSING = "–"


def spread(mean: float, deviation: float | None) -> str:
    """Mean and standard deviation of an accuracy."""
    return f"{mean:.3f}" if deviation is None else f"{mean:.3f} ± {deviation:.3f}"
