"""Untrusted text, such as a name in another person's store, made safe for terminals, pages and spreadsheets.

Also counts in words, and lists with commas.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from asymtrain.errors import UsageError

# Control characters except tab and line feed, line ends, marks of text direction, and surrogates.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_KIND = re.compile(r"\w{2,}:")  # the prefix of a name such as folder:PATH; one letter is a drive
# What a spreadsheet reads as a formula, and the marks that `csv_cell` puts before it and before a text as JSON.
_FORMULA = re.compile("'*[=+\\-@\t\r＝＋－＠]|'+json:")
_JSON = "'json:"


def printable(text: str) -> str:
    """The text with control characters escaped as in JSON, so that none can move a cursor or make a page invalid."""
    return _CONTROL.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


def without_folders(value: Any) -> Any:
    """A setting with paths cut to their last part: `folder:photos` for `folder:/data/me/photos`. Others may read it."""
    if isinstance(value, list | tuple):
        return type(value)(without_folders(part) for part in value)
    if not isinstance(value, str):
        return value
    kind = _KIND.match(value)
    beginning = kind[0] if kind else ""
    return beginning + re.split(r"[/\\]", value.removeprefix(beginning).rstrip("/\\"))[-1]


def listing(items: Iterable[object]) -> str:
    """The items as "one, two and three"."""
    *most, last = [str(item) for item in items]
    return f"{', '.join(most)} and {last}" if most else last


def counted(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def csv_cell(value: Any) -> Any:
    """A value for a CSV file; `csv_text` is the inverse for text.

    Text that a spreadsheet would read as a formula gets an apostrophe; text with control characters becomes JSON.
    """
    if not isinstance(value, str):
        return value
    if _CONTROL.search(value):
        return f"{_JSON}{printable(json.dumps(value, ensure_ascii=False))}"
    return f"'{value}" if _FORMULA.match(value) else value


def csv_text(cell: str) -> str:
    """The text from which `csv_cell` made a cell; may raise a ValueError for another cell."""
    if cell.startswith(_JSON):
        return str(json.loads(cell.removeprefix(_JSON)))
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def comma_words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def comma_numbers(text: str, advice: str) -> tuple[int, ...]:
    """Whole numbers from a comma-separated list, without repeats. `advice` is the error, with {} for the given text."""
    parts = comma_words(text)
    # At most 18 digits, enough for any count: Python refuses to parse thousands of digits.
    if not parts or not all(part.isdecimal() and len(part) <= 18 for part in parts):
        raise UsageError(advice.format(repr(text)))
    return tuple(dict.fromkeys(map(int, parts)))
