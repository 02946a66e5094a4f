import csv
import json
import os
import random
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from asymtrain.errors import UsageError
from asymtrain.report import FILES, check_folder, render, summarise, write_report
from asymtrain.runs import RunSpec, pairs

CHROMIUM = Path("/usr/bin/chromium")


class Links(HTMLParser):
    """Everything that a browser would fetch."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if name in ("src", "href", "srcset", "data", "xlink:href")]


def test_the_folder_holds_rows_history_and_page(study, tmp_path):
    summary = write_report(study, tmp_path / "a" / "b", command="asymtrain run")
    files = {path.name for path in (tmp_path / "a" / "b").iterdir()}
    assert files == set(FILES.values())
    with (tmp_path / "a" / "b" / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(study) == 18
    assert {row["variant"] for row in rows} == {"plain", "asymmetric"}
    assert len(summary.comparisons) == 3


def test_a_page_built_again_has_the_same_bytes(study, tmp_path):
    write_report(study, tmp_path / "first", command="asymtrain run")
    write_report(random.Random(1).sample(study, len(study)), tmp_path / "second", command="asymtrain run")
    for name in FILES.values():
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes(), name


def test_the_page_needs_nothing_from_outside(study, tmp_path):
    write_report(study, tmp_path)
    text = (tmp_path / "report.html").read_text()
    links = Links()
    links.feed(text)
    assert all(link.startswith(("#", "data:")) for link in links.found)
    assert "url(http" not in text
    assert "<script" not in text


def test_what_others_wrote_is_escaped(make_run, tmp_path):
    nasty = "folder:<script>alert(1)</script>"
    runs = [make_run(spec) for spec in pairs(RunSpec(dataset=nasty, epochs=2), [1, 2])]
    write_report(runs, tmp_path, command='asymtrain run --data "<b>"')
    text = (tmp_path / "report.html").read_text()
    assert "<script" not in text
    assert "<b>" not in text
    assert "&lt;script&gt;" in text


def test_the_page_says_what_was_run_and_how(study, tmp_path):
    write_report(study, tmp_path, command="asymtrain run --seeds 3", versions={"torch": "9.9"})
    text = (tmp_path / "report.html").read_text()
    for expected in ("asymtrain run --seeds 3", "torch 9.9", "MLP, CNN and ViT", "3 seeds each"):
        assert expected in text
    assert "1 min 48 s" in text  # 18 runs of 4 epochs of 1.5 s
    for run in study:
        assert run.spec.id in text


def test_nothing_to_compare_is_said(make_run, tmp_path):
    write_report([make_run(RunSpec(epochs=2))], tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert "nothing to compare" in text
    assert re.search(r"1 finished run\s+waits", text)
    write_report([], tmp_path)
    assert "nothing to compare" in (tmp_path / "report.html").read_text()


def test_one_seed_and_a_diverged_run_are_shown(make_run, tmp_path):
    plain, asymmetric = pairs(RunSpec(arch="vit", epochs=3), [5])
    write_report([make_run(plain), make_run(asymmetric, epochs=1, diverged=True)], tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert "with 1 seed each" in text
    assert "0.0500 (diverged)" in text  # one of twenty shapes
    assert not re.search(r"\bnan\b", text, re.IGNORECASE)


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be_written_is_refused_before_and_after(study, tmp_path, place):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match="--out"):
        check_folder(tmp_path / place)
    with pytest.raises(UsageError, match="--out"):
        write_report(study[:2], tmp_path / place)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "in the way"


def test_checking_a_folder_leaves_nothing_behind(tmp_path):
    check_folder(tmp_path / "new" / "deeper")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="Permission denied"):
        check_folder(tmp_path / "new")


def test_a_failed_write_keeps_the_old_report_whole(study, tmp_path, monkeypatch):
    write_report(study, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write_text = Path.write_text

    def full_disk(self, text, *args, **kwargs):
        if "report.html" in self.name:
            write_text(self, text[:100], *args, **kwargs)
            raise OSError(28, "No space left on device")
        return write_text(self, text, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(UsageError, match="No space left"):
        write_report(study[:6], tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_templates_are_found_by_the_package_alone(study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert render(summarise(study[:2]), None, {}).startswith("<!doctype html>")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is absent: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield chromium
        chromium.close()


def _luminance(colour):
    red, green, blue = (int(part) for part in re.findall(r"\d+", colour)[:3])
    return 0.299 * red + 0.587 * green + 0.114 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_in_a_real_browser(browser, study, tmp_path, width, scheme):
    summary = write_report(study, tmp_path, command="asymtrain run --data " + "long-name/" * 20)
    problems, requests = [], []
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto((tmp_path / "report.html").as_uri())
    try:
        assert problems == []
        assert [url for url in requests if not url.startswith(("file:", "data:"))] == []

        # A cell is read as a reader sees it.
        cell = page.locator("#summary tbody tr").nth(2).locator("td[data-heading='Plain']")
        row = summary.comparisons[2]
        assert cell.is_visible()
        assert cell.inner_text().strip() == f"{row['plain_mean']:.3f} ± {row['plain_std']:.3f}"
        assert page.locator(".answers li").nth(2).inner_text() == row["sentence"]

        overflow = page.evaluate(
            """() => [document.documentElement.scrollWidth - innerWidth, ...[...document.querySelectorAll(
                'main > *, section > *, .answers li, figure, dl div')].map(
                e => e.getBoundingClientRect().right - innerWidth)]"""
        )
        assert max(overflow) <= 0
        boxes = page.evaluate(
            "() => [...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect().width)"
        )
        assert len(boxes) == 7
        assert all(0 < box <= width for box in boxes)

        background, ink, axis = json.loads(
            page.evaluate(
                """() => JSON.stringify([getComputedStyle(document.body).backgroundColor,
                getComputedStyle(document.body).color, getComputedStyle(document.querySelector('svg text')).fill])"""
            )
        )
        assert (_luminance(background) < 60) == (scheme == "dark")
        assert abs(_luminance(background) - _luminance(ink)) > 150
        assert axis == ink
    finally:
        page.close()


def test_print_is_dark_on_white_even_in_dark_mode(browser, study, tmp_path):
    write_report(study, tmp_path)
    inner = 673  # A4 less its margins, in CSS pixels
    page = browser.new_page(viewport={"width": inner, "height": 990}, color_scheme="dark")
    try:
        page.goto((tmp_path / "report.html").as_uri())
        page.emulate_media(media="print", color_scheme="dark")
        background, ink = page.evaluate(
            "() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        assert _luminance(background) > 250
        assert _luminance(ink) < 20
        assert page.locator("#summary thead").is_visible()
        assert page.evaluate("() => document.documentElement.scrollWidth") <= inner
        assert page.pdf(format="A4").startswith(b"%PDF")
    finally:
        page.close()
