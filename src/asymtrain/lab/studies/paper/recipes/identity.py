"""What branches cost at inference, and what idle branches do: nothing. It underlies all tables, and is none of them."""

from asymtrain.lab.report.table import Cell, Column, Table, missing_cells
from asymtrain.lab.studies.paper.evidence import Quantity, by_reading
from asymtrain.lab.studies.paper.measurements import MANY, identity_wanted
from asymtrain.lab.studies.paper.numbers import note_text
from asymtrain.lab.studies.paper.recipe import RecipeOutput, recipe
from asymtrain.lab.studies.paper.study import ARCHS, Scope
from asymtrain.lab.studies.paper.tables import arch_cell, number
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.study import Needs


def needs(study: Scope, snapshot: Snapshot) -> Needs:
    return Needs(measurements=tuple(identity_wanted(study, arch) for arch in ARCHS))


def make(study: Scope, snapshot: Snapshot) -> RecipeOutput:
    rows, evidence = [], list[tuple[str, Quantity]]()
    for arch in ARCHS:
        identity = identity_wanted(study, arch)
        measured = (snapshot.values(identity.spec, identity.name) or {}).get(1)
        if measured is None:
            rows.append((arch_cell(arch), *missing_cells(3)))
            continue
        ids, seeds = (identity.spec.id,), (identity.spec.seed,)
        outputs, parameters, weights = (float(measured[name]) for name in ("outputs", "parameters", "weights"))
        rows.append((arch_cell(arch), Cell(outputs, ids), Cell(parameters, ids), Cell(weights, ids)))
        for label, value in ((f"inference/{arch}", max(abs(outputs), abs(parameters))), (f"identity/{arch}", weights)):
            evidence.append((study.readings[0].name, Quantity(label, (value,), 1, ids, seeds, study.stand_in)))
    headings = ("Outputs after strip", "Weights more", f"Weights, N = 1 against N = {MANY}")
    columns = (Column("Backbone"), *(number(name, None) for name in headings))
    note = note_text("identity", many=MANY)
    table = Table("identity", "Branches leave nothing behind, idle ones do nothing", columns, tuple(rows), note)
    return RecipeOutput((table,), evidence=by_reading(evidence))


RECIPES = (recipe("identity", needs, make),)
