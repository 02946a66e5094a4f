"""What a set of runs says about a question: the pairs, the race, the answer, what is missing. Nothing here trains.

    timing    the default and the baseline, two epochs                  how long an epoch takes
    rates     the baseline with its learning rate, a third, a tenth     only if it does not learn
    pairs     the default and the baseline, seed by seed                until decided, eight at most
    race      alternatives against the default, short pairs             each rung adds a seed and keeps the better half
    fresh     the winner, the default and the baseline, fresh seeds     until decided, eight at most
    more      further pairs of the default, while unsettled             if there is no time for a race, or after it

The plan and the runs alone determine what comes next: after a kill the same call continues.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal

from asymtrain.lab.candidates import Candidate
from asymtrain.lab.comparisons import chance_accuracy, chance_limit
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.statistics import sequential_interval
from asymtrain.lab.tune.question import FRESH_SEED, PAIR_SEED, RACE_SEED, Question
from asymtrain.lab.tune.rule import RULE, Plan, Ruling, judge, kept_of

Stage = Literal["timing", "rates", "pairs", "race", "fresh", "more", "end"]


@dataclass(frozen=True)
class Pairs:
    """Runs with a candidate's branches beside runs of the same seeds without them, or with another candidate's."""

    candidate: Candidate
    epochs: int
    seeds: tuple[int, ...] = ()
    before: tuple[float, ...] = ()  # accuracies of the other side
    after: tuple[float, ...] = ()
    not_learnt: int = 0  # pairs in which both runs diverged or stayed at chance
    runs: tuple[Run, ...] = ()

    @property
    def n(self) -> int:
        return len(self.seeds)

    @cached_property
    def differences(self) -> tuple[float, ...]:
        """After minus before, in points of accuracy."""
        return tuple(100 * (after - before) for before, after in zip(self.before, self.after, strict=True))

    @property
    def points(self) -> float:
        return math.fsum(self.differences) / self.n if self.n else 0.0

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the points, valid after any number of pairs; see `statistics.sequential`."""
        return sequential_interval(self.differences)

    def to_dict(self) -> dict[str, Any]:
        low, high = self.interval or (None, None)
        rows = zip(self.seeds, self.before, self.after, strict=True)
        return {
            "candidate": self.candidate.fields(), "label": self.candidate.label, "epochs": self.epochs, "n": self.n,
            "points": self.points if self.n else None, "points_low": low, "points_high": high,
            "pairs": [dict(zip(("seed", "without", "with"), row, strict=True)) for row in rows],
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Race:
    """The state of a question."""

    question: Question
    plan: Plan | None
    stage: Stage
    missing: tuple[RunSpec, ...]  # what the stage under way still needs
    first: Pairs  # the default against the baseline; the timed pairs if there are no others
    rungs: tuple[tuple[Pairs, ...], ...] = ()  # alternatives against the default, on validation images; best first
    winner: Candidate | None = None  # of the race, better there than the default
    second: Pairs | None = None  # the winner against the baseline, on fresh seeds
    ahead: Pairs | None = None  # the winner against the default, on the same seeds
    rate: float | None = None  # the learning rate that was chosen, if the baseline did not learn with the given one
    rates: Mapping[float, float] = field(default_factory=dict)  # accuracy of the baseline by learning rate tried
    failure: str = ""  # why a run cannot be trained

    @property
    def base(self) -> RunSpec:
        """The trained configuration: as asked, with the learning rate that was chosen."""
        return (self.question if self.rate is None else self.question.with_rate(self.rate)).base

    @cached_property
    def rulings(self) -> tuple[Ruling, Ruling | None]:
        """The rulings on the default, and on the winner of the race."""
        return self._ruling(self.first), self._ruling(self.second) if self.second and self.second.n else None

    def _ruling(self, pairs: Pairs) -> Ruling:
        return judge(pairs.differences, pairs.not_learnt, pairs.epochs, self.question.base.epochs)

    @cached_property
    def best(self) -> Pairs:
        """The pairs that the answer is about: the default's, unless the winner is clearly better or alone helps."""
        first, second = self.rulings
        if second is None or self.second is None or second.verdict not in ("helps", "likely helps"):
            return self.first
        low = self.ahead.interval[0] if self.ahead and self.ahead.interval else -math.inf
        rank = ["likely helps", "helps"]
        ranks = [rank.index(one.verdict) if one.verdict in rank else -1 for one in (first, second)]
        return self.second if ranks[1] > ranks[0] or (ranks[1] == ranks[0] and low > 0) else self.first

    @property
    def ruling(self) -> Ruling:
        """The ruling on `best`."""
        first, second = self.rulings
        ruling = second if second is not None and self.best is self.second else first
        return Ruling(ruling.verdict, "failed", self.failure) if self.failure and not self.first.n else ruling

    @property
    def is_open(self) -> bool:
        return not self.ruling.is_settled and self.ruling.because != "not learnt"


def replay(
    question: Question,
    plan: Plan | None,
    runs: Mapping[str, Run],
    largest: tuple[float, float] = (0.0, 0.0),
    *,
    rungs: int = RULE.rungs,
    batch: int = 1,
) -> Race:
    """Go through the parts as far as these runs (by spec id) reach.

    `largest` are the shares of the largest class among the training and the test images. So many `rungs` of the
    race fit into the time. `batch` pairs train at a time.
    """

    compare = partial(compare_pairs, runs, largest)
    original, rate = question, None

    def not_run(specs: Iterable[RunSpec]) -> tuple[RunSpec, ...]:
        return tuple(spec for spec in dict.fromkeys(specs) if spec.id not in runs)

    short = timing_specs(question)
    timed = compare(short, question.default, short[0][0].epochs)
    timed = replace(timed, not_learnt=0)  # too few epochs to judge the model
    if plan is None:
        return Race(question, plan, "timing", not_run(spec for pair in short[:batch] for spec in pair), timed)

    def finished(specs_of: Callable[[int], list[RunSpec]]) -> list[list[RunSpec]]:
        """The comparisons whose runs are all there, seed by seed; a batch may finish in any order."""
        rows, i = list[list[RunSpec]](), 0
        while i < len(rows) + RULE.pairs:
            specs, i = specs_of(i), i + 1
            rows += [specs] if all(spec.id in runs for spec in specs) else []
        return rows

    def next_batch(n: int, specs_of: Callable[[int], list[RunSpec]]) -> tuple[RunSpec, ...]:
        """The missing runs of the next pairs, those already begun first."""
        return not_run(spec for i in range(n + batch) for spec in specs_of(i))

    def pair(i: int) -> list[RunSpec]:
        return [question.spec(one, plan.epochs, PAIR_SEED + i) for one in (None, question.default)]

    first = compare(finished(pair), question.default, plan.epochs)
    rates: dict[float, float] = {}
    baselines = (first if first.n else timed).runs[::2]
    if not question.rate_given and 2 * sum(has_learnt(run, largest[1]) for run in baselines) < len(baselines):
        # A rate that failed in the pairs themselves is not tried again.
        tried = {share * question.base.learning_rate: share for share in RULE.rates[1 if first.n else 0 :]}
        specs = {rate: question.race_spec(None, plan.short, RACE_SEED, learning_rate=rate) for rate in tried}
        if missing := not_run(specs.values()):
            return Race(question, plan, "rates", missing, first if first.n else timed)
        rates = {rate: accuracy_of(runs[spec.id], largest[0]) for rate, spec in specs.items()}
        limit = chance_limit(runs[next(iter(specs.values())).id].classes or math.inf, largest[0])
        best = max(rates, key=lambda rate: rates[rate])
        if rates[best] > limit:
            question, rate = question.with_rate(best), best
            first = compare(finished(pair), question.default, plan.epochs)

    def at_stage(stage: Stage, missing: tuple[RunSpec, ...], **values: Any) -> Race:
        return Race(original, plan, stage, missing, first if first.n else timed, rate=rate, rates=rates, **values)

    ruling = judge(first.differences, first.not_learnt, plan.epochs, question.base.epochs)
    is_done = is_decided(first)
    if ruling.because == "not learnt" and first.n >= min(batch, RULE.pairs):
        return at_stage("end", ())
    if not is_done and first.n < RULE.most_pairs:
        return at_stage("pairs", next_batch(first.n, pair))
    raced: list[tuple[Pairs, ...]] = []
    alternatives, winner = question.candidates[1:], None
    for rung in range(rungs if alternatives else 0):
        seeds = range(RACE_SEED, RACE_SEED + rung + 1)
        of = {
            one: [[question.race_spec(side, plan.short, seed) for side in (question.default, one)] for seed in seeds]
            for one in alternatives
        }
        compared = [compare(specs, one, plan.short) for one, specs in of.items()]
        compared.sort(key=lambda pairs: (-round(pairs.points, 9), pairs.candidate.cost))
        raced.append(tuple(compared))
        if missing := not_run(spec for specs in of.values() for both in specs for spec in both):
            return at_stage("race", missing, rungs=tuple(raced))
        alternatives = tuple(pairs.candidate for pairs in compared[: kept_of(len(compared))])
        winner = alternatives[0] if compared[0].points > 0 else None
    parts: dict[str, Any] = {"rungs": tuple(raced), "winner": winner}
    if winner is not None:

        def trio(i: int) -> list[RunSpec]:
            return [question.spec(one, plan.epochs, FRESH_SEED + i) for one in (None, question.default, winner)]

        trios = finished(trio)
        second = compare([[plain, best] for plain, _, best in trios], winner, plan.epochs)
        ahead = compare([[default, best] for _, default, best in trios], winner, plan.epochs)
        parts |= {"second": second, "ahead": ahead}
        settled = is_decided(second) and is_decided(ahead)
        if not settled and ahead.n < RULE.most_pairs:
            return at_stage("fresh", next_batch(ahead.n, trio), **parts)
    if not is_done and plan.pairs is not None:
        return at_stage("more", next_batch(first.n, pair), **parts)
    return at_stage("end", (), **parts)


def is_decided(pairs: Pairs) -> bool:
    """Is the question decided, so that no more pairs of this length are needed?"""
    return judge(pairs.differences, 0, pairs.epochs, pairs.epochs).is_settled


def timing_specs(question: Question) -> list[list[RunSpec]]:
    """Pairs of few epochs, enough for timing; as many as may train at a time, since the code is compiled for that."""
    epochs = min(RULE.timing_epochs, question.base.epochs)
    sides = (None, question.default)
    return [[question.spec(side, epochs, RACE_SEED + i) for side in sides] for i in range(RULE.pairs)]


def compare_pairs(
    runs: Mapping[str, Run],
    largest: tuple[float, float],
    specs: Iterable[Sequence[RunSpec]],
    candidate: Candidate,
    epochs: int,
) -> Pairs:
    """The finished pairs side by side, after the last epoch."""
    both = [[runs[spec.id] for spec in pair] for pair in specs if all(spec.id in runs for spec in pair)]
    share = [largest[plain.spec.test != "never"] for plain, _ in both]
    sides = [tuple(accuracy_of(pair[side], of) for pair, of in zip(both, share, strict=True)) for side in (0, 1)]
    bad = sum(not any(has_learnt(run, of) for run in pair) for pair, of in zip(both, share, strict=True))
    all_runs = tuple(run for pair in both for run in pair)
    return Pairs(candidate, epochs, tuple(plain.spec.seed for plain, _ in both), sides[0], sides[1], bad, all_runs)


def accuracy_of(run: Run, largest: float) -> float:
    """Accuracy after the last epoch, on the images that judge the run; chance if it diverged."""
    last = run.history[-1] if run.history else None
    if run.outcome == "diverged" or last is None:
        return float(chance_accuracy(run.classes or math.inf, largest))
    accuracy = last.validation_accuracy if run.spec.test == "never" else last.test_accuracy
    assert accuracy is not None
    return accuracy


def has_learnt(run: Run, largest: float) -> bool:
    """Did it end above the accuracy of always naming the largest class?"""
    limit = chance_limit(run.classes or math.inf, largest)
    return run.outcome != "diverged" and accuracy_of(run, largest) > limit
