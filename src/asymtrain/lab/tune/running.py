"""Train what a question still needs, within its time.

    timing         all candidates and Plain, one seed, two epochs      what an epoch takes
    plan           rungs and confirmation that fit into the time       written at once, and not changed later
                   without a limit nothing is timed: all of them
                   in a short tune neither: one pair for each candidate, and nothing after
    rungs          one call of `execute` each                          validation accuracy; no test image is seen
    confirmation   the winner and Plain, fresh seeds, all images       test accuracy

What comes next is a function of the plan and of the runs alone (`results.replay`): after a kill the same call goes on.
"""

import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asymtrain.errors import UsageError, UsageWarning, error_line
from asymtrain.lab.candidates import Candidate
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.sources import describe_model
from asymtrain.lab.store import failure_reasons, stored_runs
from asymtrain.lab.texts import counted
from asymtrain.lab.tune.answer import Tuned
from asymtrain.lab.tune.planning import (
    RacePlan,
    Timing,
    confirmation_seconds,
    make_plan,
    race_seconds,
    short_plan,
    whole_plan,
)
from asymtrain.lab.tune.question import Question
from asymtrain.lab.tune.results import Race, replay
from asymtrain.lab.tune.rule import RULE
from asymtrain.lab.tune.snippet import AttachCall, attach_code, check_removal

if TYPE_CHECKING:
    from asymtrain.lab.engine import Progress

JSON = "tune.json"
Progressing = Callable[["Progress"], None]


@dataclass
class Stopwatch:
    """Sees when epochs are trained, and so what one takes; `clock` gives seconds."""

    clock: Callable[[], float] = time.monotonic
    seen: list[tuple[float, int]] = field(default_factory=list)  # when a number of epochs was first reported

    def __post_init__(self) -> None:
        self.start = self.clock()

    def update(self, epochs: int) -> None:
        if epochs > (self.seen[-1][1] if self.seen else 0):
            self.seen.append((self.clock(), epochs))

    def timing(self, runs: int) -> Timing | None:
        """From the first report to the last; what came before the first is the start. None without any report."""
        if not self.seen:
            return None
        (first, before), (last, after) = self.seen[0], self.seen[-1]
        if after == before:
            return Timing((first - self.start) / before, 0.0, runs)  # the start is in it
        epoch = (last - first) / (after - before)
        return Timing(epoch, max(0.0, first - self.start - before * epoch), runs)


def run_tune(
    question: Question,
    *,
    store: Path | None = None,
    out: Path | None = None,
    data_root: Path | None = None,
    progress: Progressing = lambda state: None,
    on_stage: Callable[[str], None] = lambda words: None,
    on_run: Callable[[Run, int, int], None] = lambda run, done, total: None,
    **options: Any,
) -> Tuned:
    """Answer a question, as far as its minutes reach from now on, or all of it where it has no limit.

    With `out` the plan is in its tune.json as soon as it is made, and a call with the same question follows it.
    `progress` is called with the time left of all of it, `on_stage` with what begins, and `on_run` with each run, how
    many of its stage are there, and how many the stage has. `options` are those of `executors.execute`.
    """
    from asymtrain.lab import executors

    check_data(question, data_root)
    if out is not None:
        read_plan(out, question)  # refuses another question before anything is written
    executors.check_sources(question.timing_specs(), store, data_root=data_root)  # also where everything is stored
    with _alone_in(out), executors.Workers() as workers:
        timing, plan = (None, None) if out is None else read_plan(out, question)
        where = {"store": store, "data_root": data_root, **options, "workers": workers}
        largest = largest_classes(question, data_root)  # which may take a while, before the clock starts
        work = _Training(question, where, timing, progress, on_stage, on_run)
        if plan is not None:
            work.runs |= _stored(store, question.timing_specs() if timing else [])
        elif (plan := work.make_plan()) is not None and plan.rungs and out is not None:
            write_json(out, describe(replay(question, plan, work.runs, largest), work.timing, work.runs, data_root))
        race, asked = replay(question, plan, work.runs, largest), set[str]()
        while wanted := [spec for spec in race.missing if spec.id not in asked]:
            asked.update(spec.id for spec in wanted)  # what does not come now (time is over, it failed) does not come
            work.train(wanted, stage_words(race), race)
            race = replay(question, plan, work.runs, largest)
        if race.missing:
            failure = _failure(store, race.missing, work.note)
            race = replace(race, failure=failure, out_of_time=not failure and question.minutes is not None)
        return describe(race, work.timing, work.runs, data_root)


