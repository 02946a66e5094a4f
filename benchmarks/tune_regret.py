"""What does advice on branches cost? Advisors choose a candidate or none, and long rows say what that choice gives.

A case is a model, data and a recipe of which Plain and some candidates were trained to the end with the same seeds.
Each seed is scored by itself: an advisor never sees it, only other seeds and shorter trainings. What it chose is worth
the gain over Plain of that seed. The regret is what the best candidate of the case, or none, would have given more.
Whether the choice was right is judged by unseen seeds alone: those that took no part in the race or the confirmation.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from asymtrain.lab.candidates import Candidate
from asymtrain.lab.comparisons import chance_limit
from asymtrain.lab.report.table import Cell, Column, Range, Table, make_rows
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.statistics import t_interval
from asymtrain.lab.tune import RULE, RacePlan, Rung, Standing, judge, survivors
from asymtrain.lab.tune.planning import ladder
from asymtrain.lab.tune.results import Row
from asymtrain.lab.tune.rule import judge_race

Curve = tuple[float, ...]  # accuracy after each epoch
Curves = Mapping[Candidate | None, tuple[Curve, ...]]  # of a candidate, None for Plain, by seed

SHORT = 0.1  # of a training, where the rows allow any length: a short pair
RUNG = 1 / 3  # of the confirmation: the last rung of a race, as where rows of their own are a third as long


@dataclass(frozen=True)
class Case:
    """Rows of one model, data and recipe."""

    part: str  # practice or paper
    name: str
    family: str
    base: RunSpec  # an Asymmetric run of it
    classes: int
    long: Curves  # test accuracy
    short: Curves  # accuracy to choose by
    length: int | None = None  # epochs of the short rows, which have seeds of their own; None: epochs of long rows
    elsewhere: "Advice | None" = None  # the one setting for all models that the practice study's other families choose
    selection: float = 0.0  # what the short runs cost that selected the candidates, in trainings of full length

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Those with long rows."""
        return tuple(candidate for candidate in self.long if candidate is not None)

    @property
    def seeds(self) -> int:
        """How many the long rows have."""
        return len(self.long[None])

    @cached_property
    def gains(self) -> dict[Candidate | None, tuple[float, ...]]:
        """Over Plain after the last epoch, in points, by seed; those of none are 0."""
        plain = self.long[None]
        return {
            candidate: tuple(100 * (with_it[-1] - without[-1]) for with_it, without in zip(curves, plain, strict=True))
            for candidate, curves in self.long.items()
        }

    def gain(self, candidate: Candidate | None, seeds: Sequence[int] | None = None) -> float:
        """Mean over these seeds, or over all."""
        return _mean(self.gains[candidate][seed] for seed in (range(self.seeds) if seeds is None else seeds))

    @cached_property
    def best(self) -> Candidate | None:
        """Of all candidates and none, by the mean over all seeds; none where no candidate is above Plain."""
        return max((None, *self.candidates), key=self.gain)

    def race_seeds(self, scored: int, count: int) -> list[int]:
        """Numbers of seeds of the short rows that are seen when a seed is scored."""
        if self.length is not None:
            own = len(self.short[None])
            return [(scored + i) % own for i in range(min(count, own))]
        return [(scored + 1 + i) % self.seeds for i in range(count)]

    def confirmation_seeds(self, scored: int) -> list[int]:
        """Numbers of seeds of the long rows: neither the scored one nor those of the race."""
        first = 1 if self.length is not None else 1 + RULE.race_seeds
        return [(scored + first + i) % self.seeds for i in range(min(RULE.seeds, self.seeds - first))]

    def unseen_seeds(self, scored: int) -> list[int]:
        """The scored seed, and what else of the long rows neither raced nor confirmed when it is scored."""
        raced = [] if self.length is not None else self.race_seeds(scored, RULE.race_seeds)
        seen = {*raced, *self.confirmation_seeds(scored)}
        return [seed for seed in range(self.seeds) if seed not in seen]


@dataclass(frozen=True)
class Advice:
    """What an advisor chose for one seed of a case."""

    candidate: Candidate | None
    committed: bool = True  # advice that settles nothing leaves Plain
    trainings: float = 0.0  # what it took, in trainings of full length


