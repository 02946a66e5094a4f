"""The command line: `asymtrain run | probe | measure | search | paper | report | status | data | store`.

One file for each command.
"""

from typing import Annotated

import typer

from asymtrain.cli.data import data as data_commands
from asymtrain.cli.measure import measure as measure_commands
from asymtrain.cli.paper import paper as paper_commands
from asymtrain.cli.probe import probe as probe_command
from asymtrain.cli.report import report as report_command
from asymtrain.cli.run import run as run_command
from asymtrain.cli.search import search as search_command
from asymtrain.cli.status import status as status_command
from asymtrain.cli.store import store as store_commands
from asymtrain.version import VERSION

HELP = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(name="asymtrain", pretty_exceptions_enable=False, context_settings=HELP)
app.command("run")(run_command)
app.command("probe")(probe_command)
app.add_typer(measure_commands, name="measure")
app.command("search")(search_command)
app.add_typer(paper_commands, name="paper")
app.command("report")(report_command)
app.command("status")(status_command)
app.add_typer(data_commands, name="data")
app.add_typer(store_commands, name="store")


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
