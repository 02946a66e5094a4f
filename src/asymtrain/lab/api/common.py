"""What `compare`, `tune` and `search` share: the spec of a model and data, the training of runs, where results go.

`--help` loads this file too, also where only torch is installed: other imports are inside functions.
"""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asymtrain.errors import UsageError, how_to_install, unknown_name
from asymtrain.lab.texts import counted

if TYPE_CHECKING:
    from asymtrain.lab.data import Dataset
    from asymtrain.lab.runs import Run, RunSpec
    from asymtrain.lab.terminal import Display
    from asymtrain.lab.trackers import Tracker

STORE_NAME = "runs.sqlite"  # the store's file name in a folder of results
FIRST_SEED = 42
MOST_SEEDS = 10_000  # in one call
OWN = {"arch": "build", "arch_options": "build_options", "dataset": "data", "dataset_options": "data_options"}
"""Fields of a run that these functions call by another name."""


def base_spec(
    arch: str,
    dataset: str | None = None,
    *,
    scale: str = "quick",
    recipe: str | None = None,
    fields: Mapping[str, Any],
    arch_options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
) -> RunSpec:
    """The Asymmetric spec of a model without its seed, as differences from a scale.

    A field that is None takes the recipe's value; without a recipe, the scale's.
    """
    from asymtrain.lab.recipes import recipe_fields
    from asymtrain.lab.runs import RunSpec
    from asymtrain.lab.scales import get_scale, scaled_spec

    sizes = get_scale(scale)
    run_fields = {name: value for name, value in fields.items() if value is not None}
    if data_options:
        scale_options = sizes.datasets.get(dataset or sizes.dataset, {}).get("dataset_options", {})
        run_fields["dataset_options"] = {**scale_options, **data_options}
    if recipe is not None:
        # Building a spec validates the number of epochs.
        epochs = RunSpec(epochs=run_fields.get("epochs", sizes.fields["epochs"])).epochs
        run_fields = recipe_fields(recipe, epochs, run_fields)
    spec = scaled_spec(sizes, arch, dataset, **run_fields)
    return replace(spec, arch_options={**dict(spec.arch_options), **(arch_options or {})})  # type: ignore[arg-type]


def of_full_size(spec: RunSpec, arch_options: Mapping[str, Any], **fields: Any) -> RunSpec:
    """The spec with all images and the full model, where a scale takes few images and a small model.

    The drawn shapes belong to a scale, and keep the small model.
    """
    if spec.dataset != "shapes":
        fields["arch_options"] = arch_options
    return replace(spec, **{"per_class": None, "validation": "none", **fields})


def recommends(fields: Mapping[str, Any], strength: object) -> bool:
    """Whether to use the recommended branches: the user set no field of branches, or only the strength."""
    from asymtrain.lab.candidates import Candidate

    if strength is None:
        return not {*Candidate().fields(), "redundancy", "activation"}.intersection(fields)
    if isinstance(strength, bool) or not isinstance(strength, Real) or not 0 <= float(strength) < math.inf:
        raise UsageError(f"strength must be a finite number of 0 or more, got {strength!r}")
    for name in ("alpha", "class_reduction", "layer_reduction", "balance"):
        if name in fields:
            option = "--alpha" if name == "alpha" else f"--set {name}={fields[name]}"
            raise UsageError(f"--strength has its own unit, which fixes this: leave out --strength, or {option}")
    return True


def with_recommended(
    bases: Sequence[RunSpec], named_fields: Mapping[str, Any], strength: float | None, data_root: Path | None
) -> tuple[list[RunSpec], str]:
    """Specs with the branches that the library recommends for their models, and a line that names these branches.

    Given fields and a given strength take precedence.
    """
    from asymtrain.lab.candidates import Candidate
    from asymtrain.lab.engine import load_for
    from asymtrain.lab.engine.setup import recommended_branches

    specs, archs = [], dict[str, list[str]]()
    for base in bases:
        candidate, convolution = recommended_branches(base, load_for(base, data_root))
        fields = candidate.fields() | ({} if strength is None else {"alpha": strength})
        fields |= {name: named_fields[name] for name in fields if named_fields.get(name) is not None}
        if fields["head"] != "linear" and "bias" not in named_fields:
            fields["bias"] = "none"
        specs.append(replace(base, **fields))
        own = f"{base.arch}, whose layers hold convolutions" if convolution and strength is None else base.arch
        archs.setdefault(Candidate.of(specs[-1]).label, []).append(own)
    words = [f"{label} ({', '.join(names)})" for label, names in archs.items()]
    return specs, f"Recommended branches: {'; '.join(words)}."


def check_output(folder: Path, record: Path) -> None:
    """Refuse a folder or a record that could not be written, and write nothing."""
    from asymtrain.lab.report.page import check_folder

    check_folder(folder)
    check_folder(record.parent)
    if record.is_dir():
        raise UsageError(f"{record} is a folder: give the path of a file, such as {record / STORE_NAME}")


