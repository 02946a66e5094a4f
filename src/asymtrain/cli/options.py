"""What users type, as values."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import typer

from asymtrain.errors import UsageError, unknown_name
from asymtrain.models import BUILDERS

FIRST_SEED = 42
DEFAULT_OUT = Path("asymtrain-report")
STORE_NAME = "runs.sqlite"


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds from a count (`3`: 42, 43, 44), a list (`42,43`; `7,` for one) or ranges (`42-51`)."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 1 and parts[0].isdecimal():
        if int(parts[0]) < 1:
            raise UsageError(f"--seeds {text}: at least one seed is needed")
        return tuple(range(FIRST_SEED, FIRST_SEED + int(parts[0])))
    seeds: list[int] = []
    for part in filter(None, parts):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise UsageError(f"--seeds {text}: write a count (3), a list (42,43) or a range (42-51)")
        seeds += range(int(match[1]), int(match[2] or match[1]) + 1)
    if not seeds:
        raise UsageError(f"--seeds {text!r}: write a count (3), a list (42,43) or a range (42-51)")
    return tuple(dict.fromkeys(seeds))


def parse_archs(texts: Sequence[str] | None) -> tuple[str, ...]:
    """Backbones from repeated or comma-separated names; all of them where none is given."""
    names = [name.strip() for text in texts or () for name in text.split(",") if name.strip()]
    for name in names:
        if name not in BUILDERS:
            raise unknown_name("backbone", name, BUILDERS)
    return tuple(dict.fromkeys(names or BUILDERS))


def typed_command(context: typer.Context) -> str:
    """The command as it was typed; its name alone where it was not typed."""
    typed = context.obj if isinstance(context.obj, list) else (context.info_name or "",)
    return shlex.join(["asymtrain", *typed])
