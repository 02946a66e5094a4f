"""Your own arrays: a file, `npz:FILE`, or the result of a function, `package.module:function`.

Both give inputs `x` and labels `y`, and may give `x_test`, `y_test` and `class_names`. Without a test set, a fifth of
each class is held out by the seed, as for a folder. The meaning of an array is never guessed: if its type and shape
are ambiguous, an error says what to give.
"""

import functools
import inspect
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from asymtrain.errors import UsageError, error_line, unknown_name
from asymtrain.lab.data.arrays import Dataset, Examples, Inputs, Labels, whole_number
from asymtrain.lab.data.resize import resized
from asymtrain.lab.functions import import_function, importable_here, own_line
from asymtrain.lab.machine import memory

Array = npt.NDArray[Any]

HOW = "write it with numpy.savez(FILE, x=inputs, y=labels), and x_test=... and y_test=... where there is a test set"
FORMS = "(x, y), (x, y, x_test, y_test) or a dict of these names"
RETURNS = f"return {FORMS}"
_ALIASES = {"images": "x", "labels": "y", "images_test": "x_test", "labels_test": "y_test"}
_KEYS = ("x", "y", "x_test", "y_test", "class_names")
_CHANNELS = (1, 3, 4)  # grey, colour, colour and transparency
_LAYOUTS = ("nchw", "nhwc")


def load_npz(path: Path, *, image_size: int | None = None, layout: str | None = None, seed: int = 0) -> Dataset:
    """Read the file; the seed matters only if it has no test set."""
    name = f"npz:{path}"
    return resized(_make_dataset(name, _named(name, _read_npz(path, None), HOW), layout, seed), image_size)


def count_npz_classes(path: Path) -> int:
    """The number of classes in the file, from its labels or class names alone; cached until the file changes."""
    state = path.stat()
    return _count_npz_classes(path, state.st_mtime_ns, state.st_size)


@functools.lru_cache
def _count_npz_classes(path: Path, changed: int, size: int) -> int:
    arrays = _named(f"npz:{path}", _read_npz(path, ("y", "labels", "class_names")), HOW, whole=False)
    return len(arrays["class_names"]) if "class_names" in arrays else int(arrays["y"].max()) + 1


def load_function(
    text: str, *, image_size: int | None = None, layout: str | None = None, seed: int | None = None, **options: object
) -> Dataset:
    """The dataset that the function returns; it gets the options that it takes.

    It is called twice: if the second call gave other arrays, each worker would train on different data.
    """
    arguments = {"image_size": image_size, "layout": layout, "seed": seed}
    with importable_here():
        function = import_function(text)
        names, takes_any = _parameters(function)
        for option in options:
            if option not in names and not takes_any:
                raise unknown_name(f"option of the dataset {text}", option, {*names, *arguments})
        chosen = {name: value for name, value in arguments.items() if name in names and value is not None}

        def call() -> Dataset:
            return _make_dataset(text, _call(text, function, {**chosen, **options}), layout, seed or 0)

        first = call().fingerprint  # only the fingerprint, since memory may hold only one copy
        dataset = call()
    if dataset.fingerprint != first:
        raise UsageError(f"{text} returned other arrays when it was called again: draw them with a fixed seed")
    return resized(dataset, image_size)


def load_arrays(value: Any, *, image_size: int | None = None, layout: str | None = None, seed: int = 0) -> Dataset:
    """A dataset from arrays or tensors of this process, in the forms that a function may return."""
    arrays = _read_forms("data is", "data", value, f"give {FORMS}")
    return resized(_make_dataset("data", arrays, layout, seed), image_size)


