"""The reproduction's page in a real browser: what a reader sees, copies, follows and prints."""

import dataclasses
import itertools
import xml.etree.ElementTree as ElementTree

import pytest
from paper_results import STUDY, invented_results

from asymtrain.lab.report.table import Cell, Column, Interval, Table
from asymtrain.lab.studies.paper.evidence import Effect
from asymtrain.lab.studies.paper.page import write_paper
from asymtrain.lab.studies.paper.recipe import RecipeResult, build_result
from asymtrain.lab.studies.paper.recipes import RECIPES
from asymtrain.lab.studies.paper.study import PRIMARY
from asymtrain.lab.studies.paper.tables import READING
from asymtrain.lab.studies.paper.verdicts import judge_all, judge_results
from asymtrain.lab.studies.snapshot import Snapshot
from live_pages import luminance

A4 = 673  # less its margins, in CSS pixels
PATIENCE = 240_000  # milliseconds, for a busy machine


@pytest.fixture(scope="module")
def results():
    return invented_results()


@pytest.fixture(scope="module")
def files(results, tmp_path_factory):
    found, behind = results
    out = tmp_path_factory.mktemp("paper")
    return write_paper(out, found, judge_results(found), STUDY, "asymtrain " + "long-name/" * 30, behind)


@pytest.fixture
def opened(browser, files):
    """Opens the page at a width; in the end nothing may have failed and nothing been fetched."""
    contexts, problems, requests = [], [], []

    def at(width, scheme="light", **options):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, **options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(files["page"].as_uri())
        return page

    yield at
    for context in contexts:
        context.close()
    assert problems == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []


def keep_what_is_told(page):
    """A message goes away after some seconds: a busy machine may look later than that."""
    page.evaluate("() => { window.setTimeout = () => 0; }")


def test_other_readings_and_tables_beside_others_are_folded(opened, results):
    page = opened(1200)
    (difficult,) = results[0][-1].tables
    readings = [row[1].value for row in difficult.rows]
    place = page.locator("#table-difficult")
    place.locator("tbody a").first.wait_for()
    assert PRIMARY.title not in readings
    assert place.locator("tbody tr:visible").count() == len(readings)  # where the primary one has none, all are shown

    folded = page.locator("#table-table1-sizes")
    assert folded.locator("table").is_hidden()
    folded.locator("summary").click()
    assert folded.locator("tbody tr").first.is_visible()


def test_rows_of_other_readings_are_behind_a_button(browser, tmp_path):
    rows = tuple((Cell(f"row {i}"), Cell(PRIMARY.title if i % 3 == 0 else "another"), Cell(i)) for i in range(6))
    table = Table("t", "T", (Column("Name"), READING, Column("Value", "count")), rows)
    result = RecipeResult("t", "T", "Why?", "So.", (table,), ())
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(write_paper(tmp_path, [result], [], STUDY, "asymtrain paper show")["page"].as_uri())
    shown = page.locator("#table-t tbody tr:visible")
    button = page.get_by_role("button", name="Show 4 rows of other readings")
    button.wait_for()
    assert shown.count() == 2
    button.click()
    assert shown.count() == 6
    page.close()


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_a_cell_is_read_and_nothing_overflows(opened, results, width, scheme):
    page = opened(width, scheme)
    table = results[0][0].tables[0]
    cell = page.locator("#table-table1 tbody tr").nth(4).locator("td").nth(1)
    assert cell.inner_text() == table.texts()[4][2]
    assert page.locator(".claim").first.locator("h3").inner_text().startswith("Effect depends on architecture")
    # Wide tables and figures, and contents on a phone, are scrolled in a box of their own; the page is not.
    overflow = page.evaluate(
        """() => [document.documentElement.scrollWidth - innerWidth, ...[...document.querySelectorAll(
            'main > *, section > *, .claim > *, .above > *, .scroll, figure, dl div,'
            + 'button:not(.sort)')].map(e => e.getBoundingClientRect().right - innerWidth)]"""
    )
    assert max(overflow) <= 0
    background, ink, axis = page.evaluate(
        """() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,
            getComputedStyle(document.querySelector('figure svg text')).fill]"""
    )
    assert (luminance(background) < 60) == (scheme == "dark")
    assert abs(luminance(background) - luminance(ink)) > 150
    assert axis == ink


def test_the_widest_table_of_the_paper_fits_a_screen(browser, tmp_path):
    """Table 5 has sixteen columns; its cells here are as long as those of the study."""
    (waiting,) = [table for result in invented_results()[0] for table in result.tables if table.name == "table5"]
    values = {"text": "all parameters, unit variance", "number": Interval(-0.157, -0.133), "count": 10, "p": 0.0001}
    values |= {"millions": 2_010_000, "share": 0.5}
    texts = {"Backbone": "MLP", "N": "300x", "Plane's R²": 0.8129}
    numbers = {"Deviation": 0.000463, "Range": 0.000405, "Mean gradient": 6.66e-06, "Interval": Interval(-62.5, -58.8)}
    row = tuple(
        Cell((texts | numbers).get(column.name, -62.7 if column.kind == "number" else values[column.kind]))
        for column in waiting.columns
    )
    table = dataclasses.replace(waiting, rows=(row,) * 3)
    result = RecipeResult("table5", "Table 5", "Why?", "So.", (table,), ())
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(write_paper(tmp_path, [result], [], STUDY, "asymtrain paper show")["page"].as_uri())
    hidden = page.locator("#table-table5 .scroll").evaluate("box => box.scrollWidth - box.clientWidth")
    page.close()
    assert hidden == 0


