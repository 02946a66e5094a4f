"""The answer: what it says, and how it is shown as tables, figures, JSON and a page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asymtrain.lab.candidates import Candidate
from asymtrain.lab.report.figure import POINTS, Bar, Bars, Figure, Headline, Line, Lines
from asymtrain.lab.report.table import NOTHING, Cell, Column, Mean, Table, duration, interval, make_rows
from asymtrain.lab.runs import Run
from asymtrain.lab.statistics import Verdict, colour_of
from asymtrain.lab.texts import counted
from asymtrain.lab.tune.planning import CONFIRMATION_SEED, RACE_SEED, RacePlan, Timing, whole_plan
from asymtrain.lab.tune.results import Entry, Race, RungResult
from asymtrain.lab.tune.rule import RULE, is_moving
from asymtrain.lab.tune.snippet import Removal
from asymtrain.models import display_name

if TYPE_CHECKING:
    import pandas as pd

NAME = "tune"
PAGE = "report"
OF_EQUALS = "Of equals the one with branches at the fewest layers is taken, then the one that is listed first."
OF_RUNGS = (
    "Every rung trains its candidates and Plain from scratch, with a whole schedule of its own. Accuracy: on the "
    "{images:,} training images that a seed holds out, after the last epoch, as mean and deviation over seeds. "
    "Difference: to Plain of the same seed, in points of accuracy, with its t interval. The better half goes on, "
    "unless its whole interval lies below 0."
)
OF_PAIRS = (
    f"Every candidate and Plain are trained once, with seed {RACE_SEED} and a whole schedule of that length. "
    "Accuracy: on the {images:,} training images that are held out, after the last epoch. Difference: to Plain, in "
    "points of accuracy. The best of several differences is so by luck too: it is biased upward."
)


@dataclass(frozen=True, eq=False)
class Tuned:
    """What `tune` found. Printed, it is the verdict in a sentence."""

    race: Race
    timing: Timing | None  # None where the time was over before an epoch could be timed
    runs: tuple[Run, ...]
    layers: tuple[str, ...]  # where the winner's branches are; empty without a winner
    snippet: str  # code that attaches them; empty unless they help, or likely do
    held_out: int  # validation images of a run of the race
    test_images: int
    chance: float  # accuracy on the test images up to which nothing is learnt
    removal: Removal | None = None  # the check of the snippet
    model: str = ""  # what the docstring of the function that builds it says
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)  # those that the runs were trained with

    @property
    def verdict(self) -> Verdict:
        """One of `asymtrain.lab.statistics.VERDICTS`: attach the winner where it helps, or likely helps."""
        return self.race.ruling.verdict

    @property
    def reason(self) -> str:
        """Why, in words."""
        return self.race.ruling.reason

    @property
    def candidate(self) -> Candidate | None:
        """The winner of the race; to attach only where the verdict says so."""
        return self.race.winner

    @property
    def comparison(self) -> dict[str, Any] | None:
        """The winner against Plain on the confirmation's seeds: a row of `asymtrain.lab.comparisons.compare`."""
        return None if self.race.row is None else dict(self.race.row)

    @property
    def rungs(self) -> tuple[RungResult, ...]:
        """The race, rung by rung."""
        return self.race.rungs

    @property
    def rows(self) -> "pd.DataFrame":
        """One row for each run: id, settings, results."""
        from asymtrain.lab.report import rows_frame

        return rows_frame(self.runs)

    @property
    def sentence(self) -> str:
        """The advice in words, with what was measured; where nothing is settled the verdict."""
        race, best = self.race, self.candidate
        opening = self.verdict.capitalize()
        if race.ruling.is_settled:
            opening = f"Attach {best.label}" if self.verdict == "helps" and best is not None else "Attach nothing"
        row = race.row or race.best_pair
        if row is None or best is None or race.plan is None:
            return f"{opening}: {self.reason}."
        subject = "" if self.verdict == "helps" else f"the best candidate, {best.label}, gave "
        low, high = row["points_low"], row["points_high"]
        ends = "" if low is None else f" (95% interval {low:+.1f} to {high:+.1f})"
        asked = race.question.base.epochs
        if race.question.short:
            length = f"{race.plan.rungs[0].epochs} of {asked} epochs"
            where = f"in one short pair ({length}, {self.held_out:,} validation images), not confirmed"
        else:
            length = counted(asked, "epoch") if race.plan.epochs == asked else f"{race.plan.epochs} of {asked} epochs"
            where = f"over {row['n']} fresh seeds, {length}, {self.test_images:,} test images"
        kind = "validation" if race.question.short else "test"
        gave = f"{subject}{row['points']:+.1f} points of {kind} accuracy{ends} {where}"
        return f"{opening}: {gave}; {self.reason}.{self._tie_words}"

    @property
    def _tie_words(self) -> str:
        """That other candidates were as good; empty where none was."""
        if not (tied := self.race.tied):
            return ""
        others = tied[0].label if len(tied) == 1 else f"{len(tied)} other candidates"
        return f" {'It' if self.race.question.short else 'In the race it'} tied with {others}. {OF_EQUALS}"

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        race, ruling = self.race, self.race.ruling
        return {
            "question": race.question.to_dict(),
            "rule": asdict(RULE),
            "measured": None if self.timing is None else asdict(self.timing),
            "plan": None if race.plan is None else race.plan.to_dict(),
            "verdict": ruling.verdict,
            "because": ruling.because,
            "reason": ruling.reason,
            "sentence": self.sentence,
            "candidate": None if race.winner is None else race.winner.fields(),
            "label": None if race.winner is None else race.winner.label,
            "tied": [candidate.fields() for candidate in race.tied],
            "layers": list(self.layers),
            "snippet": self.snippet,
            "comparison": self.comparison,
            "pairs": [dict(zip(("seed", "plain", "asymmetric"), pair, strict=True)) for pair in race.pairs],
            "course": [{"epochs": epochs, "points": points} for epochs, points in race.course.items()],
            "moving": is_moving(tuple(race.course.values())) if race.row is not None else None,
            "rungs": [rung.to_dict() for rung in race.rungs],
            "missing": [spec.id for spec in race.missing],
            "images": {"validation": self.held_out, "test": self.test_images},
            "removal": None if self.removal is None else asdict(self.removal),
            "model": self.model,
        }

    def page(self, folder: str | Path) -> Path:
        """Write report.html, tune.json and the figures into a folder; the page's path."""
        return write_tuned(Path(folder), self)["page"]

    def __str__(self) -> str:
        return self.sentence

    def __repr__(self) -> str:
        return f"<Tuned, {self.verdict}: {self.sentence}>"