@contextmanager
def _alone_in(out: Path | None) -> Iterator[None]:
    """Hold a folder, so that no second tune makes a plan of its own there; a process that ends lets go of it."""
    if out is None or os.name == "nt":  # without fcntl
        yield
        return
    import fcntl

    out.mkdir(parents=True, exist_ok=True)
    folder = os.open(out, os.O_RDONLY)
    try:
        with suppress(OSError):  # a disk of another machine may know no locks
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
            fcntl.flock(folder, fcntl.LOCK_UN)  # closing is not enough where a process that was forked here lives on
        os.close(folder)


@dataclass
class _Training:
    """The runs of a question, trained until its time is over. `where` are further arguments of `execute`."""

    question: Question
    where: Mapping[str, Any]
    timing: Timing | None
    progress: Progressing
    on_stage: Callable[[str], None]
    on_run: Callable[[Run, int, int], None]
    runs: dict[str, Run] = field(default_factory=dict)
    note: str = ""  # the last

    def __post_init__(self) -> None:
        self.limit = math.inf if self.question.minutes is None else 60 * self.question.minutes
        self.deadline = time.monotonic() + self.limit

    def train(self, specs: list[RunSpec], words: str, race: Race | None = None, share: float = 1.0) -> Stopwatch:
        """Add the runs of these specs, which a race is missing."""
        from asymtrain.lab import executors

        watch = Stopwatch()
        self.runs |= _stored(self.where["store"], specs)
        specs = [spec for spec in specs if spec.id not in self.runs]
        left = min(self.deadline - watch.start, share * self.limit)
        if left <= 0 or not specs:
            return watch

        def update(state: "Progress") -> None:
            self.note = state.note or self.note
            watch.update(state.epochs_here)
            known = self.timing or watch.timing(len(specs))
            if state.seconds_left is not None and race is not None and known is not None:
                state = replace(state, seconds_left=state.seconds_left + seconds_after(race, known))
            self.progress(state)

        minutes = None if left == math.inf else left / 60
        trained = executors.execute(specs, minutes=minutes, progress=update, **self.where)  # refuses before a word
        self.on_stage(words)
        for done, run in enumerate(trained, 1):
            self.runs[run.spec.id] = run
            self.on_run(run, done, len(specs))
        return watch

    def make_plan(self) -> RacePlan | None:
        """What fits into the time, by what two epochs take; without a limit and in a short tune nothing is timed."""
        asked = {"candidates": len(self.question.candidates), "epochs": self.question.base.epochs}
        if self.question.short or self.question.minutes is None:
            self.timing = None
            return short_plan(**asked) if self.question.short else whole_plan(**asked, seeds=self.question.seeds)
        timed = self.question.timing_specs()
        words = f"Timing: {len(timed)} runs of {counted(timed[0].epochs, 'epoch')}"
        measured = self.train(timed, words, share=RULE.timing_share).timing(len(timed))
        # A second timing is of the rest alone, and would miss a part of the start.
        self.timing = self.timing or measured or _timing_of(self.runs.values())
        left = self.deadline - time.monotonic()
        return None if self.timing is None else make_plan(self.timing, left, **asked, seeds=self.question.seeds)


