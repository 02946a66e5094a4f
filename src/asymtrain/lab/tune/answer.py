"""The answer: what it says, and how it is shown as tables, figures, JSON and a page."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asymtrain.lab.candidates import Candidate
from asymtrain.lab.report.figure import POINTS, Bar, Bars, Figure
from asymtrain.lab.report.table import NOTHING, Cell, Column, Table, duration, interval, make_rows
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.statistics import Verdict, colour_of
from asymtrain.lab.texts import counted
from asymtrain.lab.tune.question import FRESH_SEED, PAIR_SEED, RACE_SEED, Question
from asymtrain.lab.tune.race import Pairs, Race
from asymtrain.lab.tune.rule import RULE, Plan, Timing, pairs_needed
from asymtrain.lab.tune.snippet import Removal
from asymtrain.models import display_name

if TYPE_CHECKING:
    import pandas as pd

OF_INTERVALS = "The 95% interval holds at any time: it may be looked at after every pair, and continued later."


@dataclass(frozen=True, eq=False)
class Tuned:
    """What `tune` found. Printed, it is the verdict in a sentence, and the next step."""

    race: Race
    timing: Timing | None  # None if the time was over before an epoch could be timed
    runs: tuple[Run, ...]
    layers: tuple[str, ...]  # the layers of the answer's branches
    snippet: str  # code that attaches them; empty unless they help or likely help
    held_out: int  # validation images of a run of the race
    test_images: int
    removal: Removal | None = None  # the check of the snippet
    model: str = ""  # what the docstring of the function that builds it says
    interrupted: bool = False
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)  # those that the runs were trained with

    @property
    def verdict(self) -> Verdict:
        """One of `asymtrain.lab.statistics.VERDICTS`, on the branches of `candidate`."""
        return self.race.ruling.verdict

    @property
    def reason(self) -> str:
        """Why this verdict, in words."""
        return self.race.ruling.reason

    @property
    def candidate(self) -> Candidate:
        """The branches that the answer is about: the default, or others that were confirmed to be better."""
        return self.race.best.candidate

    @property
    def pairs(self) -> Pairs:
        """Runs with these branches and without."""
        return self.race.best

    @property
    def rows(self) -> "pd.DataFrame":
        """One row for each run: id, settings, results."""
        from asymtrain.lab.report import rows_frame

        return rows_frame(self.runs)

    @property
    def headline(self) -> str:
        """The verdict and its number."""
        pairs, all_epochs = self.pairs, self.race.question.base.epochs
        if not pairs.n:
            return self.verdict.capitalize()
        length = f" after {pairs.epochs} of {counted(all_epochs, 'epoch')}" if pairs.epochs < all_epochs else ""
        return f"{self.verdict.capitalize()}: {pairs.points:+.1f} points of test accuracy{length}"

    @property
    def evidence(self) -> str:
        """What the headline rests on: the branches, the interval, how it was trained, and why this verdict."""
        pairs, base = self.pairs, self.race.base
        training = f"trained with {training_words(base, pairs.epochs if pairs.n else base.epochs)}"
        if not pairs.n:
            return f"{self.reason} ({training})."
        counts = f"{_interval_words(pairs)}{counted(pairs.n, 'pair')}, {counted(self.test_images, 'test image')}"
        is_short_gain = pairs.epochs < self.race.question.base.epochs and pairs.points > 0
        shrink = "; gains usually shrink with longer training" if is_short_gain else ""
        return f"with {self.candidate.label} ({counts}), {training}; {self.reason}{shrink}."

    @property
    def sentence(self) -> str:
        """The verdict, with what was measured, and how it was trained."""
        return f"{self.headline}{' ' if self.pairs.n else ': '}{self.evidence}"

    @property
    def more(self) -> tuple[str, ...]:
        """Further sentences: on other learning rates, on the race, and finally the next step."""
        return tuple(filter(None, [_rate_words(self.race), _race_words(self.race), self.next_step]))

    @property
    def next_step(self) -> str:
        """What to do now."""
        race, epochs, all_epochs = self.race, self.race.best.epochs, self.race.question.base.epochs
        if race.failure:
            return f"Next: {race.failure}."
        if race.ruling.because == "not learnt":
            tried = "another learning rate" if race.question.rate_given else "more epochs or another recipe"
            if epochs < all_epochs:
                tried = f"at least twice the minutes, since runs had {epochs} of {all_epochs} epochs"
            return f"Next: the model itself does not learn yet. Try {tried}, and check that labels and data fit."
        words = []
        if self.verdict in ("helps", "likely helps"):
            words.append(f"attach them by the code{' if you must decide now' if race.is_open else ''}")
        elif not race.is_open:
            words.append("train without branches")
        if (minutes := self.minutes_needed) is not None:
            more = f"about {counted(minutes, 'more minute')} would decide, if pairs go on to vary as they do"
            words.append(f"{more}: call it again with that time, and it continues")
        elif race.is_open:
            why = "" if race.plan is None or race.best.n < 2 else " (the difference is too small for pairs to decide)"
            words.append(f"call it again with more minutes, and it continues{why}")
        elif epochs < all_epochs and self.verdict != "hurts":
            words.append("with more minutes each run may be longer, and the pairs begin anew")
        return f"Next: {'; '.join(words)}."

    @property
    def minutes_needed(self) -> int | None:
        """How many more minutes would decide it, by the mean and the variance so far; None if that is unknown."""
        pairs, plan, timing = self.race.best, self.race.plan, self.timing
        if not self.race.is_open or timing is None or plan is None:
            return None
        all_epochs = self.race.question.base.epochs
        needed = pairs_needed(pairs.differences) if pairs.epochs == plan.epochs else RULE.pairs
        if needed is None and pairs.n < 2:
            needed = RULE.pairs
        if needed is None:
            return None
        more, epochs = max(1, needed - (pairs.n if pairs.epochs == plan.epochs else 0)), plan.epochs
        if 2 * epochs <= all_epochs:  # too short to settle it: the added minutes begin longer pairs anew
            more, epochs = max(needed, RULE.pairs), all_epochs
        return math.ceil((2 * more * epochs * timing.epoch / RULE.used + timing.start) / 60)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        race, ruling = self.race, self.race.ruling
        return {
            "question": race.question.to_dict(),
            "rule": asdict(RULE),
            "measured": None if self.timing is None else asdict(self.timing),
            "plan": None if race.plan is None else asdict(race.plan),
            "verdict": ruling.verdict,
            "because": ruling.because,
            "reason": ruling.reason,
            "sentence": self.sentence,
            "more": list(self.more),
            "minutes_needed": self.minutes_needed,
            "candidate": self.candidate.fields(),
            "label": self.candidate.label,
            "layers": list(self.layers),
            "snippet": self.snippet,
            "learning_rate": race.base.learning_rate,
            "learning_rates_tried": [{"rate": rate, "accuracy": value} for rate, value in race.rates.items()],
            "default": race.first.to_dict(),
            "race": [[pairs.to_dict() for pairs in rung] for rung in race.rungs],
            "winner": None if race.second is None else race.second.to_dict(),
            "winner_against_default": None if race.ahead is None else race.ahead.to_dict(),
            "missing": [spec.id for spec in race.missing],
            "images": {"validation": self.held_out, "test": self.test_images},
            "removal": None if self.removal is None else asdict(self.removal),
            "model": self.model,
        }

    def page(self, folder: str | Path) -> Path:
        """Write report.html, tune.json and the figures into a folder; the page's path."""
        return write_tuned(Path(folder), self)["page"]

    def __str__(self) -> str:
        return "\n".join([self.sentence, *self.more])

    def __repr__(self) -> str:
        return f"<Tuned, {self.verdict}: {self.sentence}>"


