"""`asymtrain paper list | blocks | run | next | show | verdicts`: the paper's tables and figures beside its numbers."""

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asymtrain.errors import UsageError
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
from asymtrain.lab.cli.screen import show_json
from asymtrain.lab.cli.studies import View, do_next, list_blocks, offered_blocks, train
from asymtrain.lab.studies.paper import STUDY
from asymtrain.lab.studies.study import Block
from asymtrain.lab.terminal import show_table, stderr, stdout
from asymtrain.lab.texts import counted

# Other imports are inside functions: --help reads this file too.
if TYPE_CHECKING:
    from asymtrain.lab.report.table import Table
    from asymtrain.lab.studies.paper.recipe import Recipe, RecipeResult
    from asymtrain.lab.studies.paper.study import Scope
    from asymtrain.lab.studies.paper.verdicts import Judgement
    from asymtrain.lab.studies.snapshot import Snapshot

PAPER_OUT = Path("asymtrain-paper")
FULL = typer.Option("--full", help="Print every table; else, of several recipes, what each holds and says.")
paper = command_group("paper")


def offered_recipes(incomplete: str) -> list[str]:
    """For a shell's completion."""
    from asymtrain.lab.studies.paper.recipes import RECIPES, aliases

    return [name for name in dict.fromkeys(("all", *RECIPES, *aliases())) if name.startswith(incomplete)]


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

    def build(self) -> "Scope":
        """The study that the options mean; what contradicts itself is refused."""
        from asymtrain.lab.studies.paper.study import Scope, get_sizes

        sizes = get_sizes(self.scale)
        if self.data not in (None, "shapes", "cifar"):
            raise UsageError(f"--data must be shapes or cifar, got {self.data!r}")
        if self.data == "shapes" and not sizes.stands_for:
            raise UsageError(f"--scale {self.scale} is on CIFAR itself: leave out --data shapes, or take --scale quick")
        part = self.data == "cifar" and bool(sizes.stands_for)  # without a stand-in, CIFAR is used anyway
        return Scope(
            sizes=sizes,
            seeds=parse_seeds(self.seeds) if self.seeds else (),
            epochs=self.epochs or 0,
            precision=self.precision,
            data="cifar" if part else "stand-in",
        )


@dataclass(frozen=True)
class StudyOptions(SizeOptions):
    """How large a reproduction is, which backbones it has, and how the paper is read."""

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
    arch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only these backbones: mlp, cnn, vit; several with commas.",
            autocompletion=offered_archs,
        ),
    ] = None

    def build(self) -> "Scope":
        from asymtrain.lab.studies.paper.study import parse_readings

        return dataclasses.replace(
            super().build(),
            readings=parse_readings(self.reading or []),
            hyperparameters=self.hyperparameters,  # type: ignore[arg-type]  # which the study checks
        )

    @property
    def archs(self) -> tuple[str, ...]:
        return parse_archs(self.arch, by_name=False)

    def parts(self, names: list[str], study: "Scope") -> "tuple[Recipe, ...]":
        """The named recipes, restricted to the chosen backbones; refuses an empty result."""
        from asymtrain.lab.studies.paper.recipe import parts_of
        from asymtrain.lab.studies.paper.recipes import choose

        parts = parts_of(choose(names), study, self.archs)
        if not parts:
            raise UsageError(f"there is nothing of {', '.join(self.archs)} in {', '.join(names)}: leave out --arch")
        return parts


@dataclass(frozen=True)
class BlockOptions(SizeOptions):
    """The study whose blocks are done; by default the study of results/."""

    scale: Annotated[str, typer.Option(help="paper: as published. quick: minutes on a CPU.")] = "paper"
    precision: Annotated[
        str, typer.Option(help="fp32, tf32 or bf16. Default: bf16, as in results/; with quick fp32.")
    ] = ""

    def build(self) -> "Scope":
        precision = self.precision or ("bf16" if self.scale == "paper" else SizeOptions.precision)
        return super(BlockOptions, dataclasses.replace(self, precision=precision)).build()


@dataclass(frozen=True)
class PaperOutput(OutputOptions):
    """The folder and the store of a reproduction."""

    out: Annotated[Path, typer.Option(help="Folder of the page, the tables and the store.")] = PAPER_OUT


