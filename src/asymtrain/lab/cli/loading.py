"""Shared by all command files: imports that can be interrupted, plain help, groups of commands.

A command's own file holds its options. Its body imports the rest inside `loading`: help and version do not wait for
torch.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from types import FrameType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from asymtrain.errors import UsageError
from asymtrain.lab.cli import COMMANDS, EXTRA, STOPPED

HELP = {"help_option_names": ["-h", "--help"]}


class _Announcer(MetaPathFinder):
    """Finds nothing, but says when torch begins to load, which takes seconds."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "torch":
            sys.meta_path.remove(self)
            print("Loading PyTorch ...", file=sys.stderr, flush=True)


def _stop(number: int, frame: object) -> None:
    os.write(2, f"{STOPPED}\n".encode())  # print may be what was interrupted
    os._exit(128 + number)


def _announce(number: int, frame: FrameType | None) -> None:
    os.write(2, b"Stopping ...\n")
    signal.default_int_handler(number, frame)


@contextmanager
def announced_interrupts(answer: Callable[[int, FrameType | None], None] = _announce) -> Iterator[None]:
    """Answer Ctrl-C at once with a line, since the command may still write results before it ends.

    Replaces only Python's handler or ours; a background process may ignore Ctrl-C.
    """
    before = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    is_replaced = in_main_thread and before in (signal.default_int_handler, _announce)
    if is_replaced:
        signal.signal(signal.SIGINT, answer)
    try:
        yield
    finally:
        if is_replaced:
            signal.signal(signal.SIGINT, before)


@contextmanager
def loading() -> Iterator[None]:
    """Around imports: name a missing package, and let Ctrl-C end the program at once with a line and status 130.

    Nothing is half done yet. An interrupt inside an import would otherwise show as a traceback, or as a broken library
    if it is raised in compiled code.
    """
    announcer = _Announcer()
    sys.meta_path.insert(0, announcer)
    try:
        with announced_interrupts(_stop):
            yield
    except ModuleNotFoundError as error:
        package = (error.name or "asymtrain").partition(".")[0]
        if package == "asymtrain":
            raise
        raise UsageError(f"this command needs {package}: {EXTRA}") from error
    finally:
        if announcer in sys.meta_path:
            sys.meta_path.remove(announcer)


class _PlainHelp:
    """Help that shows no type for flags, which take no value, and no braces around arguments."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [piece.replace("{", "").replace("}", "") for piece in pieces]


class _Command(_PlainHelp, TyperCommand):
    pass


class CommandGroup(_PlainHelp, TyperGroup):
    """A command with subcommands."""


class _Program(typer.Typer):
    """Gives every command plain help."""

    def command(self, name: str | None = None, **options: Any) -> Any:
        return super().command(name, **({"cls": _Command} | options))


def single_command(name: str, function: Callable[..., None]) -> Any:
    """A command without subcommands."""
    alone = _Program(add_completion=False, context_settings=HELP)
    alone.command(name)(function)
    return get_command(alone)


def command_group(name: str, cls: type[CommandGroup] = CommandGroup, line: str = "") -> typer.Typer:
    """A command with subcommands, which shows its help if none of them is called."""
    group = _Program(name=name, cls=cls)

    @group.callback(invoke_without_command=True, help=line or COMMANDS[name])
    def start(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return group
