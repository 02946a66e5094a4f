"""Tiny runs whose stacks take about a second, how two sets of rows are compared, and how a test waits.

No test may depend on how fast this machine is, nor on what else it does: one waits for what it wants to see, or, where
something must be hit while it runs, tries again with longer runs.
"""

import dataclasses
import time
from pathlib import Path

from asymtrain.lab.runs import pairs
from asymtrain.lab.store import Store
from small_backbones import tiny_spec

PATIENCE = 300.0  # seconds that nothing takes on a machine that is merely busy
LONGER = (1, 4, 16, 64)  # times as many epochs: a stack that was done too early is tried again


def wait_for(happened, while_true=lambda: True):
    """Return when it has happened; an error where it cannot any more, or does not in minutes."""
    until = time.monotonic() + PATIENCE
    while not happened():
        assert while_true(), "it cannot happen any more"
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


def examples(arch, seeds, epochs=30, **changes):
    """Plain and Asymmetric of some seeds."""
    return pairs(tiny_spec(arch, **{"epochs": epochs, "test": "every", **changes}), range(seeds))


def bare(run):
    """Without the clock."""
    return dataclasses.replace(run, history=tuple(epoch._replace(seconds=0.0) for epoch in run.history))


def rows(runs):
    return {run.spec.id: bare(run) for run in runs}


def stored(path):
    """Rows of a store in which nothing was recorded twice."""
    with Store(path, read_only=True) as store:
        records = store.records(every_attempt=True)
    found = rows(record.run for record in records)
    assert len(found) == len(records), "a run was recorded twice"
    return found


def checkpoints(path):
    return path.with_name(path.name + ".checkpoints")


def processes():
    """All processes of this machine (Linux)."""
    return [int(place.name) for place in Path("/proc").iterdir() if place.name.isdecimal()]


def parent_of(process):
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None
