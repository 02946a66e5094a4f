"""The page of a measurement, made of tables and figures."""

import dataclasses
import json
from html.parser import HTMLParser

import pytest
from difficult_table import TABLE

from asymtrain.lab.report.drawing import as_file, draw
from asymtrain.lab.report.figure import Figure, Line, Lines
from asymtrain.lab.report.page import spans, write_page
from asymtrain.lab.report.table import Cell, Column, Table, make_rows, true_minus

COLUMNS = (Column("Name"), Column("Value", "number", digits=0), Column("Words"))
NUMBERS = Table("numbers", "Numbers", COLUMNS, make_rows([("a <b>", 1, "x"), ("c", 2, "y")]), "A note.")


def figure(name, title, columns=1, caption=""):
    panel = Lines("", "epoch", "accuracy", (Line("Plain", "plain", (1.0, 2.0), (0.1, 0.2), marker=True),))
    return Figure(name, title, [panel] * columns, columns, caption)


ONE, TWO = figure("one", "One", caption="A caption."), figure("two", "Two", columns=3)


class Outline(HTMLParser):
    """Ids, links and the texts of the cells of a page."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.cells, self.in_cell = [], [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids += [values["id"]] if "id" in values else []
        self.links += [value for name, value in attrs if name in ("src", "href", "srcset", "data", "xlink:href")]
        self.in_cell = tag in ("td", "th") and "scope" not in values
        self.cells += [""] if self.in_cell else []

    def handle_endtag(self, tag):
        self.in_cell = False

    def handle_data(self, data):
        if self.in_cell:
            self.cells[-1] += data.rstrip("\n")


def written(out, **changes):
    values = {
        "title": "A <measurement>",
        "lead": "First.\n\nSecond.",
        "tables": [NUMBERS],
        "figures": [ONE, TWO],
        "facts": {"Command": "asymtrain measure x", "Runs": "3"},
        "document": {"value": 1.5, "missing": None, "name": "α"},
    }
    return write_page(out, "x", **values | changes)


def test_the_files_and_what_they_hold(tmp_path):
    paths = written(tmp_path / "a" / "b")
    assert {kind: path.name for kind, path in paths.items()} == {
        "page": "x.html", "json": "x.json", "one": "x-one.svg", "two": "x-two.svg",
    }  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == sorted(p.name for p in paths.values())
    assert json.loads(paths["json"].read_text()) == {"value": 1.5, "missing": None, "name": "α"}
    assert paths["one"].read_text() == as_file(draw(ONE))
    text = paths["page"].read_text()
    for expected in ("A &lt;measurement&gt;", "First.", "Second.", "A note.", "A caption.", "a &lt;b&gt;"):
        assert expected in text
    assert "<code>asymtrain measure x</code>" in text


def test_a_page_begins_with_headline_condition_and_figure_and_folds_how_it_was_made(tmp_path):
    headline = ("good", "It helps by -1.0 points of <b>")
    text = written(tmp_path, headline=headline, code="x = 1 < 2, -1\n")["page"].read_text()
    one, two = (f"<h3>{figure.title}</h3>" for figure in (ONE, TWO))
    said = '<h1 class="headline good">It helps by −1.0 points of &lt;b&gt;</h1>'
    shown = ("A &lt;measurement&gt;</p>", said, "First.", "Second.", one, "</header>", "x = 1 &lt; 2, -1")
    order = [text.index(part) for part in (*shown, 'id="figures"', two, 'id="numbers"', "<details", 'id="made"')]
    assert order == sorted(order)
    assert text.count(one) == 1
    without = written(tmp_path, figures=[])["page"].read_text()
    assert '<header class="beside"' in text
    assert '<header class="beside"' not in without
    assert "<h1>A &lt;measurement&gt;</h1>" in without
    assert "navigator.clipboard" in text
    assert "navigator.clipboard" not in written(tmp_path)["page"].read_text()


@pytest.mark.parametrize("rows", [1, 10], ids=["cards on a phone", "scrolled"])
def test_the_cells_of_a_page_are_the_texts_of_its_tables(tmp_path, rows):
    table = dataclasses.replace(TABLE, rows=TABLE.rows * rows)
    found = Outline(written(tmp_path, tables=[table])["page"].read_text()).cells
    texts = table.texts("missing")
    assert found == [true_minus(texts[i][at]) for i, row in enumerate(table.rows) for at, _ in spans(row)]


def test_ids_on_the_page_are_unique_and_references_lead_somewhere(tmp_path):
    outline = Outline(written(tmp_path)["page"].read_text())
    assert len(set(outline.ids)) == len(outline.ids)
    inner = [link for link in outline.links if link.startswith("#")]
    assert inner
    assert {link[1:] for link in inner} <= set(outline.ids)
    assert all(link.startswith(("#", "data:")) for link in outline.links)


def test_a_verdict_has_its_colour_and_a_detail_is_folded(tmp_path):
    rows = ((Cell("a"), Cell(-1), Cell("hurts", colour="bad")),)
    tables = [dataclasses.replace(NUMBERS, name="more", detail=True), dataclasses.replace(NUMBERS, rows=rows)]
    text = written(tmp_path, tables=tables)["page"].read_text()
    assert '<td class="left bad" data-heading="Words">hurts' in text
    assert '<td data-heading="Value">−1' in text
    assert text.index('id="numbers"') < text.index('<details class="fold"><summary><h2 id="more">')


def test_missing_cells_side_by_side_become_one():
    waits, here = Cell(missing=True), Cell(1)
    assert list(spans([here, waits, waits, here, waits])) == [(0, 1), (1, 2), (3, 1), (4, 1)]
    assert list(spans([waits, waits])) == [(0, 2)]
    assert list(spans([here, here])) == [(0, 1), (1, 1)]


def test_written_again_it_has_the_same_bytes(tmp_path):
    first, second = written(tmp_path / "1"), written(tmp_path / "2")
    assert [p.read_bytes() for p in first.values()] == [p.read_bytes() for p in second.values()]


def test_what_is_not_finite_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        written(tmp_path / "new", document={"value": float("nan")})
    assert not (tmp_path / "new").exists()


def test_figures_with_one_name_are_our_mistake(tmp_path):
    for figures in ([ONE, figure("one", "Two")], [figure("page", "Page")], [figure("json", "JSON")]):
        with pytest.raises(AssertionError, match="share a name"):
            written(tmp_path, figures=figures)
    with pytest.raises(AssertionError, match="no part of a file's name"):
        written(tmp_path, figures=[figure("a/b", "Path")])
