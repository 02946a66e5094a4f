"""The program that `asymtrain` starts."""

from typing import Annotated

import typer

from asymtrain.lab.cli import COMMANDS, EXITS, PURPOSE
from asymtrain.lab.cli.loading import HELP, LazyGroup, announced_interrupts
from asymtrain.lab.cli.screen import shown_warnings
from asymtrain.lab.functions import only_typed
from asymtrain.version import VERSION

app = typer.Typer(name="asymtrain", cls=LazyGroup, pretty_exceptions_enable=False, context_settings=HELP)


EPILOG = "\n\n".join(["Exit status:", *(f"{status}: {meaning}." for status, meaning in EXITS.items())])


@app.callback(invoke_without_command=True, help=PURPOSE, epilog=EPILOG)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    context.with_resource(shown_warnings())
    context.with_resource(only_typed(context.obj or ()))
    context.with_resource(announced_interrupts())
    if version:
        typer.echo(f"asymtrain {VERSION}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _stand_in() -> None:
    """Is never called: the group puts the command itself in its place."""


for _name, _line in COMMANDS.items():
    app.command(_name, help=_line)(_stand_in)