@pytest.mark.slow
def test_a_screen_shows_all_contents(browser, tmp_path):
    results = [build_result(recipe, STUDY, Snapshot()) for recipe in RECIPES.values()]
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(
        write_paper(tmp_path, results, judge_results(results), STUDY, "asymtrain paper show all")["page"].as_uri()
    )
    names = page.locator("nav li").all_inner_texts()
    assert {"Claims", "Tables 2, 15", "Figures 4, 7", "Fitting", "Specs"} <= set(names)
    assert page.locator("nav").evaluate("nav => nav.scrollHeight - nav.clientHeight") == 0
    assert "marks what is missing" in page.locator(".hero").inner_text()
    page.close()


def test_contents_stay_in_sight_missing_rows_are_folded_and_first_columns_stay(opened):
    page = opened(390)
    page.locator("#table-table1").evaluate("table => table.scrollIntoView()")
    assert page.locator("nav").evaluate("nav => nav.getBoundingClientRect().top") == 0
    page.locator("nav li a").last.click()  # in one line, which is scrolled to it
    assert page.locator("nav").evaluate("nav => nav.clientHeight") < 50
    folded = page.locator("tbody tr[hidden]").count()
    assert folded > 0
    button = page.locator(".fold").first
    button.click()
    assert button.get_attribute("aria-expanded") == "true"
    assert page.locator("tbody tr[hidden]").count() < folded
    moved = page.locator("#table-table1 .scroll").evaluate(
        """box => { box.scrollLeft = 150; const left = box.getBoundingClientRect().left;
            return [box.scrollLeft, ...[...box.querySelectorAll('th:first-child')].map(
                head => Math.abs(head.getBoundingClientRect().left - left))]; }"""
    )
    assert moved[0] == 150
    assert max(moved[1:]) < 1


@pytest.fixture(scope="module")
def with_verdicts(results, tmp_path_factory):
    """A page with claims that are reproduced, contradicted and not yet run: invented runs have too few seeds."""
    found, behind = results
    changes = {"table1/vit/20": 0.25, "table1/cnn/1": 0.1, "table1/cnn/20": 0.1}
    seeds = tuple(range(42, 52))
    plain = [0.4 + 0.001 * seed for seed in seeds]
    evidence = {
        label: Effect(label, tuple(plain), tuple(one * (1 + change) for one in plain), 200, (), seeds)
        for label, change in changes.items()
    }
    out = tmp_path_factory.mktemp("verdicts")
    return write_paper(out, found, judge_all({"primary": evidence}), STUDY, "asymtrain paper show", behind)["page"]


@pytest.mark.parametrize("width", [1280, 390])
def test_what_came_out_stands_beside_its_figure(browser, with_verdicts, width):
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(with_verdicts.as_uri())
    words, figure = (page.locator(f".hero > {name}").bounding_box(timeout=20_000) for name in ("div", "figure"))
    if width == 1280:
        assert words["y"] == figure["y"] < 300
        assert figure["x"] + figure["width"] > 1200  # no half of the screen is left empty
        legend = page.locator(".hero figcaption").bounding_box()
        assert legend["y"] + legend["height"] < 500  # on the first screen
    else:
        assert figure["y"] >= words["y"] + words["height"]
    # Parts of the bar stand one below the other, the largest share is the tallest, and no words are cut off.
    parts = page.locator(".shares li")
    boxes = [parts.nth(i).bounding_box() for i in range(parts.count())]
    assert len(boxes) > 2
    assert all(one["y"] + one["height"] <= after["y"] for one, after in itertools.pairwise(boxes))
    assert boxes[-1]["height"] > 2 * max(box["height"] for box in boxes[:-1])
    assert parts.evaluate_all("parts => parts.every(part => part.scrollHeight <= part.clientHeight)")
    if width == 1280:  # beside the figure of a whole study nothing is left empty either
        page.locator(".hero figure").evaluate("figure => { figure.style.minHeight = '1100px'; }")
        last = page.locator(".hero > div > p").last.bounding_box()
        assert last["y"] + last["height"] == pytest.approx(words["y"] + 1100, abs=2)
    page.close()


def test_the_bar_of_verdicts_leads_to_its_claims(browser, with_verdicts):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(with_verdicts.as_uri())
    links = page.locator(".shares a")
    assert links.count() == page.locator(".claim").count()
    claim = page.locator(links.last.get_attribute("href"))
    page.get_by_role("button", name="Reproduced").click()
    assert claim.is_hidden()
    links.last.click()
    claim.wait_for()
    page.close()