def write_tuned(out: Path, result: Tuned) -> dict[str, Path]:
    """Write report.html, tune.json and the figures into the folder `out`."""
    from asymtrain.lab.report.page import write_page

    base = result.race.question.base
    return write_page(
        out,
        NAME,
        page=PAGE,
        title=f"Branches for {display_name(base.arch)} on {base.dataset}",
        lead=_lead(result),
        headline=_headline(result),
        code=result.snippet,
        tables=tune_tables(result),
        figures=tune_figures(result),
        facts=_facts(result),
        document=result.to_dict(),
    )


def _headline(result: Tuned) -> Headline:
    """The verdict, and the difference that was confirmed; of a short tune, which confirms nothing, that of its pair."""
    words = result.verdict.capitalize()
    if result.comparison is not None and result.candidate is not None:
        words += f": {result.comparison['points']:+.1f} points of test accuracy with {result.candidate.label}"
    elif result.race.best_pair is not None and result.candidate is not None:
        points = result.race.best_pair["points"]
        words += f": {points:+.1f} points of validation accuracy in one pair with {result.candidate.label}"
    return colour_of(result.verdict), words


def tune_tables(result: Tuned) -> list[Table]:
    """The race, the pairs of the confirmation and the check of the removal, where there are any."""
    raced = any(entry.row for rung in result.rungs for entry in rung.entries)
    tables = [race_table(result.race, result.held_out)] if raced else []
    tables += [pairs_table(result)] if result.race.pairs else []
    return [*tables, removal_table(result.removal)] if result.removal is not None else tables