def versions_in(record: Path | None, runs: Iterable[Run]) -> dict[str, str]:
    """All versions that these runs were trained with; without a record, the current ones."""
    from asymtrain.lab.report.run_report import current_versions
    from asymtrain.lab.store import Store
    from asymtrain.lab.store.provenance import joined_versions

    if record is None:
        return current_versions()
    if not (ids := [run.spec.id for run in runs]):
        return {}
    with Store(record, read_only=True) as store:
        return joined_versions([row.provenance.versions for row in store.records(ids)])


@dataclass
class Trained:
    """Finished runs of a call, including stored ones."""

    runs: list[Run]
    note: str = ""  # the last remark on the others
    interrupt: KeyboardInterrupt | None = None


def train_runs(
    specs: list[RunSpec],
    display: Display,
    *,
    store: Path | None,
    tracker: Tracker | None = None,
    fresh: bool = False,
    **options: Any,
) -> Trained:
    """Train the runs that the store lacks, and show progress. `options` go to `executors.execute`.

    Ctrl-C ends the training; the runs finished so far are returned.
    """
    from asymtrain.lab import executors
    from asymtrain.lab.checkpoints import checkpointed
    from asymtrain.lab.store import Store, store_exists
    from asymtrain.lab.trackers import tracking

    done, wanted = Trained([]), {spec.id for spec in specs}
    stored, begun = set[str](), set[str]()
    if store is not None and not fresh and store_exists(store):
        with Store(store, read_only=True) as record:
            stored = record.finished(wanted)
        begun = checkpointed(store) & wanted - stored
    with tracking(tracker, display.update, display.console.print) as update:
        trained = executors.execute(specs, store=store, fresh=fresh, progress=update, **options)  # validates first
        if stored or begun or options.get("executor", "local") == "local":  # a cluster may still refuse
            display.begin()
        if stored:
            nothing = ": nothing is left to train" if stored == wanted else ""
            display.console.print(f"{len(stored)} of {len(wanted)} runs are in {store} already{nothing}.")
        if begun:
            goes = "goes" if len(begun) == 1 else "go"
            display.console.print(f"{counted(len(begun), 'run')} {goes} on from a checkpoint.")
        try:
            for run in trained:
                done.runs.append(run)
                if run.spec.id not in stored:
                    display.finished(run, len(done.runs), len(wanted))
        except KeyboardInterrupt as interrupt:
            done.interrupt = interrupt
    done.note = display.note
    return done


# For the Python functions: models and data without a name, and errors that name arguments.


def import_lab(function: str) -> None:
    """Raise a `UsageError` if the lab's extra is not installed."""
    try:
        import asymtrain.lab.comparisons
        import asymtrain.lab.executors
        import asymtrain.lab.report.run_report
        import asymtrain.lab.terminal  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("asymtrain"):
            raise
        raise UsageError(f"asymtrain.{function} needs {error.name}: {how_to_install('lab')}") from error


def _in_python(text: str, arguments: Mapping[str, inspect.Parameter]) -> str:
    def value(word: str) -> str:
        return word if word.isupper() or word.replace(".", "").isdecimal() else repr(word)  # capitals: a placeholder

    def argument(match: re.Match[str]) -> str:
        option, field, of_field, device = match.groups()
        name = _ARGUMENTS.get(option, option.replace("-", "_"))
        if option == "set":
            return f"{field}={value(of_field)}"
        if name not in arguments:  # an option of another program, as in `pip install --no-deps`
            return match[0]
        argument_text = f"{{{field!r}: {value(of_field)}}}" if field else repr(device) if device else ""
        return f"{name}={argument_text or (True if isinstance(arguments[name].default, bool) else '')}"

    return re.sub(r"--([a-z]+(?:-[a-z]+)*)(?: (\w+)=([\w.]+)| (cpu|cuda)\b)?", argument, text)


_ARGUMENTS = {"arch": "build", "arch-option": "build_options", "data-option": "data_options"}


def given_fields(
    function: str, arguments: Mapping[str, Any], fields: Mapping[str, Any], own: Mapping[str, str]
) -> dict[str, Any]:
    """The arguments that are fields of a run and not None, and further fields.

    `own` maps fields to the names that the function has for them.
    """
    from asymtrain.lab.runs import DEFAULTS

    for name in fields:
        if name in own:
            raise UsageError(f"{name} is given as {own[name]}= here")
        if name not in DEFAULTS:
            names = {*DEFAULTS, *own.values()} - {*own}
            raise unknown_name(f"argument of {function}, or field of a run,", name, names)
    named = {name: value for name, value in arguments.items() if name in DEFAULTS and value is not None}
    return named | dict(fields)


