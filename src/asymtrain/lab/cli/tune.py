"""`asymtrain tune`: do branches help this model?"""

import dataclasses
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from asymtrain.errors import UsageError
from asymtrain.lab.api.common import of_full_size, versions_in
from asymtrain.lab.api.tune import make_question, run_question
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
    parse_options,
    parse_settings,
    typed_command,
)
from asymtrain.lab.cli.screen import end, show_page
from asymtrain.lab.cli.watch import WatchOptions
from asymtrain.lab.terminal import AGAIN, progress_display, stderr, stdout
from asymtrain.lab.texts import counted

if TYPE_CHECKING:
    from asymtrain.lab.runs import RunSpec


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
        Option(
            help="How you train: paper, ordinary, strong, vit_lite or small_vit.",
            autocompletion=offered("paper", "ordinary", "strong", "vit_lite", "small_vit"),
        ),
    ] = "ordinary"
    epochs: Annotated[int | None, Option(help="Epochs of your training. Default: 30.", callback=one_or_more)] = None

    def base_spec(
        self, settings: Sequence[str] | None, data_root: Path | None, **others: Any
    ) -> "tuple[RunSpec, list[str]]":
        """The Asymmetric spec, and lines that tell what was not given, such as `others`."""
        from asymtrain.lab.candidates import Candidate
        from asymtrain.lab.tune import EPOCHS

        if "," in self.model or not self.model.strip():
            raise UsageError(f"{self.model!r}: tune takes one model, such as vit or package.module:function")
        fields = parse_settings(settings, ModelOptions)
        for name in Candidate().fields():
            if name in fields:
                raise UsageError(f"--set {name}: candidates differ in it; write --candidate {name}=...")
        (spec,) = self.base_specs([self.model], epochs=self.epochs or EPOCHS, **fields)
        spec = of_full_size(spec, parse_options("--arch-option", self.arch_option))
        # Not the defaults of branches, and not the precision, of which `make_question` has a line.
        named_fields = {*Candidate().fields(), "redundancy", "precision", *fields}
        (spec,), opening = self.complete([spec], named_fields, data_root, scale=None, **others)
        return spec, opening


@dataclass(frozen=True)
class Effort(ExecutorOptions):
    """How much is tried, where, and for how long."""

    heading = "What is tried, where and how long"

    minutes: Annotated[
        float | None,
        Option(
            help="Time for all of it, planned after two epochs; very few give one short pair. Default: 30.",
            callback=above_zero,
        ),
    ] = None
    whole: Annotated[
        bool,
        Option("--whole", help="No limit of time: all epochs, and the same plan on every machine."),
    ] = False
    candidate: Annotated[
        list[str] | None,
        Option(
            metavar="FIELD=VALUE,...",
            help="Branches to try, such as objective=softmax,alpha=0.3; other fields are bias, layers and "
            "alpha_schedule. May be repeated: the first is asked about first. Default: the recommended, and a list.",
        ),
    ] = None

    def limit(self) -> float | None:
        """Minutes; None for no limit."""
        from asymtrain.lab.tune import MINUTES

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
    """Say whether branches help a model, in the minutes given: pairs with and without, then a race of others.

    Called again, it continues where it stopped.
    """
    begun = time.monotonic()
    with loading():
        from asymtrain.lab.executors import check_executor
        from asymtrain.lab.tune import write_tuned
        from asymtrain.lab.tune.answer import tune_tables
    minutes, candidates = effort.limit(), parse_candidates(effort.candidate)
    store = output.store_path
    with redirect_stdout(sys.stderr):  # a function that builds a model may print, and stdout is for the answer
        base, opening = chosen.base_spec(settings, effort.data_root, minutes=None if effort.minutes else minutes)
        output.check()
        check_executor(effort.executor, effort.address)
        tracker = tracks.open(output.out)
        named_fields = {*chosen.given_names(), *parse_settings(settings, ModelOptions)}
        question, lines = make_question(base, candidates, minutes, named_fields, effort.data_root, effort.device)
        with watch.opened(store), progress_display([*opening, *lines]) as display:
            where = {name: getattr(effort, name) for name in ("device", "data_root", "executor", "address")}
            where |= {"store": store, "out": output.out}
            result = run_question(question, display, tracker=tracker, begun=begun, **where)
    is_shown = result.interrupted and not output.json
    if is_shown:  # before the page, which takes a second or two
        stdout().print(str(result))
    result = dataclasses.replace(result, command=typed_command(context), versions=versions_in(store, result.runs))
    files = {**write_tuned(output.out, result), "store": store}
    tables, sentences = tune_tables(result), () if is_shown else (result.sentence, *result.more)
    show_page(files, result.to_dict(), tables, sentences, code=result.snippet, json=output.json)
    if result.interrupted:
        stderr().print(f"Stopped, with {counted(len(result.runs), 'run')} in {store}. {AGAIN}")
    end(result.interrupted, result.race.failure)


def parse_candidates(texts: Sequence[str] | None) -> list[dict[str, Any]] | None:
    """Fields of candidates from `FIELD=VALUE,...`; None if none are given."""
    if not texts:
        return None
    candidates = []
    for text in texts:
        fields: dict[str, Any] = {}
        for part in filter(None, map(str.strip, text.split(","))):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or not value or name in fields:
                raise UsageError(f"--candidate {text}: write fields once each, such as objective=softmax,alpha=0.3")
            refusal = f"--candidate {text}: alpha is a number, such as alpha=0.3"
            fields[name] = parse_number(refusal, value) if name == "alpha" else value
        candidates.append(fields)
    return candidates
