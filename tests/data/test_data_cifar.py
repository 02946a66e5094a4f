import contextlib
import dataclasses
import hashlib
import http.server
import io
import os
import pickle
import struct
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asymtrain.data import cifar
from asymtrain.data.plainpickle import read_plain_pickle
from asymtrain.errors import UsageError

TEN = dataclasses.replace(cifar.SOURCES["cifar10"], train_rows=3, test_rows=2)
HUNDRED = dataclasses.replace(cifar.SOURCES["cifar100"], train_rows=7, test_rows=4)


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


# ---- reading the unpacked folder


@pytest.mark.parametrize("source", [TEN, HUNDRED], ids=lambda source: source.name)
@pytest.mark.parametrize("python2", [False, True])
def test_reads_the_official_layout(tmp_path, source, python2):
    made = contents(source)
    write_folder(source, tmp_path, **({f: python2_pickle(c) for f, c in made.items()} if python2 else {}))
    data = cifar.load(source, tmp_path)
    assert data.name == source.name
    assert data.class_names == tuple(f"name {i}" for i in range(source.classes))
    for part, files in ((data.train, source.train_files), (data.test, source.test_files)):
        expected = np.concatenate([made[f][b"data"] for f in files]).reshape(-1, 3, 32, 32)
        assert (part.images == expected).all()
        assert part.images.dtype == np.uint8
        assert part.images.flags.c_contiguous
        assert part.images.flags.writeable
        assert part.labels.tolist() == [label for f in files for label in made[f][source.labels_key.encode()]]
        assert part.labels.dtype == np.int64
        assert part.masks is None


def test_the_official_counts():
    ten, hundred = cifar.SOURCES["cifar10"], cifar.SOURCES["cifar100"]
    assert len(ten.train_files) * ten.train_rows == len(hundred.train_files) * hundred.train_rows == 50_000
    assert ten.test_rows == hundred.test_rows == 10_000


def change(**fields):
    return {**batch(3, 10, 0, "labels"), **{key.encode(): value for key, value in fields.items()}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "damaged"),
        (b"\x1f\x8b something else", "data_batch_2"),
        (b"<html>not found</html>", "data_batch_2"),
        (pickle.dumps(change(), protocol=2)[:-3000], "truncated"),
        ([1, 2], "a list, not a dict"),
        ({b"data": 1, b"labels": []}, "no 'data'"),
        (batch(3, 10, 0, "fine_labels"), "no 'labels'"),
        (batch(2, 10, 0, "labels"), "2 images and 2 labels, not 3"),
        (change(labels=[1, 2]), "3 images and 2 labels"),
        (change(labels=[1, 2, 10]), "from 0 to 9"),
        (change(labels=[1, 2, -1]), "from 0 to 9"),
        (change(labels=[1, 2, "3"]), "from 0 to 9"),
        (change(data=np.zeros((3, 784), np.uint8)), "rows of 3072"),
        (change(data=np.zeros(9216, np.uint8)), "rows of 3072"),
        (change(data=np.zeros((3, 3072), np.int64)), "rows of 3072"),
        (change(data=np.zeros((3, 3072), np.float32)), "'f4'"),
        (change(data=np.array([[None] * 3072] * 3)), "'O8'"),
    ],
)
def test_a_foreign_or_truncated_file_is_named_in_one_line(tmp_path, content, words):
    folder = write_folder(TEN, tmp_path, data_batch_2=content)
    with pytest.raises(UsageError, match=words) as caught:
        cifar.load(TEN, tmp_path)
    assert str(folder / "data_batch_2") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_foreign_names(tmp_path):
    folder = write_folder(TEN, tmp_path, **{"batches.meta": {b"label_names": [b"cat"]}})
    with pytest.raises(UsageError, match=r"batches\.meta is not a whole CIFAR-10 file"):
        cifar.load(TEN, tmp_path)
    (folder / "test_batch").unlink()
    with pytest.raises(UsageError, match=r"test_batch is not .* missing"):
        cifar.load(TEN, tmp_path)


# ---- the unpickler


