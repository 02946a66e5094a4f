"""What the instruments of `asymtrain measure` share: their options, the runs they name, how results are shown."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asymtrain.errors import UsageError, unknown_name
from asymtrain.lab.cli.options import (
    DEFAULT_OUT,
    STORE_NAME,
    TrainingOptions,
    parse_archs,
    parse_seeds,
    seeds_option,
    typed_command,
)
from asymtrain.lab.cli.run import train
from asymtrain.lab.cli.screen import show_json, show_table, stderr, stdout

# The rest is imported where it is used: this file is read for --help too.
if TYPE_CHECKING:
    from asymtrain.lab.report.measurement import Listed
    from asymtrain.lab.runs import Run, RunSpec

MOST_IDS = 10  # ids that an error lists
MEASURE_OUT = Path("asymtrain-measure")

RunIds = Annotated[
    list[str] | None, typer.Option("--run", help="Id of a stored run, or its beginning; several with commas; or all.")
]
Data = Annotated[str | None, typer.Option("--data", help="shapes, cifar10, cifar100 or folder:PATH.")]
Arch = Annotated[list[str] | None, typer.Option("--arch", help="mlp, cnn, vit; several with commas.")]
ScaleName = Annotated[str | None, typer.Option("--scale", help="quick (the default): small nets. paper: as published.")]
Seeds = Annotated[str | None, seeds_option]
Epochs = Annotated[int | None, typer.Option("--epochs", help="Epochs of each run.")]
Redundancy = Annotated[int | None, typer.Option("--redundancy", help="Branches at each point.")]
Alpha = Annotated[float | None, typer.Option("--alpha", help="Weight of the auxiliary objective.")]
Precision = Annotated[
    str | None, typer.Option("--precision", help="Of the training: fp32 (the default), tf32 or bf16.")
]
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:1. Default: the fastest there is.")]
DataRoot = Annotated[Path | None, typer.Option("--data-root", help="Where downloaded data lies.")]
StorePath = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help=f"Record of runs. Default: {STORE_NAME} in the folder; with --run, {DEFAULT_OUT / STORE_NAME}.",
    ),
]
Out = Annotated[Path, typer.Option("--out", help="Folder of the page, the numbers and the figures.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@dataclass(frozen=True)
class RunSelection:
    """Which runs are measured. Fresh specs are Asymmetric; stored ones are whatever was named."""

    specs: "tuple[RunSpec, ...]"
    store: Path  # of stored runs; where fresh ones go
    stored: bool

    def with_plain(self) -> "list[RunSpec]":
        """Every spec with its Plain partner before it, each spec once."""
        return list(dict.fromkeys(one for spec in self.specs for one in (spec.plain(), spec)))


def choose_runs(
    *,
    run: Sequence[str] | None,
    data: str | None,
    arch: Sequence[str] | None,
    scale: str | None,
    seeds: str | None,
    epochs: int | None,
    redundancy: int | None,
    alpha: float | None,
    store: Path | None,
    out: Path,
    precision: str | None = None,
    archs: Sequence[str] | None = None,
    default_seeds: Sequence[int] | None = None,
    **fields: Any,
) -> RunSelection:
    """The specs that the options name: stored runs (`--run`), or fresh ones from a scale.

    `archs` are the backbones that are measured where none is asked for (None: all), `default_seeds` the seeds (None:
    those of the scale). `fields` are further fields of fresh specs; None leaves a default. Writes nothing, and
    refuses a folder that could not be written.
    """
    from asymtrain.lab.report import check_folder
    from asymtrain.lab.scales import get_scale, scaled_spec

    settings = {"data": data, "arch": arch, "scale": scale, "seeds": seeds, "epochs": epochs,
                "redundancy": redundancy, "alpha": alpha, "precision": precision}  # fmt: skip
    check_folder(out)
    if run:
        given = [name for name, value in settings.items() if value is not None]
        if given:
            raise UsageError(f"--run names stored runs with all their settings: leave out --{given[0]}")
        place = store or DEFAULT_OUT / STORE_NAME
        return RunSelection(tuple(stored_specs(place, run)), place, stored=True)
    if redundancy is not None and redundancy < 1:
        raise UsageError(f"--redundancy must be 1 or more, got {redundancy}")
    chosen = get_scale(scale or "quick")
    wanted = parse_seeds(seeds) if seeds is not None else tuple(default_seeds or chosen.seeds)
    names = parse_archs(arch) if arch else tuple(archs or parse_archs(None))
    fields = {**fields, "alpha": alpha, "redundancy": redundancy, "epochs": epochs, "precision": precision}
    bases = [scaled_spec(chosen, name, data, **fields) for name in names]
    place = store or out / STORE_NAME
    check_folder(place.parent)
    specs = tuple(dataclasses.replace(base, seed=seed) for base in bases for seed in wanted)
    return RunSelection(specs, place, stored=False)


def stored_specs(store: Path, texts: Iterable[str]) -> "list[RunSpec]":
    """Specs of finished runs by their ids or the beginnings of them; `all` for every one."""
    from asymtrain.lab.store import Store

    with Store(store, read_only=True) as opened:
        known = {run.spec.id: run.spec for run in opened.runs()}
    if not known:
        raise UsageError(f"{store} holds no finished run yet: `asymtrain status --store {store}` shows what is pending")
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--run needs the id of a run: `asymtrain report --store {store}` writes them into rows.csv")
    found: dict[str, RunSpec] = {}
    for name in names:
        matching = list(known) if name == "all" else [spec_id for spec_id in known if spec_id.startswith(name.lower())]
        if not matching:
            if len(known) <= MOST_IDS or get_close_matches(name, known, cutoff=0.5):
                raise unknown_name(f"run in {store}", name, known)  # few of them, or it was mistyped
            listed = ", ".join(sorted(known)[:MOST_IDS])
            raise UsageError(f"unknown run in {store} {name!r}: there is: {listed} and {len(known) - MOST_IDS} more")
        if len(matching) > 1 and name != "all":
            raise UsageError(f"--run {name} is the beginning of {len(matching)} ids: write more of it")
        found |= {spec_id: known[spec_id] for spec_id in matching}
    return list(found.values())


def runs_of(
    chosen: RunSelection, specs: "Sequence[RunSpec]", *, device: str | None = None, data_root: Path | None = None
) -> "list[Run]":
    """The runs of `specs` in their order: from the store, or trained into it where they are missing.

    Stored runs are read and never trained. What could not be trained is said on stderr and left out; Ctrl-C ends the
    command with the runs stored that were finished.
    """
    from asymtrain.lab.engine import load_for
    from asymtrain.lab.store import Store

    if chosen.stored:
        with Store(chosen.store, read_only=True) as opened:
            runs = opened.runs([spec.id for spec in specs])
    else:
        load_for(specs[0], data_root)  # data that are missing or broken show before anything is written
        runs, interrupted, going_on = train(list(specs), chosen.store, TrainingOptions(device, data_root))
        if len(runs) < len(set(specs)):
            done = f"{len(runs)} of {len(set(specs))} runs are in {chosen.store}"
            stderr().print(f"{'Stopped' if interrupted else 'Not finished'}: {done}. {going_on}")
        if interrupted:
            raise typer.Exit(130)
    by_id = {run.spec.id: run for run in runs}
    return [by_id[spec.id] for spec in dict.fromkeys(specs) if spec.id in by_id]


def comma_numbers(text: str, advice: str, least: int = 0) -> tuple[int, ...]:
    """Whole numbers from a list with commas, each once. The advice has {} for the text that is none."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) >= least for part in parts):
        raise UsageError(advice.format(repr(text)))
    return tuple(dict.fromkeys(map(int, parts)))