def training_words(base: RunSpec, epochs: int) -> str:
    """The settings that decide a result, for the first line of every answer."""
    rate = f"learning rate {base.learning_rate:.3g}"
    return f"batch {base.batch}, {rate}, {counted(epochs, 'epoch')} and {base.precision}"


def plan_words(question: Question, plan: Plan, timing: Timing) -> str:
    """What will be trained, how long it takes, and what it can answer."""
    all_epochs, each = question.base.epochs, duration(2 * plan.epochs * timing.epoch)
    length = counted(all_epochs, "epoch") if plan.epochs == all_epochs else f"{plan.epochs} of {all_epochs} epochs"
    words = f"Plan: pairs of {length}, with and without branches, {each} a pair; {plan.pairs or 'none'} fit"
    if not plan.pairs or plan.pairs < 3:
        return f"{words}, too few for an interval: at best an indication."
    others = len(question.candidates) - 1
    after = f", then {counted(others, 'alternative')} if time is left" if others else ""
    return f"{words}. Tested after each from the third on, until decided or {RULE.most_pairs}{after}."


def _interval_words(pairs: Pairs) -> str:
    return "" if pairs.interval is None else "95% interval {:+.1f} to {:+.1f}, ".format(*pairs.interval)


def _rate_words(race: Race) -> str:
    if not race.rates:
        return ""
    tried = ", ".join(f"{rate:.3g} ({100 * accuracy:.1f}%)" for rate, accuracy in race.rates.items())
    return f"The baseline did not learn at first. Learning rates tried, with its validation accuracy: {tried}."