@pytest.mark.parametrize(("ending", "words"), [("md", "Markdown"), ("tex", "LaTeX"), ("csv", "CSV")])
def test_a_button_copies_what_the_file_holds(opened, files, ending, words):
    page = opened(1200, permissions=["clipboard-read", "clipboard-write"])
    keep_what_is_told(page)
    page.locator("#table-difficult").get_by_role("button", name=words).click()
    page.get_by_text(f"Copied as {words}").wait_for()
    assert page.evaluate("() => navigator.clipboard.readText()") == files[f"difficult.{ending}"].read_text(
        encoding="utf-8"
    )


def test_a_sorted_table_is_copied_as_it_came(opened, files):
    page = opened(1200, permissions=["clipboard-read", "clipboard-write"])
    keep_what_is_told(page)
    table = page.locator("#table-table1")
    table.locator("tbody a").first.wait_for()
    table.get_by_role("button", name="Plain", exact=True).first.click()
    shown = [
        float(text.split()[0]) for text in table.locator("tbody tr:not([hidden]) td:nth-child(3)").all_inner_texts()
    ]
    assert shown == sorted(shown, reverse=True)
    assert shown[0] > shown[-1]
    table.get_by_role("button", name="Markdown").click()
    page.get_by_text("Copied as Markdown").wait_for()
    assert page.evaluate("() => navigator.clipboard.readText()") == files["table1.md"].read_text(encoding="utf-8")


def test_without_the_clipboard_interface_the_copy_is_made_another_way(opened, files):
    page = opened(1200)
    keep_what_is_told(page)
    page.evaluate(
        """() => { Object.defineProperty(navigator, 'clipboard', {value: undefined});
            document.execCommand = () => { window.taken = document.activeElement.value; return true; }; }"""
    )
    page.locator("#table-table1").get_by_role("button", name="Markdown").click()
    page.get_by_text("Copied as Markdown").wait_for()
    assert page.evaluate("() => window.taken") == files["table1.md"].read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [1200, 390])
def test_a_number_shows_its_specs_and_leads_to_their_fields(opened, results, width):
    page = opened(width)
    table = results[0][0].tables[0]
    cell = table.rows[0][4]
    link = page.locator("#table-table1 tbody tr").first.locator("td a").nth(2)
    assert link.inner_text() == table.texts()[0][4]
    link.click()
    panel = page.locator("#behind")
    assert {line.split()[0] for line in panel.locator("li").all_inner_texts()} == set(cell.spec_ids)
    assert "learning rate" in panel.inner_text()
    box = panel.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    page.keyboard.press("Escape")
    assert panel.is_hidden()
    link.click()
    panel.locator("a").first.click()
    assert panel.is_hidden()
    place = page.locator(".listings li li").filter(has_text=cell.spec_ids[0])
    assert place.is_visible()
    seed, outcome = place.inner_text().split()[1:]
    assert (seed, outcome) == ("42", results[1].outcomes[cell.spec_ids[0]].removeprefix("test "))


def test_without_a_script_the_page_says_where_the_specs_are(opened):
    page = opened(1200, java_script_enabled=False)
    said = page.locator("noscript p")
    assert said.is_visible()
    assert "paper.json has the ids" in said.inner_text()
    assert page.locator(".filters").is_hidden()
    assert page.locator(".copy button").count() == 0


def test_claims_are_filtered_by_verdict(opened):
    page = opened(1200)
    every = page.locator(".claim").count()
    buttons = page.locator(".filters button")
    for i in range(buttons.count()):
        buttons.nth(i).click()
        assert page.locator(".claim:visible").count() == int(buttons.nth(i).locator("span").inner_text())
        assert buttons.nth(i).get_attribute("aria-pressed") == "true"
    buttons.first.click()
    assert page.locator(".claim:visible").count() == every == 18


def test_a_figure_is_saved_as_svg_from_the_page_itself(opened, tmp_path):
    page = opened(1200)
    with page.expect_download() as started:
        page.locator("#figure-figure5 .save").click()
    assert started.value.suggested_filename == "paper-figure5.svg"
    started.value.save_as(tmp_path / "saved.svg")
    root = ElementTree.parse(tmp_path / "saved.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(root.iter())) > 50


def test_print_is_dark_on_white_and_clips_no_table(opened):
    page = opened(A4, "dark")
    page.emulate_media(media="print", color_scheme="dark")
    background, ink = page.evaluate(
        "() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    assert luminance(background) > 250
    assert luminance(ink) < 20
    assert page.evaluate("() => document.documentElement.scrollWidth") <= A4
    edges = page.evaluate("() => [...document.querySelectorAll('table')].map(t => t.getBoundingClientRect().right)")
    assert len(edges) > 4
    assert max(edges) <= A4 + 0.5
    assert page.locator(".copy").first.is_hidden()
    assert page.pdf(format="A4").startswith(b"%PDF")
