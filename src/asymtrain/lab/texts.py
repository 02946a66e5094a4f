"""Text from outside, such as a name in a store that was sent, where it meets a terminal, a page or a spreadsheet.

And numbers of things in words, and lists with commas.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from asymtrain.errors import UsageError

# Control characters but tab and line feed, what ends a line or turns its direction, and halves of characters.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_KIND = re.compile(r"\w{2,}:")  # of a name such as folder:PATH; one letter is a drive
# What a spreadsheet takes for a formula, and the marks that `csv_cell` puts before it and before a text as JSON.
_FORMULA = re.compile("'*[=+\\-@\t\r＝＋－＠]|'+json:")
_JSON = "'json:"


def printable(text: str) -> str:
    """The text with control characters as JSON writes them: none can move a cursor, or make a page invalid."""
    return _CONTROL.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


def without_folders(value: Any) -> Any:
    """Paths in a setting by their last name: `folder:/data/me/photos` is `folder:photos`. Others may read it."""
    if isinstance(value, list | tuple):
        return type(value)(without_folders(part) for part in value)
    if not isinstance(value, str):
        return value
    kind = _KIND.match(value)
    beginning = kind[0] if kind else ""
    return beginning + re.split(r"[/\\]", value.removeprefix(beginning).rstrip("/\\"))[-1]


def listing(items: Iterable[object]) -> str:
    """One, two and three."""
    *most, last = [str(item) for item in items]
    return f"{', '.join(most)} and {last}" if most else last


def counted(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def csv_cell(value: Any) -> Any:
    """A value for a CSV file; `csv_text` gives a text back.

    Text that a spreadsheet would compute gets an apostrophe, and what could steer a terminal is written as JSON.
    """
    if not isinstance(value, str):
        return value
    if _CONTROL.search(value):
        return f"{_JSON}{printable(json.dumps(value, ensure_ascii=False))}"
    return f"'{value}" if _FORMULA.match(value) else value


def csv_text(cell: str) -> str:
    """The text that `csv_cell` made a cell of; a ValueError for any other cell."""
    if cell.startswith(_JSON):
        return str(json.loads(cell.removeprefix(_JSON)))
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def comma_words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def comma_numbers(text: str, advice: str) -> tuple[int, ...]:
    """Whole numbers from a list with commas, each once. The advice has {} for the text that is none."""
    parts = comma_words(text)
    # Of at most 18 digits, as a number of anything has: Python refuses to read thousands of them.
    if not parts or not all(part.isdecimal() and len(part) <= 18 for part in parts):
        raise UsageError(advice.format(repr(text)))
    return tuple(dict.fromkeys(map(int, parts)))
