"""Tables as a reader of paper.json has them: text, value, both ends, spec ids and missing of each cell."""

from types import SimpleNamespace

from asymtrain.lab.report.table import table_json


def headings(table):
    """The headings of its columns."""
    return [column.heading for column in table.columns]


def rows_by_heading(table):
    """Each row as cells by the heading above them."""
    shown = table_json(table)
    return [
        dict(zip(shown["columns"], (SimpleNamespace(**cell) for cell in row), strict=True)) for row in shown["rows"]
    ]