def _race_words(race: Race) -> str:
    """The result of the race; empty if there was none."""
    if not race.rungs:
        return ""
    others = counted(len(race.rungs[0]), "alternative")
    if race.winner is None:
        came = "none was above the default in short pairs" if race.stage != "race" else "the race is not finished"
        return f"Of {others}, {came}."
    words = f"Of {others}, {race.winner.label} was best in short pairs"
    if race.ahead is None or not race.ahead.n:
        over = f"{race.rungs[-1][0].points:+.1f} points over the default"
        take = ": take it if you must choose without more minutes"
        return f"{words} ({over}), not confirmed{take if race.ruling.verdict in ('helps', 'likely helps') else ''}."
    ends = f"{_interval_words(race.ahead)}{counted(race.ahead.n, 'fresh seed')}"
    return f"{words}; against the default {race.ahead.points:+.1f} points ({ends})."


def write_tuned(out: Path, result: Tuned) -> dict[str, Path]:
    """Write report.html, tune.json and the figures into the folder `out`."""
    from asymtrain.lab.report.page import write_page

    base, evidence = result.race.question.base, f"{result.evidence[:1].upper()}{result.evidence[1:]}"
    library, _, name = base.arch.partition(":")
    return write_page(
        out,
        "tune",
        page="report",
        title=f"Do branches help {name if library in ('timm', 'hf') else display_name(base.arch)} on {base.dataset}?",
        lead="\n\n".join(filter(None, [evidence, *result.more, result.model])),
        headline=(colour_of(result.verdict), result.headline),
        code=result.snippet,
        tables=tune_tables(result),
        figures=tune_figures(result),
        facts=_facts(result),
        document=result.to_dict(),
    )


def tune_tables(result: Tuned) -> list[Table]:
    """The tables of the pairs, the race and the check of the removal, where there are any."""
    tables = [pairs_table(result)] if result.pairs.n else []
    tables += [race_table(result)] if any(pairs.n for rung in result.race.rungs for pairs in rung) else []
    return [*tables, removal_table(result.removal)] if result.removal is not None else tables


def pairs_table(result: Tuned) -> Table:
    columns = (
        Column("Seed", "count"),
        Column("Baseline", "number", digits=4),
        Column("With branches", "number", digits=4),
        Column("Difference (points)", "number", digits=1, signed=True, short="Points"),
        Column("95% interval so far", "number", digits=1, signed=True),
    )
    pairs, rows = result.pairs, list[Sequence[Any]]()
    for i, row in enumerate(zip(pairs.seeds, pairs.before, pairs.after, pairs.differences, strict=True), 1):
        so_far = Pairs(pairs.candidate, pairs.epochs, pairs.seeds[:i], pairs.before[:i], pairs.after[:i]).interval
        marks = ["(diverged)" if run.outcome == "diverged" else "" for run in pairs.runs[2 * i - 2 : 2 * i]] or ["", ""]
        cells = [Cell(row[1], mark=marks[0]), Cell(row[2], mark=marks[1]), row[3]]
        rows.append((row[0], *cells, interval(*(so_far or (None, None)))))
    note = f"Test accuracy after the last of {counted(pairs.epochs, 'epoch')}, all training images. {OF_INTERVALS}"
    return Table("pairs", f"Pairs: {pairs.candidate.label}", columns, make_rows(rows), note)


