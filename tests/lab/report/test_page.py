"""The page of a measurement, made of tables and figures."""

import json
import re
from html.parser import HTMLParser

import pytest

from asymtrain.lab.report.drawing import as_file, draw, size_of
from asymtrain.lab.report.figure import Figure, Line, Lines
from asymtrain.lab.report.page import spans, write_page
from asymtrain.lab.report.table import Cell, Column, Table, make_rows

COLUMNS = (Column("Name"), Column("Value", "number", digits=0), Column("Words"))
NUMBERS = Table("numbers", "Numbers", COLUMNS, make_rows([("a <b>", 1, "x"), ("c", 2, "y")]), "A note.")


def figure(name, title, columns=1, caption=""):
    panel = Lines("", "epoch", "accuracy", (Line("Plain", "plain", (1.0, 2.0), (0.1, 0.2), marker=True),))
    return Figure(name, title, [panel] * columns, columns, caption)


ONE, TWO = figure("one", "One", caption="A caption."), figure("two", "Two", columns=3)


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


def test_an_answer_stands_beside_the_first_figure_and_before_the_numbers(tmp_path):
    answers, headline = [("good", "attach", "It helps.")], ("good", "+1.0 points", "of <b>")
    text = written(tmp_path, answers=answers, headline=headline, code="x = 1 < 2\n")["page"].read_text()
    one, two = (f"<h3>{figure.title}</h3>" for figure in (ONE, TWO))
    shown = ("<b>+1.0 points</b> of &lt;b&gt;", "It helps.", one, "</header>", "First.", "x = 1 &lt; 2")
    order = [text.index(part) for part in (*shown, 'id="figures"', two, 'id="table1"')]
    assert order == sorted(order)
    assert text.count(one) == 1
    without = written(tmp_path, answers=answers, figures=[])["page"].read_text()
    assert 'class="hero"' not in without
    assert '<p class="headline' not in without
    alone = written(tmp_path, headline=headline)["page"].read_text()  # with its condition beside the figure
    assert alone.index('class="headline good"') < alone.index("First.") < alone.index("</header>")
    assert "navigator.clipboard" in text
    assert "navigator.clipboard" not in written(tmp_path)["page"].read_text()


@pytest.mark.slow
@pytest.mark.parametrize("granted", [True, False], ids=["a clipboard", "none"])
def test_a_button_copies_the_code(open_page, tmp_path, granted):
    page = open_page(written(tmp_path, code="x = 1 < 2\n")["page"], 1280)
    if granted:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    else:
        page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('refused')); }")
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied" if granted else "Selected").wait_for()
    read = "navigator.clipboard.readText()" if granted else "getSelection().toString()"
    assert page.evaluate(read).strip() == "x = 1 < 2"
    page.emulate_media(media="print")
    assert not page.locator("section .controls").first.is_visible()


def test_ids_on_the_page_are_unique_and_references_lead_somewhere(tmp_path):
    outline = Outline(written(tmp_path)["page"].read_text())
    assert len(set(outline.ids)) == len(outline.ids)
    inner = [link for link in outline.links if link.startswith("#")]
    assert inner
    assert {link[1:] for link in inner} <= set(outline.ids)
    assert all(link.startswith(("#", "data:")) for link in outline.links)


def test_a_wide_figure_gets_the_whole_row(tmp_path):
    text = written(tmp_path)["page"].read_text()
    assert re.search(r"<figure><h3>One</h3>", text)
    # Panels side by side, a quarter wider than drawn at most: 6 rem are an inch.
    assert re.search(rf'<figure class="wide" style="max-width: {7.5 * size_of(TWO)[0]:.1f}rem"><h3>Two</h3>', text)


def test_names_in_a_title_break_between_their_parts(tmp_path):
    text = written(tmp_path, title="<Branches> for a.deep_network:build on 0.5: x")["page"].read_text()
    assert "<h1>&lt;Branches&gt; for a.<wbr>deep_<wbr>network:<wbr>build on 0.5: x</h1>" in text


