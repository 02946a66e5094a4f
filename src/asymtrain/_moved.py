"""Old names that still work, each with a `DeprecationWarning` that says the new one.

    asymtrain.engine            modules of the lab, which stood beside the library: a finder at import, which also says
                                what became of modules that are gone
    attach(over_classes=...)    arguments: `renamed_arguments`
    models.BUILDERS             names of a module: `old_name`, in that module's `__getattr__`

Nothing is imported here until an old name is used.
"""

import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_LAB = ("cli", "data", "engine", "executors", "paper", "report", "runs", "scales", "search", "statistics", "store")
MOVED_MODULES = {**{name: f"lab.{name}" for name in _LAB}, "measure": "lab.instruments"}
_NO_PROBE = "{name} is gone: asymtrain.probe is now the short form of asymtrain.tune"
GONE_MODULES = {
    "alignment": "asymtrain.alignment is the function; its module is now asymtrain.gradients",
    "resonance": _NO_PROBE,
    "lab.probe": _NO_PROBE,
}


def renamed_arguments(**new_names: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Let a function take arguments by their old names: `@renamed_arguments(draw="initialization")`."""

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        name = function.__name__

        @functools.wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            for old, new in new_names.items():
                if old in kwargs:
                    if new in kwargs:
                        raise TypeError(f"{name}() got both {new!r} and {old!r}, its old name")
                    warnings.warn(f"{name}({old}=...) is now {name}({new}=...)", DeprecationWarning, stacklevel=2)
                    kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


def old_name(module: str, name: str, **new_names: str) -> Any:
    """What a module's `__getattr__` answers: `return old_name(__name__, name, BUILDERS="BACKBONES")`.

    A new name with dots is in another module.
    """
    if name not in new_names:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    new = new_names[name] if "." in new_names[name] else f"{module}.{new_names[name]}"
    warnings.warn(f"{module}.{name} is now {new}", DeprecationWarning, stacklevel=3)
    home, _, attribute = new.rpartition(".")
    return getattr(import_module(home), attribute)


class _MovedModules(MetaPathFinder, Loader):
    """Finds `asymtrain.engine.reference` and gives `asymtrain.lab.engine.reference`, the module itself and no copy."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for an old path; None for every other module."""
        package, _, rest = fullname.partition(".")
        first = rest.partition(".")[0]
        if package != "asymtrain":
            return None
        if (reason := GONE_MODULES.get(rest)) or (reason := GONE_MODULES.get(first)):
            raise ModuleNotFoundError(reason.format(name=fullname), name=fullname)
        return ModuleSpec(fullname, self) if first in MOVED_MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of the new path where the import looks for its result."""
        package, old, *rest = module.__name__.split(".")
        new = ".".join([package, MOVED_MODULES[old], *rest])
        warnings.warn(f"{module.__name__} is now {new}", DeprecationWarning, stacklevel=2)
        sys.modules[module.__name__] = import_module(new)


# First: the ordinary finder would load `asymtrain.engine.reference` a second time, under its old name.
sys.meta_path.insert(0, _MovedModules())
