"""What all tests share."""

import gc
import os
import pickle
import signal
import sys
import threading
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Threads of two tests at once would spin against each other. Before torch is imported, which reads it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Scripts that tests start find the helpers of this folder too.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])

# The same examples at every call, and no clock: a check must not fail for what a change did not touch.
settings.register_profile(
    "steady", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")

# A shell starts background jobs with SIGINT ignored, and children inherit that: the tests of Ctrl-C would then wait for
# an interrupt that never comes.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What waits for a browser, a study of the whole paper or the documentation site is slow, wherever it stands.

    What is marked `gpu` is skipped where there is none.
    """
    for item in items:
        if not {"browser", "kitchen", "site"}.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("gpu") and not _has_gpu():
            item.add_marker(pytest.mark.skip("needs a CUDA device: make test-gpu"))


@cache
def _has_gpu():
    import torch  # here: it reads the threads above at import

    return torch.cuda.is_available()


# What the tests import stays to the end: garbage is not looked for while it is imported, and never in it. Some
# libraries collect after every training or test of significance, which would search hundreds of thousands of objects
# each time.
gc.disable()
_searched = 0  # modules that were there when garbage was last looked for everywhere


def pytest_collection_finish():
    """Everything is imported but what a test imports when it needs it."""
    _keep_what_is_there()
    gc.enable()


def pytest_runtest_logfinish():
    if len(sys.modules) > _searched + 200:  # a library came
        _keep_what_is_there()


def _keep_what_is_there():
    global _searched
    gc.collect()
    gc.freeze()
    _searched = len(sys.modules)


@pytest.fixture
def one_core(monkeypatch):
    """With one core stacks train in this process: no worker is started, and it sees what a test changes."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """An empty folder that the test works in, without downloaded data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASYMTRAIN_DATA", str(tmp_path / "no-data"))
    return tmp_path


@pytest.fixture
def figures_drawn_once(monkeypatch):
    """A figure with the values of an earlier one is not drawn again: what a drawing depends on has tests of its own."""
    from asymtrain.lab.report import drawing, live, page  # here: they need the threads above

    draw = drawing.draw

    def draw_once(figure):
        values = pickle.dumps(figure)
        if values not in _DRAWN:
            _DRAWN[values] = draw(figure)
        return _DRAWN[values]

    for module in (drawing, live, page):
        monkeypatch.setattr(module, "draw", draw_once)


_DRAWN = {}


@pytest.fixture
def ctrl_c_after(monkeypatch):
    """Within a block, a user presses Ctrl-C whenever an execution has given so many runs."""

    @contextmanager
    def pressed(count):
        from asymtrain.lab import executors  # here: it needs the threads above

        execute = executors.execute

        def interrupted(*arguments, **options):
            running = execute(*arguments, **options)
            yield from islice(running, count)
            running.close()
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(executors, "execute", interrupted)
            yield

    return pressed


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """Write modules into the folder that the test works in. Nothing of them is known before or afterwards."""
    written = []

    def write(name, text):
        written.append(name)
        sys.modules.pop(name, None)
        (tmp_path / f"{name}.py").write_text(text)
        return tmp_path / f"{name}.py"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # else a module that is written again may be read as it was
    monkeypatch.setattr("asymtrain.lab.sources.building._CHECKED", set())
    yield write
    for name in written:
        sys.modules.pop(name, None)


@pytest.fixture
def bfloat16_on_any_cpu():
    """For tests that compute in bfloat16 by torch's own means: see `asymtrain.lab.devices.products_of`."""
    from asymtrain.lab.devices import products_of  # here: torch reads the threads above at import

    with products_of("bf16"):
        yield


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
