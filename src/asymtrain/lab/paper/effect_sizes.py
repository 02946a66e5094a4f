"""What else is said of a comparison beside its interval: effect sizes, a test without a normal law, what n can find."""

from collections import Counter
from collections.abc import Sequence

from asymtrain.lab.paper.comparisons import Comparison, effect_of, heading_cells, p_text
from asymtrain.lab.paper.result import MISSING, Cell, ResultTable, missing_cell
from asymtrain.lab.paper.snapshot import Snapshot
from asymtrain.lab.paper.study import PRIMARY
from asymtrain.lab.statistics import describe

COLUMNS = ("d_z", "d_av", "In words", "Wilcoxon p", "Bootstrap over seeds", "Detectable", "n")
NOTE = (
    "d_z is Cohen's d of the differences, d_av by the mean deviation of both sides, which the words are for. "
    "Wilcoxon's signed-rank test (from 6 pairs on) and the BCa bootstrap of the improvement are not corrected. "
    "Detectable: the least improvement that n pairs of this spread find with a power of 80%, corrected for the cells; "
    "an unclear result says little about effects below it."
)


def sizes_table(
    known: Snapshot, comparisons: Sequence[Comparison], name: str, title: str, headings: Sequence[str]
) -> ResultTable:
    """A row for each comparison."""
    families = Counter(one.reading.name for one in comparisons)
    several = any(reading != PRIMARY.name for reading in families)
    rows = []
    for one in comparisons:
        rows.append((*heading_cells(one, several), *_cells(known, one, families[one.reading.name])))
    return ResultTable(name, title, (*headings, *(("Reading",) if several else ()), *COLUMNS), tuple(rows), NOTE)


def _cells(known: Snapshot, one: Comparison, family: int) -> list[Cell]:
    effect = effect_of(known, one)
    if effect is None:
        return [missing_cell() for _ in COLUMNS]
    found, ids = describe(effect.plain, effect.asymmetric, family=family), effect.spec_ids

    def cell(value: float | None, text: str) -> Cell:
        return Cell(MISSING if value is None else text.format(value), value, ids)

    ends = MISSING if found.bootstrap is None else "{:+.1f}% to {:+.1f}%".format(*found.bootstrap)
    return [
        cell(found.d_z, "{:+.2f}"),
        cell(found.d_av, "{:+.2f}"),
        Cell(found.size, None, ids),
        Cell(MISSING if found.p_wilcoxon is None else p_text(found.p_wilcoxon), found.p_wilcoxon, ids),
        Cell(ends, None, ids),
        cell(found.detectable, "{:.1f}%"),
        Cell(str(found.n), found.n, ids),
    ]
