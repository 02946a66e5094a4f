"""The program that `asymtrain` starts."""

from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_group

from asymtrain.lab.cli import COMMANDS, EXITS, PURPOSE
from asymtrain.lab.cli.loading import HELP, CommandGroup, announced_interrupts, loading, single_command
from asymtrain.lab.cli.screen import shown_warnings
from asymtrain.lab.functions import only_typed
from asymtrain.lab.studies import STUDIES, load_study
from asymtrain.lab.studies.study import Study
from asymtrain.version import VERSION


@cache
def load_command(name: str) -> Any:
    """Load the command `name`: the object of that name in the file of that name, a function or a group of them.

    A study has the commands of studies.py, or those of a file of its own.
    """
    with loading():
        study = load_study(name) if name in STUDIES else None
        if isinstance(study, Study):
            command = import_module("asymtrain.lab.cli.studies").study_group(study)
        else:
            command = getattr(import_module(f"asymtrain.lab.cli.{name}"), name)
    return get_group(command) if isinstance(command, typer.Typer) else single_command(name, command)


class LazyGroup(CommandGroup):
    """Knows its commands by name and help line; the one that is called is loaded."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A study needs no line beside its own in `STUDIES`."""
        return super().get_command(ctx, cmd_name) or (load_command(cmd_name) if cmd_name in STUDIES else None)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else load_command(name), rest


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
    """Never called: the group puts the command itself in its place."""


for _name, _line in COMMANDS.items():
    app.command(_name, help=_line)(_stand_in)
