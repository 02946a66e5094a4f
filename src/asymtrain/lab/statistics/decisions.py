"""The verdicts of every comparison of training with branches and without, and the rule that gives them.

`decide` takes points of accuracy, or any other unit that the margin shares. The caller chooses the number of seeds, the
correction of p, and the margin. docs/glossary.md has the list as a table. The paper's claims have other words, based on
the same `direction` and `is_within`.
"""

from dataclasses import dataclass
from typing import Literal, get_args

Verdict = Literal[
    "helps",  # the interval lies above 0, or p is below the level
    "likely helps",  # inconclusive, but above 0 on average; only from `tune`, like the next
    "no meaningful difference",  # the interval lies within the margin
    "harmless",  # only the lower end lies within the margin
    "likely hurts",
    "hurts",
    "inconclusive",
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
Reason = Literal["clear", "margin", "wide", "single seed", "few seeds", "no spread"]
FEWEST = 5  # seeds for an effect: with fewer, an interval depends on the unknown shape of the distribution
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

    With `p`, which a caller corrects for a family of tests, p decides whether there is an effect, instead of the
    interval. Without spread there is no test, and the difference alone is compared with the margin, if there is one.
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
    """The sign of an interval that excludes 0, else 0."""
    return (low > 0) - (high < 0)


def is_within(low: float, high: float, margin: float) -> bool:
    """Does the interval lie within the margin, on both sides of 0?"""
    return -margin < low and high < margin


def colour_of(verdict: str) -> str:
    """The role of a verdict's colour: good, bad, or soft if neither is clear."""
    return COLOURS.get(verdict, "soft")
