"""Download an archive with a known checksum, verify and unpack it, leaving complete files or none.

Everything is made in a scratch folder beside its destination and moved there by one rename. An interrupted download
resumes where it stopped.
"""

import contextlib
import hashlib
import http.client
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from asymtrain.errors import UsageError

_TIMEOUT = 10.0  # seconds without an answer, or without a byte, before a connection counts as broken
_PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds before each new connection after a broken one
_CHUNK = 1 << 20
_MOST_BYTES = 1 << 30  # of an archive; the largest official one has 170 million bytes
_SCRATCH = ".unpacking-"
_ABANDONED = 86_400  # seconds after which a scratch folder counts as abandoned


@dataclass(frozen=True)
class Archive:
    """A tar file: its URL, its checksum, and the one folder it unpacks to."""

    url: str
    md5: str
    folder: str

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


class Unavailable(Exception):
    """The archive could not be fetched; the text says why."""


def download(archive: Archive, root: Path, files: Iterable[str]) -> None:
    """Download the archive and unpack it to its folder under root."""
    try:
        # The connection comes first: if it fails, not even the data root is created.
        with _connect(archive) as response, _scratch(root) as scratch:
            packed = Path(scratch) / archive.file
            with packed.open("wb") as out:
                _receive(archive, response, out)
            digest = _md5(packed)
            if digest != archive.md5:
                raise Unavailable(f"what {archive.url} sent is not the official file (md5 {digest})")
            _extract(archive, packed, Path(scratch), root, files)
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{archive.url} could not be downloaded ({error})") from None


def unpack(archive: Archive, packed: Path, root: Path, files: Iterable[str]) -> None:
    """Unpack an archive that is already there to its folder under root."""
    try:
        digest = _md5(packed)
        if digest != archive.md5:
            raise UsageError(
                f"{packed} is truncated or not the official file: its md5 is {digest}, not {archive.md5}; "
                f"delete it, or fetch it again from {archive.url}"
            )
        with _scratch(root) as scratch:
            _extract(archive, packed, Path(scratch), root, files)
    except OSError as error:
        raise UsageError(
            f"{packed} could not be unpacked in {root} ({error}); unpack it by hand, or choose another data "
            "root with --data-root or the environment variable ASYMTRAIN_DATA"
        ) from None


def _connect(archive: Archive, start: int = 0) -> http.client.HTTPResponse:
    """Request the archive, or its bytes from `start` on."""
    import urllib.error  # here: every command imports this file, and few download
    import urllib.request

    request = urllib.request.Request(archive.url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()  # the error is also the response
        raise
    return response


def _receive(archive: Archive, response: http.client.HTTPResponse, out: BinaryIO) -> None:
    """Write the archive to a file; if the connection breaks, resume from there."""
    whole = _copy(response, out)
    for pause in _PAUSES:
        if whole:
            return
        time.sleep(pause)
        try:
            again = _connect(archive, out.tell())
        except (OSError, http.client.HTTPException):
            continue
        with again:
            if again.status != http.HTTPStatus.PARTIAL_CONTENT:  # the server sends everything again
                out.seek(0)
                out.truncate()
            whole = _copy(again, out)
    if not whole:
        raise Unavailable(f"the connection to {archive.url} broke off again and again, last after {out.tell()} bytes")


def _copy(response: http.client.HTTPResponse, out: BinaryIO) -> bool:
    """Append the response's content; returns whether it is complete."""
    while True:
        try:
            chunk = response.read(_CHUNK)
        except (OSError, http.client.HTTPException):
            return False
        if not chunk:
            # Python does not report a truncated body: compare its length with the announced one.
            return not response.length
        out.write(chunk)
        if out.tell() > _MOST_BYTES:
            raise Unavailable(f"the server sends more than {_MOST_BYTES} bytes, which is not the official file")


def _scratch(root: Path) -> tempfile.TemporaryDirectory[str]:
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob(f"{_SCRATCH}*"):
        # From a killed process; a younger folder may belong to a running one.
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _ABANDONED:
                shutil.rmtree(leftover)
    return tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=root)


def _md5(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _extract(archive: Archive, packed: Path, scratch: Path, root: Path, files: Iterable[str]) -> None:
    """Copy only the named files out of a verified archive."""
    unpacked_folder = scratch / archive.folder
    unpacked_folder.mkdir()
    members = {f"{archive.folder}/{file}" for file in files}
    with tarfile.open(packed) as tar:
        for member in tar:  # in the archive's order: going back would decompress it again
            content = tar.extractfile(member) if member.name in members else None
            if content is not None:
                with content, (scratch / member.name).open("wb") as out:
                    shutil.copyfileobj(content, out, _CHUNK)
    target = root / archive.folder
    try:
        unpacked_folder.rename(target)
    except OSError:
        # Another process was faster; its folder is as complete as this one.
        if not target.is_dir():
            raise
