"""A table as text to take elsewhere: Markdown, LaTeX, CSV. JSON is `table.table_json`."""

import csv
import dataclasses
import io
import re
from collections.abc import Callable, Mapping, Sequence

from asymtrain.lab.report.table import Cell, Column, Interval, Mean, Table, Value, mark_text, number_text
from asymtrain.lab.texts import csv_cell

MISSING = "missing"
# A backslash and braces first: what replaces the others has some of its own.
LATEX = {"\\": r"\textbackslash{}", **{sign: rf"\{sign}" for sign in "&%$#_{}"}, "~": r"\textasciitilde{}",
         "^": r"\textasciicircum{}", "±": r"$\pm$", "×": r"$\times$", "²": r"$^2$", "—": "---", "–": "--",
         "<": "$<$", ">": "$>$", "α": r"$\alpha$"}  # fmt: skip
_SPECIAL = re.compile("|".join(map(re.escape, LATEX)))
_MINUS = re.compile(r"(?<![\w)])-(?=\d)")


def as_markdown(table: Table) -> str:
    """A pipe table under its title, the note below."""
    headings = [_markdown(column.heading) for column in table.columns]
    rules = ["---:" if column.is_number else "---" for column in table.columns]
    rows = [[_markdown(text) for text in row] for row in table.texts(MISSING)]
    lines = [f"| {' | '.join(row)} |" for row in (headings, rules, *rows)]
    lines = [*([f"**{_markdown(table.title)}**", ""] if table.title else []), *lines]
    return "\n".join([*lines, *(["", _markdown(table.note)] if table.note else [])]) + "\n"


def as_latex(table: Table) -> str:
    """A table environment with the rules of booktabs."""
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        rf"\caption{{{_latex(table.title)}}}",
        rf"\begin{{tabular}}{{{''.join('r' if column.is_number else 'l' for column in table.columns)}}}",
        r"\toprule",
        " & ".join(_latex(column.heading) for column in table.columns) + r" \\",
        r"\midrule",
        *(" & ".join(map(_latex, row)) + r" \\" for row in table.texts(MISSING)),
        r"\bottomrule",
        r"\end{tabular}",
        *([rf"\par\smallskip\footnotesize {_latex(table.note)}"] if table.note else []),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def as_csv(table: Table) -> str:
    """Headings and rows for a program: each number in a column of its own.

    A column of means gets one for the deviations beside it, one of intervals becomes two, and where cells have marks
    these have a column too. Units are in the headings; what does not exist and what waits for its runs is empty.
    """
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
    parts = [_csv_column(column, cells) for column, cells in zip(table.columns, columns, strict=True)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([csv_cell(name) for names, _ in parts for name in names])
    writer.writerows([text for _, rows in parts for text in rows[i]] for i in range(len(table.rows)))
    return out.getvalue()


FORMATS: Mapping[str, tuple[str, Callable[[Table], str]]] = {
    "md": ("Markdown", as_markdown),
    "tex": ("LaTeX", as_latex),
    "csv": ("CSV", as_csv),
}
"""By the ending of the file: what people call it, and how it is made."""


def _csv_column(column: Column, cells: Sequence[Cell]) -> tuple[list[str], list[list[str]]]:
    """The headings of what a column becomes, and the texts of each row."""
    values = [None if cell.missing else cell.value for cell in cells]
    has_numbers = any(value is not None and not isinstance(value, str) for value in values)
    name = f"{column.heading} ({column.ending})" if column.ending and has_numbers else column.heading
    names = [name]
    if any(isinstance(value, Interval) for value in values):
        names = [f"{name}: low", f"{name}: high"]
    elif any(isinstance(value, Mean) and value.deviation is not None for value in values):
        names = [name, f"{name}: deviation"]
    rows = [_csv_texts(value, column, cell.digits, len(names)) for value, cell in zip(values, cells, strict=True)]
    if any(marks := [mark_text(cell, column) for cell in cells]):
        names.append(f"{column.heading}: mark")
        rows = [[*row, csv_cell(mark)] for row, mark in zip(rows, marks, strict=True)]
    return names, rows


def _csv_texts(value: Value, column: Column, digits: int | None, count: int) -> list[str]:
    """A value in so many texts, without plus and unit."""
    if digits is not None:
        column = dataclasses.replace(column, digits=digits)
    texts = []
    for part in dataclasses.astuple(value) if isinstance(value, Interval | Mean) else (value,):
        is_number = isinstance(part, int | float)
        texts.append(number_text(part, column, sign=False, ending=False) if is_number else csv_cell(part or ""))
    return [*texts, *[""] * (count - len(texts))][:count]


def _markdown(text: str) -> str:
    return re.sub(r"([\\|*_`<\[])", r"\\\1", " ".join(text.split()))


def _latex(text: str) -> str:
    escaped = _SPECIAL.sub(lambda sign: LATEX[sign[0]], " ".join(text.split()))
    return _MINUS.sub("$-$", escaped)
