"""Errors for users: one line that says what is wrong and what to do.

Everything a user can get wrong raises `UsageError`, which is a `ValueError`. The command line prints its
text and exits with 2. Any other exception is a bug of ours and keeps its traceback.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class UsageError(ValueError):
    """The caller can fix this; the text says how."""


class UsageWarning(UserWarning):
    """Something was left out while the work continued; the text says what. The command line shows one line."""


def error_line(error: BaseException) -> str:
    """The type and first line of another library's error, for a message."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"


def how_to_install(extra: str) -> str:
    """The command that installs an extra. asymtrain is on no package index, so it refers to the clone."""
    return f'pip install -e ".[{extra}]" in your clone of asymtrain'


def near_names(name: str, names: Iterable[str]) -> list[str]:
    """The names that may be meant: those with these initials, such as learning_rate for lr, else the most similar."""
    # Case is ignored, since capitals are mistyped most: VitConfg finds ViTConfig.
    folded, name = {option.casefold(): option for option in names}, name.casefold()
    initials = [option for fold, option in folded.items() if name == "".join(w[:1] for w in fold.split("_"))]
    if len(name) > 1 and initials:
        return initials
    return [folded[match] for match in get_close_matches(name, folded)]


def unknown_name(kind: str, name: str, names: Iterable[str]) -> UsageError:
    """The error for a name that is not in a table, with the nearest names that are."""
    options = sorted(names)
    near = near_names(name, options)
    listed = [option if option.isprintable() else repr(option) for option in options[:12]]
    listed += ["…"] if len(options) > 12 else []
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"write one of {', '.join(listed)}"
    return UsageError(f"unknown {kind} {name!r}: {hint}")
