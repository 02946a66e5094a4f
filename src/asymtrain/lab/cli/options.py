"""What users type, as values."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import typer

from asymtrain.errors import UsageError, unknown_name

FIRST_SEED = 42
DEFAULT_OUT = Path("asymtrain-report")
STORE_NAME = "runs.sqlite"
SEEDS_HELP = "How many (3: 42, 43 and 44), from..to (42..51), or which (42,43,44; one: 42,)."
seeds_option = typer.Option("--seeds", help=SEEDS_HELP)  # in Annotated[str | None, seeds_option]


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds from a count (`3`: 42, 43, 44), ranges with both ends (`42..51`, `42-51`) or a list (`42,43`; `7,`)."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 1 and re.fullmatch(r"\d+", parts[0], re.ASCII):
        if int(parts[0]) < 1:
            raise UsageError(f"--seeds {text}: at least one seed is needed")
        return tuple(range(FIRST_SEED, FIRST_SEED + int(parts[0])))
    wrong = UsageError(f"--seeds {shlex.quote(text)}: write how many (3), from..to (42..51), or which (42,43 or 42,)")
    seeds: list[int] = []
    for part in filter(None, parts):
        match = re.fullmatch(r"(\d+)(?:\s*(?:\.\.|-)\s*(\d+))?", part, re.ASCII)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise wrong
        seeds += range(int(match[1]), int(match[2] or match[1]) + 1)
    if not seeds:
        raise wrong
    return tuple(dict.fromkeys(seeds))


def parse_archs(texts: Sequence[str] | None) -> tuple[str, ...]:
    """Backbones from repeated or comma-separated names; all of them where none is given."""
    from asymtrain.models import BACKBONES  # here: it loads torch, and --help does without

    names = [name.strip() for text in texts or () for name in text.split(",") if name.strip()]
    for name in names:
        if name not in BACKBONES:
            raise unknown_name("backbone", name, BACKBONES)
    return tuple(dict.fromkeys(names or BACKBONES))


def parse_settings(texts: Sequence[str] | None) -> dict[str, str]:
    """Fields of a run from `FIELD=VALUE`, of those that say what branches are and what of them reaches the backbone."""
    from asymtrain.lab.runs import AUXILIARY
    from asymtrain.lab.runs import choices as choices_of

    kinds = {name: choices_of(name) for name in AUXILIARY}
    # Alpha and redundancy have options of their own; cosines are recorded, and change nothing.
    choices = {name: kinds[name] for name in AUXILIARY if kinds[name] and not name.startswith("cosine")}
    found: dict[str, str] = {}
    for text in texts or ():
        name, _, value = (part.strip() for part in text.partition("="))
        if name in ("alpha", "redundancy"):
            raise UsageError(f"--set {text}: it has an option of its own, --{name}")
        if name not in choices:
            listed = ", ".join(f"{field}={'|'.join(values)}" for field, values in choices.items())
            raise UsageError(f"--set {text}: there is no such field; write one of {listed}")
        if value not in choices[name]:
            raise UsageError(f"--set {text}: write {name}={'|'.join(choices[name])}")
        if found.setdefault(name, value) != value:
            raise UsageError(f"--set {text}: {name} is already set to {found[name]}")
    return found


def typed_command(context: typer.Context) -> str:
    """The command as it was typed; its name alone where it was not typed."""
    typed = context.obj if isinstance(context.obj, list) else (context.info_name or "",)
    return shlex.join(["asymtrain", *typed])


def parse_values(option: str, text: str | None, default: Sequence[float]) -> tuple[float, ...]:
    """Numbers with commas; the default where nothing is given."""
    if text is None:
        return tuple(default)
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UsageError(f"{option} {text}: write numbers with commas, such as 0.001,0.01") from None