def read_tune(question: Question, store: Path, out: Path, *, data_root: Path | None = None) -> Tuned:
    """Where a question stands by its store and its plan; nothing is trained."""
    timing, plan = read_plan(out, question)
    runs = _stored(store, [] if question.minutes is None or question.short else question.timing_specs())
    largest = largest_classes(question, data_root)
    while True:
        race = replay(question, plan, runs, largest)
        found = _stored(store, race.missing)
        if not found:
            return describe(race, timing, runs, data_root)
        runs |= found


def check_data(question: Question, data_root: Path | None = None) -> None:
    """Refuse what has too few images to choose by, or to confirm on."""
    from asymtrain.lab.engine import load_for

    dataset = load_for(question.base, data_root)
    least = RULE.least_held_out
    if (held_out := _held_out(len(dataset.train))) < least:
        raise UsageError(
            f"of {len(dataset.train)} training images a fifth, {held_out}, would be held out to choose by, and {least} "
            f"or more are needed: give at least {5 * least} training images, or "
            f"{25 * least // 4} images in all where no test set comes with them"
        )
    if not question.short and len(dataset.test) < least:
        raise UsageError(
            f"the winner would be confirmed on {counted(len(dataset.test), 'test image')}, and {least} or more are "
            "needed: give more test images"
        )


def largest_classes(question: Question, data_root: Path | None = None) -> tuple[float, float]:
    """The share of the largest class among the training images, of which the race holds some out, and the tested."""
    from asymtrain.lab.engine import load_for

    dataset = load_for(question.base, data_root)
    return dataset.train.largest_class, dataset.test.largest_class


def without_equals(question: Question, data_root: Path | None = None) -> Question:
    """The question without candidates that a model of few layers makes equal; of equal ones the first stays.

    In a model with two layers the later one is the middle one.
    """
    from asymtrain.lab.engine import load_for
    from asymtrain.lab.engine.setup import build_network, chosen_layers

    if all(candidate.layers == "all" for candidate in question.candidates):
        return question
    check_data(question, data_root)
    count = len(build_network(question.base, load_for(question.base, data_root)).points)
    different: dict[tuple[Candidate, range], Candidate] = {}
    for candidate in question.candidates:
        different.setdefault((replace(candidate, layers="all"), chosen_layers(count, candidate.layers)), candidate)
    return replace(question, candidates=tuple(different.values()))


def read_plan(out: Path, question: Question) -> tuple[Timing | None, RacePlan | None]:
    """What a call with the same question timed and planned in this folder; another question is refused.

    As long as no race fits, other minutes and seeds are the same question, and so is a short tune; after that one
    the race still has a plan of its own. A race that was run serves more seeds of the confirmation, which an answer
    may ask for.
    """
    try:
        document = json.loads((out / JSON).read_bytes())
        asked, measured, planned = document["question"], document["measured"], document["plan"]
        timing = Timing(**measured) if measured else None
        plan = RacePlan.from_dict(planned) if planned and planned["rungs"] else None
        if asked["short"] and not question.short:
            plan = None
        free = ("minutes", "seeds", "short") if plan is None else ("minutes",) if asked["short"] else ()
        asked |= {name: getattr(question, name) for name in free}
        if plan is not None and not question.short and plan.seeds < question.seeds:
            seconds = None
            if timing is not None:
                confirmation = confirmation_seconds(plan.epochs, question.seeds, timing)
                seconds = race_seconds(plan.rungs, timing) + confirmation
            asked["seeds"], plan = question.seeds, replace(plan, seeds=question.seeds, seconds=seconds)
        ours = json.loads(json.dumps(question.to_dict()))
        here, there = ours["base"], asked["base"]
        # In the order of a spec: what was typed comes before what follows from it.
        differing = [name for name in RunSpec.__dataclass_fields__ if here.get(name) != there.get(name)]
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise UsageError(
            f"{out / JSON} cannot be read ({type(problem).__name__}): give another folder with --out"
        ) from problem
    if asked != ours:
        differing += [name for name in ours if ours[name] != asked.get(name)]
        words = next(iter(differing), "question").replace("_", " ")
        raise UsageError(f"{out} holds a tune that differs in {words}: give another folder with --out")
    return timing, plan