def _parameters(function: Any) -> tuple[list[str], bool]:
    """The names of the function's parameters, and whether it takes any keyword."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # compiled code may not report its parameters
        return [], True
    return list(parameters), any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def _call(text: str, function: Any, options: Mapping[str, object]) -> dict[str, Array]:
    try:
        returned = function(**options)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{text} failed ({own_line(error)}): mend it, or give what it needs with --data-option NAME=VALUE"
        ) from error
    return _read_forms(f"{text} returned", text, returned, RETURNS)


def _read_forms(opening: str, source: str, value: Any, how: str) -> dict[str, Array]:
    """The arrays by name; an error begins with `opening`."""
    if isinstance(value, Mapping):
        return _named(source, {str(key): _as_array(source, str(key), part, how) for key, part in value.items()}, how)
    if isinstance(value, tuple | list) and len(value) == 2 and all(_is_pair(part) for part in value):
        value = [array for pair in value for array in pair]
    if not isinstance(value, tuple | list) or len(value) not in (2, 4):
        many = isinstance(value, tuple | list)
        description = (
            ("1 value" if len(value) == 1 else f"{len(value)} values") if many else f"a {type(value).__name__}"
        )
        raise UsageError(f"{opening} {description}: {how}")
    pairs = zip(_KEYS, value, strict=False)
    return _named(source, {key: _as_array(source, key, part, how) for key, part in pairs}, how)


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(getattr(part, "ndim", 0) for part in value)


def _as_array(text: str, key: str, value: Any, how: str) -> Array:
    """An array from a tensor on any device, or from anything that numpy converts."""
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            value = value.float() if str(value.dtype) == "torch.bfloat16" else value
            return np.asarray(value.numpy())
        return np.asarray(value)
    except Exception as error:  # ragged lists, sparse tensors and other objects fail in many ways
        raise UsageError(f"{text}: {key} is no array ({error_line(error)}): {how}, arrays or tensors") from error


def _read_npz(path: Path, names: tuple[str, ...] | None) -> dict[str, Array]:
    """The file's arrays, or only those in `names`, after a check that the unpacked size fits into memory."""
    if not path.is_file():
        raise UsageError(f"{path} is not a file: {HOW}")
    if not zipfile.is_zipfile(path):
        raise UsageError(f"{path} is not an npz file: {HOW}")
    try:
        with np.load(path, allow_pickle=False) as content:
            keys = [key for key in content.files if names is None or key in names]
            sizes = {info.filename.removesuffix(".npy"): info.file_size for info in content.zip.infolist()}
            needed = sum(sizes[key] for key in keys)
            if needed > memory():
                raise UsageError(
                    f"{path} unpacks to {needed:,} bytes, more than this machine's memory: write less of it"
                )
            arrays = {key: content[key] for key in keys}
            for key, value in arrays.items():
                if not isinstance(value, np.ndarray):  # numpy returns members that are not arrays as bytes
                    raise ValueError(f"{key} is no array")
            return arrays
    except UsageError:
        raise
    except Exception as error:  # zip, zlib and numpy each fail in their own way
        raise UsageError(f"{path} cannot be read ({error_line(error)}): {HOW}") from error


def _named(source: str, arrays: Mapping[str, Array], how: str, whole: bool = True) -> dict[str, Array]:
    """The arrays under x, y, x_test, y_test and class_names; refuses other names and incomplete sets."""
    named: dict[str, Array] = {}
    for key, array in arrays.items():
        name = _ALIASES.get(key, key)
        if name not in _KEYS:
            raise UsageError(f"{source} has the key {key!r}, which is none of {', '.join(_KEYS)}: {how}")
        if name in named:
            raise UsageError(f"{source} has {name} twice, under two names: {how}")
        named[name] = array
    for name in ("x", "y") if whole else ("y",):
        if name not in named:
            raise UsageError(f"{source} has no {name}: {how}")
    if ("x_test" in named) != ("y_test" in named):
        lacking = "x_test" if "y_test" in named else "y_test"
        raise UsageError(f"{source} has no {lacking}: give both parts of the test set, or none")
    return named


def _make_dataset(source: str, arrays: Mapping[str, Array], layout: str | None, seed: int) -> Dataset:
    seed = whole_number("seed", seed, 0)
    parts = ("", "_test") if "x_test" in arrays else ("",)
    inputs = _read_inputs(source, [arrays[f"x{part}"] for part in parts], layout)
    labels = [
        _read_labels(source, f"y{part}", arrays[f"y{part}"], len(x)) for part, x in zip(parts, inputs, strict=True)
    ]
    names = _class_names(source, arrays.get("class_names"), labels)
    if len(parts) == 1:
        inputs, labels = _hold_out(source, inputs[0], labels[0], len(names), seed)
    train, test = (Examples(x, y) for x, y in zip(inputs, labels, strict=True))
    return Dataset(source, train, test, names)


def _hold_out(source: str, x: Inputs, y: Labels, classes: int, seed: int) -> tuple[list[Inputs], list[Labels]]:
    from asymtrain.lab.data.subsets import hold_out  # here: it loads torch

    counts = np.bincount(y, minlength=classes)
    members = np.split(y.argsort(kind="stable"), np.cumsum(counts)[:-1])
    for label, rows in enumerate(members):
        if len(rows) == 1:
            raise UsageError(f"{source} has one example of class {label}: it needs two, or give x_test and y_test")
    present = [rows for rows in members if len(rows)]
    test_rows = hold_out([len(rows) for rows in present], seed)
    test = np.sort(np.concatenate([rows[chosen] for rows, chosen in zip(present, test_rows, strict=True)]))
    train = np.setdiff1d(np.arange(len(y)), test)
    return [x[train], x[test]], [y[train], y[test]]


def _read_labels(source: str, key: str, labels: Array, count: int) -> Labels:
    if labels.shape != (count,):
        raise UsageError(f"{source}: {key} has the shape {labels.shape}, and there are {count} inputs: give ({count},)")
    if labels.dtype.kind not in "iuf" or not np.array_equal(labels, np.trunc(labels)):
        raise UsageError(f"{source}: {key} must be whole numbers from 0, the number of each example's class")
    if labels.min() < 0 or labels.max() >= 1 << 31:
        raise UsageError(f"{source}: {key} goes from {labels.min()} to {labels.max()}: number the classes from 0")
    return labels.astype(np.int64)


