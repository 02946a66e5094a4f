"""Beyond the paper: Tables 7, 8, 11 and 12 over all of training. Branches may change when a network has fitted its
images instead of how good it is then: an effect at the last epoch cannot distinguish the two.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain

import numpy as np

from asymtrain.lab.report.table import Cell, Table, missing_cells
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.studies.paper.comparisons import PairedCell, effect_of, improvement, interval, needs_of, pairs_of
from asymtrain.lab.studies.paper.evidence import Effect
from asymtrain.lab.studies.paper.numbers import note_text
from asymtrain.lab.studies.paper.recipe import RecipeOutput, recipe
from asymtrain.lab.studies.paper.recipes import accuracy
from asymtrain.lab.studies.paper.searches import waiting
from asymtrain.lab.studies.paper.study import PRIMARY, Scope, shown_dataset
from asymtrain.lab.studies.paper.tables import N, comparison_table, ends_of, mean_of, number, percent, sides
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.study import Needs
from asymtrain.lab.studies.timing import class_count

ALPHAS = (0.1, 1.0)  # in addition to the table's own; these are Table 1's for other N
OWN = "its own"
ARCH = "mlp"
TABLES = [table for table, sweep in accuracy.SWEEPS.items() if sweep.arch == ARCH]


def comparisons(study: Scope, snapshot: Snapshot, table: str) -> list[PairedCell]:
    """Every cell of the table with every alpha, tested at every epoch."""
    primary = dataclasses.replace(study, readings=(PRIMARY,))
    rows = []
    for cell in accuracy.swept_cells(primary, snapshot, table):
        for alpha in (*ALPHAS, None):
            own = cell.asymmetric[0].alpha if cell.asymmetric else OWN
            rows.append(
                dataclasses.replace(
                    cell,
                    label=f"fitting/{cell.label}/{OWN if alpha is None else f'{alpha:g}'}",
                    heading=(*cell.heading, own if alpha is None else alpha),
                    plain=_tested(cell.plain),
                    asymmetric=_tested(cell.asymmetric, alpha),
                    paper=None,
                )
            )
    return rows


@lru_cache(maxsize=2_000)  # asked for again and again, and each new spec is validated
def _tested(specs: tuple[RunSpec, ...], alpha: float | None = None) -> tuple[RunSpec, ...]:
    return tuple(
        dataclasses.replace(spec, test="every", alpha=spec.alpha if alpha is None else alpha) for spec in specs
    )


def tested(run: Run) -> list[float]:
    """Test accuracy by epoch."""
    return [epoch.test_accuracy for epoch in run.history if epoch.test_accuracy is not None]


def equally_fitted(plain: Run, asymmetric: Run) -> tuple[float, float]:
    """Each at its first epoch with the highest training accuracy that both of them reach."""
    fits = [[epoch.train_accuracy for epoch in run.history] for run in (plain, asymmetric)]
    level = min(map(max, fits))
    before, after = (next(i for i, fit in enumerate(side) if fit >= level) for side in fits)
    return tested(plain)[before], tested(asymmetric)[after]


# Test accuracies of a pair, Plain and Asymmetric. "Each at its own best epoch" is a bound: the test images choose it,
# which favours both sides equally.
LOOKS: dict[str, Callable[[Run, Run], tuple[float, float]]] = {
    "Last epoch": lambda plain, asymmetric: (tested(plain)[-1], tested(asymmetric)[-1]),
    "Best epoch": lambda plain, asymmetric: (max(tested(plain)), max(tested(asymmetric))),
    "Equal fit": equally_fitted,
}

Seen = Mapping[str, Mapping[str, Effect | None]]  # by the label of the cell, then by look


def effect(snapshot: Snapshot, comparison: PairedCell, look: str) -> Effect | None:
    """The effect by one of `LOOKS`; in a pair with a diverged run, that run counts at chance accuracy."""

    def values(*pair: Run) -> Sequence[float]:
        if all(run.outcome == "finished" for run in pair):
            return LOOKS[look](*pair)
        chance = 1 / class_count(pair[0].spec)
        return [chance if run.outcome == "diverged" else tested(run)[-1] for run in pair]

    return effect_of(snapshot, comparison, values)


def needs(study: Scope, snapshot: Snapshot) -> Needs:
    """A run of each cell, alpha and seed, and one Plain for all alphas."""
    rows = [row for table in TABLES for row in comparisons(study, snapshot, table)]
    return needs_of(study, rows, waiting(study, snapshot, ARCH, "cifar10"))


def make(study: Scope, snapshot: Snapshot) -> RecipeOutput:
    """A table and a sentence for each of the paper's."""
    rows = {table: comparisons(study, snapshot, table) for table in TABLES}
    cells = chain.from_iterable(rows.values())
    effects = {cell.label: {look: effect(snapshot, cell, look) for look in LOOKS} for cell in cells}
    notes = [_sentence(effects, *item) for item in rows.items()]
    return RecipeOutput(
        tuple(_table(study, snapshot, effects, *item) for item in rows.items()),
        notes=tuple(note for note in notes if note),
    )


def _table(study: Scope, snapshot: Snapshot, effects_by_label: Seen, table: str, rows: Sequence[PairedCell]) -> Table:
    looks = [column for look in LOOKS for column in (percent(look), percent(f"Interval, {look.lower()}"))]
    columns = (*sides(), *looks, number("Best: Plain", 0), number("Best: Asymmetric", 0), N)

    def cells(row: PairedCell, family: int) -> list[Cell]:
        effects = [*effects_by_label[row.label].values()]
        last = effects[0]
        if last is None:
            return missing_cells(len(columns))
        ids = last.spec_ids
        values: list[Cell] = [Cell(mean_of(last.plain), ids[::2]), Cell(mean_of(last.asymmetric), ids[1::2])]
        for one in effects:
            assert one is not None, "one look has pairs, so all have"
            values += [Cell(improvement(one), ids), Cell(ends_of(interval(one, family)), ids)]
        for side in zip(*pairs_of(snapshot, row), strict=True):
            epochs = [int(np.argmax(accuracies)) + 1 for run in side if (accuracies := tested(run))]
            values.append(Cell(mean_of(epochs) if epochs else None, tuple(run.spec.id for run in side)))
        return [*values, Cell(len(last.seeds), ids)]

    sweep, name = accuracy.SWEEPS[table], f"Table {table.removeprefix('table')}"
    note = note_text("fitting", data=shown_dataset(study, sweep.dataset), name=name, cells=len(rows))
    headings = (accuracy.HEADINGS[sweep.swept], number("Alpha", None))
    return comparison_table(rows, f"fitting-{table}", f"{name} over all of training", headings, columns, cells, note)


def _sentence(effects_by_label: Seen, table: str, rows: Sequence[PairedCell]) -> str:
    """For how many cells the interval excludes 0, by each look; empty without intervals."""
    parts, count = [], 0
    for look in LOOKS:
        effects = [one for row in rows if (one := effects_by_label[row.label][look])]
        intervals = [ends for one in effects if (ends := interval(one, len(rows))) is not None]
        above, below, count = sum(e.low > 0 for e in intervals), sum(e.high < 0 for e in intervals), len(intervals)
        parts.append(f"{look.lower()} {above} above and {below} below 0")
    name = f"Table {table.removeprefix('table')}"
    return f"{name}, intervals of {count} of {len(rows)} cells: {'; '.join(parts)}." if count else ""


RECIPES = (recipe("fitting", needs, make),)
