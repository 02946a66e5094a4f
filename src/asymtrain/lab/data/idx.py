"""Images in the format of MNIST: a folder with four idx files, each optionally packed by gzip."""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt

from asymtrain.errors import UsageError
from asymtrain.lab.data.arrays import Bytes, Dataset, Examples, whole_number
from asymtrain.lab.data.resize import resized

_PARTS = ("train", "t10k")
_MOST_BYTES = 1 << 32


def load_idx(path: Path, *, image_size: int | None = None, channels: int = 1) -> Dataset:
    """Read the folder; with `channels` 3 each image is repeated, for models that take colours."""
    whole_number("channels", channels, 1, 3)
    train, test = (_read_part(path, part, channels) for part in _PARTS)
    if train.images.shape[1:] != test.images.shape[1:]:
        raise UsageError(f"the images of {path} differ in size between train and t10k: give a folder of one dataset")
    classes = int(max(train.labels.max(), test.labels.max())) + 1
    return resized(Dataset(f"idx:{path}", train, test, tuple(map(str, range(classes)))), image_size)


def size_of_idx(path: Path) -> tuple[int, int, int]:
    """The numbers of classes, training images and test images, from the labels alone."""
    train, test = (_read(path, f"{part}-labels-idx1-ubyte", 1) for part in _PARTS)
    return int(max(train.max(), test.max())) + 1, len(train), len(test)


def _read_part(path: Path, part: str, channels: int) -> Examples:
    images, labels = _read(path, f"{part}-images-idx3-ubyte", 3), _read(path, f"{part}-labels-idx1-ubyte", 1)
    if len(images) != len(labels) or not len(labels):
        raise UsageError(f"{path} has {len(images)} images and {len(labels)} labels in {part}: give whole files")
    return Examples(np.repeat(images[:, None], channels, 1), labels.astype(np.int64))


def _read(folder: Path, name: str, axes: int) -> Bytes:
    """The content of an idx file, an array of bytes with `axes` axes."""
    packed = folder / f"{name}.gz"
    file = packed if packed.is_file() else folder / name
    try:
        with cast(BinaryIO, gzip.open(file)) if file is packed else file.open("rb") as stream:
            zeros, kind, count = struct.unpack(">HBB", stream.read(4))
            if (zeros, kind, count) != (0, 8, axes):
                raise ValueError(f"it does not hold bytes with {axes} axes")
            shape = struct.unpack(f">{axes}I", stream.read(4 * axes))
            size = math.prod(shape)
            content = stream.read(size + 1) if size <= _MOST_BYTES else b""
    except (ValueError, struct.error, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(
            f"{file} is no idx file, or is damaged ({error}): give the four files of MNIST's form"
        ) from None
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read ({error.strerror or error}): idx:FOLDER takes {', '.join(_NAMES)}, packed by gzip "
            "or not"
        ) from None
    if len(content) != size:
        raise UsageError(f"{file} does not hold the {size} bytes that its head announces: fetch it again")
    array: npt.NDArray[np.uint8] = np.frombuffer(content, np.uint8).reshape(shape)
    return array


_NAMES = tuple(f"{part}-{kind}-ubyte" for part in _PARTS for kind in ("images-idx3", "labels-idx1"))
