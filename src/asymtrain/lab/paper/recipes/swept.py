"""A table of one backbone on one dataset in which one thing is swept: images a class, flipped labels."""

from collections.abc import Callable

from asymtrain.lab.paper.comparisons import Comparison, effect_table, evidence_of, needs_of
from asymtrain.lab.paper.fit import fit_table
from asymtrain.lab.paper.recipe import Draw, Needs, Recipe, RecipeOutput
from asymtrain.lab.paper.searches import settled, waiting
from asymtrain.lab.paper.snapshot import Snapshot
from asymtrain.lab.paper.study import Study, shown_dataset


def swept_recipe(
    table: str,
    title: str,
    claims: tuple[str, ...],
    setting: tuple[str, str, int],
    heading: str,
    question: str,
    how: str,
    comparisons: Callable[[Study, Snapshot, str], list[Comparison]],
) -> Recipe:
    """The recipe of a table whose rows are `comparisons`; `setting` is its backbone, dataset and redundancy."""
    arch, dataset, redundancy = setting

    def needs(study: Study, known: Snapshot) -> Needs:
        return needs_of(study, comparisons(study, known, table), waiting(study, known, arch, dataset))

    def make(study: Study, known: Snapshot, draw: Draw) -> RecipeOutput:
        listed = comparisons(study, known, table)
        note = f"Learnt: {shown_dataset(study, dataset)}. {settled(study, known, arch, dataset, redundancy)}"
        shown = effect_table(known, listed, table, title, (heading,), note)
        number = title.partition(":")[0]
        fitted = fit_table(known, listed, f"{table}-fit", f"{number}: training accuracy at the end", (heading,))
        return RecipeOutput((shown, fitted), evidence=evidence_of(known, listed))

    return Recipe(table, (table,), title, question, how, claims, needs, make)
