"""Table 16: three branches, all or one active, each side with settings of its own."""

from asymtrain.paper.comparisons import Comparison, compare, effect_table, evidence_of, needs_of
from asymtrain.paper.known import Known
from asymtrain.paper.numbers import Hyperparameters
from asymtrain.paper.readings import PRIMARY
from asymtrain.paper.recipe import Draw, Made, Needs, Recipe
from asymtrain.paper.searched import TRIED, chosen, dual_of, trials
from asymtrain.paper.sizes import ARCHS
from asymtrain.paper.study import Study, readings_for, shown_dataset, table_values
from asymtrain.statistics import NAMES

ACTIVATIONS = {"all": {"activation": "all", "combine": "sum"}, "one": {"activation": "last"}}


def comparisons(study: Study, known: Known) -> list[Comparison]:
    """Six cells. The activation is the table's own, and the losses' sum over classes would want a search of its own."""
    found = []
    for reading in readings_for(study, TRIED, "accuracy"):
        for activation, auxiliary in ACTIVATIONS.items():
            for arch in ARCHS:
                plain, asymmetric = _values(study, known, arch, activation)
                found.append(
                    compare(
                        study, reading, f"table16/{activation}/{arch}", (f"{activation} active", NAMES[arch]), arch,
                        "cifar100", asymmetric, TRIED, auxiliary, plain_values=plain,
                    )
                )  # fmt: skip
    return found


def needs(study: Study, known: Known) -> Needs:
    """The dual searches, then the runs with what they chose."""
    searches = [dual_of(study, arch, activation) for activation in ACTIVATIONS for arch in ARCHS]
    if study.hyperparameters == "paper":
        searches = []
    return needs_of(study, comparisons(study, known), *(trials(search, known) for search in searches))


def make(study: Study, known: Known, draw: Draw) -> Made:
    """One table."""
    listed = comparisons(study, known)
    note = f"Learnt: {shown_dataset(study, 'cifar100')}."
    for activation in ACTIVATIONS:
        for arch in ARCHS:
            sides = zip(("Plain", "Asymmetric"), _values(study, known, arch, activation), strict=True)
            shown = [
                f"{side} {v.learning_rate:g}, {v.weight_decay:g}, {v.alpha:g}" for side, v in sides if v is not None
            ]
            note += f" {NAMES[arch]}, {activation}: {'; '.join(shown) or 'not yet chosen'}."
    note += " These are learning rate, weight decay and alpha."
    table = effect_table(
        known, listed, "table16", "Table 16: dual search, three branches", ("Branches", "Backbone"), note
    )
    return Made((table,), evidence=evidence_of(known, listed))


def _values(
    study: Study, known: Known, arch: str, activation: str
) -> tuple[Hyperparameters | None, Hyperparameters | None]:
    """Plain's and Asymmetric's settings, as far as they are known."""
    if study.hyperparameters == "paper":
        values = table_values(study, arch, 1)
        return values, values
    found = chosen(dual_of(study, arch, activation), known)
    return (None, None) if found is None else (found["plain"], found["asymmetric"])


RECIPE = Recipe(
    name="table16",
    covers=("table16",),
    title="Table 16: dual search, three branches, all or one active",
    question="Does the effect remain where Plain and Asymmetric each have their best settings?",
    how="Learning rate and weight decay are searched for Plain and for Asymmetric separately, then alpha; the chosen "
    f"settings are trained with the final seeds. Read with {PRIMARY.title}; all active means that losses are summed.",
    claims=("c33", "c34"),
    needs=needs,
    make=make,
)