class Call:
    def __init__(self, function, *arguments):
        self.parts = (function, arguments)

    def __reduce__(self):
        return self.parts


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path, protocol):
    mark = tmp_path / "ran"
    attacks = [
        Call(os.mkdir, str(mark)),
        Call(eval, f"__import__('os').mkdir({str(mark)!r})"),
        Call(Path.mkdir, mark),
        Call(np.fromfile, str(mark)),
    ]
    for i, attack in enumerate(attacks):
        folder = write_folder(TEN, tmp_path / str(i), data_batch_1=pickle.dumps({b"data": attack}, protocol))
        with pytest.raises(UsageError, match="which data does not need"):
            cifar.load(TEN, tmp_path / str(i))
        assert not mark.exists()
        assert folder.exists()


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.",  # another codec
        b"\x80\x02c_codecs\nencode\nN}X\x08\x00\x00\x00__code__Ns\x86b.",  # sets an attribute of the stand-in
        b"\x80\x02cnumpy\nndarray\nN}X\x01\x00\x00\x00aNs\x86b.",
        b"\x80\x04X\x05\x00\x00\x00numpyX\x0c\x00\x00\x00ctypeslib.os\x93.",  # a dotted way to a module
        b"Pname\n.",  # an object outside
        b"\x82\x01.",  # an extension code
        b"\x80\x02]q\x00h\x00a.",  # a list in itself
    ],
)
def test_ways_around_are_refused(tmp_path, raw):
    (tmp_path / "file").write_bytes(raw)
    with pytest.raises(ValueError, match="it "):
        read_plain_pickle(tmp_path / "file")


SMALL = pickle.dumps({b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), b"labels": [1, 2]}, protocol=2)


def test_arrays_of_every_order_and_type(tmp_path):
    columns = np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    big = np.arange(3, dtype=">i8")
    (tmp_path / "file").write_bytes(pickle.dumps({"a": [columns, (big,)]}, protocol=2))
    back = read_plain_pickle(tmp_path / "file")["a"]
    assert (back[0] == columns).all()
    assert back[1][0].tolist() == [0, 1, 2]


@settings(deadline=None)
@given(cut=st.integers(0, len(SMALL) - 1))
def test_a_truncated_pickle_gives_a_value_error(tmp_path_factory, cut):
    file = tmp_path_factory.mktemp("cut") / "file"
    file.write_bytes(SMALL[:cut])
    with pytest.raises(ValueError, match=r"."):
        read_plain_pickle(file)


@settings(deadline=None)
@given(place=st.integers(0, len(SMALL) - 1), value=st.integers(0, 255))
def test_a_damaged_pickle_gives_data_or_a_value_error(tmp_path_factory, place, value):
    file = tmp_path_factory.mktemp("flip") / "file"
    file.write_bytes(SMALL[:place] + bytes([value]) + SMALL[place + 1 :])
    with contextlib.suppress(ValueError):
        read_plain_pickle(file)


# ---- the archive


def pack(source, folder, extra=()):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for member, content in extra:
            tar.addfile(member, io.BytesIO(content))
        tar.add(folder, source.archive.folder)
    raw = buffer.getvalue()
    md5 = hashlib.md5(raw, usedforsecurity=False).hexdigest()
    return raw, dataclasses.replace(source, archive=dataclasses.replace(source.archive, md5=md5))


def test_an_archive_in_the_root_is_unpacked(tmp_path):
    raw, source = pack(TEN, write_folder(TEN, tmp_path / "made"))
    root = tmp_path / "root"
    root.mkdir()
    (root / source.archive.file).write_bytes(raw)
    first = cifar.load(source, root, download=False)
    assert (first.train.images == cifar.load(TEN, tmp_path / "made").train.images).all()
    expected = [source.archive.file, source.archive.folder, *(f"{source.archive.folder}/{f}" for f in source.files)]
    assert tree(root) == sorted(expected)
    (root / source.archive.file).unlink()
    assert len(cifar.load(source, root, download=False).train) == 15


def test_a_truncated_archive_is_refused_and_leaves_nothing(tmp_path):
    raw, source = pack(TEN, write_folder(TEN, tmp_path / "made"))
    root = tmp_path / "root"
    root.mkdir()
    (root / source.archive.file).write_bytes(raw[:-100])
    with pytest.raises(UsageError, match=f"{source.archive.file} is truncated or not the official file: its md5"):
        cifar.load(source, root)
    assert tree(root) == [source.archive.file]


