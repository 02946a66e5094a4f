"""`asymtrain run`: train Plain and Asymmetric, compare, report."""

import dataclasses
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asymtrain.errors import UsageError
from asymtrain.lab.cli import FAILED, INTERRUPTED
from asymtrain.lab.cli.groups import flattened
from asymtrain.lab.cli.loading import loading
from asymtrain.lab.cli.options import (
    SETTINGS,
    OutputOptions,
    RunOptions,
    TrackOptions,
    TrainingOptions,
    parse_settings,
    typed_command,
)
from asymtrain.lab.cli.report import versions_in
from asymtrain.lab.cli.screen import progress_display, show_json, show_summary, stderr
from asymtrain.lab.cli.watch import WatchOptions
from asymtrain.lab.texts import counted

if TYPE_CHECKING:
    from asymtrain.lab.report import Summary
    from asymtrain.lab.runs import Run, RunSpec
    from asymtrain.lab.trackers import Tracker


@flattened
def run(
    context: typer.Context,
    chosen: RunOptions,
    training: TrainingOptions,
    output: OutputOptions,
    tracks: TrackOptions,
    watch: WatchOptions,
    settings: Annotated[list[str] | None, SETTINGS] = None,
    from_search: Annotated[
        Path | None, typer.Option(help="Train what a search chose: the folder that it wrote to.")
    ] = None,
) -> None:
    """Compare training without branches (Plain) and with them (Asymmetric).

    With no options: three small backbones learn procedural shapes with five seeds, in about three minutes on two cores.
    Called again, it continues where it stopped.
    """
    with loading():
        from asymtrain.lab.executors import check_data, check_executor
        from asymtrain.lab.report import FILES, write_report
        from asymtrain.lab.runs import pairs
    seeds, defaults = chosen.parse_seeds(), list[str]()
    if from_search is not None:
        specs = searched(from_search, chosen, settings, seeds)
    else:
        fields = parse_settings(settings)
        unnamed = {} if chosen.seeds else {"seeds": len(seeds)}
        bases, defaults = chosen.complete(chosen.base_specs(**fields), fields, training.data_root, **unnamed)
        specs = [spec for base in bases for spec in pairs(base, seeds)]
    output.check()
    check_executor(training.executor, training.address)
    tracker = tracks.open(output.out)
    check_data(specs, training.data_root)
    store, wanted = output.store_path, {spec.id for spec in specs}
    with watch.opened(store):
        runs, interrupted, how_to_continue = train(specs, store, training, tracker, defaults)
    summary = write_report(runs, output.out, typed_command(context), versions_in(store, runs))
    if output.json:
        show_json(document(summary, len(specs), output))
    else:
        show_summary(summary)
    failed = show_failures(store, wanted)
    if len(runs) < len(wanted):
        opening = "Stopped" if interrupted else "Not finished"
        stderr().print(f"{opening}: {len(runs)} of {len(wanted)} runs are in {store}. {how_to_continue}")
    stderr().print(f"Report: {output.out / FILES['report']}")
    if interrupted or failed:
        raise typer.Exit(INTERRUPTED if interrupted else FAILED)


def searched(folder: Path, chosen: RunOptions, settings: Sequence[str] | None, seeds: Sequence[int]) -> "list[RunSpec]":
    """Plain and Asymmetric of each seed with the values that a search chose."""
    from asymtrain.lab.runs import DEFAULTS
    from asymtrain.lab.search import chosen_values, final_specs

    functions = chosen.refuse_beside("--from-search", "seeds")
    if settings:
        raise UsageError("--from-search names runs with all their settings: leave out --set")
    specs = [spec for result in chosen_values(folder) for spec in final_specs(result, seeds)]
    if others := functions - {name for spec in specs for name in (spec.dataset, spec.arch)}:
        raise UsageError(f"the search in {folder} was not of {others.pop()}: leave it out")
    for plain, asymmetric in zip(specs[::2], specs[1::2], strict=True):
        if plain != asymmetric.plain():
            names = [name for name in DEFAULTS if getattr(plain, name) != getattr(asymmetric.plain(), name)]
            raise UsageError(
                f"the search in {folder} chose another {names[0]} for Plain than for Asymmetric, which then are no "
                "pairs: search with --strategy gold and without --fair"
            )
    return specs


def train(
    specs: "list[RunSpec]",
    store: Path,
    training: TrainingOptions,
    tracker: "Tracker | None" = None,
    opening: Sequence[str] = (),
) -> "tuple[list[Run], bool, str]":
    """Finished runs, whether Ctrl-C ended the training before all were, and how to go on; `opening` is told first."""
    with loading():
        from asymtrain.lab import executors
        from asymtrain.lab.checkpoints import checkpointed
        from asymtrain.lab.store import Store, store_exists
        from asymtrain.lab.trackers import tracking

    runs: list[Run] = []
    wanted = {spec.id for spec in specs}
    stored: set[str] = set()
    begun: set[str] = set()
    interrupted, options = False, dataclasses.asdict(training)
    if not training.fresh and store_exists(store):
        with Store(store, read_only=True) as opened:
            stored = opened.finished(wanted)
        begun = checkpointed(store) & wanted - stored
    with progress_display(opening) as display, tracking(tracker, display.update, display.console.print) as update:
        trained = executors.execute(specs, store=store, progress=update, **options)  # refuses before anything is said
        if stored or begun or training.executor == "local":  # a cluster may still refuse
            display.begin()
        if stored:
            nothing = ": nothing is left to train" if stored == wanted else ""
            display.console.print(f"{len(stored)} of {len(wanted)} runs are in {store} already{nothing}.")
        if begun:
            goes = "goes" if len(begun) == 1 else "go"
            display.console.print(f"{counted(len(begun), 'run')} {goes} on from a checkpoint.")
        try:
            for finished in trained:
                runs.append(finished)
                if finished.spec.id not in stored:
                    display.finished(finished, len(runs), len(wanted))
        except KeyboardInterrupt:
            interrupted = True
    return runs, interrupted, display.going_on(training.minutes, fresh=training.fresh)


def document(summary: "Summary", wanted: int, output: OutputOptions) -> dict[str, Any]:
    from asymtrain.lab.report import FILES

    seeds = [pairs[["seed", "plain", "asymmetric", "plain_id", "asymmetric_id"]] for pairs in summary.pairs]
    return {
        "runs": {"wanted": wanted, "finished": len(summary.rows)},
        "comparisons": [
            {**row, "seeds": frame.to_dict("records")} for row, frame in zip(summary.comparisons, seeds, strict=True)
        ],
        "files": {**{kind: str(output.out / name) for kind, name in FILES.items()}, "store": str(output.store_path)},
    }


def show_failures(store: Path, wanted: Collection[str]) -> bool:
    """Say why runs of these ids failed, each reason once; did any?"""
    from asymtrain.lab.store import failure_reasons

    reasons = Counter(failure_reasons(store, wanted))
    for reason, count in reasons.items():
        stderr().print(f"{counted(count, 'run')} failed: {reason}")
    return bool(reasons)
