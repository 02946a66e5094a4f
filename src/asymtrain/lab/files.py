"""Paths and files.

Files are written completely or not at all: a kill or a power cut at any moment leaves the old or the new ones.
"""

import glob
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from asymtrain.errors import UsageError
from asymtrain.lab.machine import is_running


def at_home(path: Path | str) -> Path:
    """The path with `~` and `~user` expanded to home folders."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{path}: there is no such home folder; write the path without ~") from error


def write_whole(contents: Mapping[Path, bytes | bytearray]) -> None:
    """Replace the content of files, in the order given.

    All content is on the disk before the first file gets its name, so a full disk changes none. Leftovers of killed
    processes that were writing the same files are removed.
    """
    for file in contents:
        remove_torn(file.parent, glob.escape(file.name))
    new = {file: file.with_name(f"{file.name}.{os.getpid()}.new") for file in contents}  # others may write the same
    try:
        for file, content in contents.items():
            with new[file].open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        for file, written in new.items():
            written.replace(file)
    finally:
        for written in new.values():
            written.unlink(missing_ok=True)  # left over if the disk is full
    for folder in {file.parent for file in contents}:
        sync_folder(folder)


def remove_torn(folder: Path, names: str) -> None:
    """Remove unfinished files of ended processes, by a pattern of file names."""
    for file in folder.glob(f"{names}.*.new"):
        process = re.fullmatch(r".*\.(\d{1,9})\.new", file.name)
        if process and not is_running(int(process[1])):
            with suppress(OSError):
                file.unlink()


def sync_folder(folder: Path) -> None:
    """Write a folder's entries to the disk, if the system supports it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
