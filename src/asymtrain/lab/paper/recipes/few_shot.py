"""Tables 7 to 9: few images a class."""

from asymtrain.lab.paper.comparisons import Comparison, compare
from asymtrain.lab.paper.numbers import labels
from asymtrain.lab.paper.recipe import Recipe
from asymtrain.lab.paper.recipes.swept import swept_recipe
from asymtrain.lab.paper.searches import values_for
from asymtrain.lab.paper.snapshot import Snapshot
from asymtrain.lab.paper.study import Study, few_shot_size, readings_for

TABLES = {"table7": ("mlp", "cifar10", 1), "table8": ("mlp", "cifar100", 1), "table9": ("vit", "cifar100", 20)}
"""Backbone, dataset, redundancy. The paper states N for Table 9 alone; in Table 1 the MLP gains with one branch."""


def sizes_of(table: str) -> list[int]:
    """The paper's numbers of images a class."""
    return [int(label.rpartition("/")[2]) for label in labels(table)]


def comparisons(study: Study, known: Snapshot, table: str) -> list[Comparison]:
    """Every size."""
    arch, dataset, redundancy = TABLES[table]
    values = values_for(study, known, arch, dataset, redundancy)
    found = []
    for reading in readings_for(study, redundancy, "training"):  # without a validation split there is no best epoch
        for size in sizes_of(table):
            taken = few_shot_size(study, dataset, size)
            shown = f"{size:,}" if taken in (size, None) else f"{size:,} ({taken} here)"
            found.append(
                compare(
                    study, reading, f"{table}/{arch}/{size}", (shown,), arch, dataset, values, redundancy,
                    per_class=taken, validation="none", test="last",
                )
            )  # fmt: skip
    return found


def _recipe(table: str, title: str, claims: tuple[str, ...]) -> Recipe:
    return swept_recipe(
        table,
        title,
        claims,
        TABLES[table],
        heading="Images a class",
        question="Do branches help more where there are few images?",
        how="A stratified subset of each seed's own draw, trained on whole (no validation split) for as many epochs as "
        "the full set, tested on all test images.",
        comparisons=comparisons,
    )


RECIPES = (
    _recipe("table7", "Table 7: few-shot learning, MLP on CIFAR-10", ()),
    _recipe("table8", "Table 8: few-shot learning, MLP on CIFAR-100", ("c28",)),
    _recipe("table9", "Table 9: few-shot learning, ViT on CIFAR-100", ("c29",)),
)
