"""`asymtrain` and `python -m asymtrain`."""

import atexit
import errno
import io
import os
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from asymtrain.errors import UsageError, near_names
from asymtrain.lab.cli import COMMANDS, DONE, EXTRA, INTERRUPTED, PURPOSE, REFUSED, STOPPED, UNREAD
from asymtrain.lab.texts import printable


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line. An error that a user can fix is one line on stderr, with exit status 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # not every terminal can show ±
    arguments = list(sys.argv[1:] if argv is None else argv)
    for argument in arguments:
        if argument != printable(argument):  # pages, stores and JSON record what was typed
            _complain(f"{argument!r} has control characters, or is not in UTF-8: write or rename it without them")
    try:
        import rich  # noqa: F401  # without it, Typer fails when it shows help
        import typer

        from asymtrain.lab.cli.app import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("asymtrain"):
            raise
        _without_lab(arguments, error.name)
    except KeyboardInterrupt:
        print(STOPPED, file=sys.stderr)
        sys.exit(INTERRUPTED)
    # Click's UsageError, wherever this version of typer keeps it.
    option_error: Any = typer.BadParameter.__mro__[1]
    try:
        status = app(arguments, prog_name="asymtrain", standalone_mode=False, obj=arguments)
        sys.stdout.flush()  # here: when the process ends, a full disk would show a traceback
    except UsageError as error:
        _complain(_as_options(str(error)))
    except option_error as error:
        _complain(_misread(error))
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except (OSError, MemoryError, RuntimeError) as error:
        _explain(error)
    except SystemExit as end:  # rich's answer to a pipe that nobody reads
        sys.exit(UNREAD if isinstance(end.__context__, BrokenPipeError) else end.code)
    if status == INTERRUPTED and argv is None:
        _end_at_once(status)
    sys.exit(status or DONE)


def _end_at_once(status: int) -> NoReturn:
    """Exit after Ctrl-C without Python's cleanup of torch and other libraries, which takes seconds."""
    atexit._run_exitfuncs()  # some libraries remove files or end processes there
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _as_options(text: str) -> str:
    """The library's message with options instead of arguments: layout='BTD' is --layout BTD, head= is --set head=."""
    text = re.sub(r"(?<![\w-])head=('[^']*')", lambda match: f"--set head={_typed(match[1])}", text)
    text = re.sub(r"(?<![\w-])(at|layout)=('[^']*')", lambda match: f"--{match[1]} {_typed(match[2])}", text)
    return re.sub(r"(?<![\w-])(at|layout)=(?![\w'])", r"--\1", text)


def _typed(quoted: str) -> str:
    return shlex.quote(quoted.strip("'"))


def _misread(error: Any) -> str:
    """The option parser's message, with the likely intended option if there is one, else the command's help."""
    text: str = error.format_message()
    if error.ctx is None:
        return text
    path, parameters = error.ctx.command_path, error.ctx.command.params
    options = {name for one in parameters if one.param_type_name == "option" for name in one.opts}
    arguments = {one.name for one in parameters if one.param_type_name == "argument"}
    if option := getattr(error, "option_name", None):
        text = f"No such option: {option}"
        # Some commands take a model or a store as an argument, others as an option.
        argument = {"--arch": "model"}.get(option, option.lstrip("-"))
        if argument in arguments:
            return f"{text}; the {argument} is given without it: {path} {argument.upper()}"
        option_names = {name.lstrip("-").replace("-", "_") for name in options}
        near = [
            "--" + name.replace("_", "-") for name in near_names(option.lstrip("-").replace("-", "_"), option_names)
        ]
        near = ["--arch"] if option == "--model" and "--arch" in options else near
        text += f". Did you mean {' or '.join(near)}?" if near else ""
    elif extra := re.search(r"unexpected extra argument\S* \((\S+)\)", text):
        value = extra[1]
        store = Path(value) / "runs.sqlite"  # in the folder of a command's results
        with suppress(OSError):  # the name is too long for a path
            value = str(store) if store.is_file() else value
        guess = "--store" if value.endswith(".sqlite") else "--arch" if re.search("^(mlp|cnn|vit)$|:", value) else ""
        text += f". Did you mean {guess} {value}?" if guess in options else ""
    elif wrong := re.match(r"Invalid value for '(--[\w-]+)'.* valid (integer|number|float)", text):
        text = f"{wrong[1]} needs a {'whole number' if wrong[2] == 'integer' else 'number'}"
    elif "command 'compare'" in text:  # the name in the library
        text = "No such command 'compare'. Did you mean 'run'?"
    return text if "Did you mean" in text else f"{text.rstrip('.')}: see `{path} --help`"


def _explain(error: Exception) -> NoReturn:
    """Print a system error about a path, a disk or memory as one line; raise others, which are bugs of ours."""
    if isinstance(error, OSError) and error.errno is not None:
        if not _can_write():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the last flush succeeds
            if error.errno == errno.EPIPE:
                sys.exit(UNREAD)
        names = [os.fsdecode(name) for name in (error.filename, error.filename2) if name is not None]
        path = f"{' and '.join(map(str, names))}: " if names else ""
        _complain(f"{path}{error.strerror or error}: check the path and the disk, or give another")
    if isinstance(error, MemoryError) or "torch" in sys.modules:
        from asymtrain.lab.devices import is_out_of_memory

        if is_out_of_memory(error):
            _complain("there is not enough memory for this: ask for less at once, such as fewer images or branches")
    raise error


def _can_write() -> bool:
    try:
        sys.stdout.flush()
    except OSError:
        return False
    return True


def _without_lab(arguments: Sequence[str], missing: str) -> NoReturn:
    """Help and version if the lab's extra is not installed; any command prints how to install it."""
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
    sys.exit(DONE)


def _complain(text: str) -> NoReturn:
    print(f"asymtrain: {printable(' '.join(text.split()))}", file=sys.stderr)
    sys.exit(REFUSED)


if __name__ == "__main__":
    main()
