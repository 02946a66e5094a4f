"""Tables 10 and 17: the three backbones on CIFAR-10 with one branch."""

from asymtrain.paper.comparisons import Comparison, compare, effect_table, evidence_of, needs_of
from asymtrain.paper.known import Known
from asymtrain.paper.recipe import Draw, Made, Needs, Recipe
from asymtrain.paper.searched import settled, values_for, waiting
from asymtrain.paper.sizes import ARCHS
from asymtrain.paper.study import Study, readings_for, shown_dataset
from asymtrain.statistics import NAMES

DATASET = "cifar10"


def comparisons(study: Study, known: Known) -> list[Comparison]:
    """One for each backbone."""
    return [
        compare(
            study, reading, f"table10/{arch}", (NAMES[arch],), arch, DATASET,
            values_for(study, known, arch, DATASET, 1), 1,
        )
        for reading in readings_for(study, 1, "training", "accuracy")
        for arch in ARCHS
    ]  # fmt: skip


def needs(study: Study, known: Known) -> Needs:
    """The searches of the three backbones on CIFAR-10, then the runs with what they chose."""
    return needs_of(study, comparisons(study, known), *(waiting(study, known, arch, DATASET) for arch in ARCHS))


def make(study: Study, known: Known, draw: Draw) -> Made:
    """One table; the paper prints it twice."""
    listed = comparisons(study, known)
    settings = " ".join(f"{NAMES[arch]}: {settled(study, known, arch, DATASET, 1)}" for arch in ARCHS)
    note = f"Learnt: {shown_dataset(study, DATASET)}. {settings}"
    table = effect_table(known, listed, "table10", "Tables 10 and 17: CIFAR-10, one branch", ("Backbone",), note)
    return Made((table,), evidence=evidence_of(known, listed))


RECIPE = Recipe(
    name="table10",
    covers=("table10", "table17"),
    title="Tables 10 and 17: the three backbones on CIFAR-10",
    question="Is the effect smaller on CIFAR-10, and nothing for the CNN?",
    how="The paper publishes no settings for CIFAR-10: learning rate, weight decay and alpha are found by the search "
    "of Table 13, on other seeds and by validation accuracy alone.",
    claims=("c30",),
    needs=needs,
    make=make,
)
