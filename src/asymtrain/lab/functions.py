"""Users' functions by name: `package.module:function`, which gives data or builds a model.

Values that only this process has, such as arrays or a lambda, get names like `here:NAME-FINGERPRINT`.

Importing a function runs code. A command imports only functions that the user typed (`only_typed`), since the names in
a store, in search.json or in a plan may come from others.
"""

import importlib
import re
import sys
import sysconfig
import traceback
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asymtrain.errors import UsageError, error_line, unknown_name

# Modules of ours that moved. Specs, and so their ids, keep the module's name at the time they were stored. These
# modules only build models of a study, so users need not type their names.
_STORED_MODULES = {"asymtrain.lab.practice.models": "asymtrain.lab.studies.practice.models"}


def check_function(text: str) -> None:
    """Refuse a function that this process cannot import."""
    with importable_here():
        import_function(text)


def is_function(text: str, others: Container[str] = ()) -> bool:
    """Whether this has the form package.module:function; `others` are prefixes of other names, such as `folder:`."""
    module, colon, name = text.partition(":")
    return (
        bool(colon)
        and f"{module}:" not in others
        and name.isidentifier()
        and all(part.isidentifier() for part in module.split("."))
    )


def is_here(text: str) -> bool:
    """Whether this is here:NAME-FINGERPRINT, the name of data or of a function that only one process has."""
    return re.fullmatch(r"here:[\w.]+-[0-9a-f]+", text) is not None


def name_here(label: str, fingerprint: str) -> str:
    """A name here:NAME-FINGERPRINT; the label keeps its letters, digits and dots."""
    word = re.sub(r"[^\w.]+", "_", label).strip("_.")
    return f"here:{word or 'unnamed'}-{fingerprint[:8]}"


@contextmanager
def importable_here() -> Iterator[None]:
    """Make modules in the working folder importable; workers have the same folder."""
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        yield
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


@contextmanager
def only_typed(words: Iterable[str]) -> Iterator[None]:
    """In this block, let the process import only functions that the words of a command name."""
    global _typed
    before, _typed = _typed, {part.strip() for word in words for part in re.split("[=,]", word)}
    try:
        yield
    finally:
        _typed = before


_typed: set[str] | None = None  # None: Python code may name any function


def own_line(error: BaseException) -> str:
    """`error_line`, with the traceback's last line in the user's code, if there is one."""
    line = source_line(error)
    return f"{error_line(error)}{f', at {line}' if line else ''}"


def source_line(error: BaseException) -> str:
    """File and line in the user's own code; empty if the traceback has none."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [(Path(file), line) for file, line in frames if not file.startswith("<")]
    own = [(file, line) for file, line in own if not _is_installed(file)]
    if not own:
        return ""
    file, line = own[-1]
    return f"{file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}:{line}"


def _is_installed(file: Path) -> bool:
    """Whether the file belongs to this package, to Python, or to an installed package."""
    roots = Path(__file__).parents[1], Path(sysconfig.get_path("stdlib"))
    return any(map(file.is_relative_to, roots)) or not {"site-packages", "dist-packages"}.isdisjoint(file.parts)


def import_function(text: str) -> Any:
    module_name, _, name = text.partition(":")
    if _typed is not None and text not in _typed and module_name not in _STORED_MODULES:
        raise UsageError(
            f"{text} is named by a stored file alone, and to import a function is to run its code: where you trust it, "
            f"name it in the command too, with --arch {text}, or --data where it gives data"
        )
    try:
        module = importlib.import_module(_STORED_MODULES.get(module_name, module_name))
    except (Exception, SystemExit) as error:  # a script may call sys.exit
        cure = "mend the file"
        if isinstance(error, ModuleNotFoundError):
            cure = "check the name, and that you are in its folder"
            if module_name.endswith(".py"):
                cure = f"a module is named without .py: {module_name.removesuffix('.py')}:{name}"
            elif error.name and not f"{module_name}.".startswith(f"{error.name}."):  # a dependency is missing
                cure = f"install {error.name}, or go to the folder that has it"
        raise UsageError(f"{module_name} cannot be imported ({own_line(error)}): {cure}") from error
    spec = module.__spec__
    in_python = spec is not None and spec.origin in ("built-in", "frozen")  # such as os.path
    if module_name == "__main__" or spec is None or not (spec.has_location or in_python):
        raise UsageError(f"{module_name} is no file that a worker process could import: put the function into one")
    function = getattr(module, name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise unknown_name(f"function in {module_name}", name, names)
    return function
