"""`asymtrain practice list | run | next | show`: the study of docs/practice-protocol.md, block by block."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asymtrain.errors import UsageError
from asymtrain.lab.cli import FAILED, INTERRUPTED
from asymtrain.lab.cli.groups import flattened
from asymtrain.lab.cli.loading import command_group, loading
from asymtrain.lab.cli.options import (
    ESTIMATED,
    ExecutorOptions,
    OutputOptions,
    TrackOptions,
    estimated_workers,
    typed_command,
)
from asymtrain.lab.cli.run import show_failures
from asymtrain.lab.cli.screen import progress_display, show_blocks, show_page, stderr, stdout
from asymtrain.lab.texts import counted

# The rest is imported where it is used: this file is read for --help too.
if TYPE_CHECKING:
    from asymtrain.lab.runs import Run
    from asymtrain.lab.studies.practice.protocol import Block, Study, Task
    from asymtrain.lab.studies.practice.running import Left

PRACTICE_OUT = Path("asymtrain-practice")
QUICK = typer.Option("--quick", help="Tiny runs on shapes, to try the commands: no part of the study.")
practice = command_group("practice")


def offered_blocks(incomplete: str) -> list[str]:
    """For a shell's completion."""
    from asymtrain.lab.studies.practice.protocol import BLOCKS

    return [name for name in BLOCKS if name.startswith(incomplete)]


@dataclass(frozen=True)
class PracticeOutput(OutputOptions):
    """The folder and the store of the study."""

    out: Annotated[Path, typer.Option(help="Folder of the page and the store.")] = PRACTICE_OUT
    quick: Annotated[bool, QUICK] = False

    @property
    def study(self) -> "Study":
        from asymtrain.lab.studies.practice import protocol

        return protocol.QUICK if self.quick else protocol.FULL


@practice.command("list")
@flattened
def list_(
    output: PracticeOutput,
    device: Annotated[str | None, ESTIMATED] = None,
) -> None:
    """List the blocks in the order of the protocol: what each holds, what is stored, the time taken and left."""
    with loading():
        from asymtrain.lab.studies.practice.running import listing, read_runs
    workers = estimated_workers(device)
    rows = listing(output.study, read_runs(output.looked_into()), *workers)
    show_blocks(rows, json=output.json, for_gpu=workers[0] == "cpu" and not output.quick)


@practice.command()
@flattened
def run(
    context: typer.Context,
    blocks: Annotated[
        list[str],
        typer.Argument(metavar="BLOCK...", help="Blocks of `asymtrain practice list`.", autocompletion=offered_blocks),
    ],
    training: ExecutorOptions,
    output: PracticeOutput,
    tracks: TrackOptions,
) -> None:
    """Train what blocks still need: the selection in two waves, then the final runs of what it selected.

    Called again, it goes on where it stopped.
    """
    from asymtrain.lab.studies.practice.protocol import get_block

    _train(context, get_block(*blocks), training, output, tracks)


@practice.command("next")
@flattened
def next_(context: typer.Context, training: ExecutorOptions, output: PracticeOutput, tracks: TrackOptions) -> None:
    """Do the first block that is not finished."""
    with loading():
        from asymtrain.lab.studies.practice.running import first_unfinished, read_runs
    block = first_unfinished(output.study, read_runs(output.looked_into()))
    if block is None:
        stdout().print("Every block is finished: `asymtrain practice show` has the results.")
        return
    _train(context, block, training, output, tracks)


@practice.command()
@flattened
def show(
    context: typer.Context,
    output: PracticeOutput,
    step_costs: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of `benchmarks/overhead.py --only practice --json FILE`: shows what a step costs, and the time "
            "to Plain's accuracy. May be given several times.",
        ),
    ] = None,
) -> None:
    """Show what the stored runs say, and write it as a page; nothing is trained."""
    from asymtrain.lab.store import store_exists

    output.check()
    if not store_exists(output.store_path):
        raise UsageError(
            f"there is no store at {output.store_path}: name yours with --store, or make one with "
            "`asymtrain store import STORE results/practice-*`"
        )
    _show(context, output, step_costs or ())


def _train(
    context: typer.Context, block: "Block", training: ExecutorOptions, output: PracticeOutput, tracks: TrackOptions
) -> None:
    with loading():
        import asymtrain.lab.executors  # noqa: F401  # torch with it: here, where a Ctrl-C is no traceback
        from asymtrain.lab.report import duration
        from asymtrain.lab.studies.practice.running import check_block, left_of, read_runs, run_block
        from asymtrain.lab.trackers import tracking
    study, store, console = output.study, output.store_path, stderr()
    output.check()
    check_block(study, block, read_runs(store), training.data_root)
    tracker = tracks.open(output.out)
    workers = training.workers
    console.print(f"Block {block.name}: {block.title}.")
    with progress_display() as display, tracking(tracker, display.update, display.console.print) as update:

        def on_wave(tasks: "Sequence[Task]", left: "Left") -> None:
            seconds = left.seconds(read_runs(store), *workers)
            time = "" if seconds is None else f", about {duration(seconds)} left"
            names = ", ".join(task.title for task in tasks)
            display.console.print(f"{len(left.stored)} of {left.needed} runs are stored{time}; next: {names}.")

        options = {**dataclasses.asdict(training), "progress": update}
        interrupted = run_block(study, block, store, on_wave=on_wave, on_run=display.finished, **options)
    if display.productive or not interrupted:  # after a Ctrl-C at the start there is nothing new to show
        _show(context, output)
    left = left_of(study, block.tasks, read_runs(store))
    failed = show_failures(store, {spec.id for spec in left.specs})
    if not left.is_done:
        opening = "Stopped" if interrupted else "Not finished"
        rest = counted(len(left.specs) + len(left.later), "run")
        console.print(f"{opening}: {rest} of {block.name} are left. {display.going_on(training.minutes)}")
    if interrupted or failed:
        raise typer.Exit(INTERRUPTED if interrupted else FAILED)


def _show(context: typer.Context, output: PracticeOutput, step_costs: Sequence[Path] = ()) -> None:
    with loading():
        from asymtrain.lab.studies.practice.analysis import analyse, read_step_costs
        from asymtrain.lab.studies.practice.page import document, sentences, tables, write_practice
        from asymtrain.lab.studies.practice.running import read_runs
    costs = read_step_costs(step_costs)
    known = read_runs(output.store_path)
    results = analyse(output.study, known, costs)
    files = write_practice(output.out, results, _facts(context, output.store_path, list(known.values())))
    shown = [table for table in tables(results) if not table.detail]
    show_page(files, document(results), shown, sentences(results), json=output.json)


def _facts(context: typer.Context, store: Path, runs: "list[Run]") -> dict[str, str]:
    from asymtrain.lab.api.common import versions_in
    from asymtrain.lab.report.run_report import run_facts

    return {"Command": typed_command(context), **run_facts(runs, versions_in(store, runs))}
