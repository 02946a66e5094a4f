"""The reproduction's page in a real browser: what a reader sees, copies, follows and prints."""

import xml.etree.ElementTree as ElementTree

import pytest
from paper_results import STUDY, invented_results

from asymtrain.lab.report.table import Cell, Column, Table
from asymtrain.lab.studies.paper.page import write_paper
from asymtrain.lab.studies.paper.recipe import RecipeResult
from asymtrain.lab.studies.paper.study import PRIMARY
from asymtrain.lab.studies.paper.tables import READING
from asymtrain.lab.studies.paper.verdicts import judge_results
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


@pytest.mark.parametrize(("ending", "words"), [("md", "Markdown"), ("tex", "LaTeX"), ("csv", "CSV")])
def test_a_button_copies_what_the_file_holds(opened, files, ending, words):
    page = opened(1200, permissions=["clipboard-read", "clipboard-write"])
    keep_what_is_told(page)
    page.locator("#table-difficult").get_by_role("button", name=words).click()
    page.get_by_text(f"Copied as {words}").wait_for()
    assert page.evaluate("() => navigator.clipboard.readText()") == files[f"difficult.{ending}"].read_text(
        encoding="utf-8"
    )


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
