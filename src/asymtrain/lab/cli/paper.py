"""`asymtrain paper list | run | show`: every table and figure of the paper, beside its numbers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asymtrain.errors import UsageError
from asymtrain.lab.cli.loading import loading
from asymtrain.lab.cli.options import STORE_NAME, parse_archs
from asymtrain.lab.cli.paper_options import (
    PAPER_OUT,
    Archs,
    Data,
    DataRoot,
    Device,
    Epochs,
    Fair,
    Json,
    Names,
    Out,
    Precision,
    ReadingNames,
    ScaleName,
    Seeds,
    StorePath,
    Values,
)
from asymtrain.lab.cli.screen import progress_display, show_json, show_table, stderr, stdout

# The rest is imported where it is used: this file is read for --help too.
if TYPE_CHECKING:
    from asymtrain.lab.paper.recipe import Measuring
    from asymtrain.lab.runs import Run

paper = typer.Typer(name="paper")


@paper.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    """Reproduce the paper: its tables and figures as recipes, beside its own numbers."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@paper.command("list")
def list_(
    scale: ScaleName = "quick",
    seeds: Seeds = None,
    epochs: Epochs = None,
    reading: ReadingNames = None,
    precision: Precision = "fp32",
    data: Data = None,
    hyperparameters: Values = "searched",
    fair: Fair = False,
    arch: Archs = None,
    out: Out = PAPER_OUT,
    store: StorePath = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda: for which the time is estimated.")] = None,
    json: Json = False,
) -> None:
    """List the recipes: what each covers, the claims that it tests, what it needs, what is there, how long it takes.

    Runs that several recipes share count in each of them; the last line counts them once.
    """
    with loading():
        from asymtrain.lab.cli.paper_screen import listing, plan_sentence
        from asymtrain.lab.cli.paper_study import build_study, place_of, workers_of
        from asymtrain.lab.cli.paper_work import list_row
        from asymtrain.lab.paper.recipes import RECIPES
        from asymtrain.lab.paper.running import missing
        from asymtrain.lab.paper.snapshot import read_store
    study = build_study(scale, seeds, epochs, reading, precision, data, hyperparameters, fair=fair)
    archs = parse_archs(arch)
    kind, workers = ("cuda", 1) if device == "cuda" else workers_of("local", None, device)
    known = read_store(place_of(store, out))
    rows = listing(study, known, RECIPES.values(), kind, workers, archs)
    if json:
        show_json(rows)
        return
    headings = ["Name", "Covers", "Claims", "Trainings", "Measurements", "Time left"]
    show_table(headings, [list_row(row) for row in rows], left=3, wrapped=(1, 2))
    small = study.sizes.scale == "quick"
    left = missing(tuple(RECIPES.values()), study, known, archs)
    stdout().print(plan_sentence(left, known, kind, workers, small=small), soft_wrap=True)


