"""What a set of runs says about a question: rungs, the winner, the verdict, what is missing. Nothing here trains."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from asymtrain.lab.candidates import Candidate
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.texts import counted
from asymtrain.lab.tune.planning import RacePlan, Rung
from asymtrain.lab.tune.question import Question
from asymtrain.lab.tune.rule import Ruling, Standing, judge, judge_pair, judge_race, survivors

Row = Mapping[str, Any]  # of `comparisons.compare`
Pair = tuple[int, float, float]  # seed, Plain, Asymmetric
Compared = tuple[Row | None, tuple[Pair, ...]]


@dataclass(frozen=True)
class Entry:
    """A candidate at a rung. Without a pair that is finished it has no row."""

    candidate: Candidate
    row: Row | None
    differences: tuple[float, ...]  # in points, by seed
    kept: bool | None  # does it go on? None while the rung is not finished
    spec_ids: tuple[str, ...]

    @property
    def standing(self) -> Standing:
        assert self.row is not None
        return Standing.of(self.row, self.candidate.cost)

    def to_dict(self) -> dict[str, Any]:
        shown = ("n", "plain_mean", "asymmetric_mean", "points", "points_low", "points_high", "asymmetric_diverged")
        row = {name: None if self.row is None else self.row[name] for name in shown}
        values = {"differences": list(self.differences), "kept": self.kept, "spec_ids": list(self.spec_ids)}
        return {"candidate": self.candidate.fields(), "label": self.candidate.label, **row, **values}


@dataclass(frozen=True)
class RungResult:
    """A rung and what came of it, candidates in the order of the question."""

    rung: Rung
    entries: tuple[Entry, ...]
    wanted: int  # runs
    finished: int

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self.rung),
            "runs": {"wanted": self.wanted, "finished": self.finished},
            "entries": [entry.to_dict() for entry in self.entries],
        }


@dataclass(frozen=True, eq=False)
class Race:
    """Where a question stands."""

    question: Question
    plan: RacePlan | None  # None until an epoch is timed
    rungs: tuple[RungResult, ...] = ()
    winner: Candidate | None = None  # of the race, which is confirmed; in a short tune the best
    confirmation: tuple[Run, ...] = ()  # as far as they are finished
    row: Row | None = None  # of all pairs of the confirmation
    pairs: tuple[Pair, ...] = ()
    missing: tuple[RunSpec, ...] = ()  # what the rung or the confirmation under way still needs
    failure: str = ""  # why one of these cannot be trained
    out_of_time: bool = False  # are they missing because the minutes were over?

    @cached_property
    def course(self) -> dict[int, float]:
        """The winner's difference in points at each length that it was trained for, the longest last."""
        found = {}
        for result in self.rungs:
            for entry in result.entries:
                if entry.candidate == self.winner and entry.row is not None:
                    found[result.rung.epochs] = entry.row["points"]
        if self.row is not None and self.plan is not None:
            found[self.plan.epochs] = self.row["points"]
        return dict(sorted(found.items()))

    @property
    def tied(self) -> tuple[Candidate, ...]:
        """The other candidates of the last rung that were as good as the winner."""
        if self.winner is None:
            return ()
        seen = {entry.candidate: entry.standing for entry in self.rungs[-1].entries}
        best = seen.pop(self.winner)
        return tuple(candidate for candidate, standing in seen.items() if standing.ties_with(best))

    @property
    def stage(self) -> str:
        """What is under way, in words."""
        if self.plan is None or self.winner is not None:
            return "the timing" if self.plan is None else "the confirmation"
        if self.question.short:
            return "the short pairs"
        return f"rung {len(self.rungs)} of {len(self.plan.rungs)}"

    @property
    def best_pair(self) -> Row | None:
        """Of a short tune, once all pairs are there: the row of the best."""
        if not self.question.short or self.winner is None:
            return None
        return next(entry.row for entry in self.rungs[-1].entries if entry.candidate == self.winner)

    @cached_property
    def ruling(self) -> Ruling:
        if self.plan is None or not self.plan.rungs:
            return Ruling("inconclusive", "time", self.failure or _too_short(self.question, self.plan))
        if self.missing:
            are = "is" if len(self.missing) == 1 else "are"
            left = f"{counted(len(self.missing), 'run')} of {self.stage} {are} missing"
            if self.failure:
                return Ruling("inconclusive", "failed", f"{left}: {self.failure}")
            over = f", as the time given, {self.question.minutes:g} min, was over" if self.out_of_time else ""
            return Ruling("inconclusive", "time", f"{left}{over}: give the same command again to go on")
        if (pair := self.best_pair) is not None:
            return judge_pair(pair, len(self.question.candidates))
        asked = self.question.base.epochs
        if self.winner is None:
            last = self.rungs[-1]
            row = last.entries[0].row
            assert row is not None
            best = min(last.entries, key=lambda entry: entry.standing.rank).candidate
            course = [e.standing.points for rung in self.rungs for e in rung.entries if e.candidate == best]
            return judge_race(row, last.rung.epochs, asked, course)
        assert self.row is not None
        return judge(self.row, self.plan.epochs, asked, tuple(self.course.values()))


