"""`asymtrain paper list | blocks | run | next | show | verdicts`: the paper's tables and figures beside its numbers."""

import dataclasses
import shlex
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
    JSON,
    RESULTS,
    SEEDS,
    STORE_NAME,
    TRAINED,
    ExecutorOptions,
    OutputOptions,
    TrackOptions,
    estimated_workers,
    offered_archs,
    one_or_more,
    parse_archs,
    parse_seeds,
    typed_command,
)
from asymtrain.lab.cli.run import show_failures
from asymtrain.lab.cli.screen import progress_display, show_blocks, show_json, show_table, stderr, stdout

# The rest is imported where it is used: this file is read for --help too.
if TYPE_CHECKING:
    from collections.abc import Sequence

    from asymtrain.lab.studies.paper.recipe import Measuring, Recipe
    from asymtrain.lab.studies.paper.running import Done
    from asymtrain.lab.studies.paper.snapshot import Snapshot
    from asymtrain.lab.studies.paper.study import Study

PAPER_OUT = Path("asymtrain-paper")
KEPT = "*200-epochs*"  # folders of results/ that hold the study
FULL = typer.Option("--full", help="Print every table; else, of several recipes, what each holds and says.")
paper = command_group("paper")


def offered_recipes(incomplete: str) -> list[str]:
    """For a shell's completion."""
    from asymtrain.lab.studies.paper.recipes import RECIPES, aliases

    return [name for name in dict.fromkeys(("all", *RECIPES, *aliases())) if name.startswith(incomplete)]


def offered_blocks(incomplete: str) -> list[str]:
    """For a shell's completion."""
    from asymtrain.lab.studies.paper.blocks import BLOCKS

    return [name for name in BLOCKS if name.startswith(incomplete)]


Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME", help="table1, table15, figure2 ...; or all.", autocompletion=offered_recipes),
]


@dataclass(frozen=True)
class SizeOptions:
    """How large a reproduction is."""

    heading = TRAINED

    scale: Annotated[str, typer.Option(help="quick: minutes on a CPU. paper: as published.")] = "quick"
    seeds: Annotated[str | None, SEEDS] = None
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Epochs of the final runs; trials of a search are scaled in proportion.", callback=one_or_more
        ),
    ] = None
    precision: Annotated[str, typer.Option(help="fp32, tf32 or bf16.")] = "fp32"
    data: Annotated[
        str | None,
        typer.Option(help="At the scale quick: shapes (default), or cifar for a part of CIFAR. Paper: cifar."),
    ] = None

    def build(self) -> "Study":
        """The study that the options mean; what contradicts itself is refused."""
        from asymtrain.lab.studies.paper.study import Study, get_sizes

        sizes = get_sizes(self.scale)
        if self.data not in (None, "shapes", "cifar"):
            raise UsageError(f"--data must be shapes or cifar, got {self.data!r}")
        if self.data == "shapes" and not sizes.stands_for:
            raise UsageError(f"--scale {self.scale} is on CIFAR itself: leave out --data shapes, or take --scale quick")
        part = self.data == "cifar" and bool(sizes.stands_for)  # where nothing stands in, CIFAR is taken anyway
        return Study(
            sizes=sizes,
            seeds=parse_seeds(self.seeds) if self.seeds else (),
            epochs=self.epochs or 0,
            precision=self.precision,
            data="cifar" if part else "stand-in",
        )


@dataclass(frozen=True)
class StudyOptions(SizeOptions):
    """How large a reproduction is, how the paper is read, and of which backbones."""

    reading: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="primary, sum, all, best, instruments, last20, ordinary; several with commas, or every.",
        ),
    ] = None
    hyperparameters: Annotated[
        str, typer.Option(help="Where the paper gives none: searched, or paper for Table 13's.")
    ] = "searched"
    fair: Annotated[
        bool,
        typer.Option(
            "--fair", help="Tables 10, 13, 16: also a Plain with as many trials (dropout, smoothing) as alpha."
        ),
    ] = False
    arch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Do these backbones alone: mlp, cnn, vit; several with commas.",
            autocompletion=offered_archs,
        ),
    ] = None

    def build(self) -> "Study":
        from asymtrain.lab.studies.paper.study import parse_readings

        return dataclasses.replace(
            super().build(),
            readings=parse_readings(self.reading or []),
            hyperparameters=self.hyperparameters,  # type: ignore[arg-type]  # which the study checks
            fair=self.fair,
        )

    @property
    def archs(self) -> tuple[str, ...]:
        return parse_archs(self.arch, by_name=False)

    def parts(self, names: list[str], study: "Study") -> "tuple[Recipe, ...]":
        """What the named recipes have of the backbones; refused where that is nothing."""
        from asymtrain.lab.studies.paper.recipe import parts_of
        from asymtrain.lab.studies.paper.recipes import choose

        parts = parts_of(choose(names), study, self.archs)
        if not parts:
            raise UsageError(f"there is nothing of {', '.join(self.archs)} in {', '.join(names)}: leave out --arch")
        return parts


