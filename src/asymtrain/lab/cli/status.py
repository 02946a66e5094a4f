"""`asymtrain status`: what a store holds, what is pending, what diverged or failed and why."""

import dataclasses
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asymtrain.lab.cli.loading import loading
from asymtrain.lab.cli.options import JSON, LATEST, RECORD, latest_store
from asymtrain.lab.cli.screen import show_json
from asymtrain.lab.terminal import show_table, stdout
from asymtrain.lab.texts import counted

if TYPE_CHECKING:
    from asymtrain.lab.report.table import Table
    from asymtrain.lab.runs import Run, RunSpec
    from asymtrain.lab.store import Counts, Store, StoreSummary

COUNTS = ("finished", "diverged", "pending", "running", "failed")
SHOWN = 10  # runs that are named for each reason
RUNNING, BEGUN, NEW = "is being trained now", "continues from a checkpoint", "not trained yet"


def status(
    store: Annotated[Path | None, typer.Option(help=f"{RECORD.help} {LATEST}")] = None,
    json: Annotated[bool, JSON] = False,
) -> None:
    """Show what a store holds, what is pending, what diverged or failed and why."""
    with loading():
        from asymtrain.lab.store import Store
    with Store(store or latest_store(), read_only=True) as opened, opened.snapshot():
        summary = opened.summary()
        waiting = pending_states(opened)
        # Reads every history: only where there is something to find.
        diverged = opened.runs(outcome="diverged") if summary.total.diverged else []
    if json:
        show_json(document(summary, waiting, diverged))
    else:
        show(summary, waiting, diverged)


def pending_states(store: "Store") -> "list[tuple[RunSpec, str]]":
    """What was asked for and is not there yet, each with why."""
    from asymtrain.lab.checkpoints import checkpointed

    pending = store.pending()
    running, begun = store.held(spec.id for spec in pending), checkpointed(store.path)
    return [(spec, RUNNING if spec.id in running else BEGUN if spec.id in begun else NEW) for spec in pending]


def document(summary: "StoreSummary", pending: "list[tuple[RunSpec, str]]", diverged: "list[Run]") -> dict[str, Any]:
    return {
        "store": str(summary.path),
        "groups": [dataclasses.asdict(group) for group in summary.groups],
        "total": {name: getattr(summary.total, name) for name in (*COUNTS, "epochs", "seconds")},
        "pending": [_json(spec, state=state) for spec, state in pending],
        "diverged": [_json(run.spec, epochs=len(run.history)) for run in diverged],
        "failures": [_json(lost.spec, reason=lost.reason, created=lost.created) for lost in summary.failures],
        "devices": dict(summary.devices),
        "last_write": summary.last_write,
        "damaged": [dataclasses.asdict(damage) for damage in summary.damaged],
    }


def show(summary: "StoreSummary", pending: "list[tuple[RunSpec, str]]", diverged: "list[Run]") -> None:
    """The summary as a table, then the runs that have no result, each with its reason."""
    console = stdout()
    if not summary.groups:
        console.print(f"{summary.path} holds nothing yet.")
        return
    console.print(f"{summary.path}:")
    show_table(counts_table(summary))
    console.print()
    without_result = {
        "pending": pending,
        "diverged": [(run.spec, divergence(run)) for run in diverged],
        "failed": [(failure.spec, " ".join(failure.reason.split())) for failure in summary.failures],
    }
    for state, runs in without_result.items():
        for line in lines(state, runs):
            console.print(line, soft_wrap=True)  # one line in a pipe, however long the reason
    if count := sum(state == BEGUN for _, state in pending):
        verb = "continues" if count == 1 else "continue"
        console.print(f"{counted(count, 'run')} {verb} from a checkpoint when the same command is given again")
    if summary.devices:
        console.print("trained on " + ", ".join(f"{name} ({counted(count, 'run')})" for name, count in summary.devices))
    if summary.last_write:
        console.print(f"last written {summary.last_write[:19].replace('T', ' ')} UTC")


def counts_table(summary: "StoreSummary") -> "Table":
    """How many runs of each group are in which state."""
    from asymtrain.lab.report.table import Column, Table, make_rows
    from asymtrain.models import display_name

    words = [Column(name) for name in ("Data", "Backbone", "Variant")]
    numbers = [Column(name.capitalize(), "count") for name in (*COUNTS, "time")]
    rows = [[group.dataset, display_name(group.arch), group.variant, *_numbers(group)] for group in summary.groups]
    rows.append(["all", "", "", *_numbers(summary.total)])
    return Table("runs", "", (*words, *numbers), make_rows(rows))


def lines(state: str, runs: "Iterable[tuple[RunSpec, str]]") -> Iterator[str]:
    """A line for each run, the runs of one reason together; of many with the same reason the first few."""
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


def _json(spec: "RunSpec", **more: Any) -> dict[str, Any]:
    return {"id": spec.id, "spec": spec.to_dict(), **more}


def _numbers(group: "Counts") -> list[str]:
    from asymtrain.lab.report import duration

    return [*(f"{getattr(group, name):,}" for name in COUNTS), duration(group.seconds)]
