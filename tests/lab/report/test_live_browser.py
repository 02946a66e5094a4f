"""Every kind of page in a real browser: values under the pointer, what can be switched, turned, moved and sorted."""

import re
from pathlib import Path

import numpy as np
import pytest
from paper_results import STUDY, invented_results
from test_drawing import PANELS, PIXELS, figure

from asymtrain.lab.instruments.alignment.show import alignment_page
from asymtrain.lab.report import page as page_module
from asymtrain.lab.report import write_report
from asymtrain.lab.report.figure import Figure, Image
from asymtrain.lab.report.page import write_page
from asymtrain.lab.report.table import Cell, Column, Mean, Table, make_rows
from asymtrain.lab.runs import RunSpec, pairs
from asymtrain.lab.studies.paper.page import write_paper
from asymtrain.lab.studies.paper.verdicts import judge_results
from invented_runs import invent
from live_pages import assert_whole, hover, live

NUMBERS = Table(
    "numbers",
    "Numbers",
    (Column("Name"), Column("Mean", "number"), Column("Count", "count")),
    make_rows([("b", Mean(0.5, 0.1), 9), ("a", Mean(-0.25, 0.1), 10), ("c", None, 1), ("d", Cell(missing=True), 2)]),
)


def frames():
    maps = [
        Image(f"Plain\nepoch {epoch}", PIXELS, np.full((4, 4), float(epoch + 1)), "attention / uniform",
              colour="plain", frame=f"epoch {epoch}")
        for epoch in (0, 2, 4)
    ]  # fmt: skip
    return Figure("frames", "Maps by epoch", [Image("", PIXELS, label="cat"), *maps], 4)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page of each kind; that of a measurement has a figure of every kind."""
    out = tmp_path_factory.mktemp("pages")
    runs = [invent(spec) for arch in ("mlp", "vit") for spec in pairs(RunSpec(arch=arch, epochs=4), [42, 43, 44])]
    write_report(runs, out / "report")
    results, behind = invented_results()
    paper = write_paper(out / "paper", results, judge_results(results), STUDY, "asymtrain paper show", behind)
    figures = [*(figure(kind, name=kind, title=f"Figure of {kind}") for kind in PANELS), frames()]
    alignment = alignment_page(runs)
    common = {"lead": "What it says.", "facts": {}, "document": {}}
    kinds = write_page(out, "kinds", title="Kinds", tables=[NUMBERS], figures=figures, **common)
    measured = {"tables": alignment.tables, "figures": alignment.figures}
    aligned = write_page(out, "alignment", title="Alignment", **measured, **common)
    return {
        "report": out / "report" / "report.html",
        "paper": paper["page"],
        "kinds": kinds["page"],
        "measurement": aligned["page"],
    }


def assert_on_surface(said):
    """What is said of a place is the height there."""
    numbers = re.search(r"x\s+(\S+)\s+y\s+(\S+)\s+loss - middle\s+(\S+)", said).groups()
    x, y, height = (float(number.replace("−", "-")) for number in numbers)
    assert height == pytest.approx(1e-4 * (x * x + y), rel=0.01)


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["report", "paper", "kinds", "measurement"])
def test_nothing_overflows_and_no_request_leaves_the_page(open_page, pages, name, width):
    page = open_page(pages[name], width, "dark" if width == 390 else "light")
    assert_whole(page, width)
    assert pages[name].stat().st_size < 1_000_000


def test_a_request_would_be_refused(open_page, pages):
    page = open_page(pages["report"], 1280)
    refused = page.evaluate(
        """() => new Promise((done) => {
            addEventListener('securitypolicyviolation', (event) => done(event.violatedDirective));
            document.body.append(Object.assign(new Image(), { src: 'https://example.org/a.png' }));
        })"""
    )
    assert refused == "img-src"
    assert page.evaluate("() => fetch('https://example.org').then(() => 'sent', () => 'refused')") == "refused"


def test_a_value_is_read_and_a_series_switched_off(open_page, pages):
    page = open_page(pages["kinds"], 1280)
    shown = live(page, "Figure of lines")
    said = hover(page, shown, 0.55)
    epoch = int(re.search(r"epoch (\d)", said)[1])
    lines = PANELS["lines"][0].lines
    for line in lines:
        assert re.search(rf"{line.label}\s+{line.y[epoch - 1]:.4g}\b", said), said
    assert said.count("seed") == 0
    button = shown.get_by_role("button", name="Plain")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    said = hover(page, shown, 0.55)
    assert "Plain" not in said
    assert "Asymmetric" in said
    shown.get_by_role("combobox").select_option("2")
    button.click()
    assert re.search(r"seed 2\s", hover(page, shown, 0.55))


def test_a_figure_says_what_the_table_says(open_page, pages):
    page = open_page(pages["report"], 1280)
    shown = page.locator("header figure")
    shown.locator(".is-live canvas").wait_for()
    said = hover(page, shown, 0.5, 0.2)
    cells = page.locator("[aria-labelledby=comparisons] tbody tr").first.locator("td").all_inner_texts()
    difference, interval = cells[2:4]
    assert difference[0] in "+−"
    assert re.search(rf"mean\s+{re.escape(difference)} points", said), said
    assert f"{interval} points" in said
    seeds = page.locator("[aria-labelledby=seeds] tbody tr").filter(has_text="MLP").locator("td:nth-child(5)")
    assert f"{', '.join(map(str.strip, seeds.all_text_contents()))} points" in said


def test_values_under_the_pointer_are_rounded_as_in_tables(browser):
    """Accuracies of few images are often halfway between two numbers of a table."""
    script = Path(page_module.__file__).with_name("templates").joinpath("live.js").read_text()
    (fixed,) = re.findall(r"^  function fixed\(.*?^  }$", script, re.MULTILINE | re.DOTALL)
    values = [i / 8 for i in range(-80, 81)] + [0.15, 1.005, 10.224999999999998, -0.05, 1e-9]
    page = browser.new_page()
    said = page.evaluate(f"values => {{ {fixed} return values.map((value) => fixed(value, 1)); }}", values)
    page.close()
    assert said == [f"{value:.1f}" for value in values]


def test_bars_and_surfaces_say_their_values(open_page, pages):
    page = open_page(pages["kinds"], 1280)
    said = hover(page, live(page, "Figure of bars"), 0.5, 0.25)
    assert re.search(r"mean\s+1\b", said)
    assert "−1 to 3" in said
    assert "0.5, 2" in said
    assert_on_surface(hover(page, live(page, "Figure of contours"), 0.85, 0.2))


def test_a_surface_is_turned_and_the_others_with_it(open_page, pages):
    page = open_page(pages["kinds"], 1280)
    if not page.evaluate("() => Boolean(document.createElement('canvas').getContext('webgl'))"):
        pytest.skip("this browser draws nothing in three dimensions")
    shown = live(page, "Figure of reliefs")
    charts = shown.locator(".chart")
    assert_on_surface(hover(page, shown, 0.5, 0.55))
    page.mouse.move(0, 0)
    before = charts.nth(1).screenshot()
    box = charts.first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 60, box["y"] + box["height"] / 2 + 10, steps=4)
    page.mouse.up()
    turned = shown.locator(".live[data-turned]")
    turned.wait_for()
    page.mouse.move(0, 0)
    assert charts.nth(1).screenshot() != before
    first = [int(angle) for angle in turned.get_attribute("data-turned").split()]
    shown.locator(".panel").first.press("ArrowRight")
    second = [int(angle) for angle in turned.get_attribute("data-turned").split()]
    assert second[0] == first[0]
    assert abs(second[1] - first[1] - 5) <= 1
    shown.get_by_role("button", name="Turn").click()
    assert shown.locator(".static svg").is_visible()


def test_the_slider_shows_another_epoch(open_page, pages):
    page = open_page(pages["kinds"], 1280)
    shown = live(page, "Maps by epoch")
    assert shown.locator("output").inner_text() == "epoch 4"
    assert re.search(r"attention / uniform\s+5\b", hover(page, shown, panel=1))
    shown.get_by_role("slider").press("ArrowLeft")
    assert shown.locator("output").inner_text() == "epoch 2"
    assert re.search(r"attention / uniform\s+3\b", hover(page, shown, 0.4, panel=1))
    assert shown.locator(".chart").count() == 2  # the picture, and the map of the epoch


def test_a_table_is_sorted_by_a_column_and_back(open_page, pages):
    page = open_page(pages["kinds"], 1280)
    rows = page.locator("table").first.locator("tbody th")
    head = page.locator("table").first.locator("thead th").nth(1)
    orders = []
    for _ in range(3):
        head.get_by_role("button").press("Enter")
        orders.append(("".join(rows.all_inner_texts()), head.get_attribute("aria-sort")))
    assert orders == [("bacd", "descending"), ("abcd", "ascending"), ("bacd", None)]
    page.get_by_role("button", name="Count").click()
    assert "".join(rows.all_inner_texts()) == "abdc"
    page.get_by_role("button", name="Name").click()
    assert "".join(rows.all_inner_texts()) == "abcd"


def test_without_scripts_and_in_print_the_drawings_are_there(browser, open_page, pages):
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(pages["kinds"].as_uri())
    assert page.locator(".static svg:visible").count() == len(PANELS) + 1
    assert page.locator(".controls, .sort").count() == 0
    context.close()
    page = open_page(pages["kinds"], 1280)
    shown = live(page, "Figure of lines")
    assert not shown.locator(".static svg").is_visible()
    page.emulate_media(media="print")
    assert shown.locator(".static svg").is_visible()
    assert not shown.locator(".live").is_visible()
    assert not shown.locator(".controls").is_visible()
