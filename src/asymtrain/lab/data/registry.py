"""The name -> dataset table."""

import inspect
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType

from asymtrain.errors import UsageError, unknown_name
from asymtrain.lab.data import cifar, folder, shapes
from asymtrain.lab.data.arrays import Dataset

NAMES = ("shapes", "cifar10", "cifar100", "folder:PATH")
DATA_ROOT_VARIABLE = "ASYMTRAIN_DATA"


def data_root(root: Path | str | None = None) -> Path:
    """Where downloaded data lies: the given root, else $ASYMTRAIN_DATA, else ~/.cache/asymtrain."""
    chosen = root if root is not None else os.environ.get(DATA_ROOT_VARIABLE) or "~/.cache/asymtrain"
    return at_home(chosen)


def at_home(path: Path | str) -> Path:
    """The path with `~` and `~user` as home folders."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{path}: there is no such home folder; write the path without ~") from error


def load(name: str, *, root: Path | str | None = None, **options: object) -> Dataset:
    """The dataset of this name.

    `root` is read by CIFAR alone. Options: `shapes` takes classes, size, test_size, image_size and seed;
    `folder:PATH` takes image_size and seed; CIFAR takes download.
    """
    loader = _loader(name, root)
    known = [p.name for p in inspect.signature(loader).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise unknown_name(f"option of the dataset {name.partition(':')[0]}", option, known)
    return loader(**options)


def class_count(name: str, options: Mapping[str, object] = MappingProxyType({})) -> int | None:
    """How many classes a dataset has, without loading it; None where that cannot be told."""
    if name == "shapes":
        return int(str(options.get("classes", inspect.signature(shapes.load).parameters["classes"].default)))
    if name in cifar.SOURCES:
        return cifar.SOURCES[name].classes
    with suppress(OSError, UsageError):  # a folder of another machine may have a name that means nothing here
        path = at_home(name.partition(":")[2])
        path = path / "train" if (path / "train").is_dir() else path
        if name.startswith("folder:") and path.is_dir():
            return sum(entry.is_dir() and not entry.name.startswith(".") for entry in path.iterdir())
    return None


def _loader(name: str, root: Path | str | None) -> Callable[..., Dataset]:
    if name == "shapes":
        return shapes.load
    if name in cifar.SOURCES:
        return partial(cifar.load, cifar.SOURCES[name], data_root(root))
    kind, _, path = name.partition(":")
    if kind != "folder":
        raise unknown_name("dataset", name, NAMES)
    if not path:
        raise UsageError("the folder is missing: write folder:PATH, for instance folder:./photos")
    return partial(folder.load, at_home(path))