Advisor = Callable[[Case, int, Sequence[Case]], Advice]  # a case, the scored seed, the cases of other families


def always_none(case: Case, scored: int, others: Sequence[Case]) -> Advice:
    return Advice(None)


def best_elsewhere(case: Case, scored: int, others: Sequence[Case]) -> Advice:
    """What the other families chose for all models; else the candidate whose relatives gained most on them.

    None where no relative gained.
    """
    if case.elsewhere is not None and case.elsewhere.candidate in case.long:
        return case.elsewhere

    def evidence(candidate: Candidate | None) -> float:
        if candidate is None:
            return 0.0
        gains: dict[str, list[float]] = {}
        for other in others:
            if (alike := relative(candidate, other)) is not None:
                gains.setdefault(other.family, []).append(other.gain(alike))
        return _mean(map(_mean, gains.values())) if gains else -math.inf

    return Advice(max((None, *case.candidates), key=evidence))


def relative(candidate: Candidate, case: Case) -> Candidate | None:
    """The candidate of a case with the same objective and bias, nearest in alpha, then in layers and schedule."""
    form = (candidate.objective, candidate.bias)
    kin = [other for other in case.candidates if (other.objective, other.bias) == form]

    def distance(other: Candidate) -> tuple[float, bool, bool]:
        ratio = abs(math.log10(other.alpha / candidate.alpha))
        return ratio, other.layers != candidate.layers, other.alpha_schedule != candidate.alpha_schedule

    return min(kin, key=distance, default=None)


def none_for_convolutions(case: Case, scored: int, others: Sequence[Case]) -> Advice:
    return Advice(None) if "convolutions" in case.family else best_elsewhere(case, scored, others)


def short_pairs(count: int) -> Advisor:
    """Every candidate against Plain in so many short pairs: the best, where it is above Plain."""

    def advise(case: Case, scored: int, others: Sequence[Case]) -> Advice:
        seeds, epochs = case.race_seeds(scored, count), short_epochs(case)

        def rank(candidate: Candidate | None) -> tuple[float, int]:
            """As in a race; of equals Plain is before all."""
            ends = ((case.short[one][seed][epochs - 1] for one in (candidate, None)) for seed in seeds)
            points = 100 * _mean(after - before for after, before in ends)
            return Standing(points, None, None, -1 if candidate is None else candidate.cost).rank

        cost = (len(case.candidates) + 1) * len(seeds) * epochs / case.base.epochs
        return Advice(min((None, *case.candidates), key=rank), trainings=cost)

    return advise


def short_epochs(case: Case) -> int:
    return case.length or round(SHORT * case.base.epochs)


def simulated_tune(share: float, *, follow: bool = False) -> Advisor:
    """The rule of `tune` on stored rows; the confirmation has this share of a training's epochs.

    With `follow`, a user who is told "likely helps" attaches the winner. This is
    what `replay` of a tune does (a test compares the two), without its frames: hundreds of seeds are scored.
    """

    def advise(case: Case, scored: int, others: Sequence[Case]) -> Advice:
        seeds, confirming = case.race_seeds(scored, RULE.race_seeds), case.confirmation_seeds(scored)
        plan = plan_of(case, share, len(seeds), len(confirming))
        living, course, spent = case.candidates, list[dict[Candidate, float]](), 0
        for rung in plan.rungs:
            rows = [compared(case, case.short, candidate, seeds, rung.epochs) for candidate in living]
            spent += (len(living) + 1) * rung.seeds * rung.epochs
            course.append({candidate: row["points"] for candidate, row in zip(living, rows, strict=True)})
            standings = [Standing.of(row, one.cost) for row, one in zip(rows, living, strict=True)]
            order = survivors(standings, last=rung == plan.rungs[-1])
            if not order:
                best = living[min(range(len(living)), key=lambda i: standings[i].rank)]
                moved = [points[best] for points in course]
                ruling = judge_race(rows[0], rung.epochs, case.base.epochs, moved)
                return Advice(None, ruling.is_settled or follow, spent / case.base.epochs)
            best = living[order[0]]
            living = tuple(candidate for i, candidate in enumerate(living) if i in order)
        row = compared(case, case.long, best, confirming, plan.epochs)
        spent += 2 * plan.seeds * plan.epochs
        # Where a seed is left out of five, four confirm.
        rule = replace(RULE, least_seeds=min(RULE.least_seeds, plan.seeds))
        moved = [points[best] for points in course if best in points]
        ruling = judge(row, plan.epochs, case.base.epochs, [*moved, row["points"]], rule)
        attach = ruling.verdict == "helps" or (follow and ruling.verdict == "likely helps")
        return Advice(best if attach else None, ruling.is_settled or follow, spent / case.base.epochs)

    return advise


