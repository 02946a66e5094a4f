"""The table of dataset sources, and `load`, which uses it."""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from asymtrain.errors import UsageError, unknown_name
from asymtrain.lab.data import cifar, folder, idx, own, shapes
from asymtrain.lab.data.arrays import Dataset
from asymtrain.lab.files import at_home
from asymtrain.lab.functions import is_function, is_here, name_here

DATA_ROOT_VARIABLE = "ASYMTRAIN_DATA"
_FUNCTION = "package.module:function"
_NO_OPTIONS: Mapping[str, object] = MappingProxyType({})


class Size(NamedTuple):
    """The size of a dataset without loading it: the number of classes, and of examples if known."""

    classes: int
    train: int | None = None
    test: int | None = None


@dataclass(frozen=True)
class Source:
    """One entry of `SOURCES`.

    `load` makes the dataset; its keyword-only parameters are the options that a user can give. `size` takes the path
    in the name and the options.
    """

    load: Callable[..., Dataset]  # takes the path in the name, the data root if it is downloaded, else nothing
    size: Callable[[Path, Mapping[str, object]], Size]
    holds: str  # what `asymtrain data list` says about it
    note: str = ""
    argument: str = ""  # what follows the colon, if the name ends with one
    is_in: Callable[[Path], bool] | None = None  # for a source that is downloaded: whether the data root has it


def _shapes_size(_: Path, options: Mapping[str, object]) -> Size:
    defaults = {"classes": shapes.CLASSES, "size": shapes.SIZE, "test_size": shapes.TEST_SIZE}
    return Size(*(int(str(options.get(name, default))) for name, default in defaults.items()))


def _folder_size(path: Path, _: Mapping[str, object]) -> Size:
    return Size(folder.count_classes(path))


def _npz_size(path: Path, _: Mapping[str, object]) -> Size:
    return Size(own.count_npz_classes(path))


def _idx_size(path: Path, _: Mapping[str, object]) -> Size:
    return Size(*idx.size_of_idx(path))


def cifar_source(release: cifar.Release) -> Source:
    size = Size(release.classes, release.train_images, release.test_images)
    return Source(
        load=partial(cifar.load, release),
        size=lambda *_: size,
        holds=f"{release.train_images + release.test_images:,} images, {release.classes} classes",
        is_in=release.is_in,
    )


SOURCES: dict[str, Source] = {
    "shapes": Source(shapes.load, _shapes_size, "drawn by code, up to 100 classes", "always there"),
    "cifar10": cifar_source(cifar.RELEASES["cifar10"]),
    "cifar100": cifar_source(cifar.RELEASES["cifar100"]),
    "folder:": Source(folder.load, _folder_size, "your images", "one subfolder for each class", "PATH"),
    "idx:": Source(idx.load_idx, _idx_size, "images like MNIST's", "four idx files, packed by gzip or not", "FOLDER"),
    "npz:": Source(own.load_npz, _npz_size, "your arrays", "numpy.savez(FILE, x=inputs, y=labels)", "FILE"),
}
"""Sources by name. A name that ends with a colon is followed by a path; any other text with a colon is a function."""


def source_names() -> tuple[str, ...]:
    """All names in the form that users write."""
    return (*(f"{name}{source.argument}" for name, source in SOURCES.items()), _FUNCTION)


def catalogue(root: Path | str | None = None) -> list[dict[str, str]]:
    """Every source: its name, its content, and whether it is there or how to get it."""
    where = data_root(root)
    rows = []
    for name, source in SOURCES.items():
        state = source.note
        if source.is_in is not None:
            state = f"in {where}" if source.is_in(where) else f"not in {where}: asymtrain data get {name}"
        rows.append({"name": f"{name}{source.argument}", "holds": source.holds, "state": state})
    return [*rows, {"name": _FUNCTION, "holds": "your arrays", "state": "the function returns x and y"}]


def data_root(root: Path | str | None = None) -> Path:
    """The folder of downloaded data: the given root, else $ASYMTRAIN_DATA, else ~/.cache/asymtrain."""
    folder = root if root is not None else os.environ.get(DATA_ROOT_VARIABLE) or "~/.cache/asymtrain"
    return at_home(folder)


