"""The command line: `asymtrain run | probe | measure | search | paper | report | status | data | store`.

One file for each command, which holds its options and is loaded when it is called (loading.py). What a larger command
does with them is in a file beside it (`paper_work.py`, `search_work.py`, `probe_work.py`).
"""

from typing import Annotated

import typer

from asymtrain.lab.cli.loading import HELP, LazyGroup
from asymtrain.version import VERSION

# The line of each command in `asymtrain --help`; a test holds it to the first of the command's own.
COMMANDS = {
    "run": "Compare training without branches (Plain) and with them (Asymmetric).",
    "probe": "Measure on a short training whether auxiliary branches would help a model, where, and how strongly.",
    "measure": "Look at training: gradient alignment, trajectories, loss landscape, attention, features.",
    "search": "Search learning rate, weight decay and alpha by validation accuracy, never by test accuracy.",
    "paper": "Reproduce the paper: its tables and figures as recipes, beside its own numbers.",
    "report": "Write the rows and the page of everything that a store holds.",
    "status": "Show what a store holds, what is pending, what diverged or failed and why.",
    "data": "List, fetch and check datasets.",
    "store": "Export, import and convert a record of runs.",
}

app = typer.Typer(name="asymtrain", cls=LazyGroup, pretty_exceptions_enable=False, context_settings=HELP)


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Temporary auxiliary objectives for PyTorch models: train with and without them, and see whether they helped."""
    if version:
        typer.echo(f"asymtrain {VERSION}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _stand_in() -> None:
    """Is never called: the group puts the command itself in its place."""


for _name, _line in COMMANDS.items():
    app.command(_name, help=_line)(_stand_in)
