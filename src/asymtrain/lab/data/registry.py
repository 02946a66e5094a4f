"""The name -> dataset table."""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType

from asymtrain.errors import UsageError, unknown_name
from asymtrain.lab.data import cifar, folder, own, shapes
from asymtrain.lab.data.arrays import Dataset
from asymtrain.lab.functions import is_function, is_here, name_here

NAMES = ("shapes", "cifar10", "cifar100", "folder:PATH", "npz:FILE", "package.module:function")
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
    `folder:PATH` takes image_size and seed; CIFAR takes download and image_size; `npz:FILE` takes image_size, layout
    and seed; `package.module:function` takes the same, and what the function takes.
    """
    loader = _loader(name, root)
    parameters = inspect.signature(loader).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)  # a function, which checks them itself
    for option in options:
        if option not in known and not takes_any:
            raise unknown_name(f"option of the dataset {name.partition(':')[0]}", option, known)
    dataset = loader(**options)
    _LOADED[_key(name, options)] = dataset.classes, dataset.train.inputs.shape[1:]
    return dataset


@contextmanager
def kept_dataset(dataset: Dataset) -> Iterator[str]:
    """A name by which this process loads the dataset as long as the block lasts; it changes with what it holds."""
    name = name_here(dataset.name, dataset.fingerprint)
    _HERE[name] = dataset
    try:
        yield name
    finally:
        _HERE.pop(name, None)


def class_count(name: str, options: Mapping[str, object] = MappingProxyType({})) -> int | None:
    """How many classes a dataset has, without loading it; None where that cannot be told."""
    if name == "shapes":
        return int(str(options.get("classes", inspect.signature(shapes.load).parameters["classes"].default)))
    if name in cifar.SOURCES:
        return cifar.SOURCES[name].classes
    if name.startswith("npz:"):
        return _npz_classes(name)
    if is_function(name) or is_here(name):
        return _LOADED.get(_key(name, options), (None, ()))[0]
    with suppress(OSError, UsageError):  # a folder of another machine may have a name that means nothing here
        path = at_home(name.partition(":")[2])
        if name.startswith("folder:") and path.is_dir():
            return folder.count_classes(path)
    return None


def input_shape(name: str, options: Mapping[str, object] = MappingProxyType({})) -> tuple[int, ...] | None:
    """The shape of one input of a dataset that this process has loaded; None of another."""
    return _LOADED.get(_key(name, options), (0, None))[1]


def _key(name: str, options: Mapping[str, object]) -> str:
    return repr((name, sorted(options.items())))


def _loader(name: str, root: Path | str | None) -> Callable[..., Dataset]:
    if name == "shapes":
        return shapes.load
    if name in cifar.SOURCES:
        return partial(cifar.load, cifar.SOURCES[name], data_root(root))
    kind, _, path = name.partition(":")
    if kind == "folder":
        if not path:
            raise UsageError("the folder is missing: write folder:PATH, for instance folder:./photos")
        return partial(folder.load, at_home(path))
    if kind == "npz":
        if not path:
            raise UsageError("the file is missing: write npz:FILE, for instance npz:./data.npz")
        return partial(own.load_npz, at_home(path))
    if is_here(name):
        return partial(_get_here, name)
    if not is_function(name):
        if at_home(name).is_dir():
            raise UsageError(f"unknown dataset {name!r}: for a folder of images write folder:{name}")
        raise unknown_name("dataset", name, NAMES)
    return partial(own.load_function, name)


def _get_here(name: str) -> Dataset:
    if name not in _HERE:
        raise UsageError(
            f"{name} were arrays of another process, or of a call that has ended: give them to asymtrain.compare again"
        )
    return _HERE[name]


def _npz_classes(name: str) -> int | None:
    """From the file, which is read again only where it has changed."""
    try:
        path = at_home(name.partition(":")[2])
        state = path.stat()
        key = (name, state.st_mtime_ns, state.st_size)
        if key not in _COUNTED:
            _COUNTED[key] = own.count_npz_classes(path)
        return _COUNTED[key]
    except (OSError, UsageError, ValueError):  # a file of another machine, or one that was damaged
        return None


_HERE: dict[str, Dataset] = {}  # arrays that a caller in this process holds
_COUNTED: dict[tuple[object, ...], int] = {}  # classes of npz files, by name, time and size
_LOADED: dict[str, tuple[int, tuple[int, ...]]] = {}  # classes, and the shape of an input
