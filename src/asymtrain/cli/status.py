"""`asymtrain status`: what a store holds, what is pending, what diverged or failed and why."""

import dataclasses
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from asymtrain.cli.options import DEFAULT_OUT, STORE_NAME
from asymtrain.cli.screen import show_json, show_table, stdout
from asymtrain.report import duration
from asymtrain.runs import Run, RunSpec
from asymtrain.statistics import NAMES
from asymtrain.store import Group, Store, Summary

COUNTS = ("finished", "diverged", "pending", "running", "failed")
SHOWN = 10  # runs that are named for each reason


def status(
    store: Annotated[Path, typer.Option(help="Record of runs.")] = DEFAULT_OUT / STORE_NAME,
    json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Show what a store holds, what is pending, what diverged or failed and why."""
    with Store(store, read_only=True) as opened:
        summary = opened.summary()
        pending = opened.pending()
        # Reads every history: only where there is something to find.
        diverged = opened.runs(outcome="diverged") if summary.total.diverged else []
    if json:
        show_json(document(summary, pending, diverged))
    else:
        show(summary, pending, diverged)


def document(summary: Summary, pending: list[RunSpec], diverged: list[Run]) -> dict[str, Any]:
    """The summary as JSON values."""
    return {
        "store": str(summary.path),
        "groups": [dataclasses.asdict(group) for group in summary.groups],
        "total": {name: getattr(summary.total, name) for name in (*COUNTS, "epochs", "seconds")},
        "pending": [_spec(one) for one in pending],
        "diverged": [{**_spec(one.spec), "epochs": len(one.history)} for one in diverged],
        "failures": [{**_spec(one.spec), "reason": one.reason, "created": one.created} for one in summary.failures],
        "devices": dict(summary.devices),
        "last_write": summary.last_write,
    }


def show(summary: Summary, pending: list[RunSpec], diverged: list[Run]) -> None:
    """The summary as a table, then the runs that have no result, each with its reason."""
    console = stdout()
    if not summary.groups:
        console.print(f"{summary.path} holds nothing yet.")
        return
    headings = ["Data", "Backbone", "Variant", *(name.capitalize() for name in COUNTS), "Time"]
    rows = [[one.dataset, NAMES.get(one.arch, one.arch), one.variant, *_numbers(one)] for one in summary.groups]
    show_table(headings, [*rows, ["all", "", "", *_numbers(summary.total)]], left=3)
    console.print()
    failed = [(one.spec, " ".join(one.reason.split())) for one in summary.failures]
    for line in (
        *lines("pending", [(spec, "not trained yet") for spec in pending]),
        *lines("diverged", [(run.spec, divergence(run)) for run in diverged]),
        *lines("failed", failed),
    ):
        console.print(line, soft_wrap=True)  # one line in a pipe, however long the reason
    if summary.devices:
        console.print("trained on " + ", ".join(f"{name} ({count} runs)" for name, count in summary.devices))
    if summary.last_write:
        console.print(f"last written {summary.last_write[:19].replace('T', ' ')} UTC")


def lines(state: str, runs: Iterable[tuple[RunSpec, str]]) -> list[str]:
    """A line for each run, the runs of one reason together; of many with the same reason the first few."""
    found = []
    for reason, members in groupby(sorted(runs, key=lambda one: one[1]), key=lambda one: one[1]):
        specs = [spec for spec, _ in members]
        for spec in specs[:SHOWN]:
            name = f"{spec.dataset} {spec.arch} {spec.variant} seed {spec.seed} ({spec.id})"
            found.append(f"{state}: {name}: {reason}")
        if len(specs) > SHOWN:
            found.append(f"{state}: {len(specs) - SHOWN:,} more, which --json lists: {reason}")
    return found


def divergence(run: Run) -> str:
    """When a run left the finite numbers."""
    epoch = f"{len(run.history) + 1} of {run.spec.epochs}"
    return f"the loss was not finite in epoch {epoch}, at learning rate {run.spec.learning_rate:g}"


def _spec(spec: RunSpec) -> dict[str, Any]:
    return {"id": spec.id, "spec": spec.to_dict()}


def _numbers(group: Group) -> list[str]:
    return [*(f"{getattr(group, name):,}" for name in COUNTS), duration(group.seconds)]
