"""Results of recipes from invented runs: nothing is trained, and one recipe has a table of every difficulty."""

import dataclasses
import random

from asymtrain.lab.report.table import Cell, Column, Mean, Range, Table, missing_cells
from asymtrain.lab.runs import Run
from asymtrain.lab.studies.paper.recipe import RecipeResult, build_result
from asymtrain.lab.studies.paper.recipes import RECIPES
from asymtrain.lab.studies.paper.spec_index import specs_behind
from asymtrain.lab.studies.paper.study import SIZES, Scope
from asymtrain.lab.studies.paper.tables import READING
from asymtrain.lab.studies.snapshot import Snapshot
from invented_runs import invented_epoch

STUDY = Scope(sizes=dataclasses.replace(SIZES["quick"], scale="quick"), seeds=(42, 43, 44), epochs=2)
TRAINED, WAITING = ("table1", "table2"), ("table5", "figure4", "identity")
VERSIONS = {"asymtrain": "9.8.7", "torch": "6.5"}
NASTY = "</script><b>&|_50%"


def invent(spec, *, diverged=False):
    """A run with numbers that depend on its spec alone; branches help the ViT and hurt the CNN."""
    noise, branches = random.Random(spec.id), spec.redundancy > 0
    gain = {"vit": 0.1, "cnn": -0.1}.get(spec.arch, 0.0) * branches

    def epoch(number):
        accuracy = 0.3 + 0.05 * number + gain + noise.gauss(0, 0.01)
        cosine = 0.2 + noise.gauss(0, 0.05) if branches else None
        return invented_epoch(number, accuracy, accuracy, cosine)

    history = tuple(epoch(number) for number in range(1, spec.epochs + 1))
    return Run(spec, history, outcome="diverged" if diverged else "finished")


def invented_results(*, reverse=False):
    """Two recipes with rows, of which one run diverged and one is missing; three without; one of difficult cells."""
    recipes = [RECIPES[name] for name in (*TRAINED, *WAITING)]
    specs = list({spec.id: spec for name in TRAINED for spec in RECIPES[name].needs(STUDY, Snapshot()).specs}.values())
    specs = [spec for spec in specs if not (spec.arch == "vit" and spec.redundancy and spec.seed == 44)]
    runs = [invent(spec, diverged=spec.arch == "mlp" and spec.seed == 43 and spec.redundancy == 0) for spec in specs]
    runs = runs[::-1] if reverse else runs
    known = Snapshot({run.spec.id: run for run in runs}, {}, {run.spec.id: VERSIONS for run in runs})
    results = [build_result(recipe, STUDY, known) for recipe in recipes]
    return [*results, difficult(specs[0].id)], specs_behind(recipes, STUDY, known)


def difficult(spec_id):
    """A table of fifteen full columns, with signs that mean something to Markdown, LaTeX and HTML."""
    percent = {"kind": "number", "unit": "%", "digits": 1, "signed": True}
    kinds = (percent, {"kind": "number", "digits": 4}, percent, {"kind": "number", "significant": True})
    columns = [
        Column(f"change {i}" if i > 9 else f"A number {i}", papers=i > 9, **kinds[i % len(kinds)]) for i in range(13)
    ]
    values = (Range(-49355.1, 49955.1), Mean(0.1136, 0.0025), -52.3, Mean(1.27e-07, 2e-08))
    full = [Cell(values[i % len(values)], (spec_id,)) for i in range(13)]
    rows = (
        (Cell(NASTY), Cell("one"), *full),
        (Cell("\\x ± 1 <0.0001 — R²"), Cell("other"), *full),
        (Cell("half"), Cell("one"), *full[:5], *missing_cells(3), *full[:5]),
    )
    table = Table("difficult", f"Difficult {NASTY}", (Column("Name"), READING, *columns), rows, "A note with a_b.")
    return RecipeResult("difficult", "Difficult: cells", "Why?", "By hand.", (table,), ())
