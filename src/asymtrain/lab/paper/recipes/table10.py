"""Tables 10 and 17: the three backbones on CIFAR-10 with one branch."""

from asymtrain.lab.paper.comparisons import Comparison, compare, evidence_of, needs_of
from asymtrain.lab.paper.recipe import Needs, Recipe, RecipeOutput
from asymtrain.lab.paper.searches import (
    chosen_regularisers,
    extra_trials,
    gold_search,
    regulariser_words,
    settled,
    values_for,
    waiting,
)
from asymtrain.lab.paper.snapshot import Snapshot
from asymtrain.lab.paper.study import ARCHS, Study, readings_for, shown_dataset
from asymtrain.lab.paper.tables import effect_table
from asymtrain.lab.report.table import Table
from asymtrain.lab.statistics import NAMES

DATASET = "cifar10"


def comparisons(study: Study, known: Snapshot) -> list[Comparison]:
    """One for each backbone."""
    return [
        compare(
            study, reading, f"table10/{arch}", (NAMES[arch],), arch, DATASET,
            values_for(study, known, arch, DATASET, 1), 1,
        )
        for reading in readings_for(study, 1, "training", "accuracy")
        for arch in ARCHS
    ]  # fmt: skip


def fair_comparisons(study: Study, known: Snapshot) -> list[Comparison]:
    """The same Asymmetric runs against a Plain that had as many trials; none where the study does not ask for it."""
    rows = []
    for reading in readings_for(study, 1, "training", "accuracy") if study.fair else []:
        for arch in ARCHS:
            values = values_for(study, known, arch, DATASET, 1)
            settings = chosen_regularisers(gold_search(study, arch, DATASET, fair=True), known)
            heading = (NAMES[arch], regulariser_words(settings))
            rows.append(
                compare(
                    study, reading, f"fair/table10/{arch}", heading, arch, DATASET,
                    None if settings is None else values, 1, plain_settings=settings, paper=f"table10/{arch}",
                )
            )  # fmt: skip
    return rows


def needs(study: Study, known: Snapshot) -> Needs:
    """The searches of the three backbones on CIFAR-10, then the runs with what they chose."""
    rows = [*comparisons(study, known), *fair_comparisons(study, known)]
    searches = [waiting(study, known, arch, DATASET) for arch in ARCHS]
    if study.fair:
        pairs = [[gold_search(study, arch, DATASET, fair=fair) for fair in (False, True)] for arch in ARCHS]
        searches += [extra_trials(usual, fair, known) for usual, fair in pairs]
    return needs_of(study, rows, *searches)


def make(study: Study, known: Snapshot) -> RecipeOutput:
    """One table, which the paper prints twice; another against a fair Plain where that is asked for."""
    rows = comparisons(study, known)
    settings = " ".join(f"{NAMES[arch]}: {settled(study, known, arch, DATASET, 1)}" for arch in ARCHS)
    note = f"Learnt: {shown_dataset(study, DATASET)}. {settings}"
    table = effect_table(known, rows, "table10", "Tables 10 and 17: CIFAR-10, one branch", ("Backbone",), note)
    return RecipeOutput((table, *_fair_table(study, known)), evidence=evidence_of(known, rows))


def _fair_table(study: Study, known: Snapshot) -> tuple[Table, ...]:
    rows = fair_comparisons(study, known)
    if not rows:
        return ()
    title = "Table 10 against a Plain with as many trials"
    note = (
        "Plain has the regularisation that the search chose for it among as many trials as alpha had (Table 13). "
        "Verdicts take the table before: the paper's Plain had no such trials."
    )
    return (effect_table(known, rows, "table10-fair", title, ("Backbone", "Plain with"), note),)


RECIPES = (
    Recipe(
        name="table10",
        covers=("table10", "table17"),
        title="Tables 10 and 17: the three backbones on CIFAR-10",
        question="Is the effect smaller on CIFAR-10, and nothing for the CNN?",
        how="The paper publishes no settings for CIFAR-10: learning rate, weight decay and alpha are found by the "
        "search of Table 13, on other seeds and by validation accuracy alone.",
        claims=("c30",),
        needs=needs,
        make=make,
    ),
)