@paper.command()
def run(
    context: typer.Context,
    names: Names,
    scale: ScaleName = "quick",
    seeds: Seeds = None,
    epochs: Epochs = None,
    reading: ReadingNames = None,
    precision: Precision = "fp32",
    data: Data = None,
    hyperparameters: Values = "searched",
    fair: Fair = False,
    arch: Archs = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after this time; the next call goes on.")] = None,
    out: Out = PAPER_OUT,
    store: StorePath = None,
    device: Device = None,
    data_root: DataRoot = None,
    executor: Annotated[str, typer.Option(help="local, or ray for a cluster.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster. Default: one on this machine.")] = None,
    json: Json = False,
) -> None:
    """Train and measure what the named tables and figures still need, then show them.

    Says first how many trainings are missing and how long they will take. Called again, it goes on where it stopped.
    """
    if minutes is not None and not minutes > 0:
        raise UsageError(f"--minutes must be above 0, got {minutes:g}")
    with loading():
        from asymtrain.lab.cli.paper_screen import elsewhere, plan_sentence, show_trial, study_sentence
        from asymtrain.lab.cli.paper_study import build_study, choose_parts, place_of, workers_of
        from asymtrain.lab.cli.paper_work import build_results, reasons, show_all, write_page
        from asymtrain.lab.paper.recipes import choose
        from asymtrain.lab.paper.running import check_data, missing, run_recipes
        from asymtrain.lab.paper.snapshot import read_store
        from asymtrain.lab.report import check_folder
    recipes, archs = choose(names), parse_archs(arch)
    study = build_study(scale, seeds, epochs, reading, precision, data, hyperparameters, fair=fair)
    place = place_of(store, out)
    for folder in (out, place.parent):
        check_folder(folder)
    kind, workers = workers_of(executor, address, device)
    known = read_store(place)
    choose_parts(names, study, archs)  # nothing of these backbones shows before anything is trained
    check_data(recipes, study, data_root, archs)
    console = stderr()
    console.print(study_sentence(study))
    if others := elsewhere(known, study):
        console.print(others)
    console.print(
        plan_sentence(missing(recipes, study, known, archs), known, kind, workers, small=study.sizes.scale == "quick")
    )
    with progress_display() as display:

        def on_run(one: "Run", done: int, total: int) -> None:
            if one.spec.test == "never":
                show_trial(display, one, done, total)
            else:
                display.finished(one, done, total)

        def on_measurement(one: "Measuring", done: int, total: int) -> None:
            spec, display.productive = one.spec, True
            display.console.print(f"{done}/{total} {one.kind} of {spec.arch} {spec.variant} seed {spec.seed}")

        done = run_recipes(
            recipes,
            study,
            place,
            archs=archs,
            minutes=minutes,
            device=device,
            data_root=data_root,
            executor=executor,
            address=address,
            progress=display.update,
            on_run=on_run,
            on_measurement=on_measurement,
        )
    results, behind = build_results(recipes, study, place)
    files = write_page(context, out, results, study, behind)
    show_all(results, study, json=json)
    left = done.left
    for reason in reasons(place, {spec.id for spec in left.specs}):
        console.print(f"failed: {reason}")
    if left.specs or left.measurements or left.later:
        opening = "Stopped" if done.interrupted else "Not finished"
        rest = f"{len(left.specs) + left.later} trainings and {len(left.measurements)} measurements"
        console.print(f"{opening}: {rest} are left. {display.going_on(minutes)}")
    console.print(f"Report: {files['page']}")
    if done.interrupted:
        raise typer.Exit(130)


@paper.command()
def show(
    context: typer.Context,
    names: Names,
    scale: ScaleName = "quick",
    seeds: Seeds = None,
    epochs: Epochs = None,
    reading: ReadingNames = None,
    precision: Precision = "fp32",
    data: Data = None,
    hyperparameters: Values = "searched",
    fair: Fair = False,
    arch: Archs = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write the page to. Default: none.")] = None,
    store: Annotated[
        Path | None,
        typer.Option("--store", help=f"Record of runs. Default: that of --out, else {PAPER_OUT / STORE_NAME}."),
    ] = None,
    json: Json = False,
) -> None:
    """Show tables and figures from what a store holds; nothing is trained.

    With --arch, claims that compare backbones (c06) are shown where all of theirs are named.
    """
    with loading():
        from asymtrain.lab.cli.paper_screen import elsewhere
        from asymtrain.lab.cli.paper_study import build_study, choose_parts, find_store
        from asymtrain.lab.cli.paper_work import build_results, show_all, write_page
        from asymtrain.lab.paper.snapshot import read_store
        from asymtrain.lab.report import check_folder
    study = build_study(scale, seeds, epochs, reading, precision, data, hyperparameters, fair=fair)
    recipes = choose_parts(names, study, parse_archs(arch))
    place = find_store(store, out)
    results, behind = build_results(recipes, study, place)
    if out is not None:
        check_folder(out)
        files = write_page(context, out, results, study, behind)
        stderr().print(f"Report: {files['page']}, from {place}")
    show_all(results, study, json=json)
    if others := elsewhere(read_store(place), study):
        stderr().print(others)