@dataclass(frozen=True)
class StoredOutput:
    """A store that is read, and a folder to write to."""

    heading = RESULTS

    out: Annotated[Path | None, typer.Option(help="Folder to write the page, or the files, to. Default: none.")] = None
    store: Annotated[
        Path | None, typer.Option(help=f"Record of runs. Default: that of --out, else {PAPER_OUT / STORE_NAME}.")
    ] = None
    json: Annotated[bool, JSON] = False

    def find_store(self) -> Path:
        """The store that is named, else the folder's, else the store of `paper run`."""
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
    """The command that imports the study of a clone; empty for an installed wheel, which has no results."""
    folder = Path(__file__).parents[4] / "results"
    if not any(folder.glob(STUDY.in_results)):
        return ""
    where = Path("results") if folder.parent == Path.cwd() else folder
    return f"asymtrain store import {shlex.quote(str(store))} {shlex.quote(str(where))}/{STUDY.in_results}"


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
        from asymtrain.lab.report.table import Column, Table, duration, make_rows
        from asymtrain.lab.studies.frame import joined, missing_of, plan_sentence, seconds_left
        from asymtrain.lab.studies.paper.recipe import of_archs
        from asymtrain.lab.studies.paper.recipes import RECIPES
    study = chosen.build()
    workers, snapshot = estimated_workers(device), output.read(STUDY.chooses_by)
    needs = {name: of_archs(recipe.needs(study, snapshot), chosen.archs) for name, recipe in RECIPES.items()}
    rows: list[dict[str, Any]] = [
        {
            "name": recipe.name,
            "covers": list(recipe.covers),
            "title": recipe.title,
            "beyond_the_paper": recipe.beyond,
            "claims": list(recipe.claims),
            **left.progress,
            "seconds_left": seconds_left(STUDY, study, left, snapshot, workers)[0],
        }
        for recipe in RECIPES.values()
        for left in [missing_of(needs[recipe.name], snapshot)]
    ]
    if output.json:
        show_json(rows)
        return
    columns = (
        *map(Column, ("Name", "Covers", "Claims")),
        *(Column(name, "number") for name in ("Runs", "Measurements", "Time left")),
    )
    cells = (
        (
            row["name"],
            "beyond the paper" if row["beyond_the_paper"] else ", ".join(row["covers"]),
            ", ".join(row["claims"]) or None,
            f"{row['runs_there']}/{row['runs_needed']}",
            f"{row['measurements_there']}/{row['measurements_needed']}",
            duration(row["seconds_left"]),
        )
        for row in rows
    )
    show_table(Table("recipes", "", columns, make_rows(cells)))
    left = missing_of(joined(needs.values()), snapshot)
    stdout().print(plan_sentence(STUDY, study, left, snapshot, workers), soft_wrap=True)


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
    list_blocks(STUDY, chosen.build(), output, device, for_gpu=chosen.scale == "paper")


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

    Says first how many runs are missing and how long they will take. Called again, it goes on where it stopped.
    """
    study = chosen.build()
    # Before anything is trained: there may be nothing of these backbones.
    block = Block(", ".join(names), "", chosen.parts(names, study))
    view = _view(context, block, study, output, full=full)
    train(context, STUDY, block, study, training, output, tracks, view)


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
        typer.Option(help="Do this one of `asymtrain paper blocks` instead.", autocompletion=offered_blocks(STUDY)),
    ] = None,
    full: Annotated[bool, FULL] = False,
) -> None:
    """Do the first block of the reproduction that is not finished. Called again, it goes on where it stopped."""
    with loading():
        from asymtrain.lab.studies.frame import get_block
    wanted = get_block(STUDY, block) if block else None

    def view(block: Block, study: "Scope") -> View:
        return _view(context, block, study, output, full=full)

    study = chosen.build()
    options = ["all", "--scale", study.sizes.scale, "--precision", study.precision, "--reading", "every"]
    do_next(context, STUDY, study, wanted, training, output, tracks, view, options)


def _view(context: typer.Context, block: Block, study: "Scope", output: PaperOutput, *, full: bool) -> View:
    def opening(snapshot: "Snapshot") -> list[str]:
        return list(filter(None, [study_sentence(study), elsewhere(snapshot, study)]))

    def show(snapshot: "Snapshot") -> str:
        from asymtrain.lab.studies.paper.page import judge_recipes, write_paper
        from asymtrain.lab.studies.paper.spec_index import specs_behind

        results, judgements = judge_recipes(block.parts, study, snapshot)
        specs = specs_behind(block.parts, study, snapshot)
        page = write_paper(output.out, results, judgements, study, typed_command(context), specs)["page"]
        again = shlex.join(["asymtrain", "paper", "show", "NAME", "--store", str(output.store_path)])
        rest = f"the report has them, and `{again}` prints those of one recipe"
        show_results(results, judgements, study, rest, full=full, json=output.json)
        return f"Report: {page}"

    return View(show, opening)


def _judge(
    parts: "Sequence[Recipe]", study: "Scope", output: StoredOutput, *, with_tables: bool = True
) -> "tuple[Path, Snapshot, Sequence[RecipeResult], Sequence[Judgement]]":
    """The store, its snapshot, the results of these recipes in it, and the judgements on their claims."""
    from asymtrain.lab.studies.paper.page import judge_recipes
    from asymtrain.lab.studies.paper.spec_index import read_ids
    from asymtrain.lab.studies.snapshot import read_store

    store = output.find_store()
    if output.out is not None:
        from asymtrain.lab.report.page import check_folder  # here: matplotlib is loaded with it

        check_folder(output.out)
    # A study has half a million epochs: a table needs few of them, and many tables nearly all.
    few = len(parts) <= SHOWN_WHOLE
    ids = read_ids(parts, study, read_store(store, STUDY.chooses_by)) if few else set()
    snapshot = read_store(store, lambda spec: not few or spec.id in ids or STUDY.chooses_by(spec))
    results, judgements = judge_recipes(parts, study, snapshot, with_tables=with_tables)
    check_stored(results, study, snapshot, parts)
    return store, snapshot, results, judgements


@paper.command()
@flattened
def verdicts(
    chosen: StudyOptions,
    output: StoredOutput,
    history: Annotated[
        bool, typer.Option("--history", help="Print what each verdict was before the rule changed, and why.")
    ] = False,
) -> None:
    """Print the verdicts on all claims from what a store holds; nothing is trained.

    With --out also as files: both tables, and the effects as one figure.
    """
    with loading():
        from asymtrain.lab.report.table import table_json
        from asymtrain.lab.studies.paper.page import document, write_verdicts
        from asymtrain.lab.studies.paper.recipes import RECIPES
        from asymtrain.lab.studies.paper.summary import conclusion, history_table, verdict_table
    study = chosen.build()
    parts = chosen.parts([name for name, recipe in RECIPES.items() if recipe.claims], study)
    store, _, results, judgements = _judge(parts, study, output, with_tables=False)
    if output.out is not None:
        write_verdicts(output.out, judgements)
        stderr().print(f"Verdicts: {output.out}, from {store}")
    table = (history_table if history else verdict_table)(judgements)
    if output.json:
        show_json({"claims": document(results, judgements, study)["claims"], "table": table_json(table)})
        return
    show_table(table)
    if sentence := conclusion(judgements):
        stdout().print(sentence)


@paper.command()
@flattened
def show(
    context: typer.Context,
    names: Names,
    chosen: StudyOptions,
    output: StoredOutput,
    full: Annotated[bool, FULL] = False,
) -> None:
    """Show tables and figures from what a store holds; nothing is trained.

    With --arch, claims that compare backbones (c06) are shown where all of theirs are named.
    """
    with loading():
        from asymtrain.lab.studies.paper.page import write_paper
        from asymtrain.lab.studies.paper.spec_index import specs_behind
    study = chosen.build()
    parts = chosen.parts(names, study)
    store, snapshot, results, judgements = _judge(parts, study, output)
    written = "--out FOLDER writes them as a page"
    if output.out is not None:
        specs = specs_behind(parts, study, snapshot)
        page = write_paper(output.out, results, judgements, study, typed_command(context), specs)["page"]
        written = "the page has them"
    rest = f"name one recipe, or add --full; {written}"
    show_results(results, judgements, study, rest, full=full, json=output.json)
    if others := elsewhere(snapshot, study):
        stderr().print(others)
    if output.out is not None:
        stderr().print(f"Report: {page}, from {store}")


# What is printed

SHOWN_WHOLE = 3  # so many recipes or fewer are printed in full by default: all of them have 900 lines


def study_sentence(study: "Scope") -> str:
    """The size of a study in words, which shows that `--seeds 42` means 42 seeds."""
    seeds = study.seeds
    names = ", ".join(map(str, seeds))
    if len(seeds) > 2 and seeds == tuple(range(seeds[0], seeds[-1] + 1)):
        names = f"{seeds[0]} to {seeds[-1]}"
    counts = [f"{counted(len(seeds), 'seed')} ({names})", counted(study.epochs, "epoch"), study.precision]
    return f"Scale {study.sizes.scale}: {', '.join(counts)}{f', {study.stand_in}' if study.stand_in else ''}."


def elsewhere(snapshot: "Snapshot", study: "Scope") -> str:
    """What else the store holds; it is never mixed in."""
    from asymtrain.lab.studies.frame import joined
    from asymtrain.lab.studies.paper.recipes import RECIPES

    needs = joined(recipe.needs(study, snapshot) for recipe in RECIPES.values())
    mine = {spec.id: spec for spec in needs.specs}
    others = [run.spec for run in snapshot.runs.values() if run.spec.id not in mine]
    if not others:
        return ""
    fields = ("dataset", "epochs", "precision")
    theirs, ours = ([{getattr(spec, name) for spec in specs} for name in fields] for specs in (others, mine.values()))
    if all(their <= our for their, our in zip(theirs, ours, strict=True)):
        differ = "another reading or recipe (`--reading every` shows those of readings)"
    else:
        data, epochs, precisions = (", ".join(map(str, sorted(values))) for values in theirs)
        differ = f"another scale, reading, length or precision ({data}; {epochs} epochs; {precisions})"
    return f"The store also holds {counted(len(others), 'run')} of {differ}, which are not part of this."


def check_stored(
    results: "Sequence[RecipeResult]", study: "Scope", snapshot: "Snapshot", parts: "Sequence[Recipe]"
) -> None:
    """Refuse to show empty tables: name the options under which the store has rows, or what else it holds."""
    if any(result.runs_there or result.measurements_there for result in results):
        return
    from asymtrain.lab.studies.frame import missing
    from asymtrain.lab.studies.paper.study import SIZES

    rows_by_options = {}
    for scale, precision in product(SIZES, sorted({run.spec.precision for run in snapshot.runs.values()})):
        other = dataclasses.replace(study, sizes=SIZES[scale], precision=precision, seeds=(), epochs=0)
        there = missing(STUDY, parts, other, snapshot).progress
        rows_by_options[f"--scale {scale} --precision {precision}"] = there["runs_there"] + there["measurements_there"]
    best = max(rows_by_options, key=lambda options: rows_by_options[options], default="")
    names = ", ".join(result.name for result in results) if len(results) <= SHOWN_WHOLE else "these recipes"
    remedy = elsewhere(snapshot, study) or "Train them with `asymtrain paper run`."
    if best and rows_by_options[best]:
        remedy = f"Add {best} to see {counted(rows_by_options[best], 'row')} of it."
    raise UsageError(f"the store has no rows of {names} for this study. {study_sentence(study)} {remedy}")


def _rows_there(result: "RecipeResult") -> str:
    """How many rows of a recipe are stored: runs, or measurements if it needs no runs."""
    if result.runs_needed:
        return f"{result.runs_there}/{result.runs_needed} runs"
    return f"{result.measurements_there}/{result.measurements_needed} measurements"


def _show_overview(results: "Sequence[RecipeResult]", judgements: "Sequence[Judgement]", rest: str) -> None:
    """A line for each recipe, the claims by verdict, and where the rest is."""
    from asymtrain.lab.report.table import Column, Table, make_rows

    console = stdout()
    columns = (Column("Recipe"), Column("Title"), Column("Rows", "number"), Column("Claims"))
    rows = ((result.name, result.title, _rows_there(result), ", ".join(result.claims) or None) for result in results)
    show_table(Table("overview", "", columns, make_rows(rows)))
    console.print()
    verdicts: dict[str, list[str]] = {}
    for judgement in judgements:
        verdicts.setdefault(judgement.words, []).append(judgement.claim.id)
    for words, claims in sorted(verdicts.items(), key=lambda item: -len(item[1])):
        console.print(f"{words} ({len(claims)}): {', '.join(claims)}")
    console.print(f"Every table, note and verdict: {rest}.", soft_wrap=True)


def show_results(
    results: "Sequence[RecipeResult]",
    judgements: "Sequence[Judgement]",
    study: "Scope",
    rest: str,
    *,
    full: bool,
    json: bool,
) -> None:
    """Tables with their notes, figures by name, then the verdicts; or all as JSON.

    Several recipes are shown as an overview, unless asked for in full: `rest` says where the rest is.
    """
    if json:
        from asymtrain.lab.studies.paper.page import document

        show_json(document(results, judgements, study))
        return
    if len(results) > SHOWN_WHOLE and not full:
        _show_overview(results, judgements, rest)
        return
    console = stdout()
    for result in results:
        console.print(f"{result.title} ({_rows_there(result)})")
        for table in result.tables:
            if _says_nothing(table):
                console.print(f"{table.title}: no rows yet")
            else:
                show_table(table)
        for figure in result.figures:
            console.print(f"{figure.title}: {figure.caption if figure.missing else 'drawn in the report'}")
        for line in (*result.notes, ""):
            console.print(line)
    for judgement in judgements:
        console.print(f"{judgement.claim.id} {judgement.claim.text}: {judgement.sentence}")


def _says_nothing(table: "Table") -> bool:
    """Do all rows wait for their runs, with no number of the paper's beside them?"""
    waits = [any(cell.missing for cell in row) and not any(cell.spec_ids for cell in row) for row in table.rows]
    return bool(waits) and all(waits) and not any(column.papers for column in table.columns)
