"""`asymtrain report`: build the page again from a store."""

from pathlib import Path
from typing import Annotated

import typer

from asymtrain.errors import UsageError
from asymtrain.lab.cli.loading import loading
from asymtrain.lab.cli.options import DEFAULT_OUT, STORE_NAME, typed_command
from asymtrain.lab.cli.screen import show_summary, stderr


def report(
    context: typer.Context,
    store: Annotated[Path, typer.Option(help="Record of runs.")] = DEFAULT_OUT / STORE_NAME,
    out: Annotated[Path | None, typer.Option(help="Folder of the report. Default: the store's.")] = None,
) -> None:
    """Write the rows and the page of everything that a store holds."""
    with loading():
        from asymtrain.lab.cli.provenance import versions_in
        from asymtrain.lab.report import FILES, check_folder, write_report
        from asymtrain.lab.store import Store
    place = store.parent if out is None else out
    check_folder(place)
    with Store(store, read_only=True) as opened:
        runs = opened.runs()
    if not runs:
        raise UsageError(f"{store} holds no finished run yet: `asymtrain status --store {store}` shows what is pending")
    show_summary(write_report(runs, place, typed_command(context), versions_in(store, runs)))
    stderr().print(f"Report: {place / FILES['report']}")
