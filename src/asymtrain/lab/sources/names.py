"""Names of models: the table of what stands before the colon, and checks that need no torch."""

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from asymtrain.errors import UsageError, near_names, unknown_name
from asymtrain.lab.functions import import_function, importable_here, is_function, is_here
from asymtrain.lab.sources import builders
from asymtrain.lab.sources.builders import Named, Options


@dataclass(frozen=True)
class Library:
    """One entry of `LIBRARIES`: a library that builds models by name."""

    argument: str  # what follows the colon
    find: Callable[[str, dict[str, Any]], Named]  # of what follows the colon, and options
    check: Callable[[str], None] = lambda rest: None  # refuses what can be no name, without torch


LIBRARIES: dict[str, Library] = {
    "timm:": Library("NAME", builders.find_timm),
    "hf:": Library("CONFIG", builders.find_transformers, builders.check_config_name),
}
"""By the beginning of a name. Any other text with a colon is a function of the user's own."""


def is_named(arch: str) -> bool:
    """Is this a model by name, and none of the backbones?"""
    return ":" in arch


def other_names() -> str:
    """Names of models other than the backbones, as a user writes them."""
    return f"{', '.join(f'{name}{library.argument}' for name, library in LIBRARIES.items())} or package.module:function"


def check_name(name: str, options: Options = ()) -> None:
    """Refuse what cannot name a model; whether there is one of the name shows when it is built. Needs no torch."""
    kind, colon, rest = name.partition(":")
    if not colon:
        raise _unknown(name)
    if not rest or not kind:
        raise UsageError(f"{name!r} names no model: give a backbone, {other_names()}")
    library = LIBRARIES.get(f"{kind}:")
    if library is not None:
        library.check(rest)
        builders.refuse_pretrained(name, dict(options))
    elif not is_here(name) and not is_function(name):
        path = " (modules go by name, without slashes and .py)" if kind.endswith(".py") else ""
        raise UsageError(f"{name!r} names no function: write package.module:function{path}, or {other_names()}")


def _unknown(name: str) -> UsageError:
    """A name without a colon is a backbone, or was meant for a module that is here, or for a model of timm."""
    from asymtrain.models import backbone_names

    near = near_names(name, backbone_names())
    if not near and all(part.isidentifier() for part in name.split(".")):
        with importable_here(), suppress(ImportError, ValueError):
            if importlib.util.find_spec(name.partition(".")[0]) is not None:  # which imports nothing
                return UsageError(f"{name!r} is no backbone: for a function that builds a model write MODULE:FUNCTION")
    if not near:
        with suppress(Exception):  # timm may be absent, or broken
            if importlib.import_module("timm").is_model(name):
                return UsageError(f"{name!r} is no backbone: did you mean timm:{name}?")
    return UsageError(f"{unknown_name('backbone', name, backbone_names())} (for another model give {other_names()})")


def named_model(text: str, options: Options = ()) -> Named:
    """The model that a text names; options go to its builder."""
    check_name(text, options)
    kind, _, rest = text.partition(":")
    if (library := LIBRARIES.get(f"{kind}:")) is not None:
        return library.find(rest, dict(options))
    return builders.find_here(text, dict(options)) if is_here(text) else builders.find_function(text, dict(options))


def describe_model(arch: str) -> str:
    """What the docstring of the function that builds a model says, as one line; empty where there is none."""
    function = builders.HERE[arch][1] if arch in builders.HERE else imported(arch)
    described = inspect.isfunction(function) or inspect.isclass(function)
    return " ".join((function.__doc__ or "").split()) if described else ""


def imported(text: str) -> Any:
    """The function of this name in a file; None where there is none, or where a worker could not import it."""
    if not is_function(text, LIBRARIES):
        return None
    with importable_here(), suppress(UsageError):
        return import_function(text)
    return None
