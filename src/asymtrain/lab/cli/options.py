"""What users type, as values: the options that commands share, each declared once, and their groups (groups.py).

An option that several groups have is a constant (`DATA`).
--help reads this file too: what needs torch is imported inside functions.
"""

import dataclasses
import json
import math
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asymtrain.errors import UsageError, unknown_name
from asymtrain.lab.api.common import FIRST_SEED, MOST_SEEDS, base_spec, check_output
from asymtrain.lab.api.common import STORE_NAME as STORE_NAME
from asymtrain.lab.cli.groups import shown_fields
from asymtrain.lab.cli.loading import loading
from asymtrain.lab.functions import is_function
from asymtrain.lab.texts import comma_words

if TYPE_CHECKING:
    from asymtrain.lab.runs import RunSpec
    from asymtrain.lab.studies.snapshot import Snapshot
    from asymtrain.lab.trackers import Tracker

DEFAULT_OUT = Path("asymtrain-report")
TRAINED, WHERE, RESULTS = "What is trained", "Where and how long", "Results"  # headings of the help
MOST = 10**9  # the limit of every count: a larger number is a typing error
Workers = tuple[str, int]  # what trains: the kind of device (cpu, cuda), and how many stacks at the same time


def latest_store() -> Path:
    """The store that a command last wrote into its default folder here; if none, the store of `asymtrain run`."""

    def written(store: Path) -> float:
        log = store.with_name(f"{store.name}-wal")  # SQLite's write-ahead log, which it writes first
        return max(file.stat().st_mtime for file in (store, log) if file.exists())

    stores = list(Path().glob(f"asymtrain-*/{STORE_NAME}"))
    return max(stores, key=written) if stores else DEFAULT_OUT / STORE_NAME


def one_or_more(option: typer.CallbackParam, value: int | None) -> int | None:
    if value is not None and value < 1:
        raise UsageError(f"{option.opts[0]} must be 1 or more, got {value}")
    if value is not None and value > MOST:
        raise UsageError(f"{option.opts[0]} must be at most {MOST:,}, got {value}")
    return value


