"""A table as text to take elsewhere: Markdown, LaTeX, CSV. JSON is `table.table_json`."""

import csv
import dataclasses
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from asymtrain.lab.report.table import Cell, Column, Mean, Range, Table, Value, mark_text, number_text, true_minus
from asymtrain.lab.texts import csv_cell, printable

MISSING = "missing"


@dataclass(frozen=True)
class Writing:
    """How words and rows are written."""

    start: str  # of a row, like the next two
    between: str
    end: str
    signs: Mapping[str, str]  # what replaces a sign that has another meaning there
    minus: str = "-"  # before a digit

    def words(self, text: str) -> str:
        line = "".join(self.signs.get(sign, sign) for sign in " ".join(printable(text).split()))
        return true_minus(line, self.minus)

    def row(self, cells: Iterable[str]) -> str:
        return f"{self.start}{self.between.join(map(self.words, cells))}{self.end}\n"


MARKDOWN = Writing("| ", " | ", " |", {sign: f"\\{sign}" for sign in "\\|*_`<["})
LATEX = Writing("", " & ", r" \\", minus="$-$", signs={
    "\\": r"\textbackslash{}", **{sign: rf"\{sign}" for sign in "&%$#_{}"}, "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "±": r"$\pm$", "×": r"$\times$", "²": r"$^2$", "—": "---", "–": "--", "<": "$<$",
    ">": "$>$", "α": r"$\alpha$"})  # fmt: skip


def as_markdown(table: Table) -> str:
    """A pipe table under its title, the note below."""
    title = f"**{MARKDOWN.words(table.title)}**\n\n" if table.title else ""
    headings = MARKDOWN.row(column.heading for column in table.columns)
    rules = MARKDOWN.row("---:" if column.is_number else "---" for column in table.columns)
    note = f"\n{MARKDOWN.words(table.note)}\n" if table.note else ""
    return f"{title}{headings}{rules}{''.join(map(MARKDOWN.row, table.texts(MISSING)))}{note}"


def as_latex(table: Table) -> str:
    """A table environment with the rules of booktabs."""
    rows = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        rf"\caption{{{LATEX.words(table.title)}}}",
        rf"\begin{{tabular}}{{{''.join('r' if column.is_number else 'l' for column in table.columns)}}}",
        r"\toprule",
        f"{LATEX.row(column.heading for column in table.columns)}\\midrule",
        f"{''.join(map(LATEX.row, table.texts(MISSING)))}\\bottomrule",
        r"\end{tabular}",
        *([rf"\par\smallskip\footnotesize {LATEX.words(table.note)}"] if table.note else []),
        "\\end{table}\n",
    ]
    return "\n".join(rows)


def as_csv(table: Table) -> str:
    """Headings and rows for a program: each number in a column of its own.

    A column of means gets another for its deviations, a column of intervals becomes two, and marks get a column too.
    Units are in the headings; values that do not exist or wait for their runs are empty.
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
"""By file ending: the name of the format, and the function that writes it."""


def _csv_column(column: Column, cells: Sequence[Cell]) -> tuple[list[str], list[list[str]]]:
    """The headings of what a column becomes, and the texts of each row."""
    values = [None if cell.missing else cell.value for cell in cells]
    has_numbers = any(value is not None and not isinstance(value, str) for value in values)
    name = f"{column.heading} ({column.ending})" if column.ending and has_numbers else column.heading
    names = [name]
    if any(isinstance(value, Range) for value in values):
        names = [f"{name}: low", f"{name}: high"]
    elif any(isinstance(value, Mean) and value.deviation is not None for value in values):
        names = [name, f"{name}: deviation"]
    rows = [_csv_texts(value, column, len(names)) for value in values]
    if any(marks := [mark_text(cell, column) for cell in cells]):
        names.append(f"{column.heading}: mark")
        rows = [[*row, csv_cell(mark)] for row, mark in zip(rows, marks, strict=True)]
    return names, rows


def _csv_texts(value: Value, column: Column, count: int) -> list[str]:
    """A value as `count` texts, without plus and unit."""
    texts = []
    for part in dataclasses.astuple(value) if isinstance(value, Range | Mean) else (value,):
        is_number = isinstance(part, int | float)
        texts.append(number_text(part, column, sign=False, ending=False) if is_number else csv_cell(part or ""))
    return [*texts, *[""] * (count - len(texts))][:count]