def write_json(out: Path, result: Tuned) -> None:
    from asymtrain.lab.report.page import json_text, write_files

    write_files(out, {JSON: json_text(result.to_dict())})


def describe(race: Race, timing: Timing | None, runs: Mapping[str, Run], data_root: Path | None) -> Tuned:
    """A race with what the answer needs beside it: layers, code and its check, what the model and the data are."""
    from asymtrain.lab.comparisons import chance_limit
    from asymtrain.lab.engine import load_for
    from asymtrain.lab.engine.setup import build_network, chosen_layers

    question = race.question
    dataset = load_for(question.base, data_root)
    layers: tuple[str, ...] = ()
    code, removal = "", None
    if race.winner is not None:
        spec = question.confirmation_spec(race.winner, question.base.epochs, 0)
        network = build_network(spec, dataset)
        layers = tuple(network.points[k] for k in chosen_layers(len(network.points), spec.layers))
        if race.ruling.verdict in ("helps", "likely helps"):
            of_backbone = isinstance(network.layout, str)  # other models' layouts are told by `attach`
            layout = network.layout if of_backbone else spec.layout
            attached = AttachCall(spec, layers, dataset.classes, pool=network.pool, layout=str(layout))
            code = attach_code(attached)
            code = code if race.ruling.is_settled else f"# Not confirmed: {race.ruling.reason}.\n{code}"
            try:
                removal = check_removal(attached, dataset)
            except Exception as problem:  # a failed check must not discard the answer
                message = f"what the branches leave behind could not be checked: {error_line(problem)}"
                warnings.warn(message, UsageWarning, stacklevel=2)
    held_out = _held_out(len(dataset.train))
    ordered = tuple(sorted(runs.values(), key=lambda run: run.spec.id))  # whenever they came
    images, about = (held_out, len(dataset.test)), describe_model(question.base.arch)
    chance = float(chance_limit(dataset.classes, largest_classes(question, data_root)[1]))
    return Tuned(race, timing, ordered, layers, code, *images, chance, removal, about)


def stage_words(race: Race) -> str:
    assert race.plan is not None
    if race.winner is not None:
        plan = race.plan
        return f"Confirmation: {race.winner.label} and Plain, {plan.seeds} fresh seeds, {counted(plan.epochs, 'epoch')}"
    rung, racing = race.rungs[-1].rung, len(race.rungs[-1].entries)
    size = f"{counted(racing, 'candidate')} and Plain, {counted(rung.seeds, 'seed')}, {counted(rung.epochs, 'epoch')}"
    return f"{race.stage.removeprefix('the ').capitalize()}: {size}"


def seconds_after(race: Race, timing: Timing) -> float:
    """What the plan has for all that follows the stage under way."""
    plan = race.plan
    if plan is None or race.winner is not None or race.question.short:
        return 0.0
    return race_seconds(plan.rungs[len(race.rungs) :], timing) + confirmation_seconds(plan.epochs, plan.seeds, timing)


def _held_out(images: int) -> int:
    return round(0.2 * images)  # as `data.subsets.split` does


def _timing_of(runs: Iterable[Run]) -> Timing | None:
    """Where all was trained before a kill and no clock saw it: as if one run trained at a time."""
    timed = [run for run in runs if run.history]
    epochs = sum(len(run.history) for run in timed)
    return Timing(sum(run.seconds for run in timed) / epochs, 0.0, len(timed)) if epochs else None


def _stored(store: Path | None, specs: Iterable[RunSpec]) -> dict[str, Run]:
    runs = [] if store is None else stored_runs(store, [spec.id for spec in specs])
    return {run.spec.id: run for run in runs}


def _failure(store: Path | None, missing: Iterable[RunSpec], note: str) -> str:
    """Why one of these runs failed; empty where none did."""
    if store is None:
        return note if "failed:" in note else ""
    return next(iter(failure_reasons(store, {spec.id for spec in missing})), "")
