"""Beyond the paper: what in the branches acts? Each control takes one thing away from them."""

from asymtrain.lab.paper.comparisons import Comparison, pairs_of, specs_of
from asymtrain.lab.paper.recipe import Needs, Recipe, RecipeOutput
from asymtrain.lab.paper.recipes.table01 import DOSE
from asymtrain.lab.paper.recipes.variants import (
    Variant,
    against_first,
    against_plain,
    sentences,
    variants_figure,
    variants_table,
)
from asymtrain.lab.paper.snapshot import Snapshot, accuracy
from asymtrain.lab.paper.study import PRIMARY, Study, shown_dataset

DETACHED = "detached from the backbone"
VARIANTS = (
    Variant("paper", "as in the paper"),
    Variant("softmax", "softmax loss", {"objective": "softmax"}),
    Variant("random-labels", "random labels", {"branch_labels": "random"}),
    Variant("noise", "noise of equal norm", {"signal": "noise"}),
    Variant("detached", DETACHED, {"signal": "detached"}),
    Variant("frozen", "frozen weights", {"branch_weights": "frozen"}),
    Variant("prior-bias", "bias at the prior", {"branch_bias": "prior"}),
    Variant("weak", "alpha / 100", weaker=100.0),
)
PARTNERS = {"Plain": "Plain", "Asymmetric": "Asymmetric as in the paper"}


def needs(study: Study, known: Snapshot) -> Needs:
    """Plain and the paper's way are runs of Table 1, frozen and detached branches of Table 2."""
    return Needs(specs_of(against_plain(study, "controls", VARIANTS)))


def make(study: Study, known: Snapshot) -> RecipeOutput:
    """Each control against Plain, and against the paper's Asymmetric."""
    rows = against_plain(study, "controls", VARIANTS)
    note = (
        f"Learnt: {shown_dataset(study, 'cifar100')}, with Table 13's settings at N = {DOSE}. Noise has the norm of "
        "the branches' gradient in each layer; a bias at the prior begins at the classes' shares; detached branches "
        "learn, and the backbone hears nothing of it. The cosine is that of the branches' own gradient, also where "
        "noise takes its place or nothing is sent."
    )
    tables, figures, notes = [], [], [*detached_sentences(known, rows)]
    for column, members, other in (("Plain", rows, "With branches"), ("Asymmetric", against_first(rows), "Control")):
        suffix, partner = "" if column == "Plain" else "-asymmetric", PARTNERS[column]
        title = f"Controls against {partner}"
        tables.append(variants_table(known, members, f"controls{suffix}", title, (column, other), note))
        figures.append(variants_figure(known, members, f"figure-controls{suffix}", title, partner))
        notes += sentences(study, known, members, partner)
    return RecipeOutput(tuple(tables), tuple(figures), notes=tuple(notes))


def detached_sentences(known: Snapshot, comparisons: list[Comparison]) -> tuple[str, ...]:
    """Do detached branches leave Plain's network? They must, unless stacks of other members round otherwise."""
    cells = [row for row in comparisons if row.heading[1] == DETACHED and row.reading == PRIMARY]
    pairs = [pair for row in cells for pair in pairs_of(known, row)]
    if not pairs:
        return ()
    same = sum(plain.answers is not None and plain.answers == other.answers for plain, other in pairs)
    if same == len(pairs):
        return (f"Detached branches give Plain's answer to every test image in all {same} pairs.",)
    apart = max(abs(accuracy(other, PRIMARY) - accuracy(plain, PRIMARY)) for plain, other in pairs)
    return (
        f"Detached branches give Plain's answer to every test image in {same} of {len(pairs)} pairs; accuracies are at "
        f"most {100 * apart:.2f} points apart. On a CPU the two networks are equal to the bit; the likely "
        "reason here is that they train in other stacks, whose sums are rounded otherwise.",
    )


RECIPES = (
    Recipe(
        name="controls",
        covers=("controls",),
        title="Controls: what in the branches acts, beyond the paper",
        question="Does another loss, a wrong label, noise or a random readout do as well as the paper's branches?",
        how="The runs of Table 1 with one thing changed in the branches. A control that does as well as the paper's "
        "way takes its explanation away; an interval that includes 0 does not say that the two are equal. The paper "
        "makes no claim here, so there is no verdict.",
        claims=(),
        needs=needs,
        make=make,
        beyond=True,
    ),
)
