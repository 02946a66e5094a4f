"""Train what a question still needs, within its time; `race.replay` says what comes next."""

import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asymtrain.errors import UsageError, UsageWarning, error_line
from asymtrain.lab.candidates import Candidate
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.sources import describe_model
from asymtrain.lab.statistics.sequential import LEAST
from asymtrain.lab.store import failure_reasons, stored_runs
from asymtrain.lab.texts import counted
from asymtrain.lab.tune.answer import Tuned, plan_words
from asymtrain.lab.tune.question import Question
from asymtrain.lab.tune.race import Race, replay, timing_specs
from asymtrain.lab.tune.rule import RULE, Plan, Timing, make_plan, race_epochs
from asymtrain.lab.tune.snippet import AttachCall, attach_code, check_removal

if TYPE_CHECKING:
    from asymtrain.lab.data import Dataset
    from asymtrain.lab.engine import Progress

JSON = "tune.json"
ENDING = 0.02  # share of the minutes that is kept for the answer and its page


@dataclass
class Stopwatch:
    """Measures how long an epoch takes, from reports of finished epochs; `clock` gives seconds."""

    clock: Callable[[], float] = time.monotonic
    reports: list[tuple[float, int]] = field(default_factory=list)  # when a number of epochs was first reported

    def __post_init__(self) -> None:
        self.start = self.clock()

    def update(self, epochs: int) -> None:
        if epochs > (self.reports[-1][1] if self.reports else 0):
            self.reports.append((self.clock(), epochs))

    def timing(self, runs: int) -> Timing | None:
        """Time per epoch from the end of the first epoch of all these runs to the last report; None without any report.

        The time before that epoch's end, less its epochs, is the start.
        """
        if not self.reports:
            return None
        last, after = self.reports[-1]
        first, before = next((report for report in self.reports if report[1] >= runs), (last, after))
        if after == before:
            return Timing((last - self.start) / after, 0.0)  # includes the start
        epoch = (last - first) / (after - before)
        return Timing(epoch, max(0.0, first - self.start - before * epoch))


