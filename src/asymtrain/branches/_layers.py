"""Where branches go: names, globs or modules in, the model's modules out.

A name is a module's path as in `model.named_modules()`. In a glob, `*` stays within one dotted segment, so `blocks.*`
matches the blocks and not what is inside them; `**` matches any number of segments. A string that is a module's name
is never read as a glob.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from numbers import Integral
from typing import Any, TypeVar

from torch import nn

from asymtrain.errors import UsageError, near_names, unknown_name

T = TypeVar("T")
Target = str | int | nn.Module
Where = Target | Sequence[Target] | Mapping[str | int, str]

# The model's own path is empty; it needs a name to show and to use as a key.
ROOT = "(model)"


def find_paths(model: nn.Module, at: Where) -> dict[str, str]:
    """The paths of the modules that `at` names, in the order given; a glob's matches come in the model's own order.

    A layer's name is its path, or its value in `at` if that is a dict. A module with two paths is one layer, under the
    first of them.
    """
    pairs = list(_named_modules(model))
    modules = dict(pairs)
    many = isinstance(at, Sequence | Mapping) and not isinstance(at, str)
    items: list[object] = list(at) if many else [at]  # type: ignore[arg-type]
    if not items:
        raise UsageError("`at` is empty: name at least one module, for example at='blocks.*'")
    paths: dict[str, str] = {}
    for item in items:
        for path in _names(modules, item):
            if not any(modules[path] is modules[other] for other in paths.values()):
                paths[_alias(at, item, paths) if isinstance(at, Mapping) else path] = path
    layers = {path: modules[path] for path in paths.values()}
    for name, module in pairs:
        if name in layers and layers[name] is not module:
            raise UsageError(f"two modules of the model have the name {name!r}: rename one of them, or choose another")
        if name in layers and "" in name.split("."):
            raise UsageError(f"layer {name!r} lies in a module whose name is empty: give it a name")
    return paths


def _alias(at: Mapping[Any, object], item: object, names: Mapping[str, str]) -> str:
    alias = at[item]
    if not isinstance(alias, str) or not alias:
        raise UsageError(f"a dict `at` goes from modules to the names of layers, got {alias!r} for {item!r}")
    if alias in names:
        raise UsageError(f"two layers of `at` would be called {alias!r}: give each module a name of its own")
    return alias


def repeated_blocks(modules: Mapping[str, nn.Module]) -> list[list[str]]:
    """The model's series of repeated blocks, as paths in its own order: lists of modules of the most frequent class.

    Lists whose paths differ only in numbers are stages of one series; others, as in an encoder and a decoder, are not.
    Lists inside blocks do not count. If two classes tie, the one whose members have submodules wins.
    """
    lists: dict[type, dict[str, list[str]]] = {}
    for path, module in modules.items():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or len(module) < 2:
            continue
        kinds = {type(child) for child in module}
        blocks = (block for series in lists.values() for stages in series.values() for block in stages)
        inner = any(path.startswith(f"{block}.") for block in blocks)
        if len(kinds) == 1 and not inner:
            prefix = "" if path == ROOT else f"{path}."
            stages = lists.setdefault(kinds.pop(), {}).setdefault(re.sub(r"\d+", "*", path), [])
            stages.extend(f"{prefix}{name}" for name, _ in module.named_children())

    def size(kind: type) -> tuple[int, bool]:
        members = [path for series in lists[kind].values() for path in series]
        return len(members), any(True for path in members for _ in modules[path].children())

    most = max(map(size, lists), default=None)
    return [series for kind in lists if size(kind) == most for series in lists[kind].values()]


def module_at(model: nn.Module, layer: str) -> nn.Module:
    """The module at a path."""
    # Not get_submodule: a child's own name may contain a dot.
    return next(module for name, module in _named_modules(model) if name == layer)


def _named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    # With duplicates, so that every name of a shared module resolves.
    return ((name or ROOT, module) for name, module in model.named_modules(remove_duplicate=False))


def by_layer(option: T | Mapping[str, T], layers: Iterable[str], what: str, default: T) -> dict[str, T]:
    """The value of an option at each layer: the option itself, or in a mapping the value of the first matching key.

    A key that is a layer's name means that layer alone, even if it contains `*`, and takes precedence over globs.
    A key that fits no layer is refused: it would have no effect.
    """
    names = list(layers)
    if not isinstance(option, Mapping):
        return dict.fromkeys(names, option)
    for key in option:
        if not isinstance(key, str):
            kind = type(key).__name__
            raise UsageError(f"the keys of `{what}` are layer names or globs, got a {kind}: {what}={{'blocks.*': ...}}")
        if key not in names and not any(fits(key, name) for name in names):
            raise unknown_name(f"layer in `{what}`", key, names)

    globs = {key: value for key, value in option.items() if key not in names}

    def value_at(name: str) -> T:
        return option[name] if name in option else next((globs[key] for key in globs if fits(key, name)), default)

    return {name: value_at(name) for name in names}


def fits(pattern: str, name: str) -> bool:
    """Whether a glob matches a dotted name, segment by segment."""

    def fit(globs: list[str], segments: list[str]) -> bool:
        if not globs:
            return not segments
        if globs[0] == "**":
            return any(fit(globs[1:], segments[skip:]) for skip in range(len(segments) + 1))
        return bool(segments) and fnmatchcase(segments[0], globs[0]) and fit(globs[1:], segments[1:])

    return fit(pattern.split("."), name.split("."))


def _names(modules: dict[str, nn.Module], item: object) -> list[str]:
    kind = type(item).__name__
    if not isinstance(item, bool) and isinstance(item, Integral):  # numpy's too
        series, number = repeated_blocks(modules), int(item)
        paths = [blocks[number] for blocks in series if -len(blocks) <= number < len(blocks)]
        if not paths:
            numbers = " and ".join(f"{len(blocks)}, {blocks[0]!r} to {blocks[-1]!r}" for blocks in series[:4])
            raise UsageError(
                f"`at` counts the model's repeated blocks, and has none of number {number}: there are "
                + (numbers or f"none; give names instead, such as {_children(modules)}")
            )
        if len(series) > 1:
            raise UsageError(
                f"`at` counts the model's repeated blocks, and there are {len(series)} series of them: give the names, "
                f"in place of {number} {' or '.join(map(repr, paths[:4]))}"
            )
        return paths
    if isinstance(item, nn.Module):
        names = [name for name, module in modules.items() if module is item]
        if not names:
            raise UsageError(f"`at` holds a {kind} that is not part of the model: give a module of the model itself")
        return names[:1]
    if not isinstance(item, str):
        raise UsageError(f"`at` takes module names, globs, modules or whole numbers, or a list of them, got a {kind}")
    if item in modules or not any(mark in item for mark in "*?["):
        name = item or ROOT
        if name not in modules:
            raise unknown_name("module", name, modules)
        return [name]
    names = [name for name in modules if name != ROOT and fits(item, name)]
    if not names:
        near = near_names(item, _globs(modules))
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {_children(modules)}"
        raise UsageError(f"no module matches {item!r} (`*` stays within one dotted segment): {hint}")
    return names


def _globs(modules: Iterable[str]) -> list[str]:
    """Globs that match modules: a star for each number in a name, and for the children of one module."""
    globs = set()
    for name in modules:
        segments = ["*" if segment.isdecimal() else segment for segment in name.split(".")]
        globs |= {".".join(segments), ".".join([*segments[:-1], "*"])}
    return sorted(glob for glob in globs if "*" in glob)


def _children(modules: Mapping[str, nn.Module]) -> str:
    children = sorted({name.split(".")[0] for name in modules if name != ROOT})[:12]
    return ", ".join(name if name.isprintable() else repr(name) for name in children) or "none"
