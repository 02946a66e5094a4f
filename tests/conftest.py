"""What all tests share."""

import os
import signal
import threading
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
    """Tests that open pages in a browser, or wait for a study of the whole paper, are slow, wherever they stand."""
    for item in items:
        if not {"browser", "kitchen"}.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def bfloat16_on_any_cpu():
    """For tests that compute in bfloat16 by torch's own means: see `asymtrain.lab.devices.products_of`."""
    from asymtrain.lab.devices import products_of  # here: torch reads the threads above at import

    with products_of("bf16"):
        yield
