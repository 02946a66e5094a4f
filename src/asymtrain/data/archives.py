"""An archive with a known checksum: fetch it, compare, unpack, and leave whole files or none.

Everything is made in a scratch folder beside its destination and moved there by one rename.
"""

import hashlib
import http.client
import shutil
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from asymtrain.errors import UsageError

_TIMEOUT = 10.0  # seconds without an answer, or without a byte, before giving up
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Archive:
    """A tar file, where it comes from, its checksum, and the one folder it unpacks to."""

    url: str
    md5: str
    folder: str

    @property
    def file(self) -> str:
        """The name of the archive itself."""
        return self.url.rpartition("/")[2]


class Unavailable(Exception):
    """The archive could not be fetched; the text says why."""


def download(archive: Archive, root: Path, files: Iterable[str]) -> None:
    """Fetch the archive and unpack it to its folder under root."""
    try:
        # The connection comes first: without one, not even the data root is made.
        with urllib.request.urlopen(archive.url, timeout=_TIMEOUT) as response, _scratch(root) as scratch:
            packed = Path(scratch) / archive.file
            with packed.open("wb") as out:
                shutil.copyfileobj(response, out, _CHUNK)
            found = _md5(packed)
            if found != archive.md5:
                raise Unavailable(f"what {archive.url} sent is not the official file (md5 {found})")
            _extract(archive, packed, Path(scratch), root, files)
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{archive.url} could not be downloaded ({error})") from None


def unpack(archive: Archive, packed: Path, root: Path, files: Iterable[str]) -> None:
    """Unpack an archive that is already there to its folder under root."""
    try:
        found = _md5(packed)
        if found != archive.md5:
            raise UsageError(
                f"{packed} is truncated or not the official file: its md5 is {found}, not {archive.md5}; "
                f"delete it, or fetch it again from {archive.url}"
            )
        with _scratch(root) as scratch:
            _extract(archive, packed, Path(scratch), root, files)
    except OSError as error:
        raise UsageError(
            f"{packed} could not be unpacked in {root} ({error}); unpack it by hand, or choose another data "
            "root with --data-root or the environment variable ASYMTRAIN_DATA"
        ) from None


def _scratch(root: Path) -> tempfile.TemporaryDirectory[str]:
    root.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix=".unpacking-", dir=root)


def _md5(file: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _extract(archive: Archive, packed: Path, scratch: Path, root: Path, files: Iterable[str]) -> None:
    """Copy the named files, and no other member, whatever paths and links the archive has."""
    made = scratch / archive.folder
    made.mkdir()
    missing = {f"{archive.folder}/{file}": file for file in files}
    try:
        with tarfile.open(packed) as tar:
            for member in tar:
                name = missing.pop(member.name, None) if member.isfile() else None
                if name is not None and (content := tar.extractfile(member)) is not None:
                    with content, (made / name).open("wb") as out:
                        shutil.copyfileobj(content, out, _CHUNK)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise UsageError(f"{packed} cannot be unpacked ({error}); fetch it again from {archive.url}") from None
    if missing:
        raise UsageError(f"{packed} lacks {', '.join(missing)}; fetch it again from {archive.url}")
    target = root / archive.folder
    try:
        made.rename(target)
    except OSError:
        # Another process was faster; its folder is as whole as this one.
        if not target.is_dir():
            raise