def race_table(race: Race, held_out: int) -> Table:
    columns = (
        Column("Candidate"),
        Column("Rung", "count"),
        Column("Epochs", "count"),
        Column("Seeds", "count"),
        Column("Plain", "number"),
        Column("With branches", "number"),
        Column("Difference (points)", "number", digits=1, signed=True, short="Points"),
        Column("95% interval", "number", digits=1, signed=True),
        Column("Result"),
    )
    rows: list[Sequence[Any]] = []
    for i, result in enumerate(race.rungs, 1):
        # Best first; what has no pair yet comes last.
        for entry in sorted(result.entries, key=lambda e: e.standing.rank if e.row else (float("inf"),)):
            row = entry.row
            numbers: list[Any] = [Cell(missing=True)] * 4
            if row is not None:
                numbers = [
                    Mean(row["plain_mean"], row["plain_std"]),
                    Cell(Mean(row["asymmetric_mean"], row["asymmetric_std"]), entry.spec_ids),
                    row["points"],
                    interval(row["points_low"], row["points_high"]),
                ]
            outcome = _outcome(race, entry, is_last=race.plan is not None and i == len(race.plan.rungs))
            seeds = 0 if row is None else row["n"]
            rows.append((entry.candidate.label, i, result.rung.epochs, seeds, *numbers, outcome))
    short = race.question.short
    note = " ".join([(OF_PAIRS if short else OF_RUNGS).format(images=held_out), *_terms(race.question.candidates)])
    if any("at chance" in row[-1] for row in rows):
        note += " At chance: no more than always naming the largest class gives."
    title = "One short pair for each candidate" if short else "The race"
    return Table("race", title, columns, make_rows(rows), note, detail=True)


def _terms(candidates: Sequence[Candidate]) -> Iterator[str]:
    """What words in the names of these candidates mean."""
    if any(candidate.bias == "prior" for candidate in candidates):
        yield "Prior bias: a branch begins at the classes' shares."
    if any(candidate.layers != "all" for candidate in candidates):
        yield "Later layers: branches at the second half of the model's layers; middle layer: at one."
    if any(candidate.alpha_schedule == "cosine" for candidate in candidates):
        yield "Falling: alpha goes to 0 by the end."


def _outcome(race: Race, entry: Entry, *, is_last: bool) -> str:
    """What became of a candidate at a rung, and of its runs."""
    words, row = [], entry.row or {}
    for count, what in ((row.get("asymmetric_diverged"), "diverged"), (row.get("asymmetric_at_chance"), "at chance")):
        words += [f"{count} {what}"] if count else []
    if entry.kept is not None and is_last and entry.candidate == race.winner:
        words.append("best" if race.question.short else "winner")
    elif entry.kept is not None and not race.question.short:
        out = "clearly worse" if entry.standing.clearly_worse else "dropped"
        words.append("goes on" if entry.kept and not is_last else out)
    return ", ".join(words) or NOTHING


def pairs_table(result: Tuned) -> Table:
    columns = (
        Column("Seed", "count"),
        Column("Plain", "number", digits=4),
        Column("With branches", "number", digits=4),
        Column("Difference (points)", "number", digits=1, signed=True, short="Points"),
    )
    marks = _marks(result)
    rows = [
        (
            seed,
            Cell(plain, mark=marks.get((seed, "plain"), "")),
            Cell(after, mark=marks.get((seed, "asymmetric"), "")),
            100 * (after - plain),
        )
        for seed, plain, after in result.race.pairs
    ]
    note = (
        f"Test accuracy after the last epoch, on {result.test_images:,} images that the race never saw. These seeds "
        "took no part in the choice, so the interval of their mean holds in spite of it. It is over seeds, for these "
        f"images, each of which is {100 / result.test_images:.2g}%."
    )
    label = "" if result.candidate is None else f": {result.candidate.label}"
    return Table("confirmation", f"Confirmation on fresh seeds{label}", columns, make_rows(rows), note)


