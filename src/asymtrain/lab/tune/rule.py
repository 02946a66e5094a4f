"""What pairs say, and what fits into the time. Numbers in, a verdict or a plan out; every threshold is in `RULE`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from asymtrain.intervals import deviation
from asymtrain.lab.statistics import Verdict, decide, sequential_interval, values_to_decide
from asymtrain.lab.statistics.sequential import LEAST

Because = Literal["gain", "no gain", "wide", "few pairs", "no spread", "not learnt", "short", "failed"]
SETTLED: tuple[Verdict, ...] = ("helps", "hurts", "no meaningful difference")
_AFTER_FEW_EPOCHS: dict[Verdict, Verdict] = dict(
    zip(SETTLED, ("likely helps", "likely hurts", "inconclusive"), strict=True)
)


@dataclass(frozen=True)
class Rule:
    """Thresholds of the plan, of the race and of the verdict."""

    timing_epochs: int = 2  # of the timed runs; the first one includes the startup
    used: float = 0.9  # share of the time left after the timing that the pairs may take
    pairs: int = 4  # that must fit, if need be with one epoch each; from three on there is an interval
    most_pairs: int = 8  # of an unsettled question before the race; equal results settle it only after so many
    short: int = 3  # the epochs of a pair are divided by this in the race
    rungs: int = 3  # of the race; each adds a seed, and keeps the better half
    rates: tuple[float, ...] = (1.0, 1 / 3, 0.1)  # factors of the learning rate, tried if the baseline does not learn
    least_held_out: int = 20  # validation images, and test images; with fewer, one image is more than five points
    margin: float = 1.0  # points: the largest difference that does not matter
    least_share: float = 0.5  # of the epochs asked about, for a verdict without "likely": effects turn after less


RULE = Rule()


@dataclass(frozen=True)
class Ruling:
    """The verdict, why in a word or two, and why in a sentence."""

    verdict: Verdict
    because: Because
    reason: str

    @property
    def is_settled(self) -> bool:
        return self.verdict in SETTLED


def judge(differences: Sequence[float], not_learnt: int, epochs: int, all_epochs: int) -> Ruling:
    """The ruling on pairs: `differences` in points to the baseline, after `epochs` of the user's `all_epochs`.

    `not_learnt` counts pairs in which both runs diverged or stayed at chance. One can look after every pair
    (`statistics.sequential`). An unsettled result with a mean above 0 is `likely helps`: docs/tune.md has the score of
    that advice.
    """
    n = len(differences)
    if not n:
        return Ruling("inconclusive", "few pairs", "no pair is finished yet")
    if 2 * not_learnt > n:
        return Ruling(
            "inconclusive", "not learnt",
            f"with branches and without, runs diverged or stayed at chance in {not_learnt} of {n} pairs",
        )  # fmt: skip
    points, ends = math.fsum(differences) / n, sequential_interval(differences)
    likely: Verdict = "likely helps" if points > 0 else "inconclusive"
    if n < LEAST:
        return Ruling(likely, "few pairs", f"an interval needs {LEAST} pairs")
    low, high = ends or (None, None)
    if ends is None and deviation(differences) and points:
        return Ruling(likely, "wide", f"{n} pairs have no finite interval")
    if ends is None and points:
        return Ruling(likely, "no spread", "every pair had the same difference, without a spread to judge it by")
    if ends is None and n < RULE.most_pairs:
        return Ruling("inconclusive", "no spread", "every pair had the same accuracy with branches and without so far")
    verdict = decide(points, low, high, n, fewest=LEAST, margin=RULE.margin).verdict
    if verdict in _AFTER_FEW_EPOCHS and epochs < RULE.least_share * all_epochs:
        return Ruling(_AFTER_FEW_EPOCHS[verdict], "short", f"less than half of {all_epochs} epochs were trained")
    if verdict in ("helps", "hurts"):
        return Ruling(verdict, "gain" if verdict == "helps" else "no gain", "the whole interval excludes 0")
    if ends is None:
        return Ruling(verdict, "no gain", "every pair had the same accuracy with branches and without")
    if verdict == "no meaningful difference":
        return Ruling(verdict, "no gain", f"the whole interval lies within {RULE.margin:g} point of 0")
    if ends[1] < RULE.margin:
        # The mean is below 0: otherwise the lower end would lie within the margin too.
        return Ruling(
            "likely hurts", "no gain", f"the interval contains 0 and excludes a gain of {RULE.margin:g} point"
        )
    return Ruling(likely, "wide", "the interval contains 0")


def pairs_needed(differences: Sequence[float]) -> int | None:
    """How many pairs would decide in all, if later ones vary like these; None if that is unknown."""
    if len(differences) > 1 and not any(differences):
        return RULE.most_pairs
    if not (spread := deviation(differences)):
        return None
    return values_to_decide(math.fsum(differences) / len(differences), spread, RULE.margin)


@dataclass(frozen=True)
class Timing:
    """Measured times for the plan, in seconds of wall time."""

    epoch: float  # of one run, while as many train at once as the machine takes
    start: float  # before the first epoch


@dataclass(frozen=True)
class Plan:
    """How long each run of a pair is, and how many such pairs fit."""

    epochs: int
    pairs: int | None = None  # None: no limit

    @property
    def short(self) -> int:
        """Epochs of a pair of the race."""
        return math.ceil(self.epochs / RULE.short)


def make_plan(timing: Timing, seconds: float, epochs: int) -> Plan:
    """Pairs as long as lets four of them fit, or pairs of one epoch."""
    room = RULE.used * seconds / (2 * max(timing.epoch, 1e-9))  # epochs of a pair
    length = max(1, min(epochs, math.floor(room / RULE.pairs)))
    return Plan(length, math.floor(room / length))


def race_epochs(alternatives: int, plan: Plan) -> int:
    """Epochs of all runs of a race, and of the first pairs on fresh seeds that confirm its winner."""
    counts, remaining = [], alternatives
    for _ in range(RULE.rungs):
        counts.append(remaining + 1)
        remaining = kept_of(remaining)
    return sum(counts) * plan.short + 3 * RULE.pairs * plan.epochs


def kept_of(count: int) -> int:
    """How many of `count` alternatives go on: the better half."""
    return max(1, math.ceil(count / 2))
