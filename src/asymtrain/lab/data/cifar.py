"""CIFAR-10 and CIFAR-100, read from their official Python files.

The data root has either the unpacked folder (`cifar-10-batches-py`, `cifar-100-python`) or the official archive
(`cifar-10-python.tar.gz`, `cifar-100-python.tar.gz`), which is then unpacked beside itself. Without both, the
archive is downloaded and its checksum verified.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asymtrain.errors import UsageError
from asymtrain.lab.data import archives
from asymtrain.lab.data.archives import Archive
from asymtrain.lab.data.arrays import Bytes, Dataset, Examples, Labels
from asymtrain.lab.data.plainpickle import read_plain_pickle
from asymtrain.lab.data.resize import resized

_SIDE = 32
_HOME = "https://www.cs.toronto.edu/~kriz"


@dataclass(frozen=True)
class Release:
    """Names and contents of the official files of one CIFAR."""

    name: str
    title: str
    archive: Archive
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    names_file: str
    labels_key: str
    names_key: str
    classes: int
    train_rows: int  # images in each of the train files
    test_rows: int

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train_files, *self.test_files, self.names_file)

    @property
    def train_images(self) -> int:
        return len(self.train_files) * self.train_rows

    @property
    def test_images(self) -> int:
        return len(self.test_files) * self.test_rows

    def is_in(self, root: Path) -> bool:
        """Whether a data root has the folder or the archive."""
        return (root / self.archive.folder).is_dir() or (root / self.archive.file).is_file()


RELEASES = {
    "cifar10": Release(
        name="cifar10",
        title="CIFAR-10",
        archive=Archive(f"{_HOME}/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py"),
        train_files=tuple(f"data_batch_{i}" for i in range(1, 6)),
        test_files=("test_batch",),
        names_file="batches.meta",
        labels_key="labels",
        names_key="label_names",
        classes=10,
        train_rows=10_000,
        test_rows=10_000,
    ),
    "cifar100": Release(
        name="cifar100",
        title="CIFAR-100",
        archive=Archive(f"{_HOME}/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python"),
        train_files=("train",),
        test_files=("test",),
        names_file="meta",
        labels_key="fine_labels",
        names_key="fine_label_names",
        classes=100,
        train_rows=50_000,
        test_rows=10_000,
    ),
}


def load(release: Release, root: Path, *, download: bool = True, image_size: int | None = None) -> Dataset:
    """Read a CIFAR under the data root, after unpacking or downloading it if necessary."""
    folder = root / release.archive.folder
    if not folder.is_dir():
        _provide(release, root, download)
    train = _read_images(release, [folder / file for file in release.train_files], release.train_rows)
    test = _read_images(release, [folder / file for file in release.test_files], release.test_rows)
    names = _read_names(release, folder / release.names_file)
    return resized(Dataset(release.name, train, test, names), image_size)


def _provide(release: Release, root: Path, download: bool) -> None:
    packed = root / release.archive.file
    if packed.exists():
        archives.unpack(release.archive, packed, root, release.files)
        return
    reason = "downloading was not asked for"
    if download:
        try:
            archives.download(release.archive, root, release.files)
            return
        except archives.Unavailable as error:
            reason = str(error)
    raise UsageError(
        f"{release.title} is not in {root}, and {reason}; put {packed.name} (md5 {release.archive.md5}) from "
        f"{release.archive.url}, or its unpacked folder {release.archive.folder} with the files "
        f"{', '.join(release.files)}, into {root}, or choose another data root with --data-root or the "
        "environment variable ASYMTRAIN_DATA"
    )


def _read_images(release: Release, files: list[Path], rows: int) -> Examples:
    parts = [_read_batch(release, file, rows) for file in files]
    images = np.concatenate([pixels for pixels, _ in parts]).reshape(-1, 3, _SIDE, _SIDE)
    return Examples(images, np.concatenate([labels for _, labels in parts]))


def _read_batch(release: Release, file: Path, rows: int) -> tuple[Bytes, Labels]:
    batch = _read_dict(release, file)
    pixels, labels = batch.get("data"), batch.get(release.labels_key)
    if not isinstance(pixels, np.ndarray) or not isinstance(labels, list):
        raise _foreign(release, file, f"it has no 'data' or no {release.labels_key!r}")
    width = 3 * _SIDE * _SIDE
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != width:
        raise _foreign(release, file, f"its images are {pixels.dtype} {pixels.shape}, not rows of {width} bytes")
    if len(pixels) != rows or len(labels) != rows:
        raise _foreign(release, file, f"it has {len(pixels)} images and {len(labels)} labels, not {rows} of each")
    if not all(type(label) is int and 0 <= label < release.classes for label in labels):
        raise _foreign(release, file, f"a label is not a whole number from 0 to {release.classes - 1}")
    return pixels, np.array(labels, np.int64)


def _read_names(release: Release, file: Path) -> tuple[str, ...]:
    names = _read_dict(release, file).get(release.names_key)
    texts = isinstance(names, list) and all(isinstance(name, str | bytes) for name in names)
    if not isinstance(names, list) or not texts or len(names) != release.classes:
        raise _foreign(release, file, f"it does not hold {release.classes} {release.names_key!r}")
    return tuple(_text(name) for name in names)


def _read_dict(release: Release, file: Path) -> Mapping[str, object]:
    try:
        return {_text(key): value for key, value in read_plain_pickle(file).items()}
    except FileNotFoundError:
        raise _foreign(release, file, "it is missing") from None
    except OSError as error:
        raise _foreign(release, file, f"it cannot be read ({error.strerror or error})") from None
    except ValueError as error:
        raise _foreign(release, file, str(error)) from None


def _foreign(release: Release, file: Path, reason: str) -> UsageError:
    return UsageError(
        f"{file} is not a whole {release.title} file: {reason}; delete {file.parent} and let it be downloaded "
        f"again, or unpack {release.archive.file} (md5 {release.archive.md5}) in its place"
    )


def _text(name: object) -> str:
    # The official files were written by Python 2, whose strings arrive as bytes.
    return name.decode("latin-1") if isinstance(name, bytes) else str(name)