def race_table(result: Tuned) -> Table:
    columns = (
        Column("Alternative"),
        Column("Rung", "count"),
        Column("Seeds", "count"),
        Column("Over the default (points)", "number", digits=1, signed=True, short="Points"),
        Column("Result"),
    )
    race, rows = result.race, list[Sequence[Any]]()
    for i, rung in enumerate(race.rungs, 1):
        going = {pairs.candidate for pairs in race.rungs[i]} if i < len(race.rungs) else {race.winner}
        for pairs in rung:
            outcome = "goes on" if i < len(race.rungs) else "winner"
            mine = outcome if pairs.candidate in going else NOTHING
            rows.append((pairs.candidate.label, i, pairs.n, pairs.points if pairs.n else None, mine))
    assert race.plan is not None
    note = (
        f"Short pairs of {counted(race.plan.short, 'epoch')} against the default, on {result.held_out:,} held-out "
        "training images. Each rung adds a seed and keeps the better half."
    )
    note = " ".join([note, *_terms(race.question.candidates)])
    return Table("race", "The race", columns, make_rows(rows), note, detail=len(race.rungs) == 1)


def _terms(candidates: Sequence[Candidate]) -> Iterator[str]:
    """Explains the words in the names of these candidates."""
    if any(candidate.bias == "prior" for candidate in candidates):
        yield "Prior bias: a branch begins at the classes' shares."
    if any(candidate.layers != "all" for candidate in candidates):
        yield "Later layers: branches at the second half of the model's layers; middle layer: at one."
    if any(candidate.alpha_schedule == "cosine" for candidate in candidates):
        yield "Falling: the weight goes to 0 by the end."


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
    return Table("removal", "What the branches leave behind", columns, make_rows(rows), note, detail=True)


def tune_figures(result: Tuned) -> list[Figure]:
    """The figures, the pairs first."""
    figures = [_curves(result)] if result.pairs.n else []
    rungs, bars = result.race.rungs, []
    if len(rungs) < 2 or not rungs[-1][0].n:  # for a single rung the folded table is enough
        return figures
    for pairs in rungs[-1]:
        low, high = pairs.interval or (None, None)
        bars.append(Bar(pairs.candidate.label, pairs.points, low, high, pairs.differences))
    panel = Bars("", "over the default (points)", "asymmetric", tuple(bars), written=POINTS)
    caption = "Validation accuracy in short pairs of the same seed: diamonds are means, dots single pairs."
    return [*figures, Figure("race", "The last rung of the race", [panel], caption=caption)]


def _curves(result: Tuned) -> Figure:
    from asymtrain.lab.comparisons import chance_accuracy
    from asymtrain.lab.report.frames import history_frame
    from asymtrain.lab.report.run_report import learning_curves

    runs = result.pairs.runs
    first = runs[0] if runs[0].classes else None
    chance = float(chance_accuracy(first.classes, first.largest_class or 0.0)) if first else None
    sides = ("Baseline", "With branches")
    return learning_curves(history_frame(runs), "s", "the pairs", "test_accuracy", sides, chance)


def time_words(result: Tuned) -> str:
    """What the time allowed, and by which measurement."""
    question, plan, timing = result.race.question, result.race.plan, result.timing
    if question.minutes is None:
        return "no limit"
    limit = f"{question.minutes:g} minute{'' if question.minutes == 1 else 's'}"
    if plan is None or timing is None:
        return f"{limit}; no plan was made"
    measured = f"an epoch of a run took {timing.epoch:.2g} s, starting {timing.start:.2g} s"
    return f"{limit}: {measured}. {plan_words(question, plan, timing)}"


def _facts(result: Tuned) -> dict[str, str]:
    from asymtrain.lab.report.run_report import run_facts

    seeds = f"Pairs from {PAIR_SEED} on, the race from {RACE_SEED} on, its confirmation from {FRESH_SEED} on."
    return {
        **({"Command": result.command} if result.command else {}),
        "Training": f"{training_words(result.race.base, result.race.base.epochs)}, adamw",
        "Layers": ", ".join(result.layers),
        "Time": time_words(result),
        "Seeds": seeds,
        **run_facts(result.runs, result.versions),
    }