def run_tune(
    question: Question,
    *,
    store: Path | None = None,
    out: Path | None = None,
    data_root: Path | None = None,
    progress: "Callable[[Progress], None]" = lambda state: None,
    on_stage: Callable[[str], None] = lambda words: None,
    on_run: Callable[[Run, int, int], None] = lambda run, done, total: None,
    begun: float | None = None,
    **options: Any,
) -> Tuned:
    """Answer a question as far as its minutes reach; without a limit, completely.

    The minutes count from `begun`, a time of `time.monotonic`; by default from now.

    With `out` the plan is in its tune.json as soon as it is made, and a call with the same question follows it.
    `progress` is called with the time left for the whole call, `on_stage` with what begins, and `on_run` with each run,
    how many runs of its stage are finished, and how many the stage has. `options` go to `executors.execute`. After
    Ctrl-C the answer so far is returned, marked `interrupted`.
    """
    from asymtrain.lab import executors
    from asymtrain.lab.devices import default_device
    from asymtrain.lab.machine import cores

    begun = time.monotonic() if begun is None else begun
    dataset = check_data(question, data_root)
    if out is not None:
        read_plan(out, question)  # refuses another question before anything is written
    pair = [question.spec(one, 1, 0) for one in (None, question.default)]
    executors.check_sources(pair, store, data_root=data_root)  # even if everything is stored
    here = default_device(options.get("device")).type
    # A GPU trains several pairs at a time, always the same number: another number would be compiled anew.
    batch = RULE.pairs if here == "cuda" else max(1, min(RULE.pairs, cores() // 2))
    with _alone_in(out):
        where = {"store": store, "data_root": data_root}
        work = _Work(question, dataset, batch, begun, progress, on_stage, on_run, where)
        interrupted = False
        try:
            with suppress(_TimeIsOver), executors.Workers() as workers:
                work.where |= {**options, "workers": workers}
                work.go_on(out)
        except KeyboardInterrupt:
            interrupted = True
        race = replace(work.race, failure=_failure(store, work.race.missing, work.note))
        result = describe(race, work.timing, work.runs, dataset, check=not interrupted)
        return replace(result, interrupted=interrupted)


@contextmanager
def _alone_in(out: Path | None) -> Iterator[None]:
    """Lock a folder, so that no second tune makes its own plan there; the lock ends with the process."""
    if out is None or os.name == "nt":  # has no fcntl
        yield
        return
    import fcntl

    out.mkdir(parents=True, exist_ok=True)
    folder = os.open(out, os.O_RDONLY)
    try:
        with suppress(OSError):  # a network disk may not support locks
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as held:
                message = (
                    f"another tune is running in {out}: wait until it has ended, or give another folder with --out"
                )
                raise UsageError(message) from held
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_UN)  # closing is not enough while a process forked here is alive
        os.close(folder)


class _TimeIsOver(BaseException):
    """Ends training in the middle of a long epoch. Not an `Exception`: a stack would take that for its own failure."""


class _TooSlow(BaseException):
    """Ends pairs that would not finish in time because other users slowed the machine down."""


@dataclass
class _Work:
    """The runs of a question, trained until it is answered or its time is over."""

    question: Question
    dataset: "Dataset"
    batch: int
    begun: float
    progress: "Callable[[Progress], None]"
    on_stage: Callable[[str], None]
    on_run: Callable[[Run, int, int], None]
    where: dict[str, Any]  # further arguments of `execute`
    runs: dict[str, Run] = field(default_factory=dict)
    timing: Timing | None = None
    plan: Plan | None = None
    note: str = ""  # the last remark

    def __post_init__(self) -> None:
        self.limit = math.inf if self.question.minutes is None else 60 * self.question.minutes
        self.deadline = self.begun + (1 - ENDING) * self.limit
        self.largest = self.dataset.train.largest_class, self.dataset.test.largest_class
        self.rungs = RULE.rungs

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    @property
    def race(self) -> Race:
        return replay(self.question, self.plan, self.runs, self.largest, rungs=self.rungs, batch=self.batch)

    def go_on(self, out: Path | None) -> None:
        """Train until nothing is missing, the time is over, or a stage trained no run."""
        if out is not None:
            self.timing, self.plan = read_plan(out, self.question)
            timed = [spec for pair in timing_specs(self.question) for spec in pair]
            self.runs |= _read_runs(self.where["store"], timed)
        if self.plan is None and self.question.minutes is None:
            self._follow(Plan(self.question.base.epochs), out)
        tried_ids, stage = set[str](), ""
        while True:
            race = self.race
            if stored := _read_runs(self.where["store"], race.missing):
                self.runs |= stored
                continue
            if race.stage == "race" and not self._holds_rung(race):
                self.rungs = len(race.rungs) - 1
                continue
            specs = self._fitting([spec for spec in race.missing if spec.id not in tried_ids], race)
            if specs:
                if self.seconds_left <= 0:
                    return
                if race.stage != stage:
                    self.on_stage(stage_words(race))
                stage = race.stage
                tried_ids.update(spec.id for spec in specs)
                try:
                    watch = self.train(specs, race)
                except _TooSlow:
                    self.on_stage("Slower than timed: the pairs begin anew, with fewer epochs")
                    stage = ""
                    self._make_plan(out)
                    continue
                self.runs |= _read_runs(self.where["store"], specs)  # a stack may finish more than the stage needed
                self.timing = watch.timing(len(specs)) if self.plan is None else self.timing
            if self.plan is None:
                self.timing = self.timing or _timing_of(self.runs.values())
                if self.timing is None:
                    return
                self._make_plan(out)
            elif not specs:
                return

    def _make_plan(self, out: Path | None) -> None:
        assert self.timing is not None
        plan = make_plan(self.timing, self.seconds_left, self.question.base.epochs)
        self._follow(plan, out)
        self.on_stage(plan_words(self.question, plan, self.timing))

    def _follow(self, plan: Plan, out: Path | None) -> None:
        """Follow a plan, and save it for the next call."""
        self.plan = plan
        if out is not None:
            write_json(out, describe(self.race, self.timing, self.runs, self.dataset, check=False))

    def _holds_rung(self, race: Race) -> bool:
        """Does the next rung of the race fit into the time?

        While the default is unsettled, a race begins only if all of it fits, with the confirmation of its winner.
        """
        if self.timing is None or self.plan is None:
            return True
        if race.is_open and len(race.rungs) == 1:
            epochs = race_epochs(len(self.question.candidates) - 1, self.plan)
            return epochs * self.timing.epoch + RULE.rungs * self.timing.start <= self.seconds_left
        return self._seconds(race.missing, self.plan.short) <= self.seconds_left

    def _fitting(self, specs: list[RunSpec], race: Race) -> list[RunSpec]:
        """The pairs of a batch that fit into the time: they end together, and with too many none would end.

        If none fits, an unsettled question trains all of them if one epoch fits: another call continues them.
        """
        if race.stage not in ("pairs", "fresh", "more"):
            return specs
        seeds = list(dict.fromkeys(spec.seed for spec in specs))
        for count in range(len(seeds), 0, -1):
            part = [spec for spec in specs if spec.seed in seeds[:count]]
            if self._seconds(part, part[0].epochs) <= self.seconds_left:
                return part
        return specs if race.is_open and self._seconds(specs, 1) <= self.seconds_left else []

    def _seconds(self, specs: Sequence[RunSpec], epochs: int) -> float:
        """Seconds for so many epochs of runs. A stack of another size than that of the pairs is compiled anew."""
        if self.timing is None:
            return 0.0
        start = 0.0 if len(specs) == 2 * self.batch else self.timing.start
        return start + self.timing.epoch * epochs * len(specs)

    def _check_speed(self, race: Race, watch: Stopwatch, runs: int, done: int) -> None:
        """Abandon the first pairs if, at the speed measured on them, they would not finish in time.

        `done` epochs of these runs are done. Shorter pairs begin instead, if they are longer than the timed ones.
        """
        measured = watch.timing(runs)
        if self.timing is None or measured is None or done < 2 * runs:  # the first epoch includes the start
            return
        if race.plan is None or race.stage != "pairs" or race.first.epochs == race.plan.epochs:
            return
        ahead = measured.epoch * (2 * max(LEAST, self.batch) * race.plan.epochs - done)
        timing = replace(self.timing, epoch=measured.epoch)
        shorter = make_plan(timing, self.seconds_left, race.plan.epochs).epochs
        if ahead > self.seconds_left + ENDING * self.limit and RULE.timing_epochs < shorter < race.plan.epochs:
            self.timing = timing
            raise _TooSlow

    def train(self, specs: list[RunSpec], race: Race) -> Stopwatch:
        """Add the runs of these specs; stop if the stage is decided before all of them are finished."""
        from asymtrain.lab import executors

        watch = Stopwatch()

        def update(state: "Progress") -> None:
            if self.seconds_left < -ENDING * self.limit:  # else training would go on to the epoch's end
                raise _TimeIsOver
            self.note = state.note or self.note
            watch.update(state.epochs_here)
            self._check_speed(race, watch, len(specs), state.epochs_done)
            self.progress(
                state if self.seconds_left == math.inf else replace(state, seconds_left=max(0.0, self.seconds_left))
            )

        minutes = None if self.seconds_left == math.inf else self.seconds_left / 60
        with closing(executors.execute(specs, minutes=minutes, progress=update, **self.where)) as trained:  # type: ignore[type-var]
            for done, run in enumerate(trained, 1):
                self.runs[run.spec.id] = run
                self.on_run(run, done, len(specs))
                if race.stage in ("pairs", "fresh", "more") and self.race.stage != race.stage:
                    break
        return watch


def without_equals(question: Question, data_root: Path | None = None) -> Question:
    """The question without candidates that are equal in a model of few layers; the first of equal ones stays."""
    from asymtrain.lab.engine import load_for
    from asymtrain.lab.engine.setup import build_network, chosen_layers

    check_data(question, data_root)
    count = len(build_network(question.base, load_for(question.base, data_root)).points)
    different: dict[tuple[Candidate, range], Candidate] = {}
    for candidate in question.candidates:
        different.setdefault((replace(candidate, layers="all"), chosen_layers(count, candidate.layers)), candidate)
    return replace(question, candidates=tuple(different.values()))


def check_data(question: Question, data_root: Path | None = None) -> "Dataset":
    """Refuse data with too few images to choose by, or to test on."""
    from asymtrain.lab.engine import load_for

    dataset, least = load_for(question.base, data_root), RULE.least_held_out
    if (held_out := _held_out(len(dataset.train))) < least:
        raise UsageError(
            f"of {len(dataset.train)} training images a fifth, {held_out}, would be held out to choose by, and {least} "
            f"or more are needed: give at least {5 * least} training images, or "
            f"{25 * least // 4} images in all where no test set comes with them"
        )
    if len(dataset.test) < least:
        raise UsageError(
            f"pairs would be compared on {counted(len(dataset.test), 'test image')}, and {least} or more are needed: "
            "give more test images"
        )
    return dataset


def read_plan(out: Path, question: Question) -> tuple[Timing | None, Plan | None]:
    """Timing and plan of an earlier call with the same question in this folder; refuses another question.

    Minutes may differ. If they allow pairs at least twice as long, as after a first look of a minute, the plan is made
    anew; otherwise it stays, and all pairs count.
    """
    try:
        document = json.loads((out / JSON).read_bytes())
        question_fields, measured, planned = document["question"], document["measured"], document["plan"]
        timing = Timing(**measured) if measured else None
        plan = Plan(**planned) if planned else None
        ours = json.loads(json.dumps(question.to_dict()))
        here, there = ours["base"], question_fields["base"]
        # In the order of a spec: typed values come before those that follow from them.
        differing = [name for name in RunSpec.__dataclass_fields__ if here.get(name) != there.get(name)]
        differing += [name for name in ours if name != "minutes" and ours[name] != question_fields.get(name)]
        minutes = question_fields["minutes"]
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise UsageError(
            f"{out / JSON} cannot be read ({type(problem).__name__}): give another folder with --out"
        ) from problem
    if differing:
        words = differing[0].replace("_", " ")
        raise UsageError(f"{out} holds a tune that differs in {words}: give another folder with --out")
    if plan is not None and question.minutes != minutes:
        longer = Plan(question.base.epochs)
        if question.minutes is not None and timing is not None:
            longer = make_plan(timing, 60 * question.minutes, longer.epochs)
        plan = longer if longer.epochs >= 2 * plan.epochs else plan
    return timing, plan


def write_json(out: Path, result: Tuned) -> None:
    from asymtrain.lab.report.page import json_text, write_files

    write_files(out, {JSON: json_text(result.to_dict())})


def describe(race: Race, timing: Timing | None, runs: Mapping[str, Run], dataset: "Dataset", *, check: bool) -> Tuned:
    """The race with the rest of the answer: layers, code and its check, what the model and the data are."""
    from asymtrain.lab.engine.setup import build_network, chosen_layers

    question, candidate = race.question, race.best.candidate
    spec = replace(question, base=race.base).spec(candidate, question.base.epochs, 0)
    network = build_network(spec, dataset)
    layers = tuple(network.points[k] for k in chosen_layers(len(network.points), spec.layers))
    code, removal = "", None
    if race.ruling.verdict in ("helps", "likely helps"):
        of_backbone = isinstance(network.layout, str)  # `attach` infers the layouts of other models
        layout = network.layout if of_backbone else spec.layout
        attached = AttachCall(spec, layers, dataset.classes, pool=network.pool, layout=str(layout))
        code = attach_code(attached)
        code = code if race.ruling.is_settled else f"# Not settled: {race.ruling.reason}.\n{code}"
        try:
            removal = check_removal(attached, dataset) if check else None
        except Exception as problem:  # a failed check must not discard the answer
            message = f"what the branches leave behind could not be checked: {error_line(problem)}"
            warnings.warn(message, UsageWarning, stacklevel=2)
    ordered = tuple(sorted(runs.values(), key=lambda run: run.spec.id))  # not in the order they finished
    images = _held_out(len(dataset.train)), len(dataset.test)
    return Tuned(race, timing, ordered, layers, code, *images, removal, describe_model(question.base.arch))


def stage_words(race: Race) -> str:
    """What begins, in words."""
    default, plan = race.question.default.label, race.plan
    if plan is None:
        return f"Timing: {default} and the baseline, {counted(race.first.epochs, 'epoch')}"
    length = counted(plan.epochs, "epoch")
    if race.stage == "rates":
        return f"The baseline did not learn: trying lower learning rates, {counted(plan.short, 'epoch')} each"
    if race.stage == "race":
        others = counted(len(race.question.candidates) - 1, "alternative")
        return f"Race: {others} against the default, short pairs of {counted(plan.short, 'epoch')}"
    if race.stage == "fresh" and race.winner is not None:
        return f"Confirmation: {race.winner.label}, the default and the baseline on fresh seeds, {length}"
    return f"{'More pairs' if race.stage == 'more' else 'Pairs'}: {default} and the baseline, {length} each"


def _held_out(images: int) -> int:
    return round(0.2 * images)  # as `data.subsets.split` does


def _timing_of(runs: Iterable[Run]) -> Timing | None:
    """A timing from stored runs, if all were trained before a kill: as if one run trained at a time."""
    timed = [run for run in runs if run.history]
    epochs = sum(len(run.history) for run in timed)
    return Timing(sum(run.seconds for run in timed) / epochs, 0.0) if epochs else None


def _read_runs(store: Path | None, specs: Iterable[RunSpec]) -> dict[str, Run]:
    runs = [] if store is None else stored_runs(store, [spec.id for spec in specs])
    return {run.spec.id: run for run in runs}


def _failure(store: Path | None, missing: Iterable[RunSpec], note: str) -> str:
    """Why one of these runs failed; empty if none did."""
    if store is None:
        return note if "failed:" in note else ""
    return next(iter(failure_reasons(store, {spec.id for spec in missing})), "")
