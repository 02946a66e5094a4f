"""Tables 11 and 12: flipped training labels."""

from asymtrain.lab.paper.comparisons import Comparison, compare
from asymtrain.lab.paper.numbers import labels
from asymtrain.lab.paper.recipe import Recipe
from asymtrain.lab.paper.recipes.swept import swept_recipe
from asymtrain.lab.paper.searches import values_for
from asymtrain.lab.paper.snapshot import Snapshot
from asymtrain.lab.paper.study import Study, readings_for

ARCH, REDUNDANCY = "mlp", 1  # the paper does not state N; one branch is where Table 1 has the MLP gain
DATASETS = {"table11": "cifar10", "table12": "cifar100"}


def share_of(label: str) -> float:
    """The share of flipped labels that a cell's label ends with."""
    return float(label.rpartition("/")[2])


def comparisons(study: Study, known: Snapshot, table: str) -> list[Comparison]:
    """Every share of flipped labels."""
    dataset = DATASETS[table]
    values = values_for(study, known, ARCH, dataset, REDUNDANCY)
    return [
        compare(
            study, reading, label, (f"{100 * share_of(label):.0f}%",), ARCH, dataset, values, REDUNDANCY,
            label_noise=share_of(label), validation="none", test="last",
        )
        for reading in readings_for(study, REDUNDANCY, "training")
        for label in labels(table)
    ]  # fmt: skip


def _recipe(table: str, title: str, claims: tuple[str, ...]) -> Recipe:
    return swept_recipe(
        table,
        title,
        claims,
        (ARCH, DATASETS[table], REDUNDANCY),
        heading="Flipped labels",
        question="Do branches make the MLP robust to wrong labels?",
        how="A share of the training labels is replaced by other classes, drawn for each seed. All training images are "
        "used (no validation split); the test labels are right.",
        comparisons=comparisons,
    )


RECIPES = (
    _recipe("table11", "Table 11: label noise, MLP on CIFAR-10", ("c32",)),
    _recipe("table12", "Table 12: label noise, MLP on CIFAR-100", ("c31",)),
)