def above_zero(option: typer.CallbackParam, value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise UsageError(
            f"{option.opts[0]} must be above 0{', and finite' if value == math.inf else ''}, got {value:g}"
        )
    return value


def offered(*values: str) -> Callable[[str], list[str]]:
    """Completes these values in a shell, also after a comma."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{value}" for value in values if value.startswith(last)]

    return complete


def offered_datasets(incomplete: str) -> list[str]:
    from asymtrain.lab.data.registry import SOURCES

    return offered(*SOURCES)(incomplete)


def offered_archs(incomplete: str) -> list[str]:
    from asymtrain.models import backbone_names

    return offered(*backbone_names())(incomplete)


# The runs.
DATA = typer.Option(
    "--data",
    help="shapes, cifar10, cifar100, folder:PATH, idx:FOLDER, npz:FILE or package.module:function.",
    autocompletion=offered_datasets,
)
DATA_OPTION = typer.Option(
    "--data-option",
    metavar="NAME=VALUE",
    help="An option of the data, such as image_size=64; may be repeated. An unknown one lists all.",
)
SEEDS = typer.Option("--seeds", help="How many (3: 42, 43 and 44), from..to (42..51), or which (42,43,44; one: 42,).")
SETTINGS = typer.Option(
    "--set",
    metavar="FIELD=VALUE",
    rich_help_panel=TRAINED,
    help="A control, such as signal=noise, or a part of the recipe, such as clip=1; may be repeated. An unknown one "
    "lists all.",
)
RUN_IDS = typer.Option("--run", metavar="ID", help="Id of a stored run, or its beginning; several with commas; or all.")
# Where and for how long they are trained.
DATA_ROOT = typer.Option("--data-root", help="Where downloaded data is kept. Default: $ASYMTRAIN_DATA.")
MINUTES = typer.Option("--minutes", help="Stop after this time; the next call continues.", callback=above_zero)
TRACK = typer.Option("--track", help="Log every epoch as it comes: tensorboard, mlflow, wandb or trackio.")
WATCH = typer.Option("--watch", help="Show a live page on this machine as it trains.", rich_help_panel=RESULTS)
NO_TOKEN = typer.Option(
    "--no-token", help="Let everyone on this machine open the live page: no token in its link.", rich_help_panel=RESULTS
)
STATES = typer.Option("--states", help="Folder that keeps weights. Default: states in --out.")
ESTIMATED = typer.Option("--device", help="cpu or cuda: for which the time is estimated.")
# Where results go.
OUT = typer.Option("--out", help="Folder that the results are written to.")
STORE = typer.Option("--store", help=f"Record of runs. Default: {STORE_NAME} in --out.")
RECORD = typer.Option("--store", help="Record of runs.")  # of commands that read one
LATEST = f"Default: of the folders that commands write here, asymtrain-*/{STORE_NAME}, the one written last."
JSON = typer.Option("--json", help="Print the result as JSON.")


@dataclass(frozen=True)
class RunOptions:
    """Which runs, as differences from a scale, and what a user may change of them.

    A field that is not in `CHOICES` is a field of the spec by the same name; None leaves the recipe's value, or the
    scale's.
    """

    heading = TRAINED

    data: Annotated[str | None, DATA] = None
    data_option: Annotated[list[str] | None, DATA_OPTION] = None
    arch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="mlp, cnn, vit; timm:NAME; hf:CONFIG; package.module:function; several with commas. Default: all "
            "three.",
            autocompletion=offered_archs,
        ),
    ] = None
    arch_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="An option of the model's builder, such as hidden_size=64; may be repeated.",
        ),
    ] = None
    scale: Annotated[
        str | None,
        typer.Option(
            help="quick (the default): small networks. paper: as published.", autocompletion=offered("quick", "paper")
        ),
    ] = None
    seeds: Annotated[str | None, SEEDS] = None
    recipe: Annotated[
        str | None,
        typer.Option(
            help="How runs are trained: paper, ordinary, strong, vit_lite or small_vit. Default: as the scale says.",
            autocompletion=offered("paper", "ordinary", "strong", "vit_lite", "small_vit"),
        ),
    ] = None
    epochs: Annotated[int | None, typer.Option(help="Epochs of each run.", callback=one_or_more)] = None
    batch: Annotated[
        int | None, typer.Option(help="Images in a batch. Default: the recipe's, or the scale's.", callback=one_or_more)
    ] = None
    learning_rate: Annotated[float | None, typer.Option(help="Highest learning rate.", callback=above_zero)] = None
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay.")] = None
    at: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Layers: module names or globs. Default: the model's blocks."),
    ] = None
    layout: Annotated[
        str | None, typer.Option(help="The axes of a layer's output, such as BTD, if asymtrain asks for them.")
    ] = None
    redundancy: Annotated[int | None, typer.Option(help="Branches at each point.", callback=one_or_more)] = None
    alpha: Annotated[float | None, typer.Option(help="Weight of the branches' loss, in the paper's unit.")] = None
    precision: Annotated[
        str | None,
        typer.Option(
            help="Precision of the training: fp32 (the default), tf32 or bf16.",
            autocompletion=offered("fp32", "tf32", "bf16"),
        ),
    ] = None
    initial_weights: Annotated[
        str | None, typer.Option(help="A safetensors file that a model by name starts from.", metavar="FILE")
    ] = None

    def given_names(self) -> list[str]:
        return [field.name for field in dataclasses.fields(self) if getattr(self, field.name) != field.default]

    def complete(
        self, bases: "Sequence[RunSpec]", named_fields: Collection[str], data_root: Path | None, **others: Any
    ) -> "tuple[list[RunSpec], list[str]]":
        """The specs with a batch that fits their data, and lines that name the defaults.

        `named_fields` are further fields that were given, `others` further settings that were not.
        """
        from asymtrain.lab.recipes import complete

        fields = {"dataset" if name == "data" else name for name in self.given_names()} | set(named_fields)
        defaults = {"scale": self.scale or "quick", "recipe": self.recipe or "paper", **others}
        missing = {name: value for name, value in defaults.items() if name not in fields}
        return complete(bases, self.recipe, fields, data_root, **missing)

    def refuse_beside(self, option: str, *allowed: str) -> set[str]:
        """Refuse settings of runs beside `option`, which names runs with all their settings.

        Functions may be given, since a command imports only functions that it names; they are returned.
        """
        from asymtrain.lab.data.registry import SOURCES
        from asymtrain.lab.sources import LIBRARIES

        words = [self.data or "", *(word.strip() for text in self.arch or () for word in text.split(","))]
        functions = {word for word in words[:1] if is_function(word, SOURCES)}
        functions |= {word for word in words[1:] if is_function(word, LIBRARIES)}
        for name in self.given_names():
            values = {"data": words[:1], "arch": words[1:]}.get(name, [""])
            if name not in allowed and not functions.issuperset(values):
                raise UsageError(f"{option} names runs with all their settings: leave out --{name.replace('_', '-')}")
        return functions

    def parse_seeds(self, default: Sequence[int] = ()) -> tuple[int, ...]:
        """The seeds that are given, else the default, else the scale's."""
        from asymtrain.lab.scales import get_scale

        if self.seeds is not None:
            return parse_seeds(self.seeds)
        return tuple(default or get_scale(self.scale or "quick").seeds)

    def base_specs(self, archs: Sequence[str] = (), **fields: Any) -> "list[RunSpec]":
        """The Asymmetric spec of each backbone that is given, else of `archs`, else of all; seeds are left out.

        `fields` are further fields of the specs.
        """
        own = {name: value for name, value in vars(self).items() if name not in CHOICES}
        with naming_options(self.given_names(), fields):
            return [
                base_spec(
                    name,
                    self.data,
                    scale=self.scale or "quick",
                    recipe=self.recipe,
                    fields=own | fields,
                    arch_options=parse_options("--arch-option", self.arch_option),
                    data_options=parse_options("--data-option", self.data_option),
                )
                for name in parse_archs(self.arch or archs)
            ]


@contextmanager
def naming_options(options: Collection[str], settings: Collection[str]) -> Iterator[None]:
    """Let errors that begin with a field of a run begin with the option that set it, or with --set."""
    try:
        yield
    except UsageError as error:
        name, _, rest = str(error).partition(" ")
        option = f"--{name.replace('_', '-')}" if name in options else f"--set {name}" if name in settings else name
        error.args = (f"{option} {rest}",)
        raise


CHOICES = ("data", "data_option", "model", "arch", "arch_option", "scale", "seeds", "recipe", "strength")
"""Options that are not a field of a spec by the same name."""


@dataclass(frozen=True)
class DeviceOptions:
    """Where a command computes, and where its data is."""

    heading = WHERE

    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1. Default: the fastest available.")] = None
    data_root: Annotated[Path | None, DATA_ROOT] = None

    def __post_init__(self) -> None:
        """Refuse a device that is unknown or not on this machine, before anything is read or written."""
        if self.device is not None and getattr(self, "executor", "") != "ray":
            with loading():
                from asymtrain.lab.devices import default_device
            default_device(self.device)


@dataclass(frozen=True)
class ExecutorOptions(DeviceOptions):
    """Where and for how long runs are trained: arguments of `executors.execute`, by the same names."""

    minutes: Annotated[float | None, MINUTES] = None
    executor: Annotated[
        str, typer.Option(help="local, or ray for a cluster.", autocompletion=offered("local", "ray"))
    ] = "local"
    address: Annotated[str | None, typer.Option(help="Address of the Ray cluster. Default: one on this machine.")] = (
        None
    )

    @property
    def workers(self) -> Workers:
        """The kind of device and the number of stacks; a cluster counts as one GPU."""
        from asymtrain.lab.executors import check_executor

        check_executor(self.executor, self.address)
        if self.executor == "ray":
            return ("cpu" if self.device == "cpu" else "cuda"), 1
        return _local_workers(self.device)


def estimated_workers(device: str | None) -> Workers:
    """For a plan: a machine without a GPU can plan for one too."""
    return ("cuda", 1) if device == "cuda" else _local_workers(device)


def _local_workers(device: str | None) -> Workers:
    from asymtrain.lab.machine import cores, may_have_gpu

    if device == "cpu" or (device is None and not may_have_gpu()):
        return "cpu", cores()  # torch would give the same answer, but takes seconds to load
    from asymtrain.lab.devices import default_device
    from asymtrain.lab.executors.local import Local

    local = default_device(device)
    return ("cuda" if local.type == "cuda" else "cpu"), Local(local).workers


@dataclass(frozen=True)
class TrainingOptions(ExecutorOptions):
    """The options of `ExecutorOptions`, for commands that can also train stored runs again."""

    fresh: Annotated[bool, typer.Option("--fresh", help="Train again what the store already holds.")] = False


@dataclass(frozen=True)
class TrackOptions:
    """Where runs are logged as they train."""

    heading = RESULTS

    track: Annotated[str | None, TRACK] = None

    def open(self, folder: Path) -> "Tracker | None":
        """The tracker, which writes into the results folder; refuses one that is not installed."""
        from asymtrain.lab.trackers import open_tracker

        return None if self.track is None else open_tracker(self.track, folder)


@dataclass(frozen=True)
class OutputOptions:
    """The folder of a page, the store of the runs behind it, and whether the result is printed as JSON."""

    heading = RESULTS

    out: Annotated[Path, OUT] = DEFAULT_OUT
    json: Annotated[bool, JSON] = False
    store: Annotated[Path | None, STORE] = None

    @property
    def store_path(self) -> Path:
        return self.store or self.out / STORE_NAME

    @property
    def given_words(self) -> list[str]:
        """The folder and the store as they were given, for a command that is named to the user."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        values = {name: getattr(self, name) for name in ("out", "store")}
        return [word for name, value in values.items() if value != defaults[name] for word in (f"--{name}", str(value))]

    def read(self, epochs_of: "Callable[[RunSpec], bool] | None" = None) -> "Snapshot":
        """What the store holds; a missing one is reported if it was named, since the name may be wrong."""
        from asymtrain.lab.store import store_exists
        from asymtrain.lab.studies.snapshot import read_store
        from asymtrain.lab.terminal import stderr

        if self.store is not None and not store_exists(self.store):
            stderr().print(f"There is no store at {self.store}: nothing counts as done.")
        return read_store(self.store_path, epochs_of)

    def check(self) -> None:
        """Refuse a folder or a store that could not be written, and write nothing."""
        check_output(self.out, self.store_path)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds from a count (`3`: 42, 43, 44), ranges with both ends (`42..51`, `42-51`) or a list (`42,43`; `7,`)."""
    parts = [part.strip() for part in text.split(",")]
    many = UsageError(f"--seeds {text[:40]}: at most {MOST_SEEDS:,} seeds, each of at most 18 digits")
    if any(len(number) > 18 for number in re.findall(r"\d+", text)):
        raise many
    if len(parts) == 1 and re.fullmatch(r"\d+", parts[0], re.ASCII):
        if int(parts[0]) < 1:
            raise UsageError(f"--seeds {text}: at least one seed is needed")
        parts = [f"{FIRST_SEED}..{FIRST_SEED + int(parts[0]) - 1}"]
    wrong = UsageError(f"--seeds {shlex.quote(text)}: write how many (3), from..to (42..51), or which (42,43 or 42,)")
    seeds: list[int] = []
    for part in filter(None, parts):
        match = re.fullmatch(r"(\d+)(?:\s*(?:\.\.|-)\s*(\d+))?", part, re.ASCII)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise wrong
        first, last = int(match[1]), int(match[2] or match[1])
        if len(seeds) + last - first >= MOST_SEEDS:
            raise many
        seeds += range(first, last + 1)
    if not seeds:
        raise wrong
    return tuple(dict.fromkeys(seeds))


def parse_archs(texts: Sequence[str] | None, *, by_name: bool = True) -> tuple[str, ...]:
    """Backbones, or models by name if allowed, from repeated or comma-separated texts; by default all backbones."""
    from asymtrain.lab.sources import check_name
    from asymtrain.models import backbone_names

    backbones = backbone_names()
    names = [name for text in texts or () for name in comma_words(text)]
    for name in names:
        if name not in backbones:
            if not by_name:
                raise unknown_name("backbone", name, backbones)
            check_name(name)
    return tuple(dict.fromkeys(names or backbones))


def parse_settings(
    texts: Sequence[str] | None, options: type[Any] = RunOptions, others: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Fields of a run from `FIELD=VALUE`: what branches are, what they pass to the backbone, parts of recipes.

    `options` are the command's own: their fields are refused, and so are `others`, whose options have other names.
    """
    from asymtrain.lab import recipes, runs

    own = {field.name: f"--{field.name.replace('_', '-')}" for field in shown_fields(options)}
    own |= others or {}
    fields = (*runs.AUXILIARY, *recipes.FIELDS, "last_batch")
    names = [name for name in fields if not name.startswith("cosine") and name not in own]  # cosines change no result
    choices = {name: runs.choices(name) for name in names}
    settings: dict[str, Any] = {}
    for text in texts or ():
        name, _, typed = (part.strip() for part in text.partition("="))
        if name in own and name in runs.DEFAULTS:
            raise UsageError(f"--set {text}: it has an option of its own, {own[name]}")
        if name not in choices:
            listed = ", ".join(f"{field}={'|'.join(values) or 'NUMBER'}" for field, values in choices.items())
            raise UsageError(f"--set {text}: there is no such field; write one of {listed}")
        if choices[name] and typed not in choices[name]:
            raise UsageError(f"--set {text}: write {name}={'|'.join(choices[name])}")
        value = typed if choices[name] else parse_number(f"--set {text}: write a number, such as {name}=0.5", typed)
        if settings.setdefault(name, value) != value:
            raise UsageError(f"--set {text}: {name} is already set to {settings[name]}")
    return settings


def parse_options(option: str, texts: Sequence[str] | None) -> dict[str, Any]:
    """Options from `NAME=VALUE`: a JSON value if VALUE is one, else text; it must be able to be part of a spec."""
    options: dict[str, Any] = {}
    example = {"--data-option": "image_size=64", "--arch-option": "hidden_size=64"}[option]
    for text in texts or ():
        name, equals, value = (part.strip() for part in text.partition("="))
        if not name or not equals:
            raise UsageError(f"{option} {text}: write NAME=VALUE, such as {example}")
        read: Any = value
        with suppress(ValueError, RecursionError):
            read = json.loads(value)
        if read is None or isinstance(read, dict):
            raise UsageError(f"{option} {text}: write a number, a text, true, false or a list")
        if options.setdefault(name, read) != read:
            raise UsageError(f"{option} {text}: {name} is already set to {options[name]}")
    return options


def parse_number(refusal: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(refusal)
    return value


def parse_values(option: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    refusal = f"{option} {text}: write numbers with commas, such as 0.001,0.01"
    return tuple(parse_number(refusal, part) for part in comma_words(text))


def typed_command(context: typer.Context) -> str:
    """The command as it was typed; only its name if it was not typed."""
    typed = context.obj if isinstance(context.obj, list) else (context.info_name or "",)
    return shlex.join(["asymtrain", *typed])