def _class_names(source: str, from_file: Array | None, labels: list[Labels]) -> tuple[str, ...]:
    """The given names, else the class numbers; then each class must have a training example."""
    largest = int(max(part.max() for part in labels))
    if from_file is not None:
        names = tuple(map(str, from_file.tolist())) if from_file.ndim == 1 and from_file.dtype.kind in "US" else ()
        if from_file.dtype.kind == "S":
            names = tuple(name.decode("utf-8", "replace") for name in from_file.tolist())
        if len(names) < 2 or len(set(names)) < len(names):
            raise UsageError(f"{source}: class_names must be two or more texts, each once")
        if largest >= len(names):
            raise UsageError(
                f"{source}: there is a label {largest}, and class_names has {len(names)}: labels begin at 0"
            )
        return names
    values = np.unique(labels[0])
    if largest != len(values) - 1 or len(values) < 2:
        empty = next((k for k in range(largest + 1) if k >= len(values) or values[k] != k), None)
        wrong = f"no example to train on has label {empty}" if empty is not None else "all labels are 0"
        raise UsageError(
            f"{source}: {wrong}: number two or more classes from 0 without gaps (numpy.unique(y, return_inverse=True))"
        )
    return tuple(map(str, range(len(values))))


def _read_inputs(source: str, arrays: list[Array], layout: str | None) -> list[Inputs]:
    """All parts in one of the three forms; the others must have the first one's."""
    for array in arrays:
        if array.dtype.kind not in "biuf":
            raise UsageError(f"{source}: x holds {array.dtype}: give numbers")
        if array.size == 0:
            raise UsageError(f"{source}: x has the shape {array.shape}, and nothing in it: give examples")
        if (
            array.ndim != arrays[0].ndim
            or array.shape[1:] != arrays[0].shape[1:]
            or array.dtype.kind != arrays[0].dtype.kind
        ):
            shapes = " and ".join(f"{part.dtype} {part.shape}" for part in arrays)
            raise UsageError(
                f"{source}: x and x_test are {shapes}: give both in one type and shape but for the first axis"
            )
    first = arrays[0]
    if first.ndim == 4:
        return _read_images(source, arrays, layout)
    if layout is not None:
        raise UsageError(f"{source}: layout is of images (N, C, H, W), and x has the shape {first.shape}: leave it out")
    if first.ndim != 2:
        raise UsageError(
            f"{source}: x has the shape {first.shape}: give images (N, C, H, W), those of one channel as x[:, None], "
            "vectors (N, D) or tokens (N, T)"
        )
    if first.dtype.kind == "f":
        return _read_vectors(source, arrays)
    if min(array.dtype.itemsize for array in arrays) == 1:
        raise UsageError(
            f"{source}: {first.dtype} {first.shape} may be pixels, features or tokens: give images (N, C, H, W), "
            "vectors as float32 or tokens as int64"
        )
    if min(array.min() for array in arrays) < 0:
        raise UsageError(f"{source}: a token is negative: number tokens from 1 and fill up with 0; vectors are float32")
    return [np.ascontiguousarray(array, np.int64) for array in arrays]


def _read_vectors(source: str, arrays: list[Array]) -> list[Inputs]:
    with np.errstate(over="ignore"):
        vectors = [np.ascontiguousarray(array, np.float32) for array in arrays]
    for part in vectors:
        if not np.isfinite(part).all():
            row = int(np.flatnonzero(~np.isfinite(part).all(1))[0])
            raise UsageError(
                f"{source}: vector {row} has a value that is not a finite float32: fill it in or leave it out"
            )
    return list(vectors)


def _read_images(source: str, arrays: list[Array], layout: str | None) -> list[Inputs]:
    if layout is None:
        second, last = (arrays[0].shape[axis] in _CHANNELS for axis in (1, 3))
        if second == last:
            raise UsageError(
                f"{source}: of x {arrays[0].shape} the second or the last axis may be the channels: give "
                "--data-option layout=nchw or --data-option layout=nhwc"
            )
        layout = "nchw" if second else "nhwc"
    if layout not in _LAYOUTS:
        raise UsageError(f"layout must be nchw or nhwc, not {layout!r}")
    scale = _byte_scale(source, arrays)
    whole = [array if array.dtype == np.uint8 else np.rint(array * scale).astype(np.uint8) for array in arrays]
    return [np.ascontiguousarray(part if layout == "nchw" else part.transpose(0, 3, 1, 2)) for part in whole]


def _byte_scale(source: str, arrays: list[Array]) -> float:
    """The factor that turns pixels into bytes: 1 for whole numbers up to 255, 255 for shares up to 1."""
    if all(array.dtype == np.uint8 for array in arrays):
        return 1.0
    low, high = min(array.min() for array in arrays), max(array.max() for array in arrays)
    if low >= 0 and high <= 1:
        return 255.0
    if low >= 0 and high <= 255 and all(np.array_equal(array, np.trunc(array)) for array in arrays):
        return 1.0
    raise UsageError(
        f"{source}: pixels of {arrays[0].dtype} from {low:g} to {high:g} are neither shares of 0 to 1 nor whole "
        "numbers of 0 to 255: write bytes (uint8), before any normalisation"
    )