def load(name: str, *, root: Path | str | None = None, **options: object) -> Dataset:
    """The dataset with this name.

    `root` is read by sources that are downloaded. Options: `shapes` takes classes, size, test_size, image_size and
    seed; `folder:PATH` takes image_size and seed; CIFAR takes download and image_size; `idx:FOLDER` takes image_size
    and channels; `npz:FILE` takes image_size, layout and seed; `package.module:function` takes the same, and the
    function's own options.
    """
    loader = _loader(name, root)
    parameters = inspect.signature(loader).parameters.values()
    option_names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)  # a function checks them itself
    for option in options:
        if option not in option_names and not takes_any:
            raise unknown_name(f"option of the dataset {name.partition(':')[0]}", option, option_names)
    dataset = loader(**options)
    _LOADED[_key(name, options)] = dataset.classes, dataset.train.inputs.shape[1:]
    return dataset


def load_offline(name: str, *, root: Path | str | None = None, **options: object) -> Dataset:
    """Like `load`, but without downloading."""
    source = _find(name)
    return load(name, root=root, **options, **({"download": False} if source and source[0].is_in else {}))


def state_of_files(name: str) -> tuple[object, ...]:
    """A value that changes if the dataset's path changes, or its files may have changed."""
    entry = _find(name)
    if entry is None or not entry[1]:
        return ()
    path = at_home(entry[1]).absolute()
    try:  # a folder's times change with each file that is added or removed
        places = [path, *sorted(path.iterdir())] if path.is_dir() else [path]
        return path, tuple((state.st_mtime_ns, state.st_size) for state in map(Path.stat, places))
    except OSError:  # `load` explains the error
        return (path,)


@contextmanager
def kept_dataset(dataset: Dataset) -> Iterator[str]:
    """A name by which this process can load the dataset within the block; it depends on the content."""
    name = name_here(dataset.name, dataset.fingerprint)
    _HERE[name] = dataset
    try:
        yield name
    finally:
        _HERE.pop(name, None)


def class_count(name: str, options: Mapping[str, object] = _NO_OPTIONS) -> int | None:
    """The number of classes of a dataset, without loading it; None if unknown."""
    size = size_of(name, options)
    return size.classes if size else None


def size_of(name: str, options: Mapping[str, object] = _NO_OPTIONS) -> Size | None:
    """The size of a dataset, without loading it."""
    entry = _find(name)
    if entry is None:
        loaded = _LOADED.get(_key(name, options))
        return Size(loaded[0]) if loaded else None
    source, path = entry
    try:
        return source.size(at_home(path), options)
    except (OSError, UsageError, ValueError):  # the path may be from another machine, or the file damaged
        return None


def input_shape(name: str, options: Mapping[str, object] = _NO_OPTIONS) -> tuple[int, ...] | None:
    """The shape of one input of a dataset that this process has loaded; None for others."""
    return _LOADED.get(_key(name, options), (0, None))[1]


def _key(name: str, options: Mapping[str, object]) -> str:
    return repr((name, sorted(options.items())))


def _find(name: str) -> tuple[Source, str] | None:
    """The table's entry, and the path after the colon."""
    kind, colon, path = name.partition(":")
    source = SOURCES.get(f"{kind}{colon}")
    return None if source is None else (source, path)


def _loader(name: str, root: Path | str | None) -> Callable[..., Dataset]:
    entry = _find(name)
    if entry is not None:
        source, path = entry
        if source.is_in is not None:
            return partial(source.load, data_root(root))
        if not source.argument:
            return source.load
        if not path:
            raise UsageError(f"the path is missing: write {name}{source.argument}")
        return partial(source.load, at_home(path))
    if is_here(name):
        return partial(_get_here, name)
    if is_function(name, SOURCES):
        return partial(own.load_function, name)
    if at_home(name).is_dir():
        raise UsageError(f"unknown dataset {name!r}: for a folder of images write folder:{name}")
    raise unknown_name("dataset", name, source_names())


def _get_here(name: str) -> Dataset:
    if name not in _HERE:
        raise UsageError(
            f"{name} were arrays of another process, or of a call that has ended: give them to asymtrain.compare again"
        )
    return _HERE[name]


_HERE: dict[str, Dataset] = {}  # arrays that a caller in this process holds
_LOADED: dict[str, tuple[int, tuple[int, ...]]] = {}  # classes, and the shape of an input
