"""How good is the advice of `asymtrain tune` for its cost? Scored on stored rows of the practice study.

    python benchmarks/tune.py                       # the tables
    python benchmarks/tune.py --docs docs/tune.md   # also into that page, with its figure beside it

A case is a model of the study: the baseline and some configurations were trained for 30 epochs with five seeds, and
many more for 10 epochs with two other seeds, judged by held-out images. An advisor has a budget in runs of 30 epochs
and chooses a configuration or none. Each of the five seeds is scored by itself: an advisor sees at most the other four,
and the value of its choice is the gain over the baseline on the scored seed. All runs that an advisor uses count.

The chosen configuration may have no long runs: it then has the value of the nearest stored configuration, with the same
objective and bias and the nearest alpha. So *the default* is sigmoid with prior bias at alpha 10, and at alpha 1 on
convolutions, or the nearest relatives. It was chosen from these rows, which favours it, and tune with it.

"tune" applies tune's rule to these rows. If the budget holds three whole pairs it has up to four; with less, one or two
pairs of 10 epochs, since the rows have no other lengths. Its race has two seeds, the alternatives that the rows hold,
and as many rungs as the budget holds; it is not confirmed, since no seed is left for that.
"""

import argparse
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asymtrain.errors import UsageError
from asymtrain.lab.candidates import Candidate
from asymtrain.lab.report.drawing import as_file, draw
from asymtrain.lab.report.export import as_markdown
from asymtrain.lab.report.figure import POINTS, Figure, Line, Lines
from asymtrain.lab.report.table import Cell, Column, Range, Table, make_rows
from asymtrain.lab.runs import Run
from asymtrain.lab.store.exchange import MANIFEST, read_export
from asymtrain.lab.studies.practice.protocol import ELSEWHERE, FULL, MODELS, Task, final_specs, first_wave
from asymtrain.lab.studies.practice.selection import final_arms, select
from asymtrain.lab.tune import ALTERNATIVES, judge
from asymtrain.lab.tune.rule import kept_of

BUDGETS = (1, 2, 4, 8, 16)  # runs of full length
DEFAULT, WEAK = Candidate(bias="prior", alpha=10.0), Candidate(bias="prior", alpha=1.0)
WAVE = tuple(Candidate(**{name: arm.fields[name] for name in Candidate().fields()}) for arm in first_wave()[1:])
BEGIN, END = "<!-- scores: benchmarks/tune.py -->", "<!-- end of scores -->"
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Case:
    """Rows of one model. A gain is over the baseline of the same seed, in points."""

    name: str
    family: str
    long: Mapping[Candidate, tuple[float, ...]]  # gain by scored seed
    short: Mapping[Candidate, tuple[float, ...]]  # gain on held-out images after a third of the epochs, by other seed
    elsewhere: Candidate | None  # the choice of the other families for all models

    @property
    def default(self) -> Candidate:
        """The recommended configuration for its family, in the unit of the rows."""
        return WEAK if "convolutions" in self.family else DEFAULT

    def nearest(self, candidate: Candidate) -> Candidate:
        """The stored configuration of the same objective and bias with the nearest alpha, then layers and schedule."""

        def distance(other: Candidate) -> tuple[float, bool, bool]:
            ratio = abs(math.log10(other.alpha / candidate.alpha))
            return ratio, other.layers != candidate.layers, other.alpha_schedule != candidate.alpha_schedule

        kin = [one for one in self.long if (one.objective, one.bias) == (candidate.objective, candidate.bias)]
        return min(kin, key=distance)

    def gain(self, candidate: Candidate | None, seed: int) -> float:
        """The gain of an advisor's choice on a scored seed."""
        return 0.0 if candidate is None else self.long[self.nearest(candidate)][seed]


@dataclass(frozen=True)
class Advice:
    """An advisor's choice, and its cost in runs of full length."""

    candidate: Candidate | None
    runs: float = 0.0


Advisor = Callable[[Case, int, float], Advice]  # a case, the scored seed, the budget


def read_cases(results: Path = ROOT / "results") -> list[Case]:
    """The models of the practice study whose rows are complete."""
    folders = sorted(path.parent for path in results.glob(f"practice-*/{MANIFEST}"))
    if not folders:
        raise UsageError(f"{results} holds no exported folder: give the repository's results with --results")
    runs_by_id = {name: runs[-1].run for folder in folders for name, runs in read_export(folder).runs.items()}
    return [case for name in MODELS if (case := read_case(name, runs_by_id)) is not None]


