"""`asymtrain run`: train Plain and Asymmetric, compare, report."""

import dataclasses
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asymtrain.lab.cli.groups import flattened
from asymtrain.lab.cli.loading import loading
from asymtrain.lab.cli.options import (
    SETTINGS,
    OutputOptions,
    RunOptions,
    TrainingOptions,
    parse_settings,
    typed_command,
)
from asymtrain.lab.cli.report import versions_in
from asymtrain.lab.cli.screen import progress_display, show_json, show_summary, stderr

if TYPE_CHECKING:
    from asymtrain.lab.report import Summary
    from asymtrain.lab.runs import Run, RunSpec


@flattened
def run(
    context: typer.Context,
    chosen: RunOptions,
    training: TrainingOptions,
    output: OutputOptions,
    settings: Annotated[list[str] | None, SETTINGS] = None,
) -> None:
    """Compare training without branches (Plain) and with them (Asymmetric).

    With no options: three small backbones learn procedural shapes with three seeds, in under two minutes on two cores.
    Called again, it continues where it stopped.
    """
    with loading():
        from asymtrain.lab.engine import load_for
        from asymtrain.lab.report import write_report
        from asymtrain.lab.runs import pairs
    seeds = chosen.parse_seeds()
    specs = [spec for base in chosen.base_specs(**parse_settings(settings)) for spec in pairs(base, seeds)]
    output.check()
    load_for(specs[0], training.data_root)  # data that are missing or broken show before anything is written
    runs, interrupted, how_to_continue = train(specs, output.store_path, training)
    summary = write_report(runs, output.out, typed_command(context), versions_in(output.store_path, runs))
    if output.json:
        show_json(document(summary, specs, output))
    else:
        show_summary(summary)
    remarks(len(runs), specs, output, interrupted, how_to_continue)
    if interrupted:
        raise typer.Exit(130)


def train(specs: "list[RunSpec]", store: Path, training: TrainingOptions) -> "tuple[list[Run], bool, str]":
    """Finished runs, whether Ctrl-C ended the training before all were, and how to go on."""
    with loading():
        from asymtrain.lab import executors

    runs: list[Run] = []
    wanted = {spec.id for spec in specs}
    stored, interrupted = set() if training.fresh else _stored(store, wanted), False
    options = dataclasses.asdict(training)
    with progress_display() as display:
        if stored:
            nothing = ": nothing is left to train" if stored == wanted else ""
            display.console.print(f"{len(stored)} of {len(wanted)} runs are in {store} already{nothing}.")
        try:
            for finished in executors.execute(specs, store=store, progress=display.update, **options):
                runs.append(finished)
                if finished.spec.id not in stored:
                    display.finished(finished, len(runs), len(wanted))
        except KeyboardInterrupt:
            interrupted = True
    return runs, interrupted, display.going_on(training.minutes, fresh=training.fresh)


def _stored(store: Path, ids: set[str]) -> set[str]:
    from asymtrain.lab.store import Store

    if not store.exists():
        return set()
    with Store(store, read_only=True) as opened:
        return opened.finished(ids)


def document(summary: "Summary", specs: "list[RunSpec]", output: OutputOptions) -> dict[str, Any]:
    from asymtrain.lab.report import FILES

    pairs_by_label = zip(summary.comparisons, summary.pairs, strict=True)
    return {
        "runs": {"wanted": len(specs), "finished": len(summary.rows)},
        "comparisons": [
            {**row, "seeds": [_seed(pair) for pair in group.to_dict("records")]} for row, group in pairs_by_label
        ],
        "files": {**{kind: str(output.out / name) for kind, name in FILES.items()}, "store": str(output.store_path)},
    }


def _seed(pair: dict[Any, Any]) -> dict[str, Any]:
    return {
        "seed": int(pair["seed"]),
        "plain": float(pair["plain"]),
        "asymmetric": float(pair["asymmetric"]),
        "plain_id": pair["plain_id"],
        "asymmetric_id": pair["asymmetric_id"],
    }


def remarks(done: int, specs: "list[RunSpec]", output: OutputOptions, interrupted: bool, how_to_continue: str) -> None:
    """What failed and why, how to go on, and where the report is."""
    from asymtrain.lab.report import FILES

    wanted = {spec.id for spec in specs}
    show_failures(output.store_path, wanted)
    if done < len(wanted):
        opening = "Stopped" if interrupted else "Not finished"
        stderr().print(f"{opening}: {done} of {len(wanted)} runs are in {output.store_path}. {how_to_continue}")
    stderr().print(f"Report: {output.out / FILES['report']}")


def show_failures(store: Path, wanted: Collection[str]) -> None:
    """Why runs of these ids failed, each reason once."""
    from asymtrain.lab.store import Store

    if not store.exists():  # a time limit that was over at once leaves none
        return
    with Store(store, read_only=True) as opened:
        reasons = Counter(failure.reason for failure in opened.failures() if failure.spec.id in wanted)
    for reason, count in reasons.items():
        stderr().print(f"{count} run{'s' if count > 1 else ''} failed: {reason}")
