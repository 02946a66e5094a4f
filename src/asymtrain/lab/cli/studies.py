"""`asymtrain STUDY list | run | next | show`: the commands of every study in `lab.studies.STUDIES`.

A study with commands of its own (`StudyOfBlocks`) makes them of the same parts:
`list_blocks`, `do_next`, `train`.
"""

import dataclasses
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asymtrain.errors import UsageError
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
from asymtrain.lab.cli.screen import end, show_blocks, show_page, show_rest
from asymtrain.lab.terminal import progress_display, stderr, stdout
from asymtrain.lab.texts import counted

# Other imports are inside functions: --help reads this file too.
if TYPE_CHECKING:
    from asymtrain.lab.studies.frame import Done, Left
    from asymtrain.lab.studies.snapshot import Snapshot
    from asymtrain.lab.studies.study import Block, Study, StudyOfBlocks

QUICK = typer.Option("--quick", help="Tiny runs on shapes, to try the commands: no part of the study.")


@dataclass(frozen=True)
class View:
    """How a command shows what a store holds: its results, with a line to end with; and lines before the training."""

    show: "Callable[[Snapshot], str]"
    opening: "Callable[[Snapshot], Sequence[str]]" = lambda snapshot: ()


def offered_blocks(study: "StudyOfBlocks") -> Callable[[str], list[str]]:
    """For a shell's completion."""
    return lambda incomplete: [name for name in study.blocks if name.startswith(incomplete)]


def list_blocks(
    study: "StudyOfBlocks", scope: Any, output: OutputOptions, device: str | None, *, for_gpu: bool
) -> None:
    """`for_gpu`: are they meant for a GPU?"""
    with loading():
        from asymtrain.lab.studies.frame import listing
    workers = estimated_workers(device)
    rows = listing(study, scope, output.read(study.chooses_by), workers)
    show_blocks(rows, json=output.json, for_gpu=for_gpu and workers[0] == "cpu")


def do_next(
    context: typer.Context,
    study: "StudyOfBlocks",
    scope: Any,
    block: "Block | None",
    training: ExecutorOptions,
    output: OutputOptions,
    tracks: TrackOptions,
    view: "Callable[[Block, Any], View]",
    options: Sequence[str],
) -> None:
    """Do a block, or the first that is not finished; `view` makes the `View` of a block in its scope.

    `options` are the options of `show` that select this scope.
    """
    with loading():
        from asymtrain.lab.studies.frame import first_unfinished
    snapshot = output.read()
    wanted = block or first_unfinished(study, scope, snapshot)
    if wanted is None:
        again = shlex.join(["asymtrain", study.name, "show", *options, *output.given_words])
        stdout().print(f"Every block is finished: `{again}` prints the results.")
        return
    own = wanted.scope(scope)
    done = train(context, study, wanted, own, training, output, tracks, view(wanted, own), snapshot=snapshot)
    if done.left.is_empty and wanted.name in study.blocks:
        after = first_unfinished(study, scope, done.snapshot)
        stderr().print(
            f"Block {wanted.name} is finished. {f'The next is {after.name}.' if after else 'It was the last.'}"
        )


def train(
    context: typer.Context,
    study: "StudyOfBlocks",
    block: "Block",
    scope: Any,
    training: ExecutorOptions,
    output: OutputOptions,
    tracks: TrackOptions,
    view: View,
    *,
    snapshot: "Snapshot | None" = None,
) -> "Done":
    """Train and measure what is missing, then show. `snapshot` is what the store holds, if it was just read."""
    with loading():
        import asymtrain.lab.executors  # noqa: F401  # torch with it: here, where a Ctrl-C is no traceback
        from asymtrain.lab.studies.frame import check_ready, missing, plan_sentence, run_parts
        from asymtrain.lab.studies.snapshot import read_store
        from asymtrain.lab.trackers import tracking
    store, console, workers = output.store_path, stderr(), training.workers
    output.check()
    tracker = tracks.open(output.out)
    snapshot = read_store(store) if snapshot is None else snapshot
    left = missing(study, block.parts, scope, snapshot)
    check_ready(study, block.name, block.parts, left, training.data_root)
    title = [f"Block {block.name}: {block.title}."] if block.title else []
    for line in (*title, *view.opening(snapshot), plan_sentence(study, scope, left, snapshot, workers)):
        console.print(line)
    with progress_display() as display, tracking(tracker, display.update, display.console.print) as update:

        def on_round(left: "Left", snapshot: "Snapshot") -> None:
            display.console.print(plan_sentence(study, scope, left, snapshot, workers))

        def on_measurement(measured: Any, done: int, total: int) -> None:
            display.productive = True
            display.console.print(f"{done}/{total} {measured.title}")

        calls = {"on_round": on_round, "on_run": display.finished, "on_measurement": on_measurement}
        options = {**dataclasses.asdict(training), "progress": update, **calls}
        done = run_parts(study, block.parts, scope, store, snapshot=snapshot, **options)
    closing = ""
    if display.productive or not done.interrupted:  # after a Ctrl-C at the start there is nothing new to show
        closing = view.show(done.snapshot)
    left = done.left
    failed = show_failures(store, {spec.id for spec in left.specs})
    if not left.is_empty:
        rest = [counted(left.runs, "run")]
        rest += [counted(len(left.measurements), "measurement")] if study.measures else []
        show_rest(f"{' and '.join(rest)} are left", done.interrupted, display.going_on(training.minutes))
    if closing:
        console.print(closing)
    end(done.interrupted, failed)
    return done


