"""What the functions for Python share (`compare`, `tune`): specs of names, functions and arrays, and the display.

They do what commands do, from values instead of texts.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asymtrain.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from asymtrain.lab.cli.screen import Display
    from asymtrain.lab.data import Dataset
    from asymtrain.lab.runs import RunSpec

Fields = Mapping[str, Any]  # of a run
OWN = {"arch": "build", "arch_options": "build_options", "dataset": "data", "dataset_options": "data_options"}
"""Fields of a run that have another name in every function."""


def import_lab(name: str) -> None:
    """Refuse to begin where the lab's extra is not installed."""
    from asymtrain.lab.cli import EXTRA

    try:
        import asymtrain.lab.cli.run
        import asymtrain.lab.comparisons
        import asymtrain.lab.executors
        import asymtrain.lab.report.run_report  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("asymtrain"):
            raise
        raise UsageError(f"asymtrain.{name} needs {error.name}: {EXTRA}") from error


@contextmanager
def naming_arguments(function: Callable[..., object]) -> Iterator[None]:
    """Let errors name the arguments of a function, where they name the options of the command that does the same."""
    try:
        yield
    except UsageError as error:
        error.args = (_in_python(str(error), inspect.signature(function).parameters),)
        raise


def _in_python(text: str, arguments: Mapping[str, inspect.Parameter]) -> str:
    def value(word: str) -> str:
        return word if word.isupper() or word.replace(".", "").isdecimal() else repr(word)  # capitals stand for a value

    def argument(option: re.Match[str]) -> str:
        name = _ARGUMENTS.get(option[1], option[1].replace("-", "_"))
        if name not in arguments:  # an option of another program, as in `pip install --no-deps`
            return option[0]
        return f"{name}=True" if isinstance(arguments[name].default, bool) else f"{name}="

    text = re.sub(r"(--set \w+=[\w.]+) (?=--set)", r"\1, ", text)
    text = re.sub(r"--set (\w+)=([\w.]+)", lambda pair: f"{pair[1]}={value(pair[2])}", text)
    text = re.sub(r"(--\w+-option) (\w+)=([\w.]+)", lambda pair: f"{pair[1]}{{{pair[2]!r}: {value(pair[3])}}}", text)
    text = re.sub(r"(--device) (\w+)", lambda pair: f"{pair[1]}{value(pair[2])}", text)
    return re.sub(r"--([a-z]+(?:-[a-z]+)*)", argument, text)


_ARGUMENTS = {"arch": "build", "arch-option": "build_options", "data-option": "data_options"}


def given_fields(function: str, chosen: Fields, fields: Fields, own: Mapping[str, str]) -> dict[str, Any]:
    """Those that a function's arguments chose, unless None, and further ones; `own` are known by another name there."""
    from asymtrain.lab.runs import DEFAULTS

    for name in fields:
        if name in own:
            raise UsageError(f"{name} is given as {own[name]}= here")
        if name not in DEFAULTS:
            known = {*DEFAULTS, *own.values()} - {*own}
            raise unknown_name(f"argument of {function}, or field of a run,", name, known)
    return {name: value for name, value in chosen.items() if value is not None} | dict(fields)


def checked_paths(
    out: str | Path | None, store: str | Path | None, data_root: str | Path | None, device: str | None
) -> tuple[Path | None, Path | None, Path | None]:
    """Folder, record and data's root; refuse what could not be written to, or trained on."""
    from asymtrain.lab.cli.options import STORE_NAME, OutputOptions
    from asymtrain.lab.devices import default_device

    folder, record, root = (None if path is None else Path(path).expanduser() for path in (out, store, data_root))
    record = record or (folder and folder / STORE_NAME)
    default_device(device)
    if record is not None:
        OutputOptions(out=folder or record.parent, store=record).check()
    return folder, record, root


