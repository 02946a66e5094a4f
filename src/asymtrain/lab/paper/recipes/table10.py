"""Tables 10 and 17: the three backbones on CIFAR-10 with one branch."""

from asymtrain.lab.paper.comparisons import Comparison, compare, effect_table, evidence_of, needs_of
from asymtrain.lab.paper.fairness import chosen_regularisers, extra_trials, regulariser_words
from asymtrain.lab.paper.known import Snapshot
from asymtrain.lab.paper.recipe import Draw, Needs, Recipe, RecipeOutput
from asymtrain.lab.paper.result import ResultTable
from asymtrain.lab.paper.searched import gold_search, settled, values_for, waiting
from asymtrain.lab.paper.sizes import ARCHS
from asymtrain.lab.paper.study import Study, readings_for, shown_dataset
from asymtrain.lab.runs import NAMES

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
    found = []
    for reading in readings_for(study, 1, "training", "accuracy") if study.fair else []:
        for arch in ARCHS:
            values = values_for(study, known, arch, DATASET, 1)
            settings = chosen_regularisers(gold_search(study, arch, DATASET, fair=True), known)
            heading = (NAMES[arch], regulariser_words(settings))
            found.append(
                compare(
                    study, reading, f"fair/table10/{arch}", heading, arch, DATASET,
                    None if settings is None else values, 1, plain_settings=settings, paper=f"table10/{arch}",
                )
            )  # fmt: skip
    return found


def needs(study: Study, known: Snapshot) -> Needs:
    """The searches of the three backbones on CIFAR-10, then the runs with what they chose."""
    listed = [*comparisons(study, known), *fair_comparisons(study, known)]
    searches = [waiting(study, known, arch, DATASET) for arch in ARCHS]
    if study.fair:
        pairs = [[gold_search(study, arch, DATASET, fair=fair) for fair in (False, True)] for arch in ARCHS]
        searches += [extra_trials(usual, fair, known) for usual, fair in pairs]
    return needs_of(study, listed, *searches)


def make(study: Study, known: Snapshot, draw: Draw) -> RecipeOutput:
    """One table, which the paper prints twice; another against a fair Plain where that is asked for."""
    listed = comparisons(study, known)
    settings = " ".join(f"{NAMES[arch]}: {settled(study, known, arch, DATASET, 1)}" for arch in ARCHS)
    note = f"Learnt: {shown_dataset(study, DATASET)}. {settings}"
    table = effect_table(known, listed, "table10", "Tables 10 and 17: CIFAR-10, one branch", ("Backbone",), note)
    return RecipeOutput((table, *_fair_table(study, known)), evidence=evidence_of(known, listed))


def _fair_table(study: Study, known: Snapshot) -> tuple[ResultTable, ...]:
    listed = fair_comparisons(study, known)
    if not listed:
        return ()
    title = "Table 10 against a Plain with as many trials"
    note = (
        "Plain has the regularisation that the search chose for it among as many trials as alpha had (Table 13). "
        "Verdicts take the table before: the paper's Plain had no such trials."
    )
    return (effect_table(known, listed, "table10-fair", title, ("Backbone", "Plain with"), note),)


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
