"""The live page in a real browser: its numbers and curves change, and nothing else does."""

from types import SimpleNamespace

import pytest
import torch

from asymtrain.lab.checkpoints import checkpoints_of
from asymtrain.lab.engine.checkpoint import log_epochs, open_checkpoint
from asymtrain.lab.engine.plan import plan
from asymtrain.lab.live_page import served
from asymtrain.lab.runs import RunSpec, pairs
from asymtrain.lab.store import Store

SPECS = pairs(RunSpec(epochs=4), [42, 43])
EPOCH = "td:nth-child(4)"


@pytest.fixture
def store(tmp_path, make_run):
    """A store that waits for four runs; its one stack has finished one epoch."""
    path = tmp_path / "runs.sqlite"
    (stack,) = plan(SPECS, torch.device("cpu"))
    folder = open_checkpoint(checkpoints_of(path), stack)
    runs = [make_run(spec) for spec in SPECS]
    with Store(path) as opened:
        opened.request(SPECS)
    log_epochs(folder, [(run.spec, run.history[0]) for run in runs])
    return path, folder, runs


@pytest.fixture
def server(store, monkeypatch):
    monkeypatch.setattr("asymtrain.lab.live_page.SHARE", 1e9)
    monkeypatch.setattr("asymtrain.lab.live_page.PAUSE", 0.1)
    with served(store[0]) as opened:
        yield opened


@pytest.fixture
def watch_at(open_page, server):
    """Open the live page in a window of a width."""
    return lambda width: open_page(SimpleNamespace(as_uri=lambda: server.url), width)


@pytest.mark.parametrize("width", [390, 1280])
def test_numbers_and_curves_change_without_a_reload(watch_at, server, store, width):
    path, folder, runs = store
    page = watch_at(width)
    sentence = page.locator("h1")
    assert sentence.inner_text() == "0 of 4 runs are trained."
    epoch = page.locator("[aria-labelledby=unfinished] tbody tr").first.locator(EPOCH)
    assert epoch.inner_text() == "1"
    page.wait_for_selector(".plot.is-live")
    page.evaluate("window.mark = 'here'")

    log_epochs(folder, [(run.spec, run.history[1]) for run in runs])
    page.wait_for_selector(f"[aria-labelledby=unfinished] tbody tr:first-child {EPOCH}:text-is('2')")

    with Store(path) as opened:
        for run in runs:
            opened.add(run)
    page.wait_for_selector("h1:text-is('4 of 4 runs are trained.')")
    assert page.locator("[aria-labelledby=comparisons] tbody tr").count() == 1
    page.wait_for_selector("[aria-labelledby=figures] .plot")
    page.locator("[aria-labelledby=figures] .plot").first.scroll_into_view_if_needed()
    page.wait_for_selector("[aria-labelledby=figures] .plot.is-live")
    assert page.locator("#unfinished").count() == 0
    assert page.evaluate("window.mark") == "here", "the page was loaded anew"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.problems == []
    assert {url for url in page.requests if not url.startswith("data:")} == {server.url}


def test_what_did_not_change_is_not_touched(watch_at, server, store):
    _, folder, runs = store
    page = watch_at(1280)
    page.wait_for_selector(".plot.is-live")
    page.evaluate("""() => { for (const part of document.querySelectorAll('header, [aria-labelledby=made], .chart'))
        part.mark = 'here'; }""")
    before = page.locator(".plot .values").text_content()
    log_epochs(folder, [(run.spec, run.history[1]) for run in runs])
    page.wait_for_selector(f"[aria-labelledby=unfinished] tbody tr:first-child {EPOCH}:text-is('2')")
    for untouched in ("header", "[aria-labelledby=made]", ".plot.is-live .chart"):
        assert page.evaluate("part => document.querySelector(part).mark", untouched) == "here"
    assert page.locator(".plot .values").text_content() != before, "the figure has the new epoch"
    chart = page.locator(".plot .chart")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    for left in (30, 20):  # the pointer must move
        page.mouse.move(box["x"] + box["width"] - left, box["y"] + box["height"] / 2)
    page.wait_for_selector(".tip:has-text('epoch 2')", timeout=30_000)
    assert page.locator("[aria-labelledby=unfinished] th button.sort").count() > 0, (
        "a new table can be sorted like the first"
    )


def test_the_end_of_the_program_is_said_and_the_page_stays(watch_at, server, store):
    page = watch_at(1280)
    page.wait_for_selector("#told:text-is('Live')")
    server.shutdown()
    server.server_close()
    page.wait_for_selector("#told:has-text('No longer live')")
    assert page.locator("h1").inner_text() == "0 of 4 runs are trained."