def replay(
    question: Question, plan: RacePlan | None, runs: Mapping[str, Run], largest: tuple[float, float] = (0.0, 0.0)
) -> Race:
    """Go through the race and the confirmation as far as these runs (by spec id) reach.

    `largest` are the shares of the largest class among the training and the test images: who names it always has not
    learnt.
    """
    living: Sequence[Candidate] = question.candidates
    rungs: list[RungResult] = []
    if plan is None or not plan.rungs:
        return Race(question, plan)
    for rung in plan.rungs:
        specs = question.rung_specs(rung, living)
        missing = tuple(spec for spec in specs.values() if spec.id not in runs)
        compared = compare_with_plain(specs.values(), runs, "validation_accuracy", largest[0])
        entries = []
        for candidate in living:
            row, pairs = compared.get(candidate, (None, ()))
            differences = tuple(100 * (after - before) for _, before, after in pairs)
            ids = tuple(spec.id for (of, _), spec in specs.items() if of == candidate)
            entries.append(Entry(candidate, row, differences, None, ids))
        order: list[int] = []
        if not missing:
            order = survivors([entry.standing for entry in entries], last=rung == plan.rungs[-1])
            order = order[:1] if question.short else order
            entries = [replace(entry, kept=i in order) for i, entry in enumerate(entries)]
        rungs.append(RungResult(rung, tuple(entries), len(specs), len(specs) - len(missing)))
        if missing:
            return Race(question, plan, tuple(rungs), missing=missing)
        if not order:
            return Race(question, plan, tuple(rungs))
        best = living[order[0]]
        living = [candidate for i, candidate in enumerate(living) if i in order]
    if question.short:
        return Race(question, plan, tuple(rungs), best)
    specs = question.confirmation_specs(best, plan)
    missing = tuple(spec for spec in specs.values() if spec.id not in runs)
    done = tuple(runs[spec.id] for spec in specs.values() if spec.id in runs)
    row, pairs = compare_with_plain(specs.values(), runs, "test_accuracy", largest[1]).get(best, (None, ()))
    return Race(question, plan, tuple(rungs), best, done, None if missing else row, pairs, missing)


def compare_with_plain(
    specs: Iterable[RunSpec], runs: Mapping[str, Run], measure: str, largest: float = 0.0
) -> dict[Candidate, Compared]:
    """Each candidate that has a pair, against Plain after the last epoch."""
    from asymtrain.lab.comparisons import compare, paired
    from asymtrain.lab.report.frames import rows_frame
    from asymtrain.lab.report.summary import records

    fields = list(Candidate().fields())
    frame = rows_frame([runs[spec.id] for spec in specs if spec.id in runs])
    read = ("id", "variant", "seed", "outcome", "classes", "mean_cosine", measure, "dataset", "arch", *fields)
    # Of sixty columns, which all would be copied again and again.
    rows = frame[list(read)].assign(largest_class=largest)
    pairs: dict[Candidate, list[Pair]] = {}
    for pair in records(paired(rows, fields, measure)[0]):
        candidate = Candidate(**{name: pair[name] for name in fields})
        pairs.setdefault(candidate, []).append((pair["seed"], pair["plain"], pair["asymmetric"]))
    compared = {
        Candidate(**{name: row[name] for name in fields}): row for row in records(compare(rows, fields, measure))
    }
    shown = {candidate: {name: row[name] for name in row if name not in fields} for candidate, row in compared.items()}
    return {candidate: (row, tuple(pairs[candidate])) for candidate, row in shown.items()}


def _too_short(question: Question, plan: RacePlan | None) -> str:
    if question.short or question.minutes is None:  # stopped before the plan, which takes no timing
        return "nothing is planned yet: give the same command again to go on"
    if plan is None:
        return "no epoch could be timed yet: give the same command again to go on, or more minutes"
    assert plan.needed is not None
    given = f"{question.minutes:g} minute{' is' if question.minutes == 1 else 's are'}"
    needed = counted(math.ceil(plan.needed), "minute")
    return f"{given} too short for a race and its confirmation: give about {needed} for the whole question"
