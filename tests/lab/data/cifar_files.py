"""Small files of the official CIFAR layout."""

import dataclasses
import hashlib
import io
import struct
import tarfile

import numpy as np

from asymtrain.lab.data import cifar


def md5(raw):
    return hashlib.md5(raw, usedforsecurity=False).hexdigest()


def small(release, train_rows, test_rows):
    """A release whose official files have so many rows each; the checksums are theirs."""
    images = {"train_images": train_rows * len(release.train_files), "test_images": test_rows}
    release = dataclasses.replace(release, **images)
    digests = {file: md5(raw) for file, raw in contents(release).items()}
    parts = {field: getattr(release, field) for field in ("train_files", "test_files", "names_file")}
    return dataclasses.replace(
        release, **{field: {file: digests[file] for file in files} for field, files in parts.items()}
    )


def batches(release):
    """What each file of images holds, by its name: pixels and labels."""
    rows = dict.fromkeys(release.train_files, release.train_images // len(release.train_files))
    rows |= dict.fromkeys(release.test_files, release.test_images)
    for seed, (file, count) in enumerate(rows.items()):
        random = np.random.default_rng(seed)
        pixels = random.integers(0, 256, (count, 3072), dtype=np.uint8)
        yield file, (pixels, random.integers(0, release.classes, count).tolist())


def contents(release):
    """The bytes of all files."""
    names = {release.names_key.encode(): [f"name {i}".encode() for i in range(release.classes)]}
    (names_file,) = release.names_file
    made = {
        file: python2_pickle({b"data": pixels, release.labels_key.encode(): labels})
        for file, (pixels, labels) in batches(release)
    }
    return {**made, names_file: python2_pickle(names)}


def write_folder(release, root, **changed):
    folder = root / release.archive.folder
    folder.mkdir(parents=True)
    for file, raw in {**contents(release), **changed}.items():
        (folder / file).write_bytes(raw)
    return folder


def python2_pickle(content):
    """Protocol 2 as Python 2 and an old numpy wrote it: byte strings, numpy.core, an integer `align`."""

    def string(text):
        return b"T" + struct.pack("<i", len(text)) + text

    def number(value):
        return b"J" + struct.pack("<i", value)

    def value_of(value):
        if isinstance(value, list):
            return b"](" + b"".join(string(v) if isinstance(v, bytes) else number(v) for v in value) + b"e"
        empty = (
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85" + string(b"b") + b"\x87R"
        )
        kind = b"cnumpy\ndtype\n" + string(b"u1") + number(0) + number(1) + b"\x87R"
        kind += b"(" + number(3) + string(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
        shape = number(value.shape[0]) + number(value.shape[1]) + b"\x86"
        return empty + b"(" + number(1) + shape + kind + b"\x89" + string(value.tobytes()) + b"tb"

    items = b"".join(string(key) + value_of(value) for key, value in content.items())
    return b"\x80\x02}(" + items + b"u."


def tree(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def pack(release, folder, extra=()):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for member, content in extra:
            tar.addfile(member, io.BytesIO(content))
        tar.add(folder, release.archive.folder)
    raw = buffer.getvalue()
    return raw, dataclasses.replace(release, archive=dataclasses.replace(release.archive, md5=md5(raw)))


TEN = small(cifar.RELEASES["cifar10"], 3, 2)
HUNDRED = small(cifar.RELEASES["cifar100"], 7, 4)
