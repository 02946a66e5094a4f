"""Files of a report: written beside their place and renamed, so none is ever half there."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from asymtrain.errors import UsageError


def check_folder(out: Path) -> None:
    """Raise a `UsageError` unless the report could be written there. Leaves nothing behind."""
    place = out
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise _unwritable(out, error) from error


def write_files(out: Path, texts: Mapping[str, str]) -> None:
    """Write texts by file name into the folder `out`, made where it is missing; a `UsageError` where that fails."""
    parts: dict[Path, Path] = {}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            part = out / f".{name}.{os.getpid()}.part"
            parts[part] = out / name
            part.write_text(text, encoding="utf-8", newline="\n")
        for part, place in parts.items():
            part.replace(place)
    except OSError as error:
        raise _unwritable(out, error) from error
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


def _unwritable(out: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write to the folder {out} ({error.strerror or error}): choose another with --out")
