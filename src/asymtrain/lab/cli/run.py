"""`asymtrain run`: train Plain and Asymmetric, compare, report."""

import dataclasses
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asymtrain.errors import UsageError
from asymtrain.lab.api.common import recommends, train_runs, with_recommended
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
from asymtrain.lab.cli.screen import end, show_json, show_rest, show_summary
from asymtrain.lab.cli.watch import WatchOptions
from asymtrain.lab.terminal import progress_display, stderr
from asymtrain.lab.texts import counted

if TYPE_CHECKING:
    from asymtrain.lab.runs import RunSpec


@dataclass(frozen=True)
class PairOptions(RunOptions):
    """Which pairs of runs."""

    alpha: Annotated[
        float | None,
        typer.Option(help="Weight of branches in the paper's unit; their other settings are then the paper's."),
    ] = None
    strength: Annotated[
        float | None,
        typer.Option(help="How much branches count beside the main loss. Default: as recommended for the model."),
    ] = None


@flattened
def run(
    context: typer.Context,
    chosen: PairOptions,
    training: TrainingOptions,
    output: OutputOptions,
    tracks: TrackOptions,
    watch: WatchOptions,
    settings: Annotated[list[str] | None, SETTINGS] = None,
    from_search: Annotated[Path | None, typer.Option(help="Train the values that a search chose: its folder.")] = None,
) -> None:
    """Compare training without branches (Plain) and with them (Asymmetric).

    With no options: three small backbones learn procedural shapes with five seeds, in about three minutes on two cores.
    Branches are the recommended ones, unless an option names others. Called again, it continues where it stopped.
    """
    with loading():
        from asymtrain.lab.api.compare import compared
        from asymtrain.lab.executors import check_data, check_executor
        from asymtrain.lab.report.run_report import FILES
        from asymtrain.lab.runs import pairs
    seeds, defaults = chosen.parse_seeds(), list[str]()
    if from_search is not None:
        specs = searched(from_search, chosen, settings, seeds)
    else:
        fields = parse_settings(settings)
        unnamed = {} if chosen.seeds else {"seeds": len(seeds)}
        bases = chosen.base_specs(**fields)
        named = fields | {name: getattr(chosen, name) for name in chosen.given_names()}
        recommended = recommends(named, chosen.strength) and (chosen.strength is not None or chosen.scale != "paper")
        named_fields = {*fields, *(["alpha", "redundancy"] if recommended else [])}
        bases, defaults = chosen.complete(bases, named_fields, training.data_root, **unnamed)
        if recommended:
            bases, line = with_recommended(bases, named, chosen.strength, training.data_root)
            defaults.append(line)
        specs = [spec for base in bases for spec in pairs(base, seeds)]
    output.check()
    check_executor(training.executor, training.address)
    tracker = tracks.open(output.out)
    check_data(specs, training.data_root)
    store, ids = output.store_path, {spec.id for spec in specs}
    options = dataclasses.asdict(training)
    with watch.opened(store), progress_display(defaults) as display:
        trained = train_runs(specs, display, store=store, tracker=tracker, **options)
    result = compared(trained.runs, typed_command(context), store)
    result.page(output.out)
    if output.json:
        columns = ["seed", "plain", "asymmetric", "plain_id", "asymmetric_id"]
        rows = zip(result.summary.comparisons, result.summary.pairs, strict=True)
        files = {kind: str(output.out / name) for kind, name in FILES.items()}
        show_json(
            {
                "runs": {"wanted": len(specs), "finished": len(result.summary.rows)},
                "comparisons": [{**row, "seeds": frame[columns].to_dict("records")} for row, frame in rows],
                "files": {**files, "store": str(store)},
            }
        )
    else:
        show_summary(result.summary)
    failed = show_failures(store, ids)
    if len(trained.runs) < len(ids):
        how_to_continue = display.going_on(training.minutes, fresh=training.fresh)
        show_rest(f"{len(trained.runs)} of {len(ids)} runs are in {store}", trained.interrupt, how_to_continue)
    stderr().print(f"Report: {output.out / FILES['report']}")
    end(trained.interrupt, failed)


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


def show_failures(store: Path, ids: Collection[str]) -> bool:
    """Print why runs of these ids failed, each reason once; return whether any did."""
    from asymtrain.lab.store import failure_reasons

    reasons = Counter(failure_reasons(store, ids))
    for reason, count in reasons.items():
        stderr().print(f"{counted(count, 'run')} failed: {reason}")
    return bool(reasons)