@dataclass(frozen=True)
class BlockOptions(SizeOptions):
    """The study whose blocks are done: unless told otherwise, that of results/."""

    scale: Annotated[str, typer.Option(help="paper: as published. quick: minutes on a CPU.")] = "paper"
    precision: Annotated[
        str, typer.Option(help="fp32, tf32 or bf16. Default: bf16, as in results/; with quick fp32.")
    ] = ""

    def build(self) -> "Study":
        precision = self.precision or ("bf16" if self.scale == "paper" else SizeOptions.precision)
        return super(BlockOptions, dataclasses.replace(self, precision=precision)).build()


@dataclass(frozen=True)
class PaperOutput(OutputOptions):
    """The folder and the store of a reproduction."""

    out: Annotated[Path, typer.Option(help="Folder of the page, the tables and the store.")] = PAPER_OUT

    def read(self) -> "Snapshot":
        """What the store holds."""
        from asymtrain.lab.studies.paper.snapshot import read_store

        return read_store(self.looked_into())


@dataclass(frozen=True)
class StoredOutput:
    """A store that is read, and a folder to write to."""

    heading = RESULTS

    out: Annotated[Path | None, typer.Option(help="Folder to write the page to. Default: none.")] = None
    store: Annotated[
        Path | None, typer.Option(help=f"Record of runs. Default: that of --out, else {PAPER_OUT / STORE_NAME}.")
    ] = None
    json: Annotated[bool, JSON] = False

    def find_store(self) -> Path:
        """The store that is named, else that of the folder, else that of `paper run`."""
        folders = dict.fromkeys(folder for folder in (self.out, PAPER_OUT) if folder is not None)
        stores = [self.store] if self.store is not None else [folder / STORE_NAME for folder in folders]
        for store in stores:
            if store.exists():
                return store
        ways = ["name yours with --store", "make one with `asymtrain paper run`"]
        if command := import_command(stores[-1]):
            ways.insert(1, f"import the results of this clone with `{command}` and add --scale paper --precision bf16")
        raise UsageError(f"there is no store at {' nor at '.join(map(str, stores))}: {', or '.join(ways)}")


def import_command(store: Path) -> str:
    """What imports the study that a clone keeps; nothing for an installed wheel, which has no results."""
    folder = Path(__file__).parents[4] / "results"
    if not any(folder.glob(KEPT)):
        return ""
    where = Path("results") if folder.parent == Path.cwd() else folder
    return f"asymtrain store import {shlex.quote(str(store))} {shlex.quote(str(where))}/{KEPT}"


@dataclass(frozen=True)
class ShownOutput(StoredOutput):
    """What `show` reads and writes."""

    full: Annotated[bool, FULL] = False


@dataclass(frozen=True)
class VerdictOutput(StoredOutput):
    """What `verdicts` reads and writes."""

    out: Annotated[Path | None, typer.Option(help="Folder to write both tables and the figure to. Default: none.")] = (
        None
    )


@paper.command("list")
@flattened
def list_(
    chosen: StudyOptions,
    output: PaperOutput,
    device: Annotated[str | None, ESTIMATED] = None,
) -> None:
    """List the recipes: what each covers, the claims that it tests, what it needs, what is stored, how long it takes.

    Runs that several recipes share count in each of them; the last line counts them once.
    """
    with loading():
        from asymtrain.lab.cli import paper_work as work
        from asymtrain.lab.studies.paper.recipes import RECIPES
        from asymtrain.lab.studies.paper.running import missing
    study = chosen.build()
    workers = estimated_workers(device)
    known = output.read()
    recipes = tuple(work.ask_once(recipe, study, known) for recipe in RECIPES.values())
    rows = list(work.listing(study, known, recipes, workers, chosen.archs))
    if output.json:
        show_json(rows)
        return
    show_table(work.listing_table(rows))
    left = missing(recipes, study, known, chosen.archs)
    stdout().print(work.plan_sentence(left, study, known, workers), soft_wrap=True)