def _marks(result: Tuned) -> dict[tuple[int, str], str]:
    """What is said beside the accuracy of a run that learnt nothing, by seed and variant."""
    marks = dict[tuple[int, str], str]()
    for run in result.race.confirmation:
        if run.outcome == "diverged":
            marks[run.spec.seed, run.spec.variant] = "(diverged)"
        elif run.test_accuracy is not None and run.test_accuracy <= result.chance:
            marks[run.spec.seed, run.spec.variant] = "(at chance)"
    return marks


def removal_table(removal: Removal) -> Table:
    columns = (
        Column("Model"),
        Column("Parameters in the optimizer", "count", short="Parameters"),
        Column("Hooks on the model", "count", short="Hooks"),
        Column("Logits"),
    )
    same = "bit-equal" if removal.difference == 0 else f"differ by {removal.difference:.2g}"
    names, logits = ("before", "with branches", "after strip"), (NOTHING, NOTHING, same)
    rows = [
        (name, Cell(parameters, words=f"{parameters:,}"), hooks, words)
        for name, parameters, hooks, words in zip(names, removal.parameters, removal.hooks, logits, strict=True)
    ]
    note = (
        "Checked by a step of training with the branches above, on a new model. Logits: of "
        f"{removal.images} test images, beside those of a model with the same weights that never had branches."
    )
    return Table("removal", "What the branches leave behind", columns, make_rows(rows), note)


def tune_figures(result: Tuned) -> list[Figure]:
    """What answers the question comes first."""
    figures = [_curves(result)] if result.race.pairs else []
    if len(result.race.course) > 1:
        figures.append(_course_figure(result))
    seen = [(i, rung) for i, rung in enumerate(result.rungs, 1) if any(entry.row for entry in rung.entries)]
    short = result.race.question.short
    return figures + [_rung_figure(i, rung, short=short) for i, rung in seen]


def _rung_figure(number: int, result: RungResult, *, short: bool) -> Figure:
    """The best candidate on top."""
    seen = sorted((entry for entry in result.entries if entry.row), key=lambda entry: entry.standing.rank)
    bars = tuple(
        Bar(entry.candidate.label, standing.points, standing.low, standing.high, () if short else entry.differences)
        for entry in seen
        for standing in [entry.standing]
    )
    panel = Bars("", "difference to Plain (points)", "asymmetric", bars, written=POINTS)
    title = f"{'Short pairs' if short else f'Rung {number}'}: {counted(result.rung.epochs, 'epoch')}"
    caption = "Validation accuracy: diamonds are means, bars their 95% intervals, dots single pairs."
    if short:
        caption = "Validation accuracy, one pair each: there is no interval."
    return Figure(f"rung{number}", title, [panel], caption=caption)


def _course_figure(result: Tuned) -> Figure:
    """The winner's difference at each length: does it move?"""
    course, asked = result.race.course, counted(result.race.question.base.epochs, "epoch")
    line = Line("", "asymmetric", tuple(map(float, course)), tuple(course.values()), marker=True)
    panel = Lines("", "epochs of each run", "difference to Plain (points)", (line,), zero=True, written=POINTS)
    caption = f"The winner of the race, trained anew for each number of epochs; the question is about {asked}."
    if result.race.row is not None:
        caption += " The longest is the confirmation, on test images; the others are on validation images."
    return Figure("course", "The difference over training length", [panel], caption=caption)


def _curves(result: Tuned) -> Figure:
    from asymtrain.lab.comparisons import chance_accuracy
    from asymtrain.lab.report.frames import history_frame
    from asymtrain.lab.report.run_report import learning_curves

    # The mean of a few runs beside that of others can have the other sign than the pairs among them.
    seeds = {seed for seed, _, _ in result.race.pairs}
    runs = [run for run in result.race.confirmation if run.spec.seed in seeds]
    known = runs[0] if runs and runs[0].classes else None
    chance = float(chance_accuracy(known.classes, known.largest_class or 0.0)) if known else None
    return learning_curves(history_frame(runs), "s", "confirmation", "test_accuracy", "With branches", chance)


