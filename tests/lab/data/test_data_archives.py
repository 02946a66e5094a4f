"""The official archive: unpacked from the data root, or downloaded from a server on this machine."""

import dataclasses
import errno
import http.server
import os
import socket
import tarfile
import threading
import time

import pytest
from cifar_files import TEN, pack, tree, write_folder

from asymtrain.errors import UsageError
from asymtrain.lab.data import archives, cifar


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
    with pytest.raises(UsageError, match=r"truncated.*md5"):
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


class Server:
    """A web server of one file, on a port that the system chooses. It can cut its answers, or not know about ranges."""

    def __init__(self, raw, cuts=(), status=200, ranges=True, announces=True):
        self.asked = []  # the byte that each request began with
        cuts = iter(cuts)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(handler):
                start = int(handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
                self.asked.append(start)
                body = raw[start if ranges else 0 :]
                handler.send_response(206 if start and ranges else status)
                if announces:
                    handler.send_header("Content-Length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(body[: next(cuts, None)])

            def log_message(handler, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/cifar-10-python.tar.gz"

    def stop(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(archives, "_PAUSES", (0.0, 0.0, 0.0))
    # Seconds without a byte: a loaded machine can be slow, and no server here is silent on purpose.
    monkeypatch.setattr(archives, "_TIMEOUT", 120.0)
    servers = []

    def start(raw, **options):
        servers.append(Server(raw, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def at(source, url):
    return dataclasses.replace(source, archive=dataclasses.replace(source.archive, url=url))


def assert_downloaded(source, root, tmp_path):
    data = cifar.load(source, root)
    assert (data.train.images == cifar.load(TEN, tmp_path / "made").train.images).all()
    assert tree(root) == sorted([source.archive.folder, *(f"{source.archive.folder}/{f}" for f in source.files)])


@pytest.mark.parametrize("announces", [True, False])
def test_download(tmp_path, serve, announces):
    raw, source = pack(TEN, write_folder(TEN, tmp_path / "made"))
    server = serve(raw, announces=announces)
    assert_downloaded(at(source, server.url), tmp_path / "new" / "root", tmp_path)
    assert server.asked == [0]


@pytest.mark.parametrize(
    ("ranges", "cuts", "asked"),
    [(True, (5000, 0, 3000), [0, 5000, 5000, 8000]), (False, (5000, 7000), [0, 5000, 7000])],
)
def test_a_broken_connection_is_taken_up_where_it_broke(tmp_path, serve, ranges, cuts, asked):
    raw, source = pack(TEN, write_folder(TEN, tmp_path / "made"))
    server = serve(raw, cuts=cuts, ranges=ranges)
    assert_downloaded(at(source, server.url), tmp_path / "root", tmp_path)
    assert server.asked == asked


def test_a_server_that_goes_away(tmp_path, serve, monkeypatch):
    """No new connection can be made after the first one broke."""
    raw, source = pack(TEN, write_folder(TEN, tmp_path / "made"))
    server = serve(raw, cuts=(5000,))
    connect, tries = archives._connect, []

    def once(archive, start=0):
        tries.append(start)
        if len(tries) > 1:
            raise ConnectionRefusedError
        return connect(archive, start)

    monkeypatch.setattr(archives, "_connect", once)
    with pytest.raises(UsageError, match=r"broke off .*5000"):
        cifar.load(at(source, server.url), tmp_path / "root")
    assert tries == [0, 5000, 5000, 5000]
    assert tree(tmp_path / "root") == []


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"cuts": (None,)}, "not the official file"),
        ({"cuts": (5000, 0, 0, 0)}, "broke off .*5000"),
        ({"cuts": (5000,), "announces": False}, "not the official file"),
        ({"status": 404}, "404"),
    ],
    ids=["wrong", "cut", "cut unseen", "404"],
)
def test_a_failed_download_says_what_to_put_where_and_leaves_nothing(tmp_path, serve, how, words):
    raw, source = pack(TEN, write_folder(TEN, tmp_path / "made"))
    root = tmp_path / "root"
    with pytest.raises(UsageError, match=words) as caught:
        cifar.load(at(source, serve(raw + b"x", **how).url), root)
    assert_says_what_to_put_where(str(caught.value), source, root)
    assert not root.exists() or tree(root) == []


def test_an_interrupted_download_leaves_nothing(tmp_path, serve, monkeypatch):
    raw, source = pack(TEN, write_folder(TEN, tmp_path / "made"))

    def interrupt(file):
        assert file.stat().st_size == len(raw)
        raise KeyboardInterrupt

    monkeypatch.setattr(archives, "_md5", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cifar.load(at(source, serve(raw).url), tmp_path / "root")
    assert tree(tmp_path / "root") == []


def test_a_full_disk_is_not_a_broken_connection(tmp_path, serve, monkeypatch):
    raw, source = pack(TEN, write_folder(TEN, tmp_path / "made"))
    server = serve(raw)

    def full(response, out):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(archives, "_copy", full)
    with pytest.raises(UsageError, match="No space left on device"):
        cifar.load(at(source, server.url), tmp_path / "root")
    assert server.asked == [0]


def test_what_a_killed_process_left_is_cleared_away(tmp_path, serve):
    raw, source = pack(TEN, write_folder(TEN, tmp_path / "made"))
    root = tmp_path / "root"
    for name, age in (("old", 2 * archives._ABANDONED), ("at-work", 0)):
        (root / f".unpacking-{name}").mkdir(parents=True)
        (root / f".unpacking-{name}" / "part").write_bytes(b"half")
        moment = time.time() - age
        os.utime(root / f".unpacking-{name}", (moment, moment))
    cifar.load(at(source, serve(raw).url), root)
    assert sorted(path.name for path in root.iterdir()) == [".unpacking-at-work", source.archive.folder]


def test_two_processes_at_once(tmp_path, serve, monkeypatch):
    """The folder appears while this process is unpacking its own."""
    raw, source = pack(TEN, write_folder(TEN, tmp_path / "made"))
    source, root = at(source, serve(raw).url), tmp_path / "root"
    extract = archives._extract

    def late(*arguments):
        monkeypatch.setattr(archives, "_extract", extract)
        cifar.load(source, root)
        extract(*arguments)

    monkeypatch.setattr(archives, "_extract", late)
    assert_downloaded(source, root, tmp_path)


def test_no_network(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as deaf:  # a port of our own on which nobody listens
        deaf.bind(("127.0.0.1", 0))
        source = at(TEN, f"http://127.0.0.1:{deaf.getsockname()[1]}/cifar-10-python.tar.gz")
        assert_unreachable(source, tmp_path)


def assert_unreachable(source, tmp_path):
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
        cifar.load(at(source, serve(raw).url), tmp_path / "root")


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


def test_a_server_that_sends_without_end_is_left(tmp_path, serve, monkeypatch):
    raw, source = pack(TEN, write_folder(TEN, tmp_path / "made"))
    monkeypatch.setattr(archives, "_MOST_BYTES", len(raw) // 2)
    with pytest.raises(UsageError, match="more than"):
        cifar.load(at(source, serve(raw).url), tmp_path / "root")
    assert tree(tmp_path / "root") == []