@paper.command()
@flattened
def blocks(
    chosen: BlockOptions,
    output: PaperOutput,
    device: Annotated[str | None, ESTIMATED] = None,
) -> None:
    """List the blocks in which the reproduction is run: what each holds, what is stored, how long the rest takes.

    Rows of results/ count once they are imported: `asymtrain store import STORE results/FOLDER`.
    """
    with loading():
        from asymtrain.lab.cli import paper_work as work
    study = chosen.build()
    workers = estimated_workers(device)
    rows = work.blocks_listing(study, output.read(), workers)
    show_blocks(rows, json=output.json, for_gpu=workers[0] == "cpu" and chosen.scale == "paper")


@paper.command()
@flattened
def run(
    context: typer.Context,
    names: Names,
    chosen: StudyOptions,
    training: ExecutorOptions,
    output: PaperOutput,
    tracks: TrackOptions,
    full: Annotated[bool, FULL] = False,
) -> None:
    """Train and measure what the named tables and figures still need, then show them.

    Says first how many trainings are missing and how long they will take. Called again, it goes on where it stopped.
    """
    study = chosen.build()
    # Before anything is trained: there may be nothing of these backbones.
    _train(context, chosen.parts(names, study), study, training, output, tracks, full=full)


@paper.command("next")
@flattened
def next_(
    context: typer.Context,
    chosen: BlockOptions,
    training: ExecutorOptions,
    output: PaperOutput,
    tracks: TrackOptions,
    block: Annotated[
        str | None,
        typer.Option(help="Do this one of `asymtrain paper blocks` instead.", autocompletion=offered_blocks),
    ] = None,
    full: Annotated[bool, FULL] = False,
) -> None:
    """Do the first block of the reproduction that is not finished. Called again, it goes on where it stopped."""
    with loading():
        from asymtrain.lab.studies.paper.blocks import first_unfinished, get_block
    study = chosen.build()
    known = output.read()
    wanted = get_block(block) if block else first_unfinished(study, known)
    if wanted is None:
        stdout().print("Every block is finished: `asymtrain paper show all` has the results.")
        return
    opening = f"Block {wanted.name}: {wanted.title}."
    own = wanted.study(study)
    done = _train(context, wanted.recipes, own, training, output, tracks, full=full, known=known, opening=opening)
    if done.left.is_empty:
        after = first_unfinished(study, done.known)
        stderr().print(
            f"Block {wanted.name} is finished. {f'The next is {after.name}.' if after else 'It was the last.'}"
        )


def _train(
    context: typer.Context,
    parts: "Sequence[Recipe]",
    study: "Study",
    training: ExecutorOptions,
    output: PaperOutput,
    tracks: TrackOptions,
    *,
    full: bool,
    known: "Snapshot | None" = None,
    opening: str = "",
) -> "Done":
    """Train, measure and show. `known` is what the store holds, if it was just read."""
    with loading():
        import asymtrain.lab.executors  # noqa: F401  # torch with it: here, where a Ctrl-C is no traceback
        from asymtrain.lab.cli import paper_work as work
        from asymtrain.lab.studies.paper.page import write_paper
        from asymtrain.lab.studies.paper.running import check_data, missing, run_recipes
        from asymtrain.lab.studies.paper.snapshot import read_store
        from asymtrain.lab.studies.paper.spec_index import specs_behind
        from asymtrain.lab.trackers import tracking
    store = output.store_path
    output.check()
    tracker = tracks.open(output.out)
    workers = training.workers
    known = read_store(store) if known is None else known
    left = missing(parts, study, known)
    check_data(left, training.data_root)
    console = stderr()
    if opening:
        console.print(opening)
    console.print(work.study_sentence(study))
    if others := work.elsewhere(known, study):
        console.print(others)
    console.print(work.plan_sentence(left, study, known, workers))
    with progress_display() as display, tracking(tracker, display.update, display.console.print) as update:

        def on_measurement(measured: "Measuring", done: int, total: int) -> None:
            display.productive = True
            display.console.print(f"{done}/{total} {measured.title}")

        options = {**dataclasses.asdict(training), "known": known, "progress": update}
        done = run_recipes(parts, study, store, on_run=display.finished, on_measurement=on_measurement, **options)
    page: Path | None = None
    if display.productive or not done.interrupted:  # after a Ctrl-C at the start there is nothing new to show
        results, judgements = work.judge_recipes(parts, study, done.known)
        specs = specs_behind(parts, study, done.known)
        page = write_paper(output.out, results, judgements, study, typed_command(context), specs)["page"]
        again = shlex.join(["asymtrain", "paper", "show", "NAME", "--store", str(store)])
        rest = f"the report has them, and `{again}` prints those of one recipe"
        work.show_results(results, judgements, study, rest, full=full, json=output.json)
    left = done.left
    failed = show_failures(store, {spec.id for spec in left.specs})
    if not left.is_empty:
        ended = "Stopped" if done.interrupted else "Not finished"
        rest = f"{len(left.specs) + left.later} trainings and {len(left.measurements)} measurements"
        console.print(f"{ended}: {rest} are left. {display.going_on(training.minutes)}")
    if page:
        console.print(f"Report: {page}")
    if done.interrupted or failed:
        raise typer.Exit(INTERRUPTED if done.interrupted else FAILED)
    return done


