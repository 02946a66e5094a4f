"""`asymtrain data`: which datasets there are, fetch one, check one."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asymtrain.lab.cli.loading import command_group, loading
from asymtrain.lab.cli.options import DATA, DATA_OPTION, DATA_ROOT, JSON, parse_options
from asymtrain.lab.cli.screen import show_json
from asymtrain.lab.terminal import show_table, stdout

if TYPE_CHECKING:
    from asymtrain.lab.data import Dataset

data = command_group("data")
Root = Annotated[Path | None, DATA_ROOT]
Json = Annotated[bool, JSON]
Name = Annotated[str, typer.Argument(metavar="NAME", help=DATA.help)]
Options = Annotated[list[str] | None, DATA_OPTION]


@data.command("list")
def list_(data_root: Root = None, json: Json = False) -> None:
    """Show the datasets and where they are looked for."""
    with loading():
        from asymtrain.lab.data import registry
    with suppress(FileNotFoundError, NotADirectoryError):
        registry.data_root(data_root).stat()  # raises for an invalid name; from Python 3.14 on, is_dir only says no
    datasets = registry.catalogue(data_root)
    if json:
        show_json(datasets)
    else:
        from asymtrain.lab.report.table import Column, Table, make_rows

        rows = make_rows((dataset["name"], dataset["holds"], dataset["state"]) for dataset in datasets)
        show_table(Table("datasets", "", (Column("Name"), Column("Holds"), Column("State")), rows))


@data.command()
def get(name: Name, data_option: Options = None, data_root: Root = None, json: Json = False) -> None:
    """Download a dataset unless it is there, and read it."""
    with loading():
        from asymtrain.lab.data import load
    describe(load(name, root=data_root, **parse_options("--data-option", data_option)), json)


@data.command()
def check(name: Name, data_option: Options = None, data_root: Root = None, json: Json = False) -> None:
    """Read a dataset that is there; download nothing."""
    with loading():
        from asymtrain.lab.data.registry import load_offline
    describe(load_offline(name, root=data_root, **parse_options("--data-option", data_option)), json)


def describe(dataset: "Dataset", json: bool) -> None:
    shape, kind = dataset.train.inputs.shape[1:], dataset.kind
    sizes = {
        "images": lambda: {"height": shape[1], "width": shape[2], "channels": shape[0]},
        "vectors": lambda: {"features": shape[0]},
        "tokens": lambda: {"length": shape[0]},
    }[kind]()
    facts = {
        "name": dataset.name,
        "kind": kind,
        "train": len(dataset.train),
        "test": len(dataset.test),
        "classes": dataset.classes,
        **sizes,
        "fingerprint": dataset.fingerprint,
    }
    inputs = {"images": "images", "vectors": "vectors", "tokens": "sequences"}[kind]
    size = {"images": "{height} x {width} pixels", "vectors": "{features} features", "tokens": "{length} tokens"}[kind]
    text = "{name}: {train:,} " + inputs + " to train on, {test:,} to test on, {classes} classes, " + size
    if json:
        show_json(facts)
    else:
        stdout().print(text.format(**facts))
