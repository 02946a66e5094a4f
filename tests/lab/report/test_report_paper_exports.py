"""Tables of the reproduction as Markdown, LaTeX and CSV."""

import csv
import io
import re

import pytest
from paper_results import difficult

from asymtrain.lab.report.export import as_csv, as_latex, as_markdown
from asymtrain.lab.report.table import Cell, Column, Interval, Mean, Table, make_rows

TABLE = Table(
    "t",
    "A title",
    (Column("Backbone"), Column("Plain", "number", digits=2), Column("p", "p", digits=4, papers=True)),
    make_rows([("ViT", Mean(0.1, 0.02), 0.0), ("CNN", Cell(missing=True), Cell(-15.3, words="-15.3%"))]),
    "A note.",
)


def unescaped(text):
    return re.sub(r"\\([\\|*_`<\[])", r"\1", text)


def read_markdown(text):
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[unescaped(part.strip()) for part in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return rows[0], rows[1], rows[2:]


def test_markdown_by_hand():
    assert as_markdown(TABLE).splitlines() == [
        "**A title**",
        "",
        "| Backbone | Plain | Paper: p |",
        "| --- | ---: | ---: |",
        "| ViT | 0.10 ± 0.02 | \\<0.0001 |",
        "| CNN | missing | -15.3% |",
        "",
        "A note.",
    ]


def test_latex_by_hand():
    assert as_latex(TABLE).splitlines() == [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\caption{A title}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"Backbone & Plain & Paper: p \\",
        r"\midrule",
        r"ViT & 0.10 $\pm$ 0.02 & $<$0.0001 \\",
        r"CNN & missing & $-$15.3\% \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\par\smallskip\footnotesize A note.",
        r"\end{table}",
    ]


def test_csv_is_for_programs():
    """Numbers stand alone: deviations, ends of intervals and units are in headings."""
    percent = {"kind": "number", "unit": "%", "digits": 1, "signed": True}
    columns = (
        Column("Backbone"),
        Column("Plain", "number", digits=2),
        Column("Change", **percent),
        Column("Interval", **percent),
        Column("p", "p", digits=4),
        Column("Step", "number", digits=None),
    )
    rows = [
        ("ViT", Mean(0.1, 0.02), 8.3, Interval(-3.3, 20.0), 0.0, 4e-05),
        ("A to B", Cell(missing=True), -15.3, None, 0.01, 0.5),
    ]
    table = Table("t", "A title", columns, make_rows(rows))
    assert list(csv.reader(io.StringIO(as_csv(table)))) == [
        ["Backbone", "Plain", "Plain: deviation", "Change (%)", "Interval (%): low", "Interval (%): high", "p", "Step"],
        ["ViT", "0.10", "0.02", "8.3", "-3.3", "20.0", "<0.0001", "4e-05"],
        ["A to B", "", "", "-15.3", "", "", "0.0100", "0.5"],
    ]


@pytest.fixture
def table():
    return difficult("0" * 16).tables[0]


def test_what_markdown_holds_can_be_read_back(table):
    headings, rules, rows = read_markdown(as_markdown(table))
    assert headings == [column.heading for column in table.columns]
    assert [rule.endswith(":") for rule in rules] == [column.is_number for column in table.columns]
    assert rows == table.texts("missing")


def test_latex_rows_have_as_many_places_as_columns_and_no_bare_sign(table):
    lines = [line for line in as_latex(table).splitlines() if line.endswith(r"\\")]
    assert len(lines) == 1 + len(table.rows)
    for line in lines:
        assert len(re.split(r"(?<!\\)&", line)) == len(table.columns)
        assert not re.search(r"(?<!\\)[%#_]|[±—²<>](?!\$)", line)
    assert r"</script>".replace("<", "$<$").replace(">", "$>$") in as_latex(table)
    assert r"\textbackslash{}x" in as_latex(table)
