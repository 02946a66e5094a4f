"""The verdicts of every comparison of training with branches and without, and the rule that gives them.

`decide` is for numbers in points of accuracy, or in any other unit that the margin shares. What surrounds it belongs to
the caller: the number of seeds, the correction of p, and the margin. docs/glossary.md has the list
as a table. The paper's claims have words of their own, by the same `direction` and `is_within`.
"""

from dataclasses import dataclass
from typing import Literal, get_args

Verdict = Literal[
    "helps",  # the interval lies above 0, or p is below the level
    "likely helps",  # inconclusive, but above 0 on average; only from `tune`, as is the next
    "no meaningful difference",  # the interval lies within the margin
    "harmless",  # only its lower end does
    "likely hurts",
    "hurts",
    "inconclusive",
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
Reason = Literal["clear", "margin", "wide", "single seed", "few seeds", "no spread"]
FEWEST = 5  # seeds for an effect: an interval of fewer depends on the unknown shape of the distribution
LEVEL = 0.05  # of p
COLOURS = {"helps": "good", "hurts": "bad"}


@dataclass(frozen=True)
class Decision:
    """A verdict and its reason."""

    verdict: Verdict
    reason: Reason


def decide(
    estimate: float,
    low: float | None,
    high: float | None,
    n: int,
    *,
    p: float | None = None,
    fewest: int = FEWEST,
    margin: float | None = None,
) -> Decision:
    """The verdict on a mean difference over `n` pairs and its interval, which is None without spread.

    With `p`, which a caller corrects for a family of tests, p says whether there is an effect, in place of the
    interval. Without spread there is no test, and with a margin the difference alone is held beside it.
    """
    if n < fewest:
        return Decision("inconclusive", "single seed" if n == 1 else "few seeds")
    if low is None or high is None:
        if margin is None:
            return Decision("inconclusive", "no spread")
        low, high, effect = estimate, estimate, False
    else:
        effect = direction(low, high) != 0 if p is None else p < LEVEL
    if effect:
        return Decision("helps" if estimate > 0 else "hurts", "clear")
    if margin is not None and is_within(low, high, margin):
        return Decision("no meaningful difference", "margin")
    if margin is not None and low > -margin:
        return Decision("harmless", "margin")
    return Decision("inconclusive", "wide")


def direction(low: float, high: float) -> int:
    """The sign of an interval that excludes 0; 0 where it does not."""
    return (low > 0) - (high < 0)


def is_within(low: float, high: float, margin: float) -> bool:
    """Does the interval lie within the margin, on both sides of 0?"""
    return -margin < low and high < margin


def colour_of(verdict: str) -> str:
    """The colour of a verdict by its role: good, bad, or soft where neither is clear."""
    return COLOURS.get(verdict, "soft")
