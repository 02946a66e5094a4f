"""Beyond the paper: alpha that changes over training, and a signal that is heard only where it agrees."""

from asymtrain.paper.comparisons import specs_of
from asymtrain.paper.known import Known
from asymtrain.paper.recipe import Draw, Made, Needs, Recipe
from asymtrain.paper.recipes.table01 import DOSE
from asymtrain.paper.recipes.ways import Way, against_plain, sentences, ways_figure, ways_table
from asymtrain.paper.study import Study, shown_dataset

WAYS = (
    Way("constant", "constant, as in the paper"),
    Way("linear", "linear to 0", {"alpha_schedule": "linear"}),
    Way("cosine", "cosine to 0", {"alpha_schedule": "cosine"}),
    Way("early", "first half only", {"alpha_schedule": "early"}),
    Way("gated", "gated by the cosine", {"signal": "gated"}),
)


def needs(study: Study, known: Known) -> Needs:
    """Plain and the constant alpha are runs of Table 1."""
    return Needs(specs_of(against_plain(study, "schedules", WAYS)))


def make(study: Study, known: Known, draw: Draw) -> Made:
    """One table, its figure, and a sentence for each backbone."""
    listed = against_plain(study, "schedules", WAYS)
    note = (
        f"Learnt: {shown_dataset(study, 'cifar100')}, with Table 13's alpha at N = {DOSE}, which a schedule begins "
        "with. Gated: at each step alpha is weighed by the cosine between the two gradients, and is 0 where that is "
        "negative. The cosine is that of the branches' own gradient, before alpha and gate."
    )
    title = "Schedules of alpha"
    table = ways_table(known, listed, "schedules", title, ("Plain", "Asymmetric"), note)
    figure = ways_figure(known, listed, "figure-schedules", f"{title}: effect against Plain", "Plain", draw)
    return Made((table,), (figure,), notes=sentences(study, known, listed, "Plain"))


RECIPE = Recipe(
    name="schedules",
    covers=("schedules",),
    title="Schedules: alpha over training, beyond the paper",
    question="Does it matter when the branches are heard, and whether they agree?",
    how="The runs of Table 1 with one thing changed: alpha falls over the epochs, or follows the cosine. The paper "
    "makes no claim here, so there is no verdict. An interval that includes 0 does not say that there is no effect.",
    claims=(),
    needs=needs,
    make=make,
    beyond=True,
)