def read_case(name: str, runs_by_id: Mapping[str, Run]) -> Case | None:
    selection = select(FULL, Task(name), runs_by_id)
    accuracies: dict[Candidate | None, tuple[float, ...]] = {}
    elsewhere = None
    for part in ("study", "fixed"):
        task = Task(name, part=part)  # type: ignore[arg-type]
        for arm in final_arms(FULL, task, runs_by_id) or ():
            specs = final_specs(FULL, task, [arm])
            candidate = Candidate.of(specs[0]) if specs[0].redundancy else None
            elsewhere = candidate if arm.name == ELSEWHERE else elsewhere
            tested = [runs_by_id[spec.id].test_accuracy for spec in specs if spec.id in runs_by_id]
            if len(tested) == len(specs):
                accuracies[candidate] = tuple(value for value in tested if value is not None)
    if selection is None or not selection.complete or None not in accuracies:
        return None
    plain = next(trial for trial in selection.trials if trial.candidate is None)
    long = {one: _gains(values, accuracies[None]) for one, values in accuracies.items() if one is not None}
    short = {
        trial.candidate: _gains(trial.accuracies, plain.accuracies) for trial in selection.trials if trial.candidate
    }
    return Case(name, MODELS[name].family, long, short, elsewhere)


def _gains(values: Iterable[float], plain: Iterable[float]) -> tuple[float, ...]:
    return tuple(100 * (value - before) for value, before in zip(values, plain, strict=True))


def deviation_of(cases: Sequence[Case]) -> float:
    """Deviation of paired differences between seeds, in points: root mean square over models and configurations."""
    return math.sqrt(_mean(float(np.var(gains, ddof=1)) for case in cases for gains in case.long.values()))


def none(case: Case, scored: int, budget: float) -> Advice:
    return Advice(None)


def default(case: Case, scored: int, budget: float) -> Advice:
    return Advice(case.default)


def best_elsewhere(case: Case, scored: int, budget: float) -> Advice:
    return Advice(case.elsewhere)


def short_pairs(seeds: int) -> Advisor:
    """Configurations against the baseline for a third of the epochs on `seeds` seeds: the best, if it is above.

    Tries tune's list first, then the study's first wave, as many as the budget holds.
    """

    def advise(case: Case, scored: int, budget: float) -> Advice:
        listed = [one for one in dict.fromkeys((case.default, *ALTERNATIVES, *WAVE)) if one in case.short]
        used = min(seeds, len(case.short[listed[0]]))
        tried = listed[: max(0, math.floor(3 * budget / used) - 1)]
        best = max(tried, key=lambda one: _mean(case.short[one][:used]), default=None)
        above = best is not None and _mean(case.short[best][:used]) > 0
        return Advice(best if above else None, (len(tried) + 1) * used / 3 if tried else 0.0)

    return advise


