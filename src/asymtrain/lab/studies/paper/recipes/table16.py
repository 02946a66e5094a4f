"""Table 16: three branches, all or one active, each side with settings of its own."""

from asymtrain.lab.studies.paper import searches
from asymtrain.lab.studies.paper.comparisons import PairedCell, compare, evidence_of, needs_of
from asymtrain.lab.studies.paper.numbers import Hyperparameters
from asymtrain.lab.studies.paper.recipe import RecipeOutput, recipe
from asymtrain.lab.studies.paper.searches import TRIED, dual_of
from asymtrain.lab.studies.paper.study import ARCHS, Scope, readings_for, shown_dataset, table_values
from asymtrain.lab.studies.paper.tables import effect_table
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.study import Needs
from asymtrain.models import display_name

ACTIVATIONS = {"all": {"activation": "all"}, "one": {"activation": "last"}}


def comparisons(study: Scope, snapshot: Snapshot) -> list[PairedCell]:
    """Six cells.

    The activation is the table's own, and the losses' sum over classes would want a search of its own.
    """
    rows = []
    for reading in readings_for(study, TRIED, "accuracy"):
        for activation, auxiliary in ACTIVATIONS.items():
            for arch in ARCHS:
                heading = (f"{activation} active", display_name(arch))
                plain, asymmetric = _values(study, snapshot, arch, activation)
                rows.append(
                    compare(
                        study, reading, f"table16/{activation}/{arch}", heading, arch, "cifar100", asymmetric,
                        TRIED, auxiliary, plain_values=plain,
                    )
                )  # fmt: skip
    return rows


def needs(study: Scope, snapshot: Snapshot) -> Needs:
    rows = comparisons(study, snapshot)
    if study.hyperparameters == "paper":
        return needs_of(study, rows)
    cases = [(arch, activation) for activation in ACTIVATIONS for arch in ARCHS]
    trials = [searches.trials(dual_of(study, *case), snapshot) for case in cases]
    return needs_of(study, rows, *trials)


def make(study: Scope, snapshot: Snapshot) -> RecipeOutput:
    rows = comparisons(study, snapshot)
    note = f"Trained on {shown_dataset(study, 'cifar100')}."
    for activation in ACTIVATIONS:
        for arch in ARCHS:
            sides = zip(("Plain", "Asymmetric"), _values(study, snapshot, arch, activation), strict=True)
            settings = [f"{side} {v.learning_rate:g}, {v.weight_decay:g}, {v.alpha:g}" for side, v in sides if v]
            note += f" {display_name(arch)}, {activation}: {'; '.join(settings) or 'not yet chosen'}."
    note += " These are learning rate, weight decay and alpha."
    title = "Table 16: dual search, three branches"
    table = effect_table(snapshot, rows, "table16", title, ("Branches", "Backbone"), note)
    return RecipeOutput((table,), evidence=evidence_of(snapshot, rows))


def _values(
    study: Scope, snapshot: Snapshot, arch: str, activation: str
) -> tuple[Hyperparameters | None, Hyperparameters | None]:
    if study.hyperparameters == "paper":
        values = table_values(study, arch, 1)
        return values, values
    settings = searches.chosen(dual_of(study, arch, activation), snapshot)
    return (None, None) if settings is None else (settings["plain"], settings["asymmetric"])


RECIPES = (recipe("table16", needs, make),)