def plan_of(case: Case, share: float, race_seeds: int, seeds: int) -> RacePlan:
    """What a tune plans where its confirmation has this share of the training, as far as the rows allow."""
    confirmed = round(share * case.base.epochs)
    if case.length is None:
        rungs = ladder(math.ceil(RUNG * confirmed), len(case.candidates), race_seeds)
    else:
        rungs = (Rung(case.length, len(case.candidates), race_seeds),)
    return RacePlan(rungs, confirmed, seeds, 0.0, 0.0)


def compared(case: Case, curves: Curves, candidate: Candidate, seeds: Sequence[int], epochs: int) -> Row:
    """What the rule reads of a row of `comparisons.compare`: a candidate against Plain after so many epochs."""
    plain, after = ([curves[side][seed][epochs - 1] for seed in seeds] for side in (None, candidate))
    tested = t_interval([b - a for a, b in zip(plain, after, strict=True)])
    spread = tested.high > tested.low
    return {
        "n": len(seeds),
        "points": 100 * tested.estimate,
        "points_low": 100 * tested.low if spread else None,
        "points_high": 100 * tested.high if spread else None,
        "plain_at_chance": sum(accuracy <= chance_limit(case.classes) for accuracy in plain),
        "plain_diverged": 0,  # a diverged run has chance accuracy
    }


ADVISORS: Mapping[str, Advisor] = {
    "tune": simulated_tune(1.0),
    "tune, and what likely helps": simulated_tune(1.0, follow=True),
    "always none": always_none,
    "best on the other families": best_elsewhere,
    "the same, but none for convolutions": none_for_convolutions,
    "one short pair": short_pairs(1),
    "three short pairs": short_pairs(3),
}
LITTLE_TIME: Mapping[str, Advisor] = {
    "tune, half of the training": simulated_tune(0.5),
    "tune, a fifth of the training": simulated_tune(0.2),
}
"""With less time, by the share of a training that the confirmation has; where the rows allow any length."""


def advisors_for(cases: Iterable[Case]) -> dict[str, Advisor]:
    """Those that every case has rows for."""
    return {**ADVISORS, **({} if any(case.length for case in cases) else LITTLE_TIME)}


@dataclass(frozen=True)
class Result:
    """What an advisor was worth in a case: means over its seeds, in points and shares."""

    case: Case
    lost: float
    gained: float
    committed: float
    right: float  # share of seeds with advice that was committed and right
    attached: int  # seeds
    attached_right: int
    trainings: float


def examine(advisor: Advisor, case: Case, cases: Sequence[Case]) -> Result:
    """One case, advised without a row of its family."""
    others = [other for other in cases if other.family != case.family]
    choices = [advisor(case, scored, others) for scored in range(case.seeds)]
    gained = [case.gains[choice.candidate][scored] for scored, choice in enumerate(choices)]
    right = [
        choice.committed and is_right(case, choice.candidate, case.unseen_seeds(scored))
        for scored, choice in enumerate(choices)
    ]
    attached = [choice.candidate is not None for choice in choices]
    return Result(
        case,
        case.gain(case.best) - _mean(gained),
        _mean(gained),
        _mean(choice.committed for choice in choices),
        _mean(right),
        sum(attached),
        sum(good and with_it for good, with_it in zip(right, attached, strict=True)),
        _mean(choice.trainings for choice in choices),
    )


def is_right(case: Case, candidate: Candidate | None, unseen: Sequence[int]) -> bool:
    """Is the candidate above Plain on these seeds? Or was there nothing to gain, by the margin of `tune`?"""
    return case.gain(case.best, unseen) < RULE.margin if candidate is None else case.gain(candidate, unseen) > 0


