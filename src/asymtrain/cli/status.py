"""`asymtrain status`: what a store holds, what is pending, what failed and why."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from asymtrain.cli.options import DEFAULT_OUT, STORE_NAME
from asymtrain.cli.screen import show_json, show_table, stdout
from asymtrain.report import duration
from asymtrain.statistics import NAMES
from asymtrain.store import Group, Store, Summary

COUNTS = ("finished", "diverged", "pending", "running", "failed")


def status(
    store: Annotated[Path, typer.Option(help="Record of runs.")] = DEFAULT_OUT / STORE_NAME,
    json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Show what a store holds, what is pending, what failed and why."""
    with Store(store, read_only=True) as opened:
        summary = opened.summary()
    if json:
        show_json(document(summary))
    else:
        show(summary)


def document(summary: Summary) -> dict[str, Any]:
    """The summary as JSON values."""
    return {
        "store": str(summary.path),
        "groups": [dataclasses.asdict(group) for group in summary.groups],
        "total": {name: getattr(summary.total, name) for name in (*COUNTS, "epochs", "seconds")},
        "failures": [
            {"id": one.spec.id, "spec": one.spec.to_dict(), "reason": one.reason, "created": one.created}
            for one in summary.failures
        ],
        "devices": dict(summary.devices),
        "last_write": summary.last_write,
    }


def show(summary: Summary) -> None:
    """The summary as a table, then each failure with its reason."""
    console = stdout()
    if not summary.groups:
        console.print(f"{summary.path} holds nothing yet.")
        return
    headings = ["Data", "Backbone", "Variant", *(name.capitalize() for name in COUNTS), "Time"]
    rows = [[one.dataset, NAMES.get(one.arch, one.arch), one.variant, *_numbers(one)] for one in summary.groups]
    show_table(headings, [*rows, ["all", "", "", *_numbers(summary.total)]], left=3)
    console.print()
    for failure in summary.failures:
        spec = failure.spec
        name = f"{spec.dataset} {spec.arch} {spec.variant} seed {spec.seed} ({spec.id})"
        console.print(f"failed: {name}: {failure.reason}")
    if summary.devices:
        console.print("trained on " + ", ".join(f"{name} ({count} runs)" for name, count in summary.devices))
    if summary.last_write:
        console.print(f"last written {summary.last_write[:19].replace('T', ' ')} UTC")


def _numbers(group: Group) -> list[str]:
    return [*(f"{getattr(group, name):,}" for name in COUNTS), duration(group.seconds)]