@contextmanager
def telling(start: str) -> Iterator[Callable[..., None]]:
    """Say how far it is on stderr: a line that changes on a terminal, lines one after the other elsewhere.

    The block gets `say(text)`, and `say(text, brief=True)` for what a terminal alone shows. A text that is said twice
    is printed once.
    """
    console, said = stderr(), [""]

    with console.status(start) as status:

        def say(text: str, *, brief: bool = False) -> None:
            if console.is_terminal:
                status.update(text)
            elif not brief and text != said[-1]:
                said[:] = [text]
                console.print(text)

        yield say


def counting(say: Callable[..., None], words: str) -> Callable[[int, int], None]:
    """A `progress(done, total)` that says it after `words`; ten lines are enough for a log."""

    def tell(done: int, total: int) -> None:
        say(f"{words} {done} of {total}", brief=done * 10 // total == (done - 1) * 10 // total)

    return tell


def kept_states(cache: Path, specs: "Iterable[RunSpec]", epochs: Iterable[int]) -> str:
    """How many of the states that are wanted a folder holds, in words: what an interrupted command leaves there."""
    wanted = [f"{spec.id}-{epoch}" for spec in dict.fromkeys(specs) for epoch in epochs if epoch]
    if not wanted:
        return "nothing was to be trained, and nothing is kept"
    there = {path.stem for path in cache.glob("*.safetensors")}
    return f"{len(there.intersection(wanted))} of {len(wanted)} trained states are in {cache}"


def common_facts(context: typer.Context, specs: "Sequence[RunSpec]", **more: str) -> dict[str, str]:
    """The facts of every measurement page: command, what was measured, further ones, versions."""
    from asymtrain.lab.report import current_versions

    seeds = sorted({spec.seed for spec in specs})
    archs = dict.fromkeys(spec.arch for spec in specs)
    datasets = dict.fromkeys(spec.dataset for spec in specs)
    versions = ", ".join(f"{name} {version}" for name, version in current_versions().items())
    return {
        "Command": typed_command(context),
        "Runs": f"{len(specs)}: {', '.join(archs)} on {', '.join(datasets)}, seeds {', '.join(map(str, seeds))}",
        **more,
        "Versions": versions,
    }


def show_result(
    tables: "Sequence[Listed]", document: Mapping[str, Any], files: Mapping[str, Path], *, json: bool
) -> None:
    """The document with the paths of its files on stdout, or the tables; where the page is goes to stderr."""
    if json:
        show_json({**document, "files": {kind: str(path) for kind, path in files.items()}})
    else:
        for table in tables:
            console = stdout()
            console.print(table.title)
            show_table(table.columns, table.rows, left=_words(table.rows))
            if table.note:
                console.print(table.note)
            console.print()
    stderr().print(f"Page: {files['page']}")


def _words(rows: Sequence[Sequence[str]]) -> int:
    """How many of the first columns hold words; they are aligned left."""
    columns = list(zip(*rows, strict=True))
    numbers = [i for i, column in enumerate(columns) if any(re.match(r"[-+]?\d", cell) for cell in column)]
    return max(1, numbers[0]) if numbers else 1