def _lead(result: Tuned) -> str:
    question, plan = result.race.question, result.race.plan
    configurations = counted(len(question.candidates), "configuration")
    length = counted(question.base.epochs, "epoch")
    words = [
        f"{configurations} of branches {'raced' if result.rungs else 'were to race'} against the baseline (Plain, "
        f"without branches), for runs of {length}."
    ]
    if question.short and plan is not None:
        words = [
            f"{configurations} of branches and the baseline (Plain, without branches): one run each, for "
            f"{plan.rungs[0].epochs} of the {length} that the question is about. This confirms nothing: tune without "
            "--short does."
        ]
    elif plan is not None and plan.rungs:
        last = CONFIRMATION_SEED + plan.seeds - 1
        words.append(f"The race chose by validation accuracy, on seeds from {RACE_SEED} on, and saw no test image.")
        words.append(
            "It has no winner, so nothing was tried on the test images."
            if result.race.ruling.because == "no candidate"
            else f"Its winner {'was' if result.race.row else 'was to be'} tried again on seeds {CONFIRMATION_SEED} to "
            f"{last}, trained for {counted(plan.epochs, 'epoch')} on all training images and tested on the test images."
        )
    return "\n\n".join(filter(None, [result.sentence, " ".join(words), result.model]))


def budget_words(result: Tuned) -> str:
    """What the time allowed, and by which measurement."""
    question, plan, timing = result.race.question, result.race.plan, result.timing
    if question.minutes is None:
        planned = "no plan was made" if plan is None else _planned(plan)
        return f"no limit, {'a short tune' if question.short else 'the whole question'}: {planned}"
    given = f"{question.minutes:g} minute{'' if question.minutes == 1 else 's'}"
    if question.short and plan is not None:
        return f"at most {given}, a short tune: {_planned(plan)}"
    if plan is None or timing is None or plan.needed is None or plan.seconds is None:
        return f"{given}; no plan was made"
    measured = f"an epoch of a run took {timing.epoch:.2g} s, starting {timing.start:.2g} s"
    if not plan.rungs:
        return f"{given}: {measured}. No race fits"
    planned = f"{given}: {measured}. Planned: {_planned(plan)}, for {duration(plan.seconds)}"
    whole = whole_plan(candidates=len(question.candidates), epochs=question.base.epochs, seeds=plan.seeds)
    if (plan.rungs, plan.epochs) == (whole.rungs, whole.epochs):
        return f"{planned}: the whole question"  # what it needs has a reserve, and would be another number
    return f"{planned}; the whole question takes about {duration(60 * plan.needed)}"


def _planned(plan: RacePlan) -> str:
    if not plan.seeds:
        return f"one pair for each candidate ({counted(plan.rungs[0].epochs, 'epoch')}), and no confirmation"
    lengths = ", ".join(str(rung.epochs) for rung in plan.rungs)
    of_epochs = "epoch" if lengths == "1" else "epochs"
    rungs = f"{counted(len(plan.rungs), 'rung')} ({lengths} {of_epochs}, {plan.rungs[0].seeds} seeds)"
    return f"{rungs} and a confirmation ({counted(plan.epochs, 'epoch')}, {plan.seeds} seeds)"


def _facts(result: Tuned) -> dict[str, str]:
    from asymtrain.lab.report.run_report import run_facts

    base = result.race.question.base
    command = {"Command": result.command} if result.command else {}
    layers = {"Layers": ", ".join(result.layers)} if result.layers else {}
    return {
        **command,
        "Training": f"{base.epochs} epochs, batch {base.batch}, learning rate {base.learning_rate:g}, adamw",
        **layers,
        "Time": budget_words(result),
        **run_facts(result.runs, result.versions),
    }
