"""Table 16: three branches, all or one active, each side with settings of its own."""

from asymtrain.lab.paper.comparisons import Comparison, compare, effect_table, evidence_of, needs_of
from asymtrain.lab.paper.fairness import chosen_regularisers, extra_trials, regulariser_words, trials_table
from asymtrain.lab.paper.known import Snapshot
from asymtrain.lab.paper.numbers import Hyperparameters
from asymtrain.lab.paper.readings import PRIMARY
from asymtrain.lab.paper.recipe import Draw, Needs, Recipe, RecipeOutput
from asymtrain.lab.paper.result import ResultTable
from asymtrain.lab.paper.searched import TRIED, chosen, dual_of, state_of, trials
from asymtrain.lab.paper.sizes import ARCHS
from asymtrain.lab.paper.study import Study, readings_for, shown_dataset, table_values
from asymtrain.lab.runs import NAMES

ACTIVATIONS = {"all": {"activation": "all", "combine": "sum"}, "one": {"activation": "last"}}


def comparisons(study: Study, known: Snapshot) -> list[Comparison]:
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


def fair_comparisons(study: Study, known: Snapshot) -> list[Comparison]:
    """The same Asymmetric runs against a Plain that had as many trials; none where the study does not ask for it."""
    found = []
    for reading in readings_for(study, TRIED, "accuracy") if study.fair else []:
        for activation, auxiliary in ACTIVATIONS.items():
            for arch in ARCHS:
                plain, asymmetric = _values(study, known, arch, activation)
                settings = chosen_regularisers(dual_of(study, arch, activation, fair=True), known)
                heading = (f"{activation} active", NAMES[arch], regulariser_words(settings))
                found.append(
                    compare(
                        study, reading, f"fair/table16/{activation}/{arch}", heading, arch, "cifar100",
                        None if settings is None else asymmetric, TRIED, auxiliary, plain_values=plain,
                        plain_settings=settings, paper=f"table16/{activation}/{arch}",
                    )
                )  # fmt: skip
    return found


def needs(study: Study, known: Snapshot) -> Needs:
    """The dual searches, then the runs with what they chose."""
    listed = [*comparisons(study, known), *fair_comparisons(study, known)]
    if study.hyperparameters == "paper":
        return needs_of(study, listed)
    cases = [(arch, activation) for activation in ACTIVATIONS for arch in ARCHS]
    searches = [trials(dual_of(study, *case), known) for case in cases]
    if study.fair:
        searches += [extra_trials(dual_of(study, *case), dual_of(study, *case, fair=True), known) for case in cases]
    return needs_of(study, listed, *searches)


def make(study: Study, known: Snapshot, draw: Draw) -> RecipeOutput:
    """One table; two more on a Plain with as many trials where that is asked for."""
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
    return RecipeOutput((table, *_fair_tables(study, known)), evidence=evidence_of(known, listed))


def _fair_tables(study: Study, known: Snapshot) -> tuple[ResultTable, ...]:
    listed = fair_comparisons(study, known)
    if not listed:
        return ()
    note = (
        "Plain has the learning rate and weight decay that were chosen for it, and the regularisation that the search "
        "then chose for it among as many trials as alpha had. Verdicts take the table before: the paper's Plain had no "
        "such trials."
    )
    # Plain's trials do not depend on which branches are active: one search of each backbone has them all.
    states = [((NAMES[arch],), state_of(dual_of(study, arch, "one", fair=True), known)) for arch in ARCHS]
    return (
        effect_table(
            known, listed, "table16-fair", "Table 16 against a Plain with as many trials",
            ("Branches", "Backbone", "Plain with"), note,
        ),
        trials_table("table16-fair-trials", ("Backbone",), states),
    )  # fmt: skip


def _values(
    study: Study, known: Snapshot, arch: str, activation: str
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
