"""Tables 10 and 17: the three backbones on CIFAR-10 with one branch."""

from asymtrain.lab.studies.paper import searches
from asymtrain.lab.studies.paper.comparisons import PairedCell, compare, evidence_of, needs_of
from asymtrain.lab.studies.paper.numbers import note_text
from asymtrain.lab.studies.paper.recipe import RecipeOutput, recipe
from asymtrain.lab.studies.paper.searches import gold_search, settled, values_for
from asymtrain.lab.studies.paper.study import ARCHS, Scope, readings_for, shown_dataset
from asymtrain.lab.studies.paper.tables import effect_table
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.study import Needs
from asymtrain.models import display_name

DATASET = "cifar10"


def comparisons(study: Scope, known: Snapshot, *, fair: bool = False) -> list[PairedCell]:
    """One for each backbone; with `fair` the same Asymmetric runs against a Plain that had as many trials."""
    rows = []
    for reading in readings_for(study, 1, "training", "accuracy"):
        for arch in ARCHS:
            label, values = f"table10/{arch}", values_for(study, known, arch, DATASET, 1)
            heading: tuple[str, ...] = (display_name(arch),)
            settings = None
            if fair:
                settings = searches.chosen_regularisers(gold_search(study, arch, DATASET, fair=True), known)
                heading, values = (*heading, searches.regulariser_words(settings)), None if settings is None else values
            rows.append(
                compare(
                    study, reading, f"fair/{label}" if fair else label, heading, arch, DATASET, values, 1,
                    plain_settings=settings, paper=label,
                )
            )  # fmt: skip
    return rows


def needs(study: Scope, known: Snapshot) -> Needs:
    rows = [*comparisons(study, known), *(comparisons(study, known, fair=True) if study.fair else [])]
    trials = [searches.waiting(study, known, arch, DATASET) for arch in ARCHS]
    if study.fair:
        pairs = [[gold_search(study, arch, DATASET, fair=fair) for fair in (False, True)] for arch in ARCHS]
        trials += [searches.extra_trials(usual, fair, known) for usual, fair in pairs]
    return needs_of(study, rows, *trials)


def make(study: Scope, known: Snapshot) -> RecipeOutput:
    rows = comparisons(study, known)
    settings = " ".join(f"{display_name(arch)}: {settled(study, known, arch, DATASET, 1)}" for arch in ARCHS)
    note = f"Trained on {shown_dataset(study, DATASET)}. {settings}"
    table = effect_table(known, rows, "table10", "Tables 10 and 17: CIFAR-10, one branch", ("Backbone",), note)
    tables = [table]
    if study.fair:
        title = "Table 10 against a Plain with as many trials"
        note = note_text("table10-fair")
        fair = comparisons(study, known, fair=True)
        tables.append(effect_table(known, fair, "table10-fair", title, ("Backbone", "Plain with"), note))
    return RecipeOutput(tuple(tables), evidence=evidence_of(known, rows))


RECIPES = (recipe("table10", needs, make),)