@paper.command()
@flattened
def verdicts(
    chosen: StudyOptions,
    output: VerdictOutput,
    history: Annotated[
        bool, typer.Option("--history", help="Print what each verdict was before the rule changed, and why.")
    ] = False,
) -> None:
    """Print the verdicts on all claims from what a store holds; nothing is trained.

    With --out also as files: both tables, and the effects as one figure.
    """
    with loading():
        from asymtrain.lab.cli import paper_work as work
        from asymtrain.lab.report import check_folder
        from asymtrain.lab.report.table import table_json
        from asymtrain.lab.studies.paper.page import document, write_verdicts
        from asymtrain.lab.studies.paper.recipes import RECIPES
        from asymtrain.lab.studies.paper.snapshot import read_store
        from asymtrain.lab.studies.paper.summary import conclusion, history_table, verdict_table
    study = chosen.build()
    names = [name for name, recipe in RECIPES.items() if recipe.claims]
    parts, store = chosen.parts(names, study), output.find_store()
    if output.out is not None:
        check_folder(output.out)
    known = read_store(store)
    results, judgements = work.judge_recipes(parts, study, known)
    work.check_stored(results, study, known, parts)
    if output.out is not None:
        write_verdicts(output.out, judgements)
        stderr().print(f"Verdicts: {output.out}, from {store}")
    table = history_table(judgements) if history else verdict_table(judgements)
    if output.json:
        show_json({"claims": document(results, judgements, study)["claims"], "table": table_json(table)})
        return
    show_table(table)
    if sentence := conclusion(judgements):
        stdout().print(sentence)


@paper.command()
@flattened
def show(context: typer.Context, names: Names, chosen: StudyOptions, output: ShownOutput) -> None:
    """Show tables and figures from what a store holds; nothing is trained.

    With --arch, claims that compare backbones (c06) are shown where all of theirs are named.
    """
    with loading():
        from asymtrain.lab.cli import paper_work as work
        from asymtrain.lab.report import check_folder
        from asymtrain.lab.studies.paper.page import write_paper
        from asymtrain.lab.studies.paper.snapshot import read_store
        from asymtrain.lab.studies.paper.spec_index import specs_behind
    study = chosen.build()
    parts, store = chosen.parts(names, study), output.find_store()
    known = read_store(store)
    results, judgements = work.judge_recipes(parts, study, known)
    work.check_stored(results, study, known, parts)
    page = "--out FOLDER writes them as a page" if output.out is None else "the page has them"
    if output.out is not None:
        check_folder(output.out)
        specs = specs_behind(parts, study, known)
        files = write_paper(output.out, results, judgements, study, typed_command(context), specs)
    rest = f"name one recipe, or add --full; {page}"
    work.show_results(results, judgements, study, rest, full=output.full, json=output.json)
    if others := work.elsewhere(known, study):
        stderr().print(others)
    if output.out is not None:
        stderr().print(f"Report: {files['page']}, from {store}")