@pytest.mark.parametrize("damage", ["not a tar", "cut", "lacks a file", "link"])
def test_a_bad_archive_with_the_right_checksum_leaves_nothing(tmp_path, damage):
    folder = write_folder(TEN, tmp_path / "made")
    if damage in ("lacks a file", "link"):
        (folder / "test_batch").unlink()
    if damage == "link":
        (folder / "test_batch").symlink_to("/etc/passwd")
    raw, _ = pack(TEN, folder)
    raw = {"not a tar": b"hello" * 100, "cut": raw[:-2000]}.get(damage, raw)
    md5 = hashlib.md5(raw, usedforsecurity=False).hexdigest()
    source = dataclasses.replace(TEN, archive=dataclasses.replace(TEN.archive, md5=md5))
    root = tmp_path / "root"
    root.mkdir()
    (root / source.archive.file).write_bytes(raw)
    with pytest.raises(UsageError, match=source.archive.file):
        cifar.load(source, root)
    assert tree(root) == [source.archive.file]


def test_members_that_point_elsewhere_are_not_unpacked(tmp_path):
    evil = [tarfile.TarInfo("../evil"), tarfile.TarInfo(str(tmp_path / "evil")), tarfile.TarInfo("other/file")]
    raw, source = pack(TEN, write_folder(TEN, tmp_path / "made"), [(member, b"") for member in evil])
    root = tmp_path / "deep" / "root"
    root.mkdir(parents=True)
    (root / source.archive.file).write_bytes(raw)
    assert len(cifar.load(source, root).test) == 2
    assert not [path for path in tmp_path.rglob("*") if path.name in ("evil", "other")]


# ---- the download


@pytest.fixture
def serve(monkeypatch):
    """Serves the given bytes, or closes the connection halfway through them."""
    monkeypatch.setenv("no_proxy", "*")
    servers = []

    def start(raw, sent=None, status=200):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw[:sent])

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}/cifar-10-python.tar.gz"

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def at(source, url):
    return dataclasses.replace(source, archive=dataclasses.replace(source.archive, url=url))


def test_download(tmp_path, serve):
    raw, source = pack(TEN, write_folder(TEN, tmp_path / "made"))
    root = tmp_path / "new" / "root"
    data = cifar.load(at(source, serve(raw)), root)
    assert (data.train.images == cifar.load(TEN, tmp_path / "made").train.images).all()
    assert tree(root) == sorted([source.archive.folder, *(f"{source.archive.folder}/{f}" for f in source.files)])


@pytest.mark.parametrize(
    ("how", "words"),
    [("wrong", "not the official file"), ("cut", "not the official file|could not be downloaded"), ("404", "404")],
)
def test_a_failed_download_says_what_to_put_where_and_leaves_nothing(tmp_path, serve, how, words):
    raw, source = pack(TEN, write_folder(TEN, tmp_path / "made"))
    arguments = {"wrong": {"raw": raw + b"x"}, "cut": {"raw": raw, "sent": 5000}, "404": {"raw": raw, "status": 404}}
    root = tmp_path / "root"
    with pytest.raises(UsageError, match=words) as caught:
        cifar.load(at(source, serve(**arguments[how])), root)
    assert_says_what_to_put_where(str(caught.value), source, root)
    assert not root.exists() or tree(root) == []


def test_no_network(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    source = at(TEN, "http://127.0.0.1:9/cifar-10-python.tar.gz")
    with pytest.raises(UsageError, match="could not be downloaded") as caught:
        cifar.load(source, tmp_path / "root")
    assert_says_what_to_put_where(str(caught.value), source, tmp_path / "root")
    assert not (tmp_path / "root").exists()
    with pytest.raises(UsageError, match="downloading was not asked for"):
        cifar.load(source, tmp_path / "root", download=False)


def test_a_root_that_cannot_be_made(tmp_path, serve):
    (tmp_path / "root").write_text("a file")
    raw, source = pack(TEN, write_folder(TEN, tmp_path / "made"))
    with pytest.raises(UsageError, match="ASYMTRAIN_DATA"):
        cifar.load(at(source, serve(raw)), tmp_path / "root")


def assert_says_what_to_put_where(text, source, root):
    assert "\n" not in text
    for part in (
        source.archive.file,
        source.archive.md5,
        source.archive.folder,
        str(root),
        "--data-root",
        "ASYMTRAIN_DATA",
    ):
        assert part in text
