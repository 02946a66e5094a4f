"""`asymtrain status`: what a store holds, what is pending, what diverged or failed and why."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asymtrain.lab.cli.loading import loading
from asymtrain.lab.cli.options import JSON, LATEST, RECORD, latest_store
from asymtrain.lab.cli.screen import show_json
from asymtrain.lab.status import BEGUN, COUNTS, counts_table, divergence, pending_states, run_lines
from asymtrain.lab.terminal import show_table, stdout
from asymtrain.lab.texts import counted

if TYPE_CHECKING:
    from asymtrain.lab.runs import RunSpec


def status(
    store: Annotated[Path | None, typer.Option(help=f"{RECORD.help} {LATEST}")] = None,
    json: Annotated[bool, JSON] = False,
) -> None:
    """Show what a store holds, what is pending, what diverged or failed and why."""
    with loading():
        from asymtrain.lab.store import Store
    with Store(store or latest_store(), read_only=True) as record, record.snapshot():
        summary = record.summary()
        pending = pending_states(record)
        # This reads every history: only if there is a diverged run to find.
        diverged = record.runs(outcome="diverged") if summary.total.diverged else []
    if json:
        failures = [_json(lost.spec, reason=lost.reason, created=lost.created) for lost in summary.failures]
        show_json(
            {
                "store": str(summary.path),
                "groups": [dataclasses.asdict(group) for group in summary.groups],
                "total": {name: getattr(summary.total, name) for name in (*COUNTS, "epochs", "seconds")},
                "pending": [_json(spec, state=state) for spec, state in pending],
                "diverged": [_json(run.spec, epochs=len(run.history)) for run in diverged],
                "failures": failures,
                "devices": dict(summary.devices),
                "last_write": summary.last_write,
                "damaged": [dataclasses.asdict(damage) for damage in summary.damaged],
            }
        )
        return
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
        for line in run_lines(state, runs):
            console.print(line, soft_wrap=True)  # one line in a pipe, however long the reason
    if count := sum(state == BEGUN for _, state in pending):
        verb = "continues" if count == 1 else "continue"
        console.print(f"{counted(count, 'run')} {verb} from a checkpoint when the same command is given again")
    if summary.devices:
        console.print("trained on " + ", ".join(f"{name} ({counted(count, 'run')})" for name, count in summary.devices))
    if summary.last_write:
        console.print(f"last written {summary.last_write[:19].replace('T', ' ')} UTC")


def _json(spec: "RunSpec", **more: Any) -> dict[str, Any]:
    return {"id": spec.id, "spec": spec.to_dict(), **more}
