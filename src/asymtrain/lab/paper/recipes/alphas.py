"""Beyond the paper: the backbones at equal alpha. The paper's settings give each backbone an alpha of its own, so its
comparison of backbones is one of alphas too.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from asymtrain.lab.paper.comparisons import Comparison, effect_of, p_text, specs_of
from asymtrain.lab.paper.evidence import Effect
from asymtrain.lab.paper.known import Snapshot
from asymtrain.lab.paper.readings import PRIMARY
from asymtrain.lab.paper.recipe import Draw, Needs, Recipe, RecipeOutput
from asymtrain.lab.paper.recipes.table01 import DOSE
from asymtrain.lab.paper.recipes.variants import Variant, against_plain, sentences, ways_figure, ways_table
from asymtrain.lab.paper.result import MISSING, Cell, ResultTable, missing_cell
from asymtrain.lab.paper.study import Study, shown_dataset
from asymtrain.lab.runs import NAMES
from asymtrain.lab.statistics import t_interval

ALPHAS = (0.1, 1.0, 4.642, 100.0)  # all that Table 13 has
WAYS = tuple(Variant(f"{alpha:g}", f"alpha {alpha:g}", alpha=alpha) for alpha in ALPHAS)
PAIRS = tuple((second, first) for first, second in combinations(("cnn", "mlp", "vit"), 2))
COLUMNS = ("Difference", "Interval", "p", "n")


def needs(study: Study, known: Snapshot) -> Needs:
    """Plain and some of the cells are runs of Table 1."""
    return Needs(specs_of(against_plain(study, "alphas", WAYS)))


def make(study: Study, known: Snapshot, draw: Draw) -> RecipeOutput:
    """Effects by backbone and alpha, the differences between backbones at one alpha, and a figure."""
    listed = against_plain(study, "alphas", WAYS)
    note = (
        f"Learnt: {shown_dataset(study, 'cifar100')}, with Table 13's learning rate and weight decay of each backbone "
        f"at N = {DOSE}, and every alpha that the table has."
    )
    title = "The backbones at equal alpha"
    table = ways_table(known, listed, "alphas", title, ("Plain", "Asymmetric"), note)
    figure = ways_figure(known, listed, "figure-alphas", f"{title}: effect against Plain", "Plain", draw)
    between = between_table(known, listed)
    return RecipeOutput((table, between), (figure,), notes=sentences(study, known, listed, "Plain"))


def between_table(known: Snapshot, comparisons: Sequence[Comparison]) -> ResultTable:
    """The effect of one backbone less that of another, seed by seed, at one alpha."""
    readings = {one.reading.name: one.reading.title for one in comparisons}
    several = set(readings) != {PRIMARY.name}
    effects = {(one.reading.name, *one.heading): effect_of(known, one) for one in comparisons}
    family = len(WAYS) * len(PAIRS)
    rows = []
    for reading, words in readings.items():
        for way in WAYS:
            for second, first in PAIRS:
                heading = (way.words, f"{NAMES[second]} less {NAMES[first]}", *((words,) if several else ()))
                sides = [effects[reading, NAMES[arch], way.words] for arch in (first, second)]
                rows.append((*(Cell(text) for text in heading), *_cells(sides, family)))
    columns = ("Alpha", "Backbones", *(("Reading",) if several else ()), *COLUMNS)
    note = (
        "Points of improvement over Plain; learning rate and weight decay still are each backbone's own. Intervals are "
        f"95% t intervals over seeds, corrected for {family} cells; p too."
    )
    return ResultTable("alphas-between", "Between backbones, at equal alpha", columns, tuple(rows), note)


def _cells(sides: Sequence[Effect | None], family: int) -> list[Cell]:
    first, second = sides
    if first is None or second is None:
        return [missing_cell() for _ in COLUMNS]
    ids = (*first.spec_ids, *second.spec_ids)
    before, after = first.changes, second.changes
    common = sorted(before.keys() & after.keys())
    differences = [after[seed] - before[seed] for seed in common]
    blank = Cell(MISSING, spec_ids=ids)
    if not differences:
        return [blank for _ in COLUMNS]
    mean = float(np.mean(differences))
    shown = [Cell(f"{mean:+.1f}", mean, ids), blank, blank, Cell(str(len(common)), len(common), ids)]
    if len(differences) > 1:
        found = t_interval(differences, family=family)
        p = min(1.0, family * found.p)
        shown[1:3] = [Cell(f"{found.low:+.1f} to {found.high:+.1f}", None, ids), Cell(p_text(p), p, ids)]
    return shown


RECIPE = Recipe(
    name="alphas",
    covers=("alphas",),
    title="Alphas: the backbones at equal alpha, beyond the paper",
    question="Do backbones differ, or the alphas that they were given?",
    how="The runs of Table 1 with every alpha that the paper has for any backbone. The paper makes no claim here, so "
    "there is no verdict. An interval that includes 0 does not say that there is no effect.",
    claims=(),
    needs=needs,
    make=make,
    beyond=True,
)