@contextmanager
def opened(
    function: Callable[..., object], arguments: Mapping[str, Any], fields: Mapping[str, Any], **options: Any
) -> Iterator[tuple[RunSpec, list[str], Path | None, dict[str, Any]]]:
    """The spec of a function's arguments, lines that name the defaults, the page's folder, and where to train.

    Refuses paths that cannot be written and devices that are missing. Functions and arrays have a name while the block
    runs. Errors name the function's arguments instead of the command's options. `options` go to `named_spec`.
    """
    from asymtrain.lab.devices import default_device

    paths = (arguments[name] for name in ("out", "store", "data_root"))
    folder, record, root = (None if path is None else Path(path).expanduser() for path in paths)
    record = record or (folder and folder / STORE_NAME)
    try:
        default_device(arguments["device"])
        if record is not None:
            check_output(folder or record.parent, record)
        with ExitStack() as scope:
            base, opening = named_spec(arguments, fields, root, scope, **options)
            yield base, opening, folder, {"store": record, "data_root": root, "device": arguments["device"]}
    except UsageError as error:
        error.args = (_in_python(str(error), inspect.signature(function).parameters),)
        raise


def named_spec(
    arguments: Mapping[str, Any],
    fields: Mapping[str, Any],
    data_root: Path | None,
    scope: ExitStack,
    *,
    all_images: bool = False,
    recommended: bool = False,
    **others: Any,
) -> tuple[RunSpec, list[str]]:
    """`base_spec` of a function's arguments, and lines that name the defaults, `others` included.

    Functions and arrays get a name that is valid until `scope` is closed. `all_images`: the run is `of_full_size`, and
    branches and precision are not named as defaults. `recommended`: if the user chose no branches, take the recommended
    ones, at the given strength.
    """
    from torch import nn

    from asymtrain.lab.data.registry import kept_dataset
    from asymtrain.lab.engine import load_for
    from asymtrain.lab.executors import check_data
    from asymtrain.lab.recipes import complete
    from asymtrain.lab.sources import UNNAMED, Inputs, kept_function

    build, data, recipe, strength = (arguments.get(name) for name in ("build", "data", "recipe", "strength"))
    build_options, data_options = arguments["build_options"], arguments["data_options"]
    if not isinstance(data, str):
        data, data_options = scope.enter_context(kept_dataset(_own_dataset(data, data_options or {}))), None
    if not isinstance(build, str) and (isinstance(build, nn.Module) or not callable(build)):
        given_one = f"a {type(build).__name__}"
        raise UsageError(f"build must make a new model at each call: give a function or a name, not {given_one}")
    arch = build if isinstance(build, str) else UNNAMED
    base = base_spec(arch, data, recipe=recipe, fields=fields, arch_options=build_options, data_options=data_options)
    if all_images:
        base = of_full_size(base, build_options or {}, per_class=fields.get("per_class"))
    recommended = recommended and recommends(fields, strength)
    named_fields = {"dataset", *fields, *(["alpha", "redundancy"] if all_images or recommended else [])}
    named_fields |= {"precision"} if all_images else set()
    (base,), opening = complete([base], recipe, named_fields, data_root, recipe=recipe, **others)
    if not isinstance(build, str):
        dataset = load_for(base, data_root)
        inputs = Inputs(tuple(dataset.train.inputs.shape[1:]), dataset.kind)
        arch = scope.enter_context(kept_function(build, base.arch_options, classes=dataset.classes, inputs=inputs))
        base = replace(base, arch=arch)
    check_data([base], data_root)
    if recommended:
        (base,), line = with_recommended([base], fields, strength, data_root)
        opening.append(line)
    return base, opening


def _own_dataset(data: object, options: Mapping[str, Any]) -> Dataset:
    """A dataset from the caller's arrays, tensors or `Dataset`."""
    from asymtrain.lab.data import Dataset
    from asymtrain.lab.data.own import load_arrays
    from asymtrain.lab.data.resize import resized

    names = ("image_size",) if isinstance(data, Dataset) else ("image_size", "layout", "seed")
    for name in options:
        if name not in names:
            raise unknown_name("option of the data", name, names)
    return resized(data, options.get("image_size")) if isinstance(data, Dataset) else load_arrays(data, **options)


def parse_seeds(seeds: int | Iterable[int], first: int = FIRST_SEED) -> tuple[int, ...]:
    """Seeds from a count, or from the seeds themselves."""
    how = UsageError(
        f"seeds must be how many, from 1 to {MOST_SEEDS}, or which, such as [{first}, {first + 1}], got {seeds!r}"
    )
    if isinstance(seeds, bool | str | bytes) or not isinstance(seeds, int | Iterable):
        raise how
    if isinstance(seeds, int):
        seeds = range(first, first + min(seeds, MOST_SEEDS + 1))
    which = tuple(dict.fromkeys(itertools.islice(seeds, MOST_SEEDS + 1)))
    if not 1 <= len(which) <= MOST_SEEDS:
        raise how
    return which


def call_text(function: str, base: RunSpec, fields: Mapping[str, Any], own: Mapping[str, str], **options: Any) -> str:
    """The call as a page shows it, with the options that are set; functions and arrays by the name that runs store."""
    arguments = {**fields, **{name: value for name, value in options.items() if value}}
    keywords = [f"{own.get(name, name)}={value!r}" for name, value in arguments.items()]
    return f"asymtrain.{function}({', '.join([repr(base.arch), repr(base.dataset), *keywords])})"
