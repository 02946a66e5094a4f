"""`asymtrain report`: build the page again from a store."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asymtrain.errors import UsageError
from asymtrain.lab.api.common import versions_in
from asymtrain.lab.cli.loading import loading
from asymtrain.lab.cli.options import DEFAULT_OUT, RECORD, STORE_NAME, latest_store, typed_command
from asymtrain.lab.cli.screen import show_summary
from asymtrain.lab.terminal import stderr

if TYPE_CHECKING:
    from asymtrain.lab.runs import Run


def report(
    context: typer.Context,
    store: Annotated[Path, RECORD] = DEFAULT_OUT / STORE_NAME,
    out: Annotated[Path | None, typer.Option(help="Folder of the report. Default: the store's.")] = None,
) -> None:
    """Write the rows and the page of everything that a store holds."""
    with loading():
        from asymtrain.lab.report import write_report
        from asymtrain.lab.report.page import check_folder
        from asymtrain.lab.report.run_report import FILES
    if not store.exists() and (latest := latest_store()).exists():
        raise UsageError(f"there is no store at {store}: give one with --store; here {latest} was written last")
    folder = store.parent if out is None else out
    check_folder(folder)
    if out is None and (folder / FILES["report"]).exists() and not (folder / FILES["rows"]).exists():
        raise UsageError(f"{folder / FILES['report']} is the page of another command: give another folder with --out")
    runs = finished_runs(store)
    show_summary(write_report(runs, folder, typed_command(context), versions_in(store, runs)))
    stderr().print(f"Report: {folder / FILES['report']}")


def finished_runs(store: Path) -> "list[Run]":
    """All of a store, which must hold one."""
    from asymtrain.lab.store import Store

    with Store(store, read_only=True) as record:
        runs = record.runs()
    if not runs:
        raise UsageError(f"{store} holds no finished run yet: `asymtrain status --store {store}` shows what is pending")
    return runs
