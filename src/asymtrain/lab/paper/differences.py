"""Ours beside the paper's where a quantity is compared by its plain difference: epochs, gaps, attention."""

import numpy as np

from asymtrain.lab.paper.comparisons import mean_cell, printed_cell
from asymtrain.lab.paper.evidence import Effect
from asymtrain.lab.paper.numbers import Printed
from asymtrain.lab.paper.result import MISSING, Cell, missing_cell
from asymtrain.lab.statistics import t_interval

OURS = ("Plain", "Asymmetric", "Change", "Interval", "n")
COLUMNS = (*OURS, "Paper: Plain", "Paper: Asymmetric", "Paper: change", "Difference")
NOTE = (
    "Change: Asymmetric less Plain, with a 95% t interval over pairs of one seed, not corrected. "
    "Difference: our change less the paper's."
)


def difference_cells(
    found: Effect | None, paper: Printed | None, digits: int = 3, printed_digits: int | None = None
) -> tuple[Cell, ...]:
    """The cells under `COLUMNS`; `printed_digits` are the paper's where it prints fewer."""
    said = None
    theirs = [Cell(MISSING) for _ in range(3)]
    if paper is not None and paper.plain is not None and paper.asymmetric is not None:
        shown = digits if printed_digits is None else printed_digits
        said = paper.asymmetric - paper.plain
        theirs = [printed_cell(side, None, shown) for side in (paper.plain, paper.asymmetric)]
        theirs.append(Cell(f"{said:+.{shown}f}", said))
    if found is None:
        last = Cell(MISSING) if said is None else missing_cell()
        return (*(missing_cell() for _ in OURS), *theirs, last)
    ids, change = found.spec_ids, float(np.mean(found.asymmetric) - np.mean(found.plain))
    last = Cell(MISSING) if said is None else Cell(f"{change - said:+.{digits}f}", change - said, ids)
    ours = (
        mean_cell(found.plain, ids[::2], digits),
        mean_cell(found.asymmetric, ids[1::2], digits),
        Cell(f"{change:+.{digits}f}", change, ids),
        _interval_cell(found, digits),
        Cell(str(len(found.seeds)), len(found.seeds), ids),
    )
    return (*ours, *theirs, last)


def _interval_cell(found: Effect, digits: int) -> Cell:
    if len(found.seeds) < 2:
        return Cell(MISSING, spec_ids=found.spec_ids)  # not missing: one pair has none
    ends = t_interval([after - before for before, after in zip(found.plain, found.asymmetric, strict=True)])
    return Cell(f"{ends.low:+.{digits}f} to {ends.high:+.{digits}f}", None, found.spec_ids)
