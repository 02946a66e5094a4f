"""Numbers of a ruled part in words."""

from collections import Counter
from collections.abc import Sequence

from asymtrain.paper.claims import Claim
from asymtrain.paper.rule import WEAKEST_LAST, Ruled


def number(value: float | None, one: Ruled) -> str:
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


def measured_words(claim: Claim, ruled: Sequence[Ruled], deciding: Ruled) -> str:
    """The deciding part's number, seeds and interval; of several parts also which one it is and how all were ruled."""
    interval = ""
    if deciding.low is not None and deciding.high is not None:
        interval = f", interval {number(deciding.low, deciding)} to {number(deciding.high, deciding)}"
    seeds = f"{deciding.n} seed{'s' if deciding.n != 1 else ''}"
    text = f"{number(deciding.estimate, deciding)} ({seeds}{interval})"
    if len(claim.parts) == 1:
        return text
    counts = Counter(one.ruling for one in ruled)
    parts = ", ".join(f"{counts[name]} {name.lower()}" for name in WEAKEST_LAST if counts[name])
    return f"{text} at {' against '.join(deciding.part.labels)}; of {len(ruled)} parts {parts}"


def paper_words(claim: Claim, deciding: Ruled) -> str:
    """The paper's number for the same part."""
    if claim.kind in ("share", "identity"):
        return claim.paper_value
    return number(deciding.part.paper, deciding)
