"""`asymtrain tune`: which branches for this model, if any?"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from asymtrain.errors import UsageError
from asymtrain.lab.cli import FAILED, INTERRUPTED
from asymtrain.lab.cli.groups import flattened
from asymtrain.lab.cli.loading import loading
from asymtrain.lab.cli.options import (
    ARCH_OPTION,
    AT,
    BATCH,
    DATA,
    DATA_OPTION,
    INITIAL_WEIGHTS,
    LAYOUT,
    LEARNING_RATE,
    MODEL,
    OUT,
    PRECISION,
    SETTINGS,
    TRAINED,
    WEIGHT_DECAY,
    ExecutorOptions,
    OutputOptions,
    RunOptions,
    TrackOptions,
    above_zero,
    offered,
    one_or_more,
    parse_settings,
    typed_command,
)
from asymtrain.lab.cli.report import versions_in
from asymtrain.lab.cli.screen import AGAIN, Display, progress_display, show_page, stderr
from asymtrain.lab.cli.watch import WatchOptions
from asymtrain.lab.texts import counted

if TYPE_CHECKING:
    from asymtrain.lab.candidates import Candidate
    from asymtrain.lab.runs import Run, RunSpec
    from asymtrain.lab.tune import Tuned


@dataclass(frozen=True)
class TrainingAsked:
    """The training that the question is about."""

    heading = TRAINED

    model: Annotated[str, MODEL]
    data: Annotated[str, DATA] = "shapes"
    data_option: Annotated[list[str] | None, DATA_OPTION] = None
    arch_option: Annotated[list[str] | None, ARCH_OPTION] = None
    recipe: Annotated[
        str,
        Option(help="How you train: paper, ordinary or strong.", autocompletion=offered("paper", "ordinary", "strong")),
    ] = "ordinary"
    epochs: Annotated[int | None, Option(help="Epochs of your training. Default: 30.", callback=one_or_more)] = None
    batch: Annotated[int | None, BATCH] = None
    learning_rate: Annotated[float | None, LEARNING_RATE] = None
    weight_decay: Annotated[float | None, WEIGHT_DECAY] = None
    at: Annotated[list[str] | None, AT] = None
    layout: Annotated[str | None, LAYOUT] = None
    precision: Annotated[str | None, PRECISION] = None
    initial_weights: Annotated[str | None, INITIAL_WEIGHTS] = None

    def base_spec(
        self, settings: Sequence[str] | None, data_root: Path | None, **others: Any
    ) -> "tuple[RunSpec, list[str]]":
        """The Asymmetric spec, and lines that tell what was not given, such as `others`.

        All training images, where a scale would take a few.
        """
        from asymtrain.lab.candidates import Candidate
        from asymtrain.lab.recipes import complete
        from asymtrain.lab.tune import EPOCHS

        if "," in self.model or not self.model.strip():
            raise UsageError(f"{self.model!r}: tune takes one model, such as vit or package.module:function")
        shared = {name: value for name, value in vars(self).items() if name not in ("model", "epochs")}
        options = RunOptions(arch=[self.model], epochs=self.epochs or EPOCHS, **shared)
        fields = _checked(parse_settings(settings, TrainingAsked))
        (spec,) = options.base_specs(**fields)
        typed = [field.name for field in dataclasses.fields(self)[1:] if getattr(self, field.name) != field.default]
        given = {*Candidate().fields(), *fields, *("dataset" if name == "data" else name for name in typed)}
        others = {**({} if "recipe" in typed else {"recipe": self.recipe}), **others}
        spec = dataclasses.replace(spec, per_class=None)
        (spec,), opening = complete([spec], self.recipe, given, data_root, **others)
        return spec, opening


@dataclass(frozen=True)
class Effort(ExecutorOptions):
    """How much is tried, where, and for how long."""

    heading = "What is tried, where and how long"

    minutes: Annotated[
        float | None,
        Option(help="Time for all of it: what fits is planned after two epochs. Default: 30.", callback=above_zero),
    ] = None
    whole: Annotated[
        bool,
        Option("--whole", help="No limit of time: all epochs, and the same plan on every machine."),
    ] = False
    short: Annotated[
        bool,
        Option("--short", help="One short pair for each candidate, and no confirmation: at most, they likely help."),
    ] = False
    seeds: Annotated[int | None, Option(help="Fresh seeds of the confirmation: 5 (the default) or more.")] = None
    candidate: Annotated[
        list[str] | None,
        Option(
            metavar="FIELD=VALUE,...",
            help="Branches to try, such as objective=softmax,alpha=0.3; other fields are branch_bias, places and "
            "alpha_schedule. May be repeated. Default: a list of nine.",
        ),
    ] = None

    def where(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("device", "data_root", "executor", "address")}

    def limit(self) -> float | None:
        """Minutes; None where there is no limit."""
        from asymtrain.lab.tune import MINUTES

        if self.short and (self.whole or self.seeds is not None):
            other = "--whole" if self.whole else "--seeds"
            raise UsageError(f"--short trains one short pair for each candidate: leave out --short, or {other}")
        if self.whole and self.minutes is not None:
            raise UsageError("--whole has no limit of time: leave out --whole, or --minutes")
        return None if self.whole else self.minutes or MINUTES


@dataclass(frozen=True)
class TuneOutput(OutputOptions):
    """The folder and the store of a tune."""

    out: Annotated[Path, OUT] = Path("asymtrain-tune")


@flattened
def tune(
    context: typer.Context,
    asked: TrainingAsked,
    effort: Effort,
    output: TuneOutput,
    tracks: TrackOptions,
    watch: WatchOptions,
    settings: Annotated[list[str] | None, SETTINGS] = None,
) -> None:
    """Find the branches for a model, or say that none help: a race against Plain, confirmed on fresh seeds.

    No test image is used before the confirmation. Called again, it continues where it stopped.
    """
    find(context, asked, effort, output, settings, tracks, watch)


def find(
    context: typer.Context,
    asked: TrainingAsked,
    effort: Effort,
    output: TuneOutput,
    settings: Sequence[str] | None,
    tracks: TrackOptions,
    watch: WatchOptions,
) -> None:
    """What `tune` does, and `probe` in its short form."""
    with loading():
        from asymtrain.lab.executors import check_executor
        from asymtrain.lab.trackers import tracking
        from asymtrain.lab.tune import RULE, Question, read_tune, run_tune, without_equals
        from asymtrain.lab.tune.answer import write_tuned
    seeds = RULE.seeds if effort.seeds is None else effort.seeds
    minutes, candidates = effort.limit(), parse_candidates(effort.candidate)
    others = {"minutes": None if effort.minutes else minutes, "seeds": None if effort.seeds or effort.short else seeds}
    base, opening = asked.base_spec(settings, effort.data_root, **others)
    question = Question(base, candidates, minutes, seeds, effort.short)
    output.check()
    check_executor(effort.executor, effort.address)
    tracker = tracks.open(output.out)
    question = without_equals(question, effort.data_root)
    store, interrupted = output.store_path, False
    with (
        watch.opened(store),
        progress_display(opening) as display,
        tracking(tracker, display.update, display.console.print) as update,
    ):
        watching = {**callbacks_of(display), "progress": update}
        try:
            result = run_tune(question, store=store, out=output.out, **watching, **effort.where())
        except KeyboardInterrupt:
            result, interrupted = read_tune(question, store, output.out, data_root=effort.data_root), True
    versions = versions_in(store, result.runs)
    result = dataclasses.replace(result, command=typed_command(context), versions=versions)
    files = {**write_tuned(output.out, result), "store": store}
    show(result, files, json=output.json)
    if result.race.ruling.because == "not confirmed":
        stderr().print("Nothing is confirmed: give asymtrain tune the same options, without --short, for that.")
    if interrupted:
        stderr().print(f"Stopped, with {counted(len(result.runs), 'run')} in {store}. {AGAIN}")
    if interrupted or result.race.failure:
        raise typer.Exit(INTERRUPTED if interrupted else FAILED)


def parse_candidates(texts: Sequence[str] | None) -> "tuple[Candidate, ...]":
    """Candidates from `FIELD=VALUE,...`; the default list where none are given."""
    from asymtrain.lab.tune import as_candidates

    if not texts:
        return as_candidates(None)
    given = []
    for text in texts:
        fields: dict[str, Any] = {}
        for part in filter(None, map(str.strip, text.split(","))):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or not value or name in fields:
                raise UsageError(f"--candidate {text}: write fields once each, such as objective=softmax,alpha=0.3")
            fields[name] = _number(text, value) if name == "alpha" else value
        given.append(fields)
    return as_candidates(given)


def _number(text: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UsageError(f"--candidate {text}: alpha is a number, such as alpha=0.3") from None


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    """Refuse what candidates differ in."""
    from asymtrain.lab.candidates import Candidate

    for field in dataclasses.fields(Candidate):
        if field.name in settings:
            raise UsageError(f"--set {field.name}: candidates differ in it; write --candidate {field.name}=...")
    return settings


def callbacks_of(display: Display) -> dict[str, Any]:
    """Of `run_tune`, for a terminal: stages, a bar, elsewhere a line for each run."""
    return {"progress": display.update, "on_stage": display.stage, "on_run": display.telling(_line)}


def _line(run: "Run") -> str:
    from asymtrain.lab.candidates import Candidate

    label = "Plain" if run.spec.redundancy == 0 else Candidate.of(run.spec).label
    last = run.history[-1] if run.history and run.outcome == "finished" else None
    accuracy = "diverged"
    if last is not None and last.test_accuracy is not None:
        accuracy = f"test accuracy {last.test_accuracy:.3f}"
    elif last is not None:
        accuracy = f"validation accuracy {last.validation_accuracy:.3f}"
    return f"{label}, seed {run.spec.seed}: {accuracy}"


def show(result: "Tuned", files: dict[str, Path], *, json: bool) -> None:
    """Tables, the verdict, what the time allowed and the code; or everything as JSON."""
    from asymtrain.lab.tune.answer import budget_words, tune_tables

    sentences = (result.sentence, f"Time: {budget_words(result)}.")
    show_page(files, result.to_dict(), tune_tables(result), sentences, code=result.snippet, json=json)
