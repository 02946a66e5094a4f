"""`asymtrain` and `python -m asymtrain`."""

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from asymtrain.errors import UsageError
from asymtrain.lab.cli import COMMANDS, EXTRA, INTERRUPTED, PURPOSE


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line. What a user can fix ends in one line on stderr and exit status 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        import rich  # noqa: F401  # without it, Typer fails when it shows help
        import typer

        from asymtrain.lab.cli.app import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("asymtrain"):
            raise
        _without_lab(arguments, error.name)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    # Click's UsageError, wherever this version of typer keeps it.
    option_error: Any = typer.BadParameter.__mro__[1]
    try:
        status = app(arguments, prog_name="asymtrain", standalone_mode=False, obj=arguments)
    except UsageError as error:
        _complain(str(error))
    except option_error as error:
        _complain(error.format_message())
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(INTERRUPTED)
    sys.exit(status or 0)


def _without_lab(arguments: Sequence[str], missing: str) -> NoReturn:
    """Help and version of an installation without the lab's extra; every command names the extra."""
    from asymtrain.version import VERSION

    if arguments and arguments[0] == "--version":
        print(f"asymtrain {VERSION}")
    elif not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        lines = [f"  {name:{width}}  {line}" for name, line in COMMANDS.items()]
        usage = "Usage: asymtrain [--version] [--help] COMMAND [ARGS]..."
        print(f"{usage}\n\n{PURPOSE}\n\nCommands, which need {EXTRA}:", *lines, sep="\n")
    else:
        _complain(f"the command line needs {missing}: {EXTRA}")
    sys.exit(0)


def _complain(text: str) -> NoReturn:
    print(f"asymtrain: {' '.join(text.split())}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