def test_a_caption_that_several_figures_share_is_said_once(tmp_path):
    figures = [figure(name, name, caption=caption) for name, caption in zip("abc", ("A.", "A.", "B."), strict=True)]
    text = written(tmp_path, figures=figures)["page"].read_text()
    assert re.findall("<figcaption>(.*?)</figcaption>", text) == ["A.", "B."]


def test_short_tables_become_cards_on_a_phone_and_long_ones_scroll(tmp_path):
    long = Table("long", "Long", COLUMNS, make_rows((str(i), 1, "x") for i in range(30)))
    text = written(tmp_path, tables=[long])["page"].read_text()
    assert 'class="summary"' not in text
    assert Outline(text).cells == []  # their headings stand above them
    short = written(tmp_path)["page"].read_text()
    assert 'class="summary"' in short
    assert Outline(short).cells == ["Value", "Words"] * len(NUMBERS.rows)


def test_numbers_stand_right_and_words_left(tmp_path):
    text = written(tmp_path)["page"].read_text()
    assert '<td data-heading="Value">1<td class=left data-heading="Words">x' in text
    assert "<tr><th>c<td" in text
    assert "<th scope=col class=right" in text
    led = Table("led", "Led", (Column("Name"), *COLUMNS[::-1]), make_rows([("a", "x", 1, "y")]))
    text = written(tmp_path, tables=[led])["page"].read_text()
    assert 'class="summary words-2"' in text
    assert '<td data-heading="Words">x<td data-heading="Value">1<td class=left data-heading="Name">y' in text


def test_the_papers_numbers_are_marked_and_cells_that_wait_say_so_once(tmp_path):
    columns = (*COLUMNS, Column("value", "number", papers=True))
    rows = make_rows([("a", Cell(missing=True), Cell(missing=True), 2.0)])
    text = written(tmp_path, tables=[Table("t", "T", columns, rows)])["page"].read_text()
    assert '<td class=missing data-heading="Value" colspan=2>missing<td data-heading="Paper: value">2.000' in text
    assert '<th scope=col class="right papers"><small>Paper</small> Value</th>' in text
    assert "<colgroup><col><col><col><col class=papers></colgroup>" in text


def test_missing_cells_side_by_side_become_one():
    waits, here = Cell(missing=True), Cell(1)
    assert list(spans([here, waits, waits, here, waits])) == [(0, 1), (1, 2), (3, 1), (4, 1)]
    assert list(spans([waits, waits])) == [(0, 2)]
    assert list(spans([here, here])) == [(0, 1), (1, 1)]


def test_details_stand_behind_the_figures(tmp_path):
    detail = Table("d", "In detail", COLUMNS, NUMBERS.rows, detail=True)
    text = written(tmp_path, tables=[detail, NUMBERS])["page"].read_text()
    assert text.index(">Numbers<") < text.index(">Figures<") < text.index(">In detail<")


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


def test_figures_with_one_name_are_our_mistake(tmp_path):
    for figures in ([ONE, figure("one", "Two")], [figure("page", "Page")], [figure("json", "JSON")]):
        with pytest.raises(AssertionError, match="share a name"):
            written(tmp_path, figures=figures)
    with pytest.raises(AssertionError, match="no part of a file's name"):
        written(tmp_path, figures=[figure("a/b", "Path")])


@pytest.mark.slow
def test_an_answer_is_printed_beside_the_first_figure(open_page, tmp_path):
    page = open_page(written(tmp_path, answers=[("soft", "inconclusive, " * 9, "It may help.")])["page"], 700)
    page.emulate_media(media="print")
    text, figure = (page.locator(f".hero > {part}").bounding_box() for part in ("div", "figure"))
    assert text["x"] + text["width"] <= figure["x"]
    assert page.evaluate("document.querySelector('.badge').getClientRects().length") == 1  # one box, also of two lines
