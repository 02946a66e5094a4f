"""Pages with live figures in a browser: what tests of any page do with them."""

import base64
import gzip
import re

SETTLED = """() => [...document.querySelectorAll('.plot')].every((plot) => {
    const { top, bottom } = plot.getBoundingClientRect();
    return bottom < -200 || top > innerHeight + 200 || plot.querySelector('.live canvas');
})"""


def unpacked(text):
    """What a page carries compressed."""
    return gzip.decompress(base64.b85decode(text.replace(",", "<"))).decode()


def live(page, title):
    """The figure of this title, when it is live and those around it move it no more."""
    shown = page.locator("figure").filter(has=page.get_by_role("heading", name=title, exact=True))
    shown.scroll_into_view_if_needed()
    shown.locator(".is-live canvas").first.wait_for()
    page.wait_for_function(SETTLED)
    shown.scroll_into_view_if_needed()
    page.wait_for_function(SETTLED)
    return shown


def hover(page, shown, x=0.5, y=0.5, panel=0):
    """What is said of the place under the pointer, a share of the panel's width and height from its corner."""
    chart = shown.locator(".chart").nth(panel)
    box = chart.bounding_box()
    tip = chart.locator(".tip")
    page.mouse.move(box["x"] + x * box["width"] + 3, box["y"] + y * box["height"])
    page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
    tip.wait_for()
    return tip.inner_text()


def luminance(colour):
    """Of a colour as a browser names it: 0 for black, 255 for white."""
    red, green, blue = (int(part) for part in re.findall(r"\d+", colour)[:3])
    return 0.299 * red + 0.587 * green + 0.114 * blue


def assert_whole(page, width):
    """Every figure is live, nothing overflows, nothing was logged, and no request left the page."""
    plots = page.locator(".plot")
    assert plots.count() >= 1
    for i in range(plots.count()):
        plots.nth(i).scroll_into_view_if_needed()
        if plots.nth(i).locator(".relief, .hint").count() == 0:
            plots.nth(i).locator(".live canvas").first.wait_for()
    edges = page.evaluate(
        """() => [document.documentElement.scrollWidth, ...[...document.querySelectorAll(
            'figure, .live, .panel, .controls > *')].map(e => e.getBoundingClientRect().right)]"""
    )
    assert max(edges) <= width
    assert [text for text in page.problems if "GL Driver Message" not in text] == []
    assert {url.partition(":")[0] for url in page.requests} <= {"file", "data", "blob"}
