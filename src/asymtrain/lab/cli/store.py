"""`asymtrain store`: carry a store to other machines and into git, check it, and show it in TensorBoard."""

import dataclasses
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asymtrain.errors import UsageError, unknown_name
from asymtrain.lab.cli import FAILED
from asymtrain.lab.cli.loading import command_group, loading
from asymtrain.lab.cli.options import JSON, RECORD
from asymtrain.lab.cli.report import finished_runs
from asymtrain.lab.cli.screen import show_json
from asymtrain.lab.texts import counted

if TYPE_CHECKING:
    from asymtrain.lab.store.exchange import Format

store = command_group("store")
Source = Annotated[Path, typer.Argument(metavar="STORE", help=RECORD.help)]
COUNTED = ("run", "measurement", "request", "failure")
RESCUE = (
    "To keep what is whole: asymtrain store export {store} FOLDER, then asymtrain store import NEW FOLDER. "
    "The commands that filled the store train the rest again, with --store NEW."
)
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write to; made where it is missing.")]


@store.command()
def export(
    store: Source,
    folder: Folder,
    format: Annotated[str, typer.Option(help="csv or parquet.")] = "csv",
    force: Annotated[
        bool, typer.Option("--force", help="Write over files of the folder that hold other rows.")
    ] = False,
    without: Annotated[
        list[Path] | None,
        typer.Option(metavar="EXPORT", help="Leave out what this export holds, or those in this folder."),
    ] = None,
    block: Annotated[
        list[str] | None,
        typer.Option(metavar="STUDY/BLOCK", help="Write the rows of this block alone, such as practice/signal-swin."),
    ] = None,
) -> None:
    """Write all runs and measurements to a folder of tables.

    An earlier export of the same store in the folder is replaced. With --without, what other exports hold is not
    written again: `--without results` keeps in a new folder of results/ what its other folders do not have.
    Both options may be given several times.
    """
    with loading():
        from asymtrain.lab.store import Store
        from asymtrain.lab.store.exchange import export_store, lost_by_export, read_export
    chosen: Format = format  # type: ignore[assignment]  # which `export_store` checks
    with Store(store, read_only=True) as record:
        if not force and (loss := lost_by_export(record, folder)):
            raise UsageError(f"{loss}: give another folder, or --force to write over it")
        others = list(map(read_export, _others(without or (), folder)))
        export_store(record, folder, format=chosen, without=others, only=_specs_of(block, store) if block else None)
    written = read_export(folder)
    runs, measured = (sum(map(len, rows.values())) for rows in (written.runs, written.values))
    more = f", with {counted(measured, 'measured value')}" if measured else ""
    typer.echo(f"Exported {counted(runs, 'run')} to {folder} as {format}{more}")


@store.command("import")
def import_(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Record of runs; made where it is missing.")],
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER", help="Folders that `asymtrain store export` wrote.")
    ],
) -> None:
    """Add what exported folders hold and the store does not."""
    with loading():
        from asymtrain.lab.store import Store
        from asymtrain.lab.store.exchange import import_store, read_export
    if store.is_dir():
        raise UsageError(f"{store} is a folder: give the store first, and then the folders that are imported")
    exports = [read_export(folder) for folder in folders]  # all first: nothing is imported if one is refused
    with Store(store) as record:
        imported = [import_store(record, export) for export in exports]
    added, measurements = sum(part.added for part in imported), sum(part.measurements for part in imported)
    present, differing = sum(part.present for part in imported), sum(part.differing for part in imported)
    text = f"Imported {counted(added, 'run')} into {store}"
    if measurements:
        text += f", with {counted(measurements, 'measured value')}"
    if present:
        text += f"; {counted(present, 'run')} already there"
    if differing:
        text += f"; {counted(differing, 'run')} left out: the store has its own of the same spec"
    typer.echo(text)


@store.command()
def check(store: Source, json: Annotated[bool, JSON] = False) -> None:
    """Read everything in a store and name what is damaged; the exit status is 1 where something is."""
    with loading():
        from asymtrain.lab.store import Check, Damage, DamagedError, Store
    try:
        with Store(store, read_only=True) as record:
            result = record.check()
    except DamagedError as error:
        result = Check({}, (Damage("file", str(error)),))
    if json:
        damaged = [{**dataclasses.asdict(damage), "text": str(damage)} for damage in result.damaged]
        show_json({"store": str(store), "intact": result.intact, "damaged": damaged})
    else:
        for damage in result.damaged:
            typer.echo(f"damaged: {damage}")
        counts = [counted(result.intact[content], content) for content in COUNTED if result.intact]
        typer.echo(f"{store}: as stored are {', '.join(counts) or 'none that can be read'}")
        if result.intact and result.damaged:
            typer.echo(RESCUE.format(store=store))
    if result.damaged:
        raise typer.Exit(FAILED)


@store.command()
def tensorboard(store: Source, folder: Folder) -> None:
    """Write the history of each run as a TensorBoard log."""
    with loading():
        from asymtrain.lab.store.tensorboard import write_tensorboard
    runs = finished_runs(store)
    write_tensorboard(runs, folder)
    typer.echo(f"Wrote the curves of {counted(len(runs), 'run')} to {folder}: tensorboard --logdir {folder}")


def _specs_of(blocks: Iterable[str], store: Path) -> set[str]:
    """The ids of the specs that these blocks of studies need, as far as the store names them."""
    from asymtrain.lab.studies import STUDIES, load_study
    from asymtrain.lab.studies.frame import get_block, joined
    from asymtrain.lab.studies.snapshot import read_store

    snapshot, ids = read_store(store), set[str]()
    for name in blocks:
        study_name, _, block_name = name.partition("/")
        if study_name not in STUDIES:
            raise unknown_name("study, in --block STUDY/BLOCK", study_name, STUDIES)
        study = load_study(study_name)
        block = get_block(study, block_name)
        scope = block.scope(study.scope())
        needs = joined(study.needs(part, scope, snapshot) for part in block.parts)
        ids |= {spec.id for spec in needs.specs} | {wanted.spec.id for wanted in needs.measurements}
    return ids


def _others(paths: Iterable[Path], folder: Path) -> Iterator[Path]:
    """The named exports and those inside named folders, except the one that is being written."""
    from asymtrain.lab.store.exchange import find_exports

    for path in paths:
        exports = find_exports(path)
        if not exports:
            raise UsageError(f"--without {path}: there is no export, nor one in it; name what `store export` wrote")
        # Unlike `Path.resolve`, this accepts a link to itself, which is refused when it is written.
        target = os.path.realpath(folder)
        yield from (export for export in exports if os.path.realpath(export) != target)
