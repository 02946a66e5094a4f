"""Tables as Markdown, LaTeX and CSV."""

import csv
import io
import re

import pytest
from difficult_table import COLUMNS, TABLE, TEXTS

from asymtrain.lab.report.export import FORMATS, as_csv, as_latex, as_markdown
from asymtrain.lab.report.table import Cell, Column, Mean, Range, Table, make_rows
from asymtrain.lab.texts import printable

SMALL = Table(
    "t",
    "A title",
    (Column("Backbone"), Column("Plain", "number", digits=2), Column("p", "p", digits=4, papers=True)),
    make_rows([("ViT", Mean(0.1, 0.02), 0.0), ("CNN", Cell(missing=True), -15.3)]),
    "A note.",
)


def read_csv(table):
    return list(csv.reader(io.StringIO(as_csv(table))))


def test_markdown_by_hand():
    assert as_markdown(SMALL).splitlines() == [
        "**A title**",
        "",
        "| Backbone | Plain | Paper: p |",
        "| --- | ---: | ---: |",
        "| ViT | 0.10 ± 0.02 | \\<0.0001 |",
        "| CNN | missing | \\<0.0001 |",
        "",
        "A note.",
    ]


def test_latex_by_hand():
    assert as_latex(SMALL).splitlines() == [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\caption{A title}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"Backbone & Plain & Paper: p \\",
        r"\midrule",
        r"ViT & 0.10 $\pm$ 0.02 & $<$0.0001 \\",
        r"CNN & missing & $<$0.0001 \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\par\smallskip\footnotesize A note.",
        r"\end{table}",
    ]


def test_what_markdown_holds_is_what_is_shown():
    lines = [line for line in as_markdown(TABLE).splitlines() if line.startswith("|")]
    rows = [[part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    shown = [[re.sub(r"\\([\\|*_`<\[])", r"\1", text) for text in row] for row in (rows[0], *rows[2:])]
    assert shown[0] == [column.heading for column in COLUMNS]
    assert [rule == "---:" for rule in rows[1]] == [column.is_number for column in COLUMNS]
    waiting = [[cell.missing for cell in row] for row in TABLE.rows]
    for texts, expected, missing in zip(shown[1:], TEXTS, waiting, strict=True):
        assert texts == [("missing" if waits else text) for text, waits in zip(expected, missing, strict=True)]


def test_latex_has_no_bare_sign_and_a_place_for_each_column():
    text = as_latex(TABLE)
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(lines) == 1 + len(TABLE.rows)
    for line in lines:
        assert len(re.split(r"(?<!\\)&", line)) == len(COLUMNS)
        assert not re.search(r"(?<!\\)[%#_]|[±—²<>](?!\$)", line)
    assert r"$-$3.3\% to +20.0\%" in text
    assert "4e-05" in text  # the minus of an exponent is no sign
    assert r"A note\_with signs, $-$3 and $\alpha$." in text
    assert r"\textbackslash{}x\{\}" in as_latex(Table("t", "\\x{}", SMALL.columns, ()))


def test_csv_is_for_programs():
    """Every number stands alone: deviations, ends of intervals, marks and units are in headings."""
    headings, *rows = read_csv(TABLE)
    assert headings == [
        "Back|bone", "Mean", "Mean: deviation", "Change (%)", "Change: mark", "Interval (%): low", "Interval (%): high",
        "p", "n", "n: mark", "Share (%)", "Rate", "Rate: mark", "Ratio", "Paper: change (%)",
        "Size (M)", "Result",
    ]  # fmt: skip
    assert rows == [
        [
            "ViT", "0.100", "0.021", "8.3", "", "-3.3", "20.0", "<0.0001", "10", "", "28", "4e-05", "", "0.012",
            "-3.0", "1.23", "a_b",
        ],
        ["CNN", "0.500", "", "-15.2", "", "", "", "0.0001", "3", "", "", "10", "", "1.2e+03", "", "", "<b> & 5%"],
        ["A to B", "", "", "", "", "", "", "1.0000", "0", "", "100", "0.5", "*", "", "", "", ""],
        [
            "±2", "0.100", "0.020", "0.0", "(diverged)", "-0.0", "0.0", "0.0001", "1", "of 2", "0", "-1.5", "", "0",
            "paper says so", "0.00", "",
        ],
    ]  # fmt: skip


def test_a_column_without_numbers_has_no_unit_in_csv_and_one_without_rows_its_heading():
    columns = (Column("Name"), Column("Change", "number", "%"), Column("Ends", "number"))
    assert read_csv(Table("t", "", columns, make_rows([("a", None, Cell(missing=True))]))) == [
        ["Name", "Change", "Ends"],
        ["a", "", ""],
    ]
    assert read_csv(Table("t", "", columns, ())) == [["Name", "Change", "Ends"]]
    one_seed = make_rows([("a", Mean(1.0), Range(0.0, 1.0))])
    assert read_csv(Table("t", "", columns, one_seed)) == [
        ["Name", "Change (%)", "Ends: low", "Ends: high"],
        ["a", "1.000", "0.000", "1.000"],
    ]


@pytest.mark.parametrize("ending", FORMATS)
def test_no_file_of_a_table_can_steer_a_terminal(ending):
    nasty = "a\x1b]0;owned\x07\x9b2J"
    table = Table("t", nasty, (Column(nasty),), make_rows([(nasty,), (Cell(None, mark=nasty),)]), nasty)
    text = FORMATS[ending][1](table)
    assert printable(text) == text


def test_csv_holds_no_formula_and_numbers_stay_numbers():
    columns = (Column("=name"), Column("Change", "number", digits=1, signed=True))
    table = Table("t", "", columns, make_rows([("=cmd|' /C calc'!A0", -1.5), ("@x", Cell(2.0, mark="+"))]))
    assert read_csv(table) == [
        ["'=name", "Change", "Change: mark"],
        ["'=cmd|' /C calc'!A0", "-1.5", ""],
        ["'@x", "2.0", "'+"],
    ]


def test_without_a_note_nothing_stands_in_its_place():
    bare = Table("t", "", SMALL.columns, SMALL.rows)
    assert as_markdown(bare).startswith("| Backbone")
    assert as_markdown(bare).endswith("\\<0.0001 |\n")
    assert "footnotesize" not in as_latex(bare)
