"""What costs nothing at inference, and what idle branches do: nothing. Behind all tables, and none of them."""

from typing import Any

from asymtrain.lab.paper.evidence import Quantity
from asymtrain.lab.paper.identity_values import MANY, IdentityWanted
from asymtrain.lab.paper.known import Snapshot
from asymtrain.lab.paper.recipe import Draw, Needs, Recipe, RecipeOutput
from asymtrain.lab.paper.result import Cell, ResultTable, missing_cell
from asymtrain.lab.paper.sizes import ARCHS
from asymtrain.lab.paper.study import Study, asymmetric_spec, table_values
from asymtrain.lab.runs import NAMES


def wanted(study: Study, arch: str) -> IdentityWanted:
    """One seed shows an identity."""
    values = table_values(study, arch, MANY)
    return IdentityWanted(asymmetric_spec(study, study.readings[0], arch, "cifar100", values, MANY))


def needs(study: Study, known: Snapshot) -> Needs:
    """A measurement for each backbone."""
    return Needs(measurements=tuple(wanted(study, arch) for arch in ARCHS))


def make(study: Study, known: Snapshot, draw: Draw) -> RecipeOutput:
    """Differences; an identity is a row of zeros."""
    rows, evidence = [], dict[str, Any]()
    for arch in ARCHS:
        one = wanted(study, arch)
        found = (known.values(one.spec, one.name) or {}).get(1)
        if found is None:
            rows.append((Cell(NAMES[arch]), *(missing_cell() for _ in range(3))))
            continue
        ids, label = (one.spec.id,), f"inference/{arch}"
        numbers = [float(found[name]) for name in ("outputs", "parameters", "weights")]
        rows.append((Cell(NAMES[arch]), *(Cell(f"{number:g}", number, ids) for number in numbers)))
        evidence[label] = Quantity(label, (max(map(abs, numbers[:2])),), 1, ids, (one.spec.seed,), study.stand_in)
    columns = ("Backbone", "Outputs after strip", "Weights more", f"Weights, N = 1 against N = {MANY}")
    note = (
        "Largest difference between a network that had branches and one that never had, on test images; how many "
        "weights it has more; and the largest difference of a weight after an epoch of training with 1 and with "
        f"{MANY} branches, one of them live."
    )
    table = ResultTable("identity", "Branches leave nothing behind, idle ones do nothing", columns, tuple(rows), note)
    return RecipeOutput((table,), evidence={study.readings[0].name: evidence} if evidence else {})


RECIPE = Recipe(
    name="identity",
    covers=("identity",),
    title="Identities: inference cost, and N under single activation",
    question="Is the trained network the plain one, and the same for every N?",
    how="One epoch of training of each backbone, then a comparison of weights and outputs.",
    claims=("c36",),
    needs=needs,
    make=make,
    beyond=True,
)
