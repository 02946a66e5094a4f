"""`asymtrain` and `python -m asymtrain`."""

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from asymtrain.errors import UsageError

INTERRUPTED = 130  # what shells report for a program that Ctrl-C ended


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line. What a user can fix ends in one line on stderr and exit status 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        import typer

        from asymtrain.lab.cli import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("asymtrain"):
            raise
        _complain(f'the command line needs {error.name}: pip install "asymtrain[lab]"')
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


def _complain(text: str) -> NoReturn:
    print(f"asymtrain: {' '.join(text.split())}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