Ends = tuple[float, float] | None  # of an interval over families; None of a single family


@dataclass(frozen=True)
class Score:
    """An advisor over all cases. Families count alike, however many cases they have; intervals are over families."""

    name: str
    lost: float
    lost_ends: Ends
    gained: float
    gained_ends: Ends
    ahead: float  # points above the first advisor, case by case
    ahead_ends: Ends
    committed: float
    right: float | None  # of what was committed; None where nothing was
    attached: int  # seeds of all cases, each counted once
    attached_right: int
    trainings: float
    lost_by_family: Mapping[str, float]


def score(name: str, results: Sequence[Result], first: Sequence[Result]) -> Score:
    """The results of an advisor, and those of the first one on the same cases."""
    pairs: dict[str, list[tuple[Result, Result]]] = {}
    for pair in zip(results, first, strict=True):
        pairs.setdefault(pair[0].case.family, []).append(pair)

    def by_family(value: Callable[[Result, Result], float]) -> list[float]:
        return [_mean(value(*pair) for pair in members) for members in pairs.values()]

    def ends(means: Sequence[float]) -> Ends:
        return family_interval(means) if len(means) > 1 else None

    lost = by_family(lambda result, _: result.lost)
    gained = by_family(lambda result, _: result.gained)
    ahead = by_family(lambda result, other: result.gained - other.gained)
    committed = math.fsum(by_family(lambda result, _: result.committed))
    right = math.fsum(by_family(lambda result, _: result.right))
    return Score(
        name,
        _mean(lost),
        ends(lost),
        _mean(gained),
        ends(gained),
        _mean(ahead),
        ends(ahead),
        committed / len(pairs),
        right / committed if committed else None,
        sum(result.attached for result in results),
        sum(result.attached_right for result in results),
        _mean(by_family(lambda result, _: result.trainings)),
        dict(zip(pairs, lost, strict=True)),
    )


def family_interval(means: Sequence[float]) -> tuple[float, float]:
    """95% bootstrap interval of the mean over families, which are drawn as wholes."""
    drawn = np.random.default_rng(0)
    again = [drawn.choice(len(means), len(means)) for _ in range(2000)]
    low, high = np.quantile([_mean(means[i] for i in chosen) for chosen in again], [0.025, 0.975])
    return float(low), float(high)


def score_all(cases: Sequence[Case], advisors: Mapping[str, Advisor]) -> list[Score]:
    results = {name: [examine(advisor, case, cases) for case in cases] for name, advisor in advisors.items()}
    first = next(iter(results.values()))
    return [score(name, own, first) for name, own in results.items()]


def score_table(name: str, title: str, scores: Sequence[Score], note: str = "") -> Table:
    """One row for each advisor; the first is what the others are compared with."""
    columns = (
        Column("Advisor"),
        Column("Lost against the best (points)", "number", digits=2),
        Column("Gained over Plain (points)", "number", digits=2, signed=True),
        Column(f"Ahead of {scores[0].name} (points)", "number", digits=2, signed=True),
        Column("Committed", "share", digits=0),
        Column("Right of these", "share", digits=0),
        Column("Attached, right"),
        Column("Trainings", "number", digits=1),
    )

    def cell(value: float, ends: Ends) -> Cell:
        return Cell(value, interval=None if ends is None else Range(*ends))

    rows = [
        (
            row.name,
            cell(row.lost, row.lost_ends),
            cell(row.gained, row.gained_ends),
            None if row is scores[0] else cell(row.ahead, row.ahead_ends),
            row.committed,
            row.right,
            f"{row.attached}, {row.attached_right}",
            row.trainings,
        )
        for row in scores
    ]
    return Table(name, title, columns, make_rows(rows), note)


def family_table(name: str, title: str, scores: Sequence[Score]) -> Table:
    """What each advisor lost, by family."""
    families = list(scores[0].lost_by_family)
    columns = (Column("Advisor"), *(Column(f"{family} (points)", "number", digits=2) for family in families))
    rows: list[Sequence[Any]] = [(row.name, *(row.lost_by_family[family] for family in families)) for row in scores]
    return Table(name, title, columns, make_rows(rows))


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)
