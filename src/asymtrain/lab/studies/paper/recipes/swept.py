"""Tables 7 to 9, 11 and 12: one backbone on one dataset, with few images a class or with flipped labels."""

from dataclasses import dataclass
from typing import Any

from asymtrain.lab.report.table import Column
from asymtrain.lab.studies.paper.comparisons import PairedCell, compare, evidence_of, needs_of
from asymtrain.lab.studies.paper.numbers import labels
from asymtrain.lab.studies.paper.recipe import Recipe, RecipeOutput, recipe, recipe_words
from asymtrain.lab.studies.paper.searches import settled, values_for, waiting
from asymtrain.lab.studies.paper.study import Scope, few_shot_size, readings_for, shown_dataset
from asymtrain.lab.studies.paper.tables import effect_table, fit_table
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.study import Needs

IMAGES, NOISE = "Images a class", "Flipped labels"
HEADINGS = {IMAGES: Column(IMAGES), NOISE: Column(NOISE, "share", digits=0)}


@dataclass(frozen=True)
class Sweep:
    """A table: what is swept, and of which backbone, on which dataset, with how many branches."""

    table: str
    swept: str
    arch: str
    dataset: str
    redundancy: int


# The paper states N for Table 9 alone; in Table 1 the MLP gains with one branch.
SWEEPS = {
    sweep.table: sweep
    for sweep in (
        Sweep("table7", IMAGES, "mlp", "cifar10", 1),
        Sweep("table8", IMAGES, "mlp", "cifar100", 1),
        Sweep("table9", IMAGES, "vit", "cifar100", 20),
        Sweep("table11", NOISE, "mlp", "cifar10", 1),
        Sweep("table12", NOISE, "mlp", "cifar100", 1),
    )
}


def comparisons(study: Scope, snapshot: Snapshot, table: str) -> list[PairedCell]:
    sweep = SWEEPS[table]
    values = values_for(study, snapshot, sweep.arch, sweep.dataset, sweep.redundancy)
    rows = []
    for reading in readings_for(study, sweep.redundancy, "training"):  # without a validation split: no best epoch
        for label in labels(table):
            level, fields = label.rpartition("/")[2], dict[str, Any](validation="none", test="last")
            if sweep.swept == NOISE:
                heading: str | float = float(level)
                fields["label_noise"] = heading
            else:
                images = few_shot_size(study, sweep.dataset, int(level))
                own = "" if images in (int(level), None) else f" ({images} here)"
                heading, fields["per_class"] = f"{int(level):,}{own}", images
            rows.append(
                compare(
                    study, reading, label, (heading,), sweep.arch, sweep.dataset, values, sweep.redundancy,
                    **fields,
                )
            )  # fmt: skip
    return rows


def _recipe(sweep: Sweep) -> Recipe:
    def needs(study: Scope, snapshot: Snapshot) -> Needs:
        rows = comparisons(study, snapshot, sweep.table)
        return needs_of(study, rows, waiting(study, snapshot, sweep.arch, sweep.dataset))

    def make(study: Scope, snapshot: Snapshot) -> RecipeOutput:
        rows, headings = comparisons(study, snapshot, sweep.table), (HEADINGS[sweep.swept],)
        settings = settled(study, snapshot, sweep.arch, sweep.dataset, sweep.redundancy)
        note = f"Trained on {shown_dataset(study, sweep.dataset)}. {settings}"
        title = recipe_words(sweep.table)["title"]
        fit_title = f"{title.partition(':')[0]}: training accuracy at the end"
        tables = (
            effect_table(snapshot, rows, sweep.table, title, headings, note),
            fit_table(snapshot, rows, f"{sweep.table}-fit", fit_title, headings),
        )
        return RecipeOutput(tables, evidence=evidence_of(snapshot, rows))

    return recipe(sweep.table, needs, make)


RECIPES = tuple(map(_recipe, SWEEPS.values()))
