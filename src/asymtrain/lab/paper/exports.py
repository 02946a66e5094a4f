"""A table of the reproduction as text to take elsewhere: Markdown, LaTeX, CSV."""

import csv
import io
import re
from collections.abc import Callable, Mapping

from asymtrain.lab.paper.result import Cell, ResultTable

MISSING = "missing"
NOTHING = "—"
# A backslash and braces first: what replaces the others has some of its own.
LATEX = {"\\": r"\textbackslash{}", **{sign: rf"\{sign}" for sign in "&%$#_{}"}, "~": r"\textasciitilde{}",
         "^": r"\textasciicircum{}", "±": r"$\pm$", "×": r"$\times$", "²": r"$^2$", "—": "---", "–": "--",
         "<": "$<$", ">": "$>$", "α": r"$\alpha$"}  # fmt: skip
_SPECIAL = re.compile("|".join(map(re.escape, LATEX)))
_MINUS = re.compile(r"(?<![\w)])-(?=\d)")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?%?")
_SPREAD = re.compile(rf"({_NUMBER.pattern}) ± ({_NUMBER.pattern})")
_ENDS = re.compile(rf"({_NUMBER.pattern}) to ({_NUMBER.pattern})")


def number_columns(table: ResultTable) -> tuple[bool, ...]:
    """Which columns hold numbers, or wait for them; the others are text."""
    return tuple(
        any(row[i].value is not None or row[i].spec_ids or row[i].missing for row in table.rows)
        for i in range(len(table.columns))
    )


def as_markdown(table: ResultTable) -> str:
    """A pipe table under its title, the note below."""
    rules = [" ---: " if is_number else " --- " for is_number in number_columns(table)]
    rows = [[_markdown(_text(cell)) for cell in row] for row in table.rows]
    lines = [
        f"**{_markdown(table.title)}**",
        "",
        _piped([f" {_markdown(name)} " for name in table.columns]),
        _piped(rules),
        *(_piped([f" {text} " for text in row]) for row in rows),
    ]
    return "\n".join([*lines, *(["", _markdown(table.note)] if table.note else [])]) + "\n"


def as_latex(table: ResultTable) -> str:
    """A table environment with the rules of booktabs."""
    places = "".join("r" if is_number else "l" for is_number in number_columns(table))
    rows = [[_latex(_text(cell)) for cell in row] for row in table.rows]
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        rf"\caption{{{_latex(table.title)}}}",
        rf"\begin{{tabular}}{{{places}}}",
        r"\toprule",
        " & ".join(map(_latex, table.columns)) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        *([rf"\par\smallskip\footnotesize {_latex(table.note)}"] if table.note else []),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def as_csv(table: ResultTable) -> str:
    """Headings and rows for a program: a mean and its deviation, and the ends of an interval, in columns of their own.

    Percent signs go into the heading, the plus of numbers is left out, and a dash too; a place that waits for its
    runs is empty.
    """
    pairs = [_pair_names(name, [row[i].text for row in table.rows]) for i, name in enumerate(table.columns)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([name for names in pairs for name in names])
    for row in table.rows:
        writer.writerow([text for cell, names in zip(row, pairs, strict=True) for text in _plain(cell, len(names))])
    return out.getvalue()


def _pair_names(name: str, texts: list[str]) -> tuple[str, ...]:
    """The headings that a column gets."""
    if any(text.endswith("%") and (_NUMBER.fullmatch(text) or _ENDS.fullmatch(text)) for text in texts):
        name = f"{name} (%)"
    if any(_SPREAD.fullmatch(text) for text in texts):
        return name, f"{name}: deviation"
    if any(_ENDS.fullmatch(text) for text in texts):
        return f"{name}: low", f"{name}: high"
    return (name,)


def _plain(cell: Cell, columns: int) -> list[str]:
    """A cell's text in so many columns."""
    text = "" if cell.missing or cell.text == NOTHING else cell.text
    found = (_SPREAD.fullmatch(text) or _ENDS.fullmatch(text)) if columns == 2 else None
    parts = list(found.groups()) if found else [text, *[""] * (columns - 1)]
    return [part.removesuffix("%").removeprefix("+") if _NUMBER.fullmatch(part) else part for part in parts]


FORMATS: Mapping[str, tuple[str, Callable[[ResultTable], str]]] = {
    "md": ("Markdown", as_markdown),
    "tex": ("LaTeX", as_latex),
    "csv": ("CSV", as_csv),
}
"""By the ending of the file: what people call it, and how it is made."""


def _text(cell: Cell) -> str:
    return MISSING if cell.missing else cell.text


def _piped(cells: list[str]) -> str:
    return f"|{'|'.join(cells)}|"


def _markdown(text: str) -> str:
    return re.sub(r"([\\|*_`<\[])", r"\\\1", " ".join(text.split()))


def _latex(text: str) -> str:
    escaped = _SPECIAL.sub(lambda found: LATEX[found[0]], " ".join(text.split()))
    return _MINUS.sub("$-$", escaped)