def tune(case: Case, scored: int, budget: float) -> Advice:
    """Pairs of the default, judged after each; the rest of the budget is for a race, whose winner replaces it.

    "Likely helps" is followed, as docs/tune.md says.
    """
    seeds = [seed for seed in range(len(case.long[case.nearest(case.default)])) if seed != scored]
    whole = budget >= 6
    differences: list[float] = []
    for i in range(min(4, int(budget // 2)) if whole else min(2, int(3 * budget // 2))):
        differences.append(case.gain(case.default, seeds[i]) if whole else case.short[case.default][i])
        if judge(differences, 0, 30, 30).is_settled:
            break
    spent = len(differences) * (2.0 if whole else 2 / 3)
    attached = judge(differences, 0, 30, 30).verdict in ("helps", "likely helps")
    best = case.default if attached else None
    alternatives = [one for one in ALTERNATIVES if one in case.short and one != case.default]
    for rung in (1, 2):
        if spent + (len(alternatives) + 1) / 3 > budget:
            break
        spent += (len(alternatives) + 1) / 3
        rank = {one: _mean(case.short[one][:rung]) - _mean(case.short[case.default][:rung]) for one in alternatives}
        alternatives = sorted(alternatives, key=rank.__getitem__, reverse=True)[: kept_of(len(alternatives))]
        best = (alternatives[0] if rank[alternatives[0]] > 0 else case.default) if attached else None
    return Advice(best, spent)


ADVISORS: Mapping[str, Advisor] = {
    "tune": tune,
    "the default": default,
    "one short pair each": short_pairs(1),
    "two short pairs each": short_pairs(2),
    "always none": none,
    "best on other families": best_elsewhere,
}


@dataclass(frozen=True)
class Score:
    """An advisor at a budget: families have equal weight, however many models they have."""

    gain: float  # over the baseline, in points
    low: float  # 95% bootstrap interval over families
    high: float
    runs: float
    attached: float  # share of seeds for which it attached branches


def score(advisor: Advisor, cases: Sequence[Case], budget: float) -> Score:
    gains: dict[str, list[float]] = {}
    runs, attached = [], []
    for case in cases:
        choices = [advisor(case, seed, budget) for seed in range(len(next(iter(case.long.values()))))]
        assert all(choice.runs <= budget for choice in choices), "an advisor took more runs than it has"
        got = _mean(case.gain(choice.candidate, seed) for seed, choice in enumerate(choices))
        gains.setdefault(case.family, []).append(got)
        runs += [choice.runs for choice in choices]
        attached += [choice.candidate is not None for choice in choices]
    means = [_mean(values) for values in gains.values()]
    drawn = np.random.default_rng(0)
    again = drawn.choice(means, (2000, len(means))).mean(1)
    low, high = np.quantile(again, [0.025, 0.975])
    return Score(_mean(means), float(low), float(high), _mean(runs), _mean(attached))


Scores = Mapping[str, Sequence[Score]]


def score_all(cases: Sequence[Case]) -> dict[str, list[Score]]:
    return {name: [score(advisor, cases, budget) for budget in BUDGETS] for name, advisor in ADVISORS.items()}


def upper_edge(scores: Scores) -> list[str]:
    """The advisor with the largest gain at each budget; ties go to tune, then to the first in the list."""
    return [max(scores, key=lambda name: round(scores[name][i].gain, 9)) for i in range(len(BUDGETS))]


def score_table(scores: Scores, cases: Sequence[Case]) -> Table:
    columns = (
        Column("Gain over the baseline (points), by runs that may be spent"),
        *(Column(str(budget), "number", digits=2, signed=True) for budget in BUDGETS),
        Column("Attached"),
    )
    rows = [
        (
            name,
            *(Cell(one.gain, interval=Range(one.low, one.high)) for one in row),
            f"{100 * row[-1].attached:.0f}%",
        )
        for name, row in scores.items()
    ]
    families = ", ".join(dict.fromkeys(case.family for case in cases))
    edge = ", ".join(f"{name} ({budget})" for budget, name in zip(BUDGETS, upper_edge(scores), strict=True))
    note = (
        f"Models: {len(cases)}. Families, which count alike and are resampled for the 95% intervals: {families}. "
        f"Largest gain: {edge}. Attached: the share of seeds with branches, at {BUDGETS[-1]} runs. Pairs differ "
        f"between seeds by {deviation_of(cases):.2f} points (root mean square)."
    )
    return Table("score", "", columns, make_rows(rows), note)


def family_table(scores: Scores, cases: Sequence[Case]) -> Table:
    """Each model at the largest budget, to show what the means consist of."""
    columns = (Column("Model"), *(Column(f"{name} (points)", "number", digits=2, signed=True) for name in ADVISORS))
    rows = [
        (MODELS[case.name].title, *(score(advisor, [case], BUDGETS[-1]).gain for advisor in ADVISORS.values()))
        for case in cases
    ]
    return Table("models", f"By model, at {BUDGETS[-1]} runs", columns, make_rows(rows))


def score_figure(scores: Scores) -> Figure:
    """Gain by runs spent, for the advisors that gain; intervals side by side."""
    places = tuple(float(i) for i in range(len(BUDGETS)))
    lines = tuple(
        Line(
            name, number, tuple(x + 0.08 * (number - 1.5) for x in places), tuple(one.gain for one in row),
            tuple(one.low for one in row), tuple(one.high for one in row), marker=True,
        )
        for number, (name, row) in enumerate(list(scores.items())[:4])
    )  # fmt: skip
    panel = Lines(
        "", "runs of full length that may be spent", "gain over the baseline (points)", lines, zero=True,
        ticks=places, tick_labels=tuple(map(str, BUDGETS)), written=POINTS,
    )  # fmt: skip
    return Figure("tune-score", "Gain by runs spent", [panel])


def with_scores(page: str, text: str) -> str:
    """The page with this text between its marked lines."""
    before, first, rest = page.partition(BEGIN)
    _, last, after = rest.partition(END)
    if not (first and last):
        raise UsageError(f"the page has no place for the scores: add the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--results", type=Path, default=ROOT / "results", help="a folder of exported folders")
    options.add_argument("--docs", type=Path, help="a page to put the table of scores into, with its figure beside it")
    chosen = options.parse_args(arguments)
    try:
        cases = read_cases(chosen.results)
        scores = score_all(cases)
        text = as_markdown(score_table(scores, cases))
        print(text, as_markdown(family_table(scores, cases)), sep="\n", end="")
        if chosen.docs is not None:
            chosen.docs.write_text(with_scores(chosen.docs.read_text(), text))
            figure = chosen.docs.parent / "figures" / "tune-score.svg"
            figure.parent.mkdir(exist_ok=True)
            figure.write_text(as_file(draw(score_figure(scores))))
    except UsageError as problem:
        raise SystemExit(f"{problem}") from None


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)


if __name__ == "__main__":
    main()
