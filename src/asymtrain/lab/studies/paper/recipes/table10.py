"""Tables 10 and 17: the three backbones on CIFAR-10 with one branch."""

from asymtrain.lab.studies.paper.comparisons import PairedCell, compare, evidence_of, needs_of
from asymtrain.lab.studies.paper.recipe import RecipeOutput, recipe
from asymtrain.lab.studies.paper.searches import settled, values_for, waiting
from asymtrain.lab.studies.paper.study import ARCHS, Scope, readings_for, shown_dataset
from asymtrain.lab.studies.paper.tables import effect_table
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.study import Needs
from asymtrain.models import display_name

DATASET = "cifar10"


def comparisons(study: Scope, snapshot: Snapshot) -> list[PairedCell]:
    """One for each backbone."""
    return [
        compare(
            study, reading, f"table10/{arch}", (display_name(arch),), arch, DATASET,
            values_for(study, snapshot, arch, DATASET, 1), 1,
        )
        for reading in readings_for(study, 1, "training", "accuracy")
        for arch in ARCHS
    ]  # fmt: skip


def needs(study: Scope, snapshot: Snapshot) -> Needs:
    trials = [waiting(study, snapshot, arch, DATASET) for arch in ARCHS]
    return needs_of(study, comparisons(study, snapshot), *trials)


def make(study: Scope, snapshot: Snapshot) -> RecipeOutput:
    rows = comparisons(study, snapshot)
    settings = " ".join(f"{display_name(arch)}: {settled(study, snapshot, arch, DATASET, 1)}" for arch in ARCHS)
    note = f"Trained on {shown_dataset(study, DATASET)}. {settings}"
    table = effect_table(snapshot, rows, "table10", "Tables 10 and 17: CIFAR-10, one branch", ("Backbone",), note)
    return RecipeOutput((table,), evidence=evidence_of(snapshot, rows))


RECIPES = (recipe("table10", needs, make),)
