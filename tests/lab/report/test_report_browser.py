"""The report's page in a real browser: small and large, light and dark, scrolled and printed."""

import json

import pytest

from asymtrain.lab.report import write_report
from asymtrain.lab.runs import RunSpec, pairs
from invented_runs import invent
from live_pages import luminance


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_in_a_real_browser(open_page, study, tmp_path, width, scheme):
    summary = write_report(study, tmp_path, command="asymtrain run --data " + "long-name/" * 20)
    page = open_page(tmp_path / "report.html", width, scheme)
    assert page.problems == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []

    # A cell is read as a reader sees it.
    cell = page.locator("[aria-labelledby=comparisons] tbody tr").nth(2).locator("td[data-heading='Plain']")
    row = summary.comparisons[2]
    assert cell.is_visible()
    assert cell.inner_text().strip() == f"{row['plain_mean']:.3f} ± {row['plain_std']:.3f}"
    verdict = page.locator("[aria-labelledby=comparisons] tbody tr").nth(2).locator("td").last
    assert verdict.inner_text() == row["verdict"]

    overflow = page.evaluate(
        """() => [document.documentElement.scrollWidth - innerWidth, ...[...document.querySelectorAll(
            'main > *, section > *, figure, dl div')].map(
            e => e.getBoundingClientRect().right - innerWidth)]"""
    )
    assert max(overflow) <= 0
    assert page.locator(".plot").count() == 7

    background, ink, axis = json.loads(
        page.evaluate(
            """() => JSON.stringify([getComputedStyle(document.body).backgroundColor,
            getComputedStyle(document.body).color, getComputedStyle(document.querySelector('.static text')).fill])"""
        )
    )
    assert (luminance(background) < 60) == (scheme == "dark")
    assert abs(luminance(background) - luminance(ink)) > 150
    assert axis == ink


def test_a_model_with_a_long_name_does_not_widen_the_page(open_page, tmp_path):
    base = RunSpec(arch="my_company_vision.network_definitions:build_the_large_one", epochs=1)
    write_report([invent(spec, gain=-0.4) for spec in pairs(base, [42, 43, 44])], tmp_path)
    page = open_page(tmp_path / "report.html", 390)
    for width in (390, 720, 1000, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        assert (
            page.locator("[aria-labelledby=comparisons].scroll").evaluate("e => e.getBoundingClientRect().right")
            <= width
        )
