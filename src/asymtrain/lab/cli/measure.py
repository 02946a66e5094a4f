"""`asymtrain measure NAME`: one command for every instrument, on stored runs or on fresh ones."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from asymtrain.errors import UsageError, unknown_name
from asymtrain.lab import instruments
from asymtrain.lab.api.common import train_runs
from asymtrain.lab.cli import INTERRUPTED
from asymtrain.lab.cli.groups import flattened
from asymtrain.lab.cli.loading import CommandGroup, command_group, loading, single_command
from asymtrain.lab.cli.options import (
    DEFAULT_OUT,
    RUN_IDS,
    STATES,
    STORE_NAME,
    TRACK,
    DeviceOptions,
    OutputOptions,
    RunOptions,
    TrackOptions,
    offered_archs,
    typed_command,
)
from asymtrain.lab.cli.report import finished_runs
from asymtrain.lab.cli.run import show_failures
from asymtrain.lab.cli.screen import end, show_page, show_rest
from asymtrain.lab.instruments.instrument import Bench, Instrument, Interrupt, Say
from asymtrain.lab.report.figure import Page
from asymtrain.lab.terminal import AGAIN, plain_text, progress_display, stderr
from asymtrain.lab.texts import comma_words

# Other imports are inside functions: --help reads this file too.
if TYPE_CHECKING:
    from asymtrain.lab.runs import Run, RunSpec

MOST_IDS = 10  # ids that an error lists
SHARED = {
    **get_type_hints(RunOptions, include_extras=True),
    "arch": Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="mlp, cnn, vit; several with commas.", autocompletion=offered_archs),
    ],
    "run": Annotated[list[str] | None, RUN_IDS],
    "states": Annotated[Path | None, STATES],
    "track": Annotated[str | None, TRACK],  # for instruments that train by `Bench.runs`
}
"""The options that an instrument can have by naming them in `run_options`."""


@dataclass(frozen=True)
class MeasureOutput(OutputOptions):
    """Where the page goes, and the store of the runs."""

    out: Annotated[Path, typer.Option(help="Folder of the page, the numbers and the figures.")] = Path(
        "asymtrain-measure"
    )
    store: Annotated[
        Path | None,
        typer.Option(
            help=f"Record of runs. Default: {STORE_NAME} in the folder; with --run, {DEFAULT_OUT / STORE_NAME}.",
        ),
    ] = None


class InstrumentGroup(CommandGroup):
    """A command for each of `INSTRUMENTS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(load_instruments())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        instrument = load_instruments().get(cmd_name)
        return None if instrument is None else single_command(cmd_name, command_of(instrument))


measure = command_group("measure", InstrumentGroup)


def load_instruments() -> dict[str, Instrument[Any, Any]]:
    loaded = [import_module(module).INSTRUMENT for module in instruments.INSTRUMENTS]
    return {instrument.name: instrument for instrument in loaded}


def command_of(instrument: Instrument[Any, Any]) -> Callable[..., None]:
    """The command of an instrument, with its own options and the shared ones that it names."""

    def command(context: typer.Context, shared: Any, options: Any, where: DeviceOptions, output: MeasureOutput) -> None:
        with loading():
            import asymtrain.lab.engine  # noqa: F401  # instruments use it, and know nothing of `loading`
            from asymtrain.lab.report.page import write_page
        stopped, bench = False, CommandBench(vars(shared), where, output)
        try:
            result = instrument.measure(options, bench)
        except Interrupt as stop:
            stderr().print(str(stop))
            if stop.result is None:
                raise typer.Exit(INTERRUPTED) from None
            result, stopped = stop.result, True
        page = instrument.page(options, result)
        files = write_page(output.out, instrument.name, facts=facts_of(context, page), **page.content)
        show_page(files, page.document, page.tables, notes=True, json=output.json)
        end(stopped, bench.failed)

    fields = [(name, SHARED[name], dataclasses.field(default=None)) for name in instrument.run_options]
    command.__annotations__ |= {"shared": dataclasses.make_dataclass("Shared", fields), "options": instrument.options}
    command.__doc__ = instrument.__doc__
    return flattened(command)


def facts_of(context: typer.Context, page: Page) -> dict[str, str]:
    """How a page was made: command, what was measured, what the instrument adds, versions."""
    from asymtrain.lab.report.run_report import current_versions, versions_text

    archs, datasets = (", ".join({getattr(spec, name): None for spec in page.specs}) for name in ("arch", "dataset"))
    seeds = ", ".join(map(str, sorted({spec.seed for spec in page.specs})))
    return {
        "Command": typed_command(context),
        "Runs": f"{len(page.specs)}: {archs} on {datasets}, seeds {seeds}",
        **page.facts,
        "Versions": versions_text(current_versions()),
    }


class CommandBench(Bench):
    """See `Bench`: runs from the options of a command, progress on stderr."""

    def __init__(self, options: Mapping[str, Any], where: DeviceOptions, output: MeasureOutput) -> None:
        names = {field.name for field in dataclasses.fields(RunOptions)}
        self.chosen = RunOptions(**{name: value for name, value in options.items() if name in names})
        self.run_ids: Sequence[str] = options.get("run") or ()
        self.output, self.device, self.data_root = output, where.device, where.data_root
        self.stored = bool(self.run_ids)
        self.quick = not self.stored and self.chosen.scale in (None, "quick")
        self.store = output.store or (DEFAULT_OUT / STORE_NAME if self.stored else output.store_path)
        self.failed = False  # did the training of a run fail?
        self.states_folder: Path = options.get("states") or output.out / "states"
        if self.stored and options.get("track"):
            raise UsageError("--run reads stored runs and trains nothing: leave out --track")
        self.tracker = TrackOptions(options.get("track")).open(output.out)

    def choose(
        self, archs: Sequence[str] = (), default_seeds: Sequence[int] = (), *, with_plain: bool = False, **fields: Any
    ) -> "list[RunSpec]":
        from asymtrain.lab.report.page import check_folder

        check_folder(self.output.out)
        if self.stored:
            functions = self.chosen.refuse_beside("--run")
            specs = stored_specs(self.store, self.run_ids)
            if others := functions - {name for spec in specs for name in (spec.dataset, spec.arch)}:
                raise UsageError(f"no run that --run names is of {others.pop()}: leave it out")
            return specs
        seeds = self.chosen.parse_seeds(default_seeds)
        bases = self.chosen.base_specs(archs, **fields)
        self.output.check()
        specs = [dataclasses.replace(base, seed=seed) for base in bases for seed in seeds]
        pairs = [(spec.plain(), spec) if with_plain else (spec,) for spec in specs]
        return list(dict.fromkeys(member for pair in pairs for member in pair))

    def runs(self, specs: "Sequence[RunSpec]") -> "list[Run]":
        """Stored runs are read and never trained. Runs that could not be trained are named on stderr and left out.

        Ctrl-C ends the command; finished runs stay stored.
        """
        from asymtrain.lab.executors import check_data
        from asymtrain.lab.store import stored_runs

        unique_specs = dict.fromkeys(specs)
        if self.stored:
            runs = stored_runs(self.store, [spec.id for spec in unique_specs])
        else:
            check_data(specs, self.data_root)
            where: dict[str, Any] = {"device": self.device, "data_root": self.data_root, "tracker": self.tracker}
            with progress_display() as display:
                trained = train_runs(list(specs), display, store=self.store, **where)
            runs = trained.runs
            if len(runs) < len(unique_specs):
                self.failed = show_failures(self.store, {spec.id for spec in unique_specs})
                show_rest(f"{len(runs)} of {len(unique_specs)} runs are in {self.store}", trained.interrupt, AGAIN)
            if trained.interrupt:
                raise typer.Exit(INTERRUPTED)
        by_id = {run.spec.id: run for run in runs}
        return [by_id[spec.id] for spec in unique_specs if spec.id in by_id]

    @contextmanager
    def telling(self, start: str) -> Iterator[Say]:
        """Print progress: a changing line on a terminal, elsewhere one line after the other.

        A repeated text is printed once.
        """
        console, latest = stderr(), ""
        with console.status(plain_text(start)) as status:

            def say(text: str, *, brief: bool = False) -> None:
                nonlocal latest
                if console.is_terminal:
                    status.update(plain_text(text))
                elif not brief and text != latest:
                    latest = text
                    console.print(text)

            yield say

    def remark(self, text: str) -> None:
        stderr().print(text)


def stored_specs(store: Path, texts: Iterable[str]) -> "list[RunSpec]":
    """Specs of finished runs by their ids or the beginnings of them; `all` for every one."""
    specs_by_id = {run.spec.id: run.spec for run in finished_runs(store)}
    names = [name for text in texts for name in comma_words(text)]
    if not names:
        raise UsageError(f"--run needs the id of a run: `asymtrain report --store {store}` writes them into rows.csv")
    specs: dict[str, RunSpec] = {}
    for name in names:
        matching = [spec_id for spec_id in specs_by_id if name == "all" or spec_id.startswith(name.lower())]
        if not matching:
            if len(specs_by_id) <= MOST_IDS or get_close_matches(name, specs_by_id, cutoff=0.5):
                raise unknown_name(f"run in {store}", name, specs_by_id)  # few of them, or it was mistyped
            listed = ", ".join(sorted(specs_by_id)[:MOST_IDS])
            raise UsageError(
                f"unknown run in {store} {name!r}: write one of {listed} and {len(specs_by_id) - MOST_IDS} more"
            )
        if len(matching) > 1 and name != "all":
            raise UsageError(f"--run {name} is the beginning of {len(matching)} ids: write more of it")
        specs |= {spec_id: specs_by_id[spec_id] for spec_id in matching}
    return list(specs.values())
