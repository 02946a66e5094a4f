"""The state of a store's runs, as a table and as lines, for `asymtrain status` and the live page."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asymtrain.lab.report.table import Table
    from asymtrain.lab.runs import Run, RunSpec
    from asymtrain.lab.store import Counts, Store, StoreSummary

COUNTS = ("finished", "diverged", "pending", "running", "failed")
SHOWN = 10  # runs that are listed for each reason
RUNNING, BEGUN, NEW = "is being trained now", "continues from a checkpoint", "not trained yet"


def pending_states(store: "Store") -> "list[tuple[RunSpec, str]]":
    """Requested runs without a result, each with its state."""
    from asymtrain.lab.checkpoints import checkpointed

    pending = store.pending()
    running, begun = store.claimed_ids(spec.id for spec in pending), checkpointed(store.path)
    return [(spec, RUNNING if spec.id in running else BEGUN if spec.id in begun else NEW) for spec in pending]


def counts_table(summary: "StoreSummary") -> "Table":
    """The number of runs in each state, for each group."""
    from asymtrain.lab.report.table import Column, Table, make_rows
    from asymtrain.models import display_name

    words = [Column(name) for name in ("Data", "Backbone", "Variant")]
    numbers = [Column(name.capitalize(), "count") for name in (*COUNTS, "time")]
    rows = [[group.dataset, display_name(group.arch), group.variant, *_numbers(group)] for group in summary.groups]
    rows.append(["all", "", "", *_numbers(summary.total)])
    return Table("runs", "", (*words, *numbers), make_rows(rows))


def run_lines(state: str, runs: "Iterable[tuple[RunSpec, str]]") -> Iterator[str]:
    """A line for each run, grouped by reason; if many runs have the same reason, only the first few."""
    for reason, members in groupby(sorted(runs, key=itemgetter(1)), key=itemgetter(1)):
        specs = [spec for spec, _ in members]
        for spec in specs[:SHOWN]:
            name = f"{spec.dataset} {spec.arch} {spec.variant} seed {spec.seed} ({spec.id})"
            yield f"{state}: {name}: {reason}"
        if len(specs) > SHOWN:
            yield f"{state}: {len(specs) - SHOWN:,} more, which --json lists: {reason}"


def divergence(run: "Run") -> str:
    epoch = f"{len(run.history) + 1} of {run.spec.epochs}"
    settings = f"learning rate {run.spec.learning_rate:g}"
    settings += f" and alpha {run.spec.alpha:g}" if run.spec.redundancy else ""
    return f"its loss, gradients or weights were not finite in epoch {epoch}, at {settings}"


def _numbers(group: "Counts") -> list[str]:
    from asymtrain.lab.report.table import duration

    return [*(f"{getattr(group, name):,}" for name in COUNTS), duration(group.seconds)]
