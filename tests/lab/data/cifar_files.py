"""Small files of the official CIFAR layout."""

import dataclasses
import hashlib
import io
import pickle
import struct
import tarfile

import numpy as np

from asymtrain.lab.data import cifar

TEN = dataclasses.replace(cifar.RELEASES["cifar10"], train_rows=3, test_rows=2)
HUNDRED = dataclasses.replace(cifar.RELEASES["cifar100"], train_rows=7, test_rows=4)


def batch(rows, classes, seed, labels_key):
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (rows, 3072), dtype=np.uint8)
    return {b"data": pixels, labels_key.encode(): random.integers(0, classes, rows).tolist(), b"batch_label": b"some"}


def contents(source):
    """The official files of a source, as dictionaries with the keys of Python 2."""
    rows = [source.train_rows] * len(source.train_files) + [source.test_rows] * len(source.test_files)
    files = dict(zip(source.files, rows, strict=False))
    made = {f: batch(n, source.classes, i, source.labels_key) for i, (f, n) in enumerate(files.items())}
    names = [f"name {i}".encode() for i in range(source.classes)]
    return {**made, source.names_file: {source.names_key.encode(): names}}


def write_folder(source, root, **changed):
    folder = root / source.archive.folder
    folder.mkdir(parents=True)
    for file, content in {**contents(source), **changed}.items():
        raw = content if isinstance(content, bytes) else pickle.dumps(content, protocol=2)
        (folder / file).write_bytes(raw)
    return folder


def python2_pickle(content):
    """Protocol 2 as Python 2 and an old numpy wrote it: byte strings, numpy.core, an integer `align`."""

    def string(text):
        return b"T" + struct.pack("<i", len(text)) + text

    def number(value):
        return b"J" + struct.pack("<i", value)

    def value_of(value):
        if isinstance(value, bytes):
            return string(value)
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


def pack(source, folder, extra=()):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for member, content in extra:
            tar.addfile(member, io.BytesIO(content))
        tar.add(folder, source.archive.folder)
    raw = buffer.getvalue()
    md5 = hashlib.md5(raw, usedforsecurity=False).hexdigest()
    return raw, dataclasses.replace(source, archive=dataclasses.replace(source.archive, md5=md5))
