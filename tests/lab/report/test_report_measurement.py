"""The page of a measurement."""

import json
import re
from html.parser import HTMLParser

import pytest

from asymtrain.lab.report.measurement import Drawn, Listed, interval, number, write_measurement
from asymtrain.lab.statistics.estimates import estimate

SVG = '<svg viewBox="0 0 {0} 100" xmlns="http://www.w3.org/2000/svg"><g id="axes"/><use href="#axes"/></svg>'


class Outline(HTMLParser):
    """Ids, links and headings of a page."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.cells = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids += [values["id"]] if "id" in values else []
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        self.cells += [values["data-heading"]] if "data-heading" in values else []


def written(out, **changes):
    values = {
        "title": "A <measurement>",
        "lead": "First.\n\nSecond.",
        "tables": [Listed("Numbers", ("Name", "Value"), [("a <b>", "1"), ("c", "2")], "A note.")],
        "figures": [Drawn("one", "One", SVG.format(280), "A caption."), Drawn("two", "Two", SVG.format(800))],
        "facts": {"Command": "asymtrain measure x", "Runs": "3"},
        "document": {"value": 1.5, "missing": None, "name": "α"},
    }
    return write_measurement(out, "x", **values | changes)


def test_the_files_and_what_they_hold(tmp_path):
    paths = written(tmp_path / "a" / "b")
    assert {kind: path.name for kind, path in paths.items()} == {
        "page": "x.html", "json": "x.json", "one": "x-one.svg", "two": "x-two.svg",
    }  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == sorted(p.name for p in paths.values())
    assert json.loads(paths["json"].read_text()) == {"value": 1.5, "missing": None, "name": "α"}
    assert paths["one"].read_text() == SVG.format(280)
    text = paths["page"].read_text()
    for expected in ("A &lt;measurement&gt;", "First.", "Second.", "A note.", "A caption.", "a &lt;b&gt;"):
        assert expected in text
    assert "<code>asymtrain measure x</code>" in text


def test_ids_on_the_page_are_unique_and_references_lead_somewhere(tmp_path):
    """Both figures call a thing of theirs `axes`."""
    outline = Outline(written(tmp_path)["page"].read_text())
    assert len(set(outline.ids)) == len(outline.ids)
    inner = [link for link in outline.links if link.startswith("#")]
    assert len(inner) == 2
    assert {link[1:] for link in inner} <= set(outline.ids)
    assert all(link.startswith(("#", "data:")) for link in outline.links)


def test_a_wide_figure_gets_the_whole_row(tmp_path):
    text = written(tmp_path)["page"].read_text()
    assert re.search(r"<figure><h3>One</h3>", text)
    assert re.search(r'<figure class="wide"><h3>Two</h3>', text)


def test_short_tables_become_cards_on_a_phone_and_long_ones_scroll(tmp_path):
    rows = [(str(i), "1") for i in range(30)]
    text = written(tmp_path, tables=[Listed("Long", ("Name", "Value"), rows)])["page"].read_text()
    assert 'class="summary"' not in text
    assert Outline(text).cells == ["Value"] * 30
    assert 'class="summary"' in written(tmp_path)["page"].read_text()


def test_written_again_it_has_the_same_bytes(tmp_path):
    first, second = written(tmp_path / "1"), written(tmp_path / "2")
    assert [p.read_bytes() for p in first.values()] == [p.read_bytes() for p in second.values()]


def test_a_page_without_figures_or_tables_is_whole(tmp_path):
    text = written(tmp_path, figures=[], tables=[])["page"].read_text()
    assert "Figures" not in text
    assert "How it was made" in text


def test_what_is_not_finite_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        written(tmp_path / "new", document={"value": float("nan")})
    assert not (tmp_path / "new").exists()


def test_figures_with_one_name_and_ragged_rows_are_our_mistake(tmp_path):
    twice = [Drawn("one", "One", SVG.format(1)), Drawn("one", "Two", SVG.format(1))]
    with pytest.raises(AssertionError, match="share a name"):
        written(tmp_path, figures=twice)
    with pytest.raises(AssertionError, match="other columns"):
        written(tmp_path, tables=[Listed("T", ("a", "b"), [("1",)])])


def test_cells_of_numbers():
    assert (number(0.12345), number(-0.5, "+.1f"), number(None)) == ("0.123", "-0.5", "–")
    assert interval(estimate([1.0])) == "–"
    assert interval(estimate([1.0, 1.0]), "+.1f") == "+1.0 to +1.0"
