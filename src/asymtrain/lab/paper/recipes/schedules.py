"""Beyond the paper: alpha that changes over training, and a signal that is heard only where it agrees."""

from asymtrain.lab.paper.comparisons import specs_of
from asymtrain.lab.paper.recipe import Needs, Recipe, RecipeOutput
from asymtrain.lab.paper.recipes.table01 import DOSE
from asymtrain.lab.paper.recipes.variants import Variant, against_plain, sentences, variants_figure, variants_table
from asymtrain.lab.paper.snapshot import Snapshot
from asymtrain.lab.paper.study import Study, shown_dataset

VARIANTS = (
    Variant("constant", "constant, as in the paper"),
    Variant("linear", "linear to 0", {"alpha_schedule": "linear"}),
    Variant("cosine", "cosine to 0", {"alpha_schedule": "cosine"}),
    Variant("early", "first half only", {"alpha_schedule": "early"}),
    Variant("gated", "gated by the cosine", {"signal": "gated"}),
)


def needs(study: Study, known: Snapshot) -> Needs:
    """Plain and the constant alpha are runs of Table 1."""
    return Needs(specs_of(against_plain(study, "schedules", VARIANTS)))


def make(study: Study, known: Snapshot) -> RecipeOutput:
    """One table, its figure, and a sentence for each backbone."""
    rows = against_plain(study, "schedules", VARIANTS)
    note = (
        f"Learnt: {shown_dataset(study, 'cifar100')}, with Table 13's alpha at N = {DOSE}, which a schedule begins "
        "with. Gated: at each step alpha is weighed by the cosine between the two gradients, and is 0 where that is "
        "negative. The cosine is that of the branches' own gradient, before alpha and gate."
    )
    title = "Schedules of alpha"
    table = variants_table(known, rows, "schedules", title, ("Plain", "Asymmetric"), note)
    figure = variants_figure(known, rows, "figure-schedules", f"{title}: effect against Plain", "Plain")
    return RecipeOutput((table,), (figure,), notes=sentences(study, known, rows, "Plain"))


RECIPES = (
    Recipe(
        name="schedules",
        covers=("schedules",),
        title="Schedules: alpha over training, beyond the paper",
        question="Does it matter when the branches are heard, and whether they agree?",
        how="The runs of Table 1 with one thing changed: alpha falls over the epochs, or follows the cosine. The "
        "paper makes no claim here, so there is no verdict. An interval that includes 0 does not say that there is no "
        "effect.",
        claims=(),
        needs=needs,
        make=make,
        beyond=True,
    ),
)
