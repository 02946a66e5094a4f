"""Runs with invented numbers (a report does not care how they were made), and a browser to look at pages."""

from pathlib import Path

import pytest

from asymtrain.lab.runs import RunSpec, pairs
from invented_runs import invent


@pytest.fixture
def make_run():
    return invent


@pytest.fixture
def study():
    """Three backbones, three seeds, 18 runs."""
    bases = [RunSpec(arch=arch, epochs=4, redundancy=20) for arch in ("mlp", "cnn", "vit")]
    return [invent(spec) for base in bases for spec in pairs(base, [42, 43, 44])]


CHROMIUM = Path("/usr/bin/chromium")
PATIENCE = 240_000  # milliseconds: a busy machine starts a browser, and loads a page, when it can


@pytest.fixture(scope="module")
def browser():
    """The system's Chromium. Its pages wait as long as it takes, within a test's own limit."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is absent: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-dev-shm-usage"], timeout=PATIENCE
        )
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser):
    """Open a file in a window of a width; what it logs, fails at and fetches is in `page.problems`, `page.requests`."""
    pages = []

    def at(file, width, scheme="light", height=800):
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        pages.append(page)
        page.set_default_timeout(PATIENCE)
        page.problems, page.requests = [], []
        page.on("console", lambda message: page.problems.append(message.text))
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(file.as_uri())
        return page

    yield at
    for page in pages:
        page.close()
