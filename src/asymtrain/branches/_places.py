"""Where branches go: names, globs or modules in, the model's modules out.

A name is a module's path as `model.named_modules()` spells it. In a glob, `*` stays within one dotted
segment, so `blocks.*` is the blocks and not what is inside them; `**` is any number of segments. What is a module's
name is a name, not a glob.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from torch import nn

from asymtrain.errors import UsageError, unknown_name

T = TypeVar("T")
Where = str | nn.Module | Sequence[str | nn.Module]

# The model itself has the empty path; it needs a name that can be shown and used as a key.
ROOT = "(model)"


def find_places(model: nn.Module, at: Where) -> dict[str, nn.Module]:
    """The modules that `at` names, in the order given; a glob's matches come in the model's own order.

    A module that is reachable by two names is one place, under the first of them.
    """
    named = list(_named_modules(model))
    modules = dict(named)
    wanted = list(at) if isinstance(at, Sequence) and not isinstance(at, str) else [at]
    if not wanted:
        raise UsageError("`at` is empty: name at least one module, for example at='blocks.*'")
    places: dict[str, nn.Module] = {}
    for item in wanted:
        for name in _names(modules, item):
            if not any(modules[name] is module for module in places.values()):
                places[name] = modules[name]
    for name, module in named:
        if name in places and places[name] is not module:
            raise UsageError(f"two modules of the model have the name {name!r}: rename one of them, or choose another")
        if name in places and "" in name.split("."):
            raise UsageError(f"place {name!r} lies in a module whose name is empty: give it a name")
    return places


def module_at(model: nn.Module, place: str) -> nn.Module:
    """The module of a place's name."""
    # Not get_submodule: a child that was set by setattr may have a dot in its own name.
    return next(module for name, module in _named_modules(model) if name == place)


def _named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    # Duplicates are kept so that every name of a shared module resolves.
    return ((name or ROOT, module) for name, module in model.named_modules(remove_duplicate=False))


def by_place(option: T | Mapping[str, T], places: Iterable[str], what: str, default: T) -> dict[str, T]:
    """The value of an option at each place: the option itself, or that of a mapping's first key that fits the place.

    A key that is a place's name means that place alone, whatever marks of a glob are in it.
    A key that fits no place is refused: it would do nothing.
    """
    names = list(places)
    if not isinstance(option, Mapping):
        return dict.fromkeys(names, option)
    for key in option:
        if not isinstance(key, str):
            kind = type(key).__name__
            raise UsageError(f"the keys of `{what}` are place names or globs, got a {kind}: {what}={{'blocks.*': ...}}")
        if key not in names and not any(fits(key, name) for name in names):
            raise unknown_name(f"place in `{what}`", key, names)

    def meant(key: str, name: str) -> bool:
        return key == name if key in names else fits(key, name)

    return {name: next((value for key, value in option.items() if meant(key, name)), default) for name in names}


def fits(pattern: str, name: str) -> bool:
    """Whether a glob fits a dotted name, segment by segment."""

    def fit(globs: list[str], segments: list[str]) -> bool:
        if not globs:
            return not segments
        if globs[0] == "**":
            return any(fit(globs[1:], segments[skip:]) for skip in range(len(segments) + 1))
        return bool(segments) and fnmatchcase(segments[0], globs[0]) and fit(globs[1:], segments[1:])

    return fit(pattern.split("."), name.split("."))


def _names(modules: dict[str, nn.Module], item: object) -> list[str]:
    kind = type(item).__name__
    if isinstance(item, nn.Module):
        names = [name for name, module in modules.items() if module is item]
        if not names:
            raise UsageError(f"`at` holds a {kind} that is not part of the model: give a module of the model itself")
        return names[:1]
    if not isinstance(item, str):
        raise UsageError(f"`at` takes module names, globs or modules, or a list of them, got a {kind}")
    if item in modules or not any(mark in item for mark in "*?["):
        name = item or ROOT
        if name not in modules:
            raise unknown_name("module", name, modules)
        return [name]
    names = [name for name in modules if name != ROOT and fits(item, name)]
    if not names:
        children = sorted({name.split(".")[0] for name in modules if name != ROOT})[:12]
        listed = ", ".join(name if name.isprintable() else repr(name) for name in children)
        raise UsageError(
            f"no module matches {item!r} (`*` stays within one dotted segment): the model's children are "
            f"{listed or 'none'}"
        )
    return names