def base_spec(
    build: object,
    data: object,
    recipe: str | None,
    given: Mapping[str, Any],
    build_options: Mapping[str, Any] | None,
    data_options: Mapping[str, Any] | None,
    data_root: Path | None,
    held: ExitStack,
    *,
    tuned: bool = False,
    **others: Any,
) -> tuple[RunSpec, list[str]]:
    """The Asymmetric spec without its seed, and lines that tell what was not given, `others` included.

    What has no name gets one, which holds until `held` is closed. Where it is `tuned`, it has all images, where a scale
    would take a few, and its alpha does not count.
    """
    from torch import nn

    from asymtrain.lab.data.registry import kept_dataset
    from asymtrain.lab.engine import load_for
    from asymtrain.lab.executors import check_data
    from asymtrain.lab.recipes import complete, recipe_fields
    from asymtrain.lab.runs import RunSpec
    from asymtrain.lab.scales import get_scale, scaled_spec
    from asymtrain.lab.sources import UNNAMED, Inputs, kept_function

    scale, options = get_scale("quick"), dict(data_options or {})
    if isinstance(data, str):
        name, options = data, {**scale.datasets.get(data, {}).get("dataset_options", {}), **options}
    else:
        name, options = held.enter_context(kept_dataset(_own_dataset(data, options))), {}
    if not isinstance(build, str) and (isinstance(build, nn.Module) or not callable(build)):
        given_one = f"a {type(build).__name__}"
        raise UsageError(f"build must make a new model at each call: give a function or a name, not {given_one}")
    fields = dict(given)
    if recipe is not None:
        epochs = RunSpec(epochs=given.get("epochs", scale.fields["epochs"])).epochs  # which refuses what is no number
        fields = recipe_fields(recipe, epochs, given)
    if options:
        fields["dataset_options"] = options
    base = scaled_spec(scale, build if isinstance(build, str) else UNNAMED, name, **fields)
    if build_options:
        base = replace(base, arch_options={**dict(base.arch_options), **build_options})  # type: ignore[arg-type]
    if tuned:
        base = replace(base, per_class=given.get("per_class"))
    dataset = load_for(base, data_root)
    named = {"dataset", *given, *(["alpha"] if tuned else [])}
    (base,), opening = complete([base], recipe, named, data_root, recipe=recipe, **others)
    if not isinstance(build, str):
        inputs = Inputs(tuple(dataset.train.inputs.shape[1:]), dataset.kind)
        arch = held.enter_context(kept_function(build, base.arch_options, classes=dataset.classes, inputs=inputs))
        base = replace(base, arch=arch)
    check_data([base], data_root)
    return base, opening


def _own_dataset(data: object, options: Mapping[str, Any]) -> Dataset:
    """A dataset of what the caller holds."""
    from asymtrain.lab.data import Dataset
    from asymtrain.lab.data.own import load_arrays
    from asymtrain.lab.data.resize import resized

    known = ("image_size",) if isinstance(data, Dataset) else ("image_size", "layout", "seed")
    for name in options:
        if name not in known:
            raise unknown_name("option of the data", name, known)
    return resized(data, options.get("image_size")) if isinstance(data, Dataset) else load_arrays(data, **options)


@contextmanager
def shown_progress(shows: bool, opening: Sequence[str] = ()) -> Iterator[Display | None]:
    from asymtrain.lab.cli.screen import progress_display

    if not shows:
        yield None
        return
    with progress_display(opening) as display:
        yield display


def call_text(function: str, base: RunSpec, given: Mapping[str, Any], own: Mapping[str, str], **options: Any) -> str:
    """The call as a page shows it, with the options that are set; what is no name stands by that of its runs."""
    asked = {**given, **{name: value for name, value in options.items() if value}}
    shown = [f"{own.get(name, name)}={value!r}" for name, value in asked.items()]
    return f"asymtrain.{function}({', '.join([repr(base.arch), repr(base.dataset), *shown])})"
