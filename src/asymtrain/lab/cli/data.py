"""`asymtrain data`: which datasets there are, fetch one, check one."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asymtrain.lab.cli.loading import command_group, loading
from asymtrain.lab.cli.options import DATA, DATA_OPTION, DATA_ROOT, JSON, parse_data_options
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
    datasets = catalogue(data_root)
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
    describe(load(name, root=data_root, **parse_data_options(data_option)), json)


@data.command()
def check(name: Name, data_option: Options = None, data_root: Root = None, json: Json = False) -> None:
    """Read a dataset that is there; download nothing."""
    with loading():
        from asymtrain.lab.data import cifar, load
    options = {**parse_data_options(data_option), **({"download": False} if name in cifar.SOURCES else {})}
    describe(load(name, root=data_root, **options), json)


def catalogue(root: Path | None) -> list[dict[str, Any]]:
    """Every dataset, with what it holds and whether it is there."""
    with loading():
        from asymtrain.lab.data import cifar, data_root
    folder = data_root(root)
    with suppress(FileNotFoundError, NotADirectoryError):
        folder.stat()  # a name that the system refuses is an error; from Python 3.14 on, is_dir says no
    rows = [{"name": "shapes", "holds": "drawn by code, up to 100 classes", "state": "always there"}]
    for name, source in cifar.SOURCES.items():
        here = (folder / source.archive.folder).is_dir() or (folder / source.archive.file).is_file()
        images = len(source.train_files) * source.train_rows + len(source.test_files) * source.test_rows
        state = f"in {folder}" if here else f"not in {folder}: asymtrain data get {name}"
        rows.append({"name": name, "holds": f"{images:,} images, {source.classes} classes", "state": state})
    rows += [
        {"name": "folder:PATH", "holds": "your images", "state": "one subfolder for each class"},
        {"name": "npz:FILE", "holds": "your arrays", "state": "numpy.savez(FILE, x=inputs, y=labels)"},
        {"name": "package.module:function", "holds": "your arrays", "state": "the function returns x and y"},
    ]
    return rows


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
