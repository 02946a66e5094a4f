"""CIFAR-10 and CIFAR-100, read from their official Python files.

Under the data root lies either the unpacked folder (`cifar-10-batches-py`, `cifar-100-python`) or the official
archive (`cifar-10-python.tar.gz`, `cifar-100-python.tar.gz`), which is then unpacked beside itself. With neither,
the archive is downloaded. A file is read only if its checksum is that of the official one.
"""

import hashlib
import pickle
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asymtrain.errors import UsageError
from asymtrain.lab.data import archives
from asymtrain.lab.data.archives import Archive
from asymtrain.lab.data.arrays import Dataset, Examples
from asymtrain.lab.data.resize import resized

_SIDE = 32
_HOME = "https://www.cs.toronto.edu/~kriz"


@dataclass(frozen=True)
class Release:
    """What the official files of one CIFAR are called and hold; files are names with their md5."""

    name: str
    title: str
    archive: Archive
    train_files: Mapping[str, str]
    test_files: Mapping[str, str]
    names_file: Mapping[str, str]
    labels_key: str
    names_key: str
    classes: int
    train_images: int = 50_000
    test_images: int = 10_000

    @property
    def files(self) -> dict[str, str]:
        return {**self.train_files, **self.test_files, **self.names_file}

    def is_in(self, root: Path) -> bool:
        """Has a data root the folder or the archive?"""
        return (root / self.archive.folder).is_dir() or (root / self.archive.file).is_file()


RELEASES = {
    "cifar10": Release(
        name="cifar10",
        title="CIFAR-10",
        archive=Archive(f"{_HOME}/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py"),
        train_files={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        },
        test_files={"test_batch": "40351d587109b95175f43aff81a1287e"},
        names_file={"batches.meta": "5ff9c542aee3614f3951f8cda6e48888"},
        labels_key="labels",
        names_key="label_names",
        classes=10,
    ),
    "cifar100": Release(
        name="cifar100",
        title="CIFAR-100",
        archive=Archive(f"{_HOME}/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python"),
        train_files={"train": "16019d7e3df5f24257cddd939b257f8d"},
        test_files={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        names_file={"meta": "7973b15100ade9c7d40fb424638fde48"},
        labels_key="fine_labels",
        names_key="fine_label_names",
        classes=100,
    ),
}


def load(release: Release, root: Path, *, download: bool = True, image_size: int | None = None) -> Dataset:
    """Read a CIFAR under the data root, after unpacking or downloading it if need be."""
    folder = root / release.archive.folder
    if not folder.is_dir():
        _provide(release, root, download)
    train = _read_examples(release, folder, release.train_files)
    test = _read_examples(release, folder, release.test_files)
    (names,) = (_read(release, folder / file)[release.names_key] for file in release.names_file)
    return resized(Dataset(release.name, train, test, tuple(names)), image_size)


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


def _read_examples(release: Release, folder: Path, files: Iterable[str]) -> Examples:
    batches = [_read(release, folder / file) for file in files]
    images = np.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, _SIDE, _SIDE)
    return Examples(images, np.concatenate([np.array(batch[release.labels_key], np.int64) for batch in batches]))


def _read(release: Release, file: Path) -> dict[str, Any]:
    """What an official file holds. The checksum is compared first: unpickling another file could run its code."""
    if not file.is_file():
        raise _not_official(release, file, "it is missing")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise _not_official(release, file, f"it cannot be read ({error.strerror or error})") from None
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest != release.files[file.name]:
        raise _not_official(release, file, f"its md5 is {digest}, not {release.files[file.name]}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, about its own old pickles
        # The files were written by Python 2: latin-1 takes its bytes as they are.
        return pickle.loads(content, encoding="latin-1")


def _not_official(release: Release, file: Path, reason: str) -> UsageError:
    return UsageError(
        f"{file} is not the official file of {release.title}: {reason}; delete {file.parent} and let it be downloaded "
        f"again, or unpack {release.archive.file} (md5 {release.archive.md5}) in its place"
    )
