"""The gradient cosine beside the effect, row by row: the paper holds that the one's sign tells the other's."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from asymtrain.lab.instruments.alignment.conflict import conflicts
from asymtrain.lab.paper.comparisons import Comparison, effect_of, heading_cells, improvement, interval, pairs_of
from asymtrain.lab.paper.result import MISSING, Cell, ResultTable, missing_cell
from asymtrain.lab.paper.snapshot import Snapshot, first_epochs
from asymtrain.lab.paper.study import PRIMARY
from asymtrain.lab.runs import Run

COLUMNS = ("Alpha", "Change", "Interval", "Mean cosine", "Interval of the cosine", "In conflict", "Signs",
           "Pull at first", "Pull", "n")  # fmt: skip
Ends = tuple[float | None, float | None]
SAME, OPPOSITE, UNCLEAR = "same", "opposite", "unclear"


def cosine_table(
    known: Snapshot, comparisons: Sequence[Comparison], name: str, title: str, headings: Sequence[str], window: int
) -> ResultTable:
    """A row for each comparison. The cosine is that of its Asymmetric runs, over their first `window` epochs."""
    families = Counter(one.reading.name for one in comparisons)
    several = any(reading != PRIMARY.name for reading in families)
    rows = []
    for one in comparisons:
        rows.append((*heading_cells(one, several), *_cells(known, one, families[one.reading.name], window)))
    note = (
        f"Cosine: over the first {window} epochs, as in Table 2; its interval is a 95% t interval over seeds, not "
        f"corrected. Interval of the change: the same, corrected for {max(families.values(), default=1)} cells. In "
        f"conflict: measured steps with a cosine below 0. Signs are {UNCLEAR} where one of the two intervals includes "
        "0. Pull: alpha times the norm of the branches' gradient, by that of the main one; the median over these "
        "epochs, and at first, in the first one. Rows of one alpha may be the same runs."
    )
    columns = (*headings, *(("Reading",) if several else ()), *COLUMNS)
    return ResultTable(name, title, columns, tuple(rows), note)


def _cells(known: Snapshot, one: Comparison, family: int, window: int) -> list[Cell]:
    alpha = Cell(f"{one.asymmetric[0].alpha:g}", one.asymmetric[0].alpha)
    effect = effect_of(known, one)
    if effect is None:
        return [alpha, *(missing_cell() for _ in COLUMNS[1:])]
    change, ends, ids = improvement(effect), interval(effect, family), effect.spec_ids
    runs = [run for _, run in pairs_of(known, one)]
    conflict = conflicts([first_epochs(run, window) for run in runs])[0]
    mean = conflict.mean

    def cell(value: float | None, text: str) -> Cell:
        return Cell(MISSING if value is None else text.format(value), value, ids)

    def span(of: Ends, text: str) -> Cell:
        return Cell(MISSING if None in of else text.format(*of), None, ids)

    of_change: Ends = (None, None) if ends is None else (ends.low, ends.high)
    of_cosine: Ends = (mean.low, mean.high)
    return [
        alpha,
        cell(change, "{:+.1f}%"),
        span(of_change, "{:+.1f}% to {:+.1f}%"),
        cell(mean.mean, "{:+.3f}"),
        span(of_cosine, "{:+.3f} to {:+.3f}"),
        cell(conflict.conflict.mean, "{:.0%}"),
        Cell(_signs(of_change, of_cosine), None, ids),
        cell(_pull(runs, 1), "{:.3g}"),
        cell(_pull(runs, window), "{:.3g}"),
        Cell(str(len(effect.seeds)), len(effect.seeds), ids),
    ]


def _pull(runs: Sequence[Run], epochs: int) -> float | None:
    """Of the first epochs; None where norms were not recorded.

    The median: where the main gradient all but vanishes, at the start or once everything is fitted, a ratio to it is
    as large as one likes.
    """
    shares = [
        run.spec.alpha * epoch.auxiliary_norm / epoch.main_norm
        for run in runs
        for epoch in run.history[:epochs]
        if epoch.auxiliary_norm is not None and epoch.main_norm
    ]
    return float(np.median(shares)) if shares else None


def _signs(*intervals: Ends) -> str:
    signs = [_sign(*ends) for ends in intervals]
    if 0 in signs:
        return UNCLEAR
    return SAME if len(set(signs)) == 1 else OPPOSITE


def _sign(low: float | None, high: float | None) -> int:
    """That of an interval; 0 where it includes 0 or there is none."""
    if low is None or high is None:
        return 0
    return (low > 0) - (high < 0)