def study_group(study: "Study") -> typer.Typer:
    """The usual commands of a study."""
    name = study.name
    group = command_group(name, line=study.__doc__ or "")
    # The option for files that the study's page reads; none if it reads no files.
    file_options = [
        (option, Annotated[list[Path] | None, typer.Option(help=help_)], dataclasses.field(default=None))
        for option, help_ in filter(None, [study.file_option])
    ]
    study_files: Any = dataclasses.make_dataclass("StudyFiles", file_options, frozen=True)

    @dataclass(frozen=True)
    class StudyOutput(OutputOptions):
        """The folder and the store of the study."""

        out: Annotated[Path, typer.Option(help="Folder of the page and the store.")] = Path(f"asymtrain-{name}")
        quick: Annotated[bool, QUICK] = False

        @property
        def scope(self) -> Any:
            return study.scope(quick=self.quick)

    def view(context: typer.Context, output: StudyOutput) -> View:
        return View(lambda snapshot: show_study(context, study, output.scope, snapshot, output))

    @group.command("list")
    @flattened
    def list_(output: StudyOutput, device: Annotated[str | None, ESTIMATED] = None) -> None:
        """List the blocks in the order of the protocol: what each holds, what is stored, the time taken and left."""
        list_blocks(study, output.scope, output, device, for_gpu=not output.quick)

    @group.command()
    @flattened
    def run(
        context: typer.Context,
        blocks: Annotated[
            list[str],
            typer.Argument(
                metavar="BLOCK...", help=f"Blocks of `asymtrain {name} list`.", autocompletion=offered_blocks(study)
            ),
        ],
        training: ExecutorOptions,
        output: StudyOutput,
        tracks: TrackOptions,
    ) -> None:
        """Train what blocks still need; what depends on a selection is trained when that is made.

        Called again, it goes on where it stopped.
        """
        from asymtrain.lab.studies.frame import get_block

        train(context, study, get_block(study, *blocks), output.scope, training, output, tracks, view(context, output))

    @group.command("next")
    @flattened
    def next_(context: typer.Context, training: ExecutorOptions, output: StudyOutput, tracks: TrackOptions) -> None:
        """Do the first block that is not finished."""
        own, options = view(context, output), ["--quick"] if output.quick else []
        do_next(context, study, output.scope, None, training, output, tracks, lambda block, scope: own, options)

    @group.command("show")
    @flattened
    def show_(context: typer.Context, output: StudyOutput, files: study_files) -> None:
        """Show what the stored runs say, and write it as a page; nothing is trained."""
        from asymtrain.lab.store import store_exists
        from asymtrain.lab.studies.snapshot import read_store

        output.check()
        if not store_exists(output.store_path):
            ways = f"make one with `asymtrain {name} next`"
            if study.in_results:
                typed = shlex.quote(str(output.store_path))
                ways = f"make one with `asymtrain store import {typed} results/{study.in_results}`"
            raise UsageError(f"there is no store at {output.store_path}: name yours with --store, or {ways}")
        named = [path for paths in vars(files).values() for path in paths or ()]
        show_study(context, study, output.scope, read_store(output.store_path), output, named)

    return group


def show_study(
    context: typer.Context,
    study: "Study",
    scope: Any,
    snapshot: "Snapshot",
    output: OutputOptions,
    files: Sequence[Path] = (),
) -> str:
    """Write the page of a study, and print it without its detail tables; there is no closing line."""
    with loading():
        from asymtrain.lab.report.page import write_page
        from asymtrain.lab.report.run_report import run_facts
        from asymtrain.lab.store.provenance import joined_versions
    page = study.page(scope, snapshot, files)
    versions = joined_versions(list(snapshot.versions.values()))
    facts = {"Command": typed_command(context), **run_facts(snapshot.runs.values(), versions)}
    written = write_page(output.out, study.name, facts=facts, **page.content)
    tables = [table for table in page.tables if not table.detail]
    show_page(written, page.document, tables, page.sentences, json=output.json)
    return ""
