"""Who stays in the race, and what the confirmation says: every threshold is in `RULE`, and nowhere else.

Differences are in points of accuracy: Asymmetric less Plain of one seed. All functions here are pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from asymtrain.lab.statistics import FEWEST, Verdict, decide

Because = Literal[
    "gain", "no gain", "no candidate", "wide", "few seeds", "no spread", "not learnt", "moving", "short",
    "not confirmed", "time", "failed",
]  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """Thresholds of the race, of its budget and of the verdict."""

    # The race.
    race_seeds: int = 3  # of each candidate at a rung
    least_race_seeds: int = 2  # where time is short; of one there is no interval
    most_rungs: int = 3
    growth: int = 3  # of the epochs, from a rung to the next
    kept: float = 0.5  # share of the candidates that goes on
    least_held_out: int = 20  # validation images, and test images; of fewer, one is more than five points
    # The budget.
    timing_epochs: int = 2  # of the runs that are timed: the first of them also starts everything
    timing_share: float = 0.5  # of the time, that the timing may take: on a GPU most of it is compiling
    confirmation_share: float = 0.4  # of what is left then, that is the confirmation's before the race is planned
    used: float = 0.85  # of what is left, that is planned with
    # The verdict.
    seeds: int = 5  # of the confirmation
    least_seeds: int = FEWEST  # for an answer, as for any comparison
    margin: float = 1.0  # points: the least gain that must be excluded before the advice is to attach nothing
    most_not_learnt: float = 0.2  # share of the Plain runs that may have stayed at chance, or diverged
    # Of a confirmation that is shorter than the training asked about.
    least_share: float = 0.5  # of its epochs, for "helps": effects turn after less
    still: float = 0.5  # points: a smaller change from one length to the next is none
    shrunk: float = 0.8  # of the difference before: what is below it has shrunk


RULE = Rule()


@dataclass(frozen=True)
class Standing:
    """A candidate against Plain over some seeds; the interval is None where there is none, such as without spread."""

    points: float
    low: float | None
    high: float | None
    cost: int = 0  # that of its branches, as `Candidate.cost` ranks it

    @classmethod
    def of(cls, row: Mapping[str, Any], cost: int) -> "Standing":
        """By a row of `comparisons.compare`."""
        return cls(row["points"], row["points_low"], row["points_high"], cost)

    @property
    def rank(self) -> tuple[float, int]:
        """Sorts best first, and of equals the cheaper; the last bits of a mean make no difference."""
        return -round(self.points, 9), self.cost

    def ties_with(self, other: "Standing") -> bool:
        """Is there nothing between the two but their order?"""
        return self.rank[0] == other.rank[0] and self.clearly_worse == other.clearly_worse

    @property
    def clearly_worse(self) -> bool:
        return self.high is not None and self.high < 0


def survivors(standings: Sequence[Standing], *, last: bool = True) -> list[int]:
    """Which candidates go on, by number and best first: the better half, without what is clearly worse than Plain.

    Of equals the cheaper is before the other, and then the one that is listed first. Where all of that half is clearly
    worse, the best goes on alone unless this rung is the `last`: with longer training harm can go away, and of one
    length nothing can be told.
    """
    order = sorted(range(len(standings)), key=lambda i: standings[i].rank)
    half = order[: kept_of(len(order))]
    return [i for i in half if not standings[i].clearly_worse] or ([] if last else half[:1])


def kept_of(count: int) -> int:
    """How many of so many candidates go on at most."""
    return max(1, -int(-count * RULE.kept // 1))


def is_moving(course: Sequence[float], rule: Rule = RULE) -> bool:
    """May longer training say something else? `course` holds differences, from the shortest training to the longest.

    The last step decides: the difference changed its sign, or shrank towards 0. Of one length nothing can be told.
    """
    if len(course) < 2:
        return True
    before, now = course[-2:]
    if abs(now - before) < rule.still:
        return False
    return before * now < 0 or abs(now) < rule.shrunk * abs(before)


@dataclass(frozen=True)
class Ruling:
    """The verdict, why in a word or two, and why in a sentence."""

    verdict: Verdict
    because: Because
    reason: str

    @property
    def is_settled(self) -> bool:
        """Is the question answered, to attach the winner or nothing?"""
        return self.verdict not in ("inconclusive", "likely helps")


def judge(row: Mapping[str, Any], epochs: int, asked: int, course: Sequence[float] = (), rule: Rule = RULE) -> Ruling:
    """What a confirmation says. `row` is one of `comparisons.compare`, of runs of so many epochs; `asked` are the
    epochs of the training that the question is about, `course` the differences that `is_moving` takes.

    A confirmation that settles nothing still says `likely helps` where its mean is above 0: docs/tune.md has the
    scores of that advice.
    """
    n, points, low, high = (row[name] for name in ("n", "points", "points_low", "points_high"))
    unsettled: Verdict = "likely helps" if points > 0 else "inconclusive"
    gain = f"{rule.margin:g} point{'s'[: rule.margin != 1]}"
    if (not_learnt := _not_learnt(row, rule)) is not None:
        return not_learnt
    if n < rule.least_seeds:
        return Ruling("inconclusive", "few seeds", f"{n} pairs are too few: {rule.least_seeds} or more are needed")
    if epochs < asked and is_moving(course, rule):
        words = f"it was confirmed at {epochs} of {asked} epochs, and {_course_words(course)}"
        return Ruling(unsettled, "moving", words)
    if (low is None or high is None) and points:
        return Ruling(unsettled, "no spread", "every pair had the same difference, without a spread: give more seeds")
    verdict = decide(points, low, high, n, fewest=rule.least_seeds, margin=rule.margin).verdict
    if verdict == "helps" and epochs < rule.least_share * asked:
        words = f"the whole interval lies above 0, but a gain after {epochs} of {asked} epochs can turn"
        return Ruling("likely helps", "short", f"{words}: give more minutes")
    if verdict == "helps":
        return Ruling(verdict, "gain", "the whole interval lies above 0")
    if low is None or high is None:
        return Ruling(verdict, "no gain", "every pair had the same accuracy with branches and without")
    if high < rule.margin:
        which = "lies below 0" if verdict == "hurts" else f"excludes a gain of {gain}"
        settled: Verdict = "likely hurts" if verdict == "inconclusive" else verdict
        return Ruling(settled, "no gain", f"the whole interval {which}")
    return Ruling(unsettled, "wide", f"the interval holds 0 and gains of {gain} or more: give more seeds")


def judge_pair(row: Mapping[str, Any], candidates: int) -> Ruling:
    """What one short pair for each of so many candidates says; `row` is that of the best. It settles nothing.

    As scored in docs/tune.md: the best may be advised where Plain is still at chance. Where the best is too, nothing
    was measured.
    """
    plain, best = (row[f"{side}_at_chance"] + row[f"{side}_diverged"] > 0 for side in ("plain", "asymmetric"))
    if plain and best:
        lost = "neither Plain nor the best candidate came above chance: give more epochs, or another learning rate"
        return Ruling("inconclusive", "not learnt", lost)
    reasons = ["one pair has no interval", *(["Plain was still at chance"] if plain else [])]
    if row["points"] <= 0:
        reasons.append("longer training can turn it")
    elif candidates > 1:
        reasons.append(f"the best of {candidates} is biased upward")
    *first, last = reasons
    words = f"{', '.join(first)}, and {last}" if first else last
    return Ruling("likely helps" if row["points"] > 0 else "inconclusive", "not confirmed", words)


def judge_race(row: Mapping[str, Any], epochs: int, asked: int, course: Sequence[float]) -> Ruling:
    """What a race says that no candidate survived; `row` is any of its last rung, as Plain is the same in all.

    `course` holds the differences of the best candidate there, rung by rung: as of a confirmation, what was shorter
    than the training asked about and may still move is no answer.
    """
    if (not_learnt := _not_learnt(row, RULE)) is not None:
        return not_learnt
    worse = "every candidate was clearly worse than Plain in the race"
    if epochs < asked:
        worse += f", after {epochs} of {asked} epochs"
        if is_moving(course):
            return Ruling("inconclusive", "moving", f"{worse}, and {_course_words(course)}")
    return Ruling("likely hurts", "no candidate", worse)


def _not_learnt(row: Mapping[str, Any], rule: Rule) -> Ruling | None:
    """The ruling where too many Plain runs are no measure of anything."""
    n, bad = row["n"], row["plain_at_chance"] + row["plain_diverged"]
    if bad <= rule.most_not_learnt * n:
        return None
    reason = f"{bad} of {n} Plain runs stayed at chance or diverged: give more epochs, or another learning rate"
    return Ruling("inconclusive", "not learnt", reason)


def _course_words(course: Sequence[float]) -> str:
    if len(course) < 2:
        return "no other length was measured: give more minutes"
    before, now = course[-2:]
    return f"the difference still moves ({before:+.1f}, then {now:+.1f} points): give more minutes"
