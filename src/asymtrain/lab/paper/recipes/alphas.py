"""Beyond the paper: the backbones at equal alpha. The paper's settings give each backbone an alpha of its own, so its
comparison of backbones is one of alphas too.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from asymtrain.lab.paper.comparisons import Comparison, effect_of, specs_of
from asymtrain.lab.paper.evidence import Effect
from asymtrain.lab.paper.recipe import Needs, Recipe, RecipeOutput
from asymtrain.lab.paper.recipes.table01 import DOSE
from asymtrain.lab.paper.recipes.variants import Variant, against_plain, sentences, variants_figure, variants_table
from asymtrain.lab.paper.snapshot import Snapshot
from asymtrain.lab.paper.study import PRIMARY, Study, shown_dataset
from asymtrain.lab.paper.tables import READING, N, P, heading_cells, headings_of, interval_cells, number
from asymtrain.lab.report.table import Cell, Table, missing_cells
from asymtrain.lab.statistics import NAMES, t_interval

ALPHAS = (0.1, 1.0, 4.642, 100.0)  # all that Table 13 has
VARIANTS = tuple(Variant(f"{alpha:g}", f"alpha {alpha:g}", alpha=alpha) for alpha in ALPHAS)
PAIRS = tuple((second, first) for first, second in combinations(("cnn", "mlp", "vit"), 2))
BETWEEN = (number("Difference", 1, signed=True), number("Interval", 1, signed=True), P, N)


def needs(study: Study, known: Snapshot) -> Needs:
    """Plain and some of the cells are runs of Table 1."""
    return Needs(specs_of(against_plain(study, "alphas", VARIANTS)))


def make(study: Study, known: Snapshot) -> RecipeOutput:
    """Effects by backbone and alpha, the differences between backbones at one alpha, and a figure."""
    rows = against_plain(study, "alphas", VARIANTS)
    note = (
        f"Learnt: {shown_dataset(study, 'cifar100')}, with Table 13's learning rate and weight decay of each backbone "
        f"at N = {DOSE}, and every alpha that the table has."
    )
    title = "The backbones at equal alpha"
    table = variants_table(known, rows, "alphas", title, ("Plain", "Asymmetric"), note)
    figure = variants_figure(known, rows, "figure-alphas", f"{title}: effect against Plain", "Plain")
    tables = (table, between_table(known, rows))
    return RecipeOutput(tables, (figure,), notes=sentences(study, known, rows, "Plain"))


def between_table(known: Snapshot, comparisons: Sequence[Comparison]) -> Table:
    """The effect of one backbone less that of another, seed by seed, at one alpha."""
    readings = {row.reading.name: row.reading.title for row in comparisons}
    several = set(readings) != {PRIMARY.name}
    effects = {(row.reading.name, row.arch, row.heading[1]): effect_of(known, row) for row in comparisons}
    family = len(VARIANTS) * len(PAIRS)
    rows = []
    for reading, words in readings.items():
        for variant in VARIANTS:
            for second, first in PAIRS:
                texts = (variant.words, f"{NAMES[second]} less {NAMES[first]}", *((words,) if several else ()))
                effect, other = (effects[reading, arch, variant.words] for arch in (first, second))
                rows.append((*heading_cells(texts, first, second), *_cells(effect, other, family)))
    columns = (*headings_of(("Alpha", "Backbones")), *((READING,) if several else ()), *BETWEEN)
    note = (
        "Points of improvement over Plain; learning rate and weight decay still are each backbone's own. Intervals are "
        f"95% t intervals over seeds, corrected for {family} cells; p too."
    )
    return Table("alphas-between", "Between backbones, at equal alpha", columns, tuple(rows), note)


def _cells(first: Effect | None, second: Effect | None, family: int) -> list[Cell]:
    if first is None or second is None:
        return missing_cells(len(BETWEEN))
    ids = (*first.spec_ids, *second.spec_ids)
    before, after = first.changes, second.changes
    differences = [after[seed] - before[seed] for seed in sorted(before.keys() & after.keys())]
    if not differences:
        return [Cell(None, ids)] * len(BETWEEN)
    over_seeds = t_interval(differences, family=family) if len(differences) > 1 else None
    return [
        Cell(float(np.mean(differences)), ids),
        *interval_cells(over_seeds, family, ids),
        Cell(len(differences), ids),
    ]


RECIPES = (
    Recipe(
        name="alphas",
        covers=("alphas",),
        title="Alphas: the backbones at equal alpha, beyond the paper",
        question="Do backbones differ, or the alphas that they were given?",
        how="The runs of Table 1 with every alpha that the paper has for any backbone. The paper makes no claim here, "
        "so there is no verdict. An interval that includes 0 does not say that there is no effect.",
        claims=(),
        needs=needs,
        make=make,
        beyond=True,
    ),
)
