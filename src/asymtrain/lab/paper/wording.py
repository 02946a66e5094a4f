"""Numbers of a ruled part in words, and labels of evidence as a reader says them."""

from collections import Counter
from collections.abc import Sequence

from asymtrain.lab.paper.claims import Claim
from asymtrain.lab.paper.numbers import cells
from asymtrain.lab.paper.rule import WEAKEST_LAST, JudgedPart
from asymtrain.lab.runs import NAMES

CELLS = {
    "table1": "{0}, N = {1}",
    "redundancy": "{0}, N = {1} at equal settings",
    "table2": "{1} cosine of the {0}",
    "table3": "{1} of the {0}",
    "table4": "gap of the {0} at epoch {1}",
    "table5": "landscape of the {0}, N = {1}",
    "table6": "landscape of the {0}, N = {1}",
    "table7": "{0}, {1} images a class of CIFAR-10",
    "table8": "{0}, {1} images a class",
    "table9": "{0}, {1} images a class",
    "table10": "{0} on CIFAR-10",
    "table11": "{0}, {1}% label noise on CIFAR-10",
    "table12": "{0}, {1}% label noise on CIFAR-100",
    "table14": "{0} at epoch {1}",
    "table16": "{1}, {0} of three branches active",
    "figure9": "{0} after training",
    "inference": "{0} after stripping",
}
"""By the table of a label, what its cells are."""
QUANTITIES = {"convergence": "convergence epoch", "final": "final validation accuracy"}
STEPS = "steps not reversed"  # parts of a trend that ask for no effect of their own


def number(value: float | None, one: JudgedPart) -> str:
    """A number in the unit of its part."""
    part = one.part
    if value is None:
        return "undefined"
    if part.how == "significant":
        return f"{round(value * len(part.labels))} of {len(part.labels)} cells"
    if part.how == "zero":
        return f"a largest difference of {value:.3g}"
    if part.of != "change":
        return f"{value:+.4f}"
    points = " points" if part.how in ("difference", "not reversed") else "%"
    return f"{value:+.1f}{points}"


def ours_words(one: JudgedPart) -> str:
    """What was measured for a part; both numbers where one is held beside the other."""
    effect = number(one.estimate, one)
    return effect if one.beside is None else f"{effect} beside a cosine of {one.beside:+.4f}"


def measured_words(claim: Claim, ruled: Sequence[JudgedPart], deciding: JudgedPart) -> str:
    """The deciding part's number, seeds and interval; of several parts also which one it is and how all were ruled."""
    interval = ""
    if deciding.low is not None and deciding.high is not None:
        interval = f", interval {number(deciding.low, deciding)} to {number(deciding.high, deciding)}"
    seeds = f"{deciding.n} seed{'s' if deciding.n != 1 else ''}"
    text = f"{ours_words(deciding)} ({seeds}{interval})"
    if len(claim.parts) == 1:
        return text
    counts = Counter(_kind(one) for one in ruled)
    parts = ", ".join(f"{counts[name]} {name.lower()}" for name in (*WEAKEST_LAST, STEPS) if counts[name])
    return f"{text} for {part_words(deciding)}; of {len(ruled)} parts {parts}"


def _kind(one: JudgedPart) -> str:
    return STEPS if one.part.how == "not reversed" and one.ruling == "Reproduced" else one.ruling


def part_words(one: JudgedPart) -> str:
    """What a part looks at."""
    first, *rest = (cell_words(label) for label in one.part.labels)
    if not rest:
        return first
    if one.part.how == "significant":
        return f"{len(one.part.labels)} cells"
    return rest[0] if one.part.how == "agreement" else f"{rest[0]} against {first}"


def cell_words(label: str) -> str:
    """A label of evidence (`claims`) for a reader."""
    table, *place = label.split("/")
    if table in ("table11", "table12"):
        place[1] = f"{100 * float(place[1]):g}"
    return CELLS[table].format(*({**NAMES, **QUANTITIES}.get(part, part.replace("_", " ")) for part in place))


def paper_words(claim: Claim, deciding: JudgedPart) -> str:
    """The paper's number for the same part."""
    if claim.kind in ("share", "identity"):
        return claim.paper_value
    effect = number(deciding.part.paper, deciding)
    if deciding.part.how != "agreement":
        return effect
    return f"{effect} beside {cells()[deciding.part.labels[0]].value:+.4f}"
