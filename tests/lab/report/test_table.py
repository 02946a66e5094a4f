"""Tables as values: what is shown of each kind of cell, and what a program is given."""

import json

import pytest
from difficult_table import COLUMNS, ROWS, TABLE, TEXTS

from asymtrain.lab.report.table import (
    Column,
    Mean,
    Range,
    cell_text,
    number_text,
    table_json,
    value_text,
)


@pytest.mark.parametrize("row", range(len(ROWS)))
@pytest.mark.parametrize("column", range(len(COLUMNS)))
def test_every_cell_as_it_is_shown(row, column):
    assert cell_text(ROWS[row][column], COLUMNS[column]) == TEXTS[row][column]


def test_a_table_gives_all_its_texts_and_says_what_waits():
    assert TABLE.texts() == TEXTS
    missing = [[text == "missing" for text in row] for row in TABLE.texts("missing")]
    assert missing == [[cell.missing for cell in row] for row in ROWS]


def test_where_room_is_short_signs_and_units_are_said_once():
    texts = TABLE.texts(compact=True)
    assert texts[0][1:4] == ["0.100±0.021", "+8.3%", "-3.3 to +20.0%"]
    assert texts[3][2:4] == ["+0.0% (diverged)", "-0.0 to +0.0%"]
    share = Column("Share", "share", digits=0)
    assert value_text(Range(0.1, 0.25), share, compact=True) == "10 to 25%"
    assert value_text(Range(0.1, 0.25), share) == "10% to 25%"


def test_a_deviation_has_no_sign_and_a_p_is_never_nought():
    assert value_text(Mean(0.5, 0.25), Column("x", "number", digits=1, signed=True)) == "+0.5 ± 0.2"
    p = Column("p", "p", digits=3)
    assert [number_text(value, p) for value in (0.0, 0.000999, 0.001, 0.0504)] == ["<0.001", "<0.001", "0.001", "0.050"]
    assert number_text(0.0, Column("p", "p", digits=None)) == "0"


def test_one_number_without_its_plus_or_its_unit():
    column = Column("x", "number", "%", 1, signed=True)
    assert number_text(2.0, column) == "+2.0%"
    assert number_text(2.0, column, sign=False) == "2.0%"
    assert number_text(2.0, column, ending=False) == "+2.0"
    assert number_text(0.5, Column("x", "share", digits=1), ending=False) == "50.0"
    assert number_text(2.5, Column("n", "count")) == "2.5"


def test_a_program_is_given_the_numbers_whole():
    document = json.loads(json.dumps(table_json(TABLE), allow_nan=False))
    assert document["columns"] == [column.heading for column in COLUMNS]
    assert [[cell["text"] for cell in row] for row in document["rows"]] == TEXTS
    first, last = document["rows"][0], document["rows"][3]
    assert first[1] == {
        "text": "0.100 ± 0.021",
        "value": 0.10049,
        "deviation": 0.0205,
        "spec_ids": [],
        "missing": False,
    }
    assert first[3] | {"text": ""} == {
        "text": "", "value": None, "low": -3.3, "high": 20.0, "spec_ids": [], "missing": False
    }  # fmt: skip
    assert (first[4]["value"], first[0]["value"]) == (0.00009, None)
    assert last[0]["spec_ids"] == ["s1", "s2"]
    assert document["rows"][1][9]["missing"]
    assert document["kinds"][2]["unit"] == "%"
    assert (document["title"], document["note"], document["name"]) == (TABLE.title, TABLE.note, "difficult")
