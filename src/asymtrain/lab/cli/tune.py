"""`asymtrain tune`: which branches for this model, if any?"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from asymtrain.errors import UsageError
from asymtrain.lab.api.common import versions_in
from asymtrain.lab.api.tune import run_question
from asymtrain.lab.cli import FAILED, INTERRUPTED
from asymtrain.lab.cli.groups import flattened
from asymtrain.lab.cli.loading import loading
from asymtrain.lab.cli.options import (
    DATA,
    OUT,
    SETTINGS,
    ExecutorOptions,
    OutputOptions,
    RunOptions,
    TrackOptions,
    above_zero,
    offered,
    offered_archs,
    one_or_more,
    parse_number,
    parse_settings,
    typed_command,
)
from asymtrain.lab.cli.screen import show_page
from asymtrain.lab.cli.watch import WatchOptions
from asymtrain.lab.terminal import AGAIN, progress_display, stderr
from asymtrain.lab.texts import counted

if TYPE_CHECKING:
    from asymtrain.lab.candidates import Candidate
    from asymtrain.lab.runs import RunSpec
    from asymtrain.lab.tune import Tuned


@dataclass(frozen=True, kw_only=True)
class ModelOptions(RunOptions):
    """The training that the question is about."""

    without = ("arch", "scale", "seeds", "redundancy", "alpha")

    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="mlp, cnn, vit; timm:NAME; hf:CONFIG; or package.module:function.",
            autocompletion=offered_archs,
        ),
    ]
    data: Annotated[str | None, DATA] = "shapes"
    recipe: Annotated[
        str | None,
        Option(help="How you train: paper, ordinary or strong.", autocompletion=offered("paper", "ordinary", "strong")),
    ] = "ordinary"
    epochs: Annotated[int | None, Option(help="Epochs of your training. Default: 30.", callback=one_or_more)] = None

    def base_spec(
        self, settings: Sequence[str] | None, data_root: Path | None, **others: Any
    ) -> "tuple[RunSpec, list[str]]":
        """The Asymmetric spec, and lines that tell what was not given, such as `others`.

        All training images, where a scale would take a few.
        """
        from asymtrain.lab.candidates import Candidate
        from asymtrain.lab.tune import EPOCHS

        if "," in self.model or not self.model.strip():
            raise UsageError(f"{self.model!r}: tune takes one model, such as vit or package.module:function")
        fields = _checked(parse_settings(settings, ModelOptions))
        (spec,) = self.base_specs([self.model], epochs=self.epochs or EPOCHS, **fields)
        spec = dataclasses.replace(spec, per_class=None)
        given = {*Candidate().fields(), *fields}
        (spec,), opening = self.complete([spec], given, data_root, scale=None, **others)
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
            help="Branches to try, such as objective=softmax,alpha=0.3; other fields are bias, layers and "
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
    chosen: ModelOptions,
    effort: Effort,
    output: TuneOutput,
    tracks: TrackOptions,
    watch: WatchOptions,
    settings: Annotated[list[str] | None, SETTINGS] = None,
) -> None:
    """Find the branches for a model, or say that none help: a race against Plain, confirmed on fresh seeds.

    No test image is used before the confirmation. Called again, it continues where it stopped.
    """
    with loading():
        from asymtrain.lab.executors import check_executor
        from asymtrain.lab.tune import RULE, Question, read_tune, without_equals
        from asymtrain.lab.tune.answer import write_tuned
    seeds = RULE.seeds if effort.seeds is None else effort.seeds
    minutes, candidates = effort.limit(), parse_candidates(effort.candidate)
    others = {"minutes": None if effort.minutes else minutes, "seeds": None if effort.seeds or effort.short else seeds}
    base, opening = chosen.base_spec(settings, effort.data_root, **others)
    question = Question(base, candidates, minutes, seeds, effort.short)
    output.check()
    check_executor(effort.executor, effort.address)
    tracker = tracks.open(output.out)
    question = without_equals(question, effort.data_root)
    store, interrupted = output.store_path, False
    with watch.opened(store), progress_display(opening) as display:
        try:
            where = effort.where()
            result = run_question(question, display, tracker=tracker, store=store, out=output.out, **where)
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
            refusal = f"--candidate {text}: alpha is a number, such as alpha=0.3"
            fields[name] = parse_number(refusal, value) if name == "alpha" else value
        given.append(fields)
    return as_candidates(given)


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    """Refuse what candidates differ in."""
    from asymtrain.lab.candidates import Candidate

    for field in dataclasses.fields(Candidate):
        if field.name in settings:
            raise UsageError(f"--set {field.name}: candidates differ in it; write --candidate {field.name}=...")
    return settings


def show(result: "Tuned", files: dict[str, Path], *, json: bool) -> None:
    """Tables, the verdict, what the time allowed and the code; or everything as JSON."""
    from asymtrain.lab.tune.answer import budget_words, tune_tables

    sentences = (result.sentence, f"Time: {budget_words(result)}.")
    show_page(files, result.to_dict(), tune_tables(result), sentences, code=result.snippet, json=json)
