"""`asymtrain data`: which datasets there are, fetch one, check one."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asymtrain.lab.cli.loading import command_group, loading
from asymtrain.lab.cli.options import DATA, DATA_ROOT, JSON
from asymtrain.lab.cli.screen import show_json, show_table, stdout

if TYPE_CHECKING:
    from asymtrain.lab.data import Dataset

data = command_group("data")
Root = Annotated[Path | None, DATA_ROOT]
Json = Annotated[bool, JSON]
Name = Annotated[str, typer.Argument(help=DATA.help)]


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
def get(name: Name, data_root: Root = None, json: Json = False) -> None:
    """Download a dataset unless it is there, and read it."""
    with loading():
        from asymtrain.lab.data import load
    describe(load(name, root=data_root), json)


@data.command()
def check(name: Name, data_root: Root = None, json: Json = False) -> None:
    """Read a dataset that is there; download nothing."""
    with loading():
        from asymtrain.lab.data import cifar, load
    options = {"download": False} if name in cifar.SOURCES else {}
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
    return [*rows, {"name": "folder:PATH", "holds": "your images", "state": "one subfolder for each class"}]


def describe(dataset: "Dataset", json: bool) -> None:
    height, width = dataset.train.images.shape[-2:]
    facts = {
        "name": dataset.name,
        "train": len(dataset.train),
        "test": len(dataset.test),
        "classes": dataset.classes,
        "height": height,
        "width": width,
    }
    text = "{name}: {train:,} images to train on, {test:,} to test on, {classes} classes, {height} x {width} pixels"
    if json:
        show_json(facts)
    else:
        stdout().print(text.format(**facts))
