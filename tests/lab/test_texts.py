"""Text from outside, for a terminal and for a spreadsheet."""

import pytest

from asymtrain.lab.texts import csv_cell, csv_text, printable


def test_nothing_printable_can_steer_a_terminal():
    assert printable("a\x1b[31mb\x9b2J\r\u202ec\udcff") == r"a\u001b[31mb\u009b2J\u000d\u202ec\udcff"
    text = "Plain ± 0.1 × ñ 日本 🙂 [red]\n\tas it is"
    assert printable(text) == text


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "＝1", "'=1", "''=1", "-", "'json:1", "''json:"]
)
def test_what_a_spreadsheet_would_compute_is_text_there_and_comes_back(text):
    assert csv_cell(text) == f"'{text}"
    assert csv_text(csv_cell(text)) == text


@pytest.mark.parametrize(
    "text", ["\x1b]0;owned\x07", "=\x1b[2J", "'json:\x9b2J", "\r=1", '日本 \u202e\udcff \\u001b "\n']
)
def test_what_could_steer_a_terminal_is_json_and_comes_back(text):
    cell = csv_cell(text)
    assert printable(cell) == cell
    assert not cell.startswith(("=", "\r"))
    assert csv_text(cell) == text


@pytest.mark.parametrize("value", ["", "a=1", "'", "'a'", "''", "1", "json:1", -1, -0.5, None])
def test_other_values_stay(value):
    assert csv_cell(value) is value
    assert not isinstance(value, str) or csv_text(value) == value
