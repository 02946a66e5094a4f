"""How far the training images were fitted when training ended: a difference there may explain one in test accuracy."""

from collections.abc import Sequence

from asymtrain.lab.paper.comparisons import Comparison, heading_cells, mean_cell, pairs_of
from asymtrain.lab.paper.result import Cell, ResultTable, missing_cell
from asymtrain.lab.paper.snapshot import Snapshot
from asymtrain.lab.paper.study import PRIMARY

COLUMNS = ("Plain", "Asymmetric", "n")
NOTE = (
    "Training accuracy of the batches of the last epoch, against the labels as they were given, flipped ones included. "
    "A side that has fitted less may be ahead in test accuracy because it has overfitted less, or behind because it "
    "has not trained enough; runs of other lengths would tell."
)


def fit_table(
    known: Snapshot, comparisons: Sequence[Comparison], name: str, title: str, headings: Sequence[str]
) -> ResultTable:
    """A row for each comparison."""
    several = any(one.reading != PRIMARY for one in comparisons)
    rows = tuple((*heading_cells(one, several), *_cells(known, one)) for one in comparisons)
    return ResultTable(name, title, (*headings, *(("Reading",) if several else ()), *COLUMNS), rows, NOTE)


def _cells(known: Snapshot, one: Comparison) -> list[Cell]:
    pairs = [pair for pair in pairs_of(known, one) if all(run.history for run in pair)]
    if not pairs:
        return [missing_cell() for _ in COLUMNS]
    sides = list(zip(*pairs, strict=True))
    ids = [tuple(run.spec.id for run in side) for side in sides]
    fitted = [
        mean_cell([run.history[-1].train_accuracy for run in side], own) for side, own in zip(sides, ids, strict=True)
    ]
    return [*fitted, Cell(str(len(pairs)), len(pairs), (*ids[0], *ids[1]))]
