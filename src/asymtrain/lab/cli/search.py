"""`asymtrain search`: find learning rate, weight decay and alpha by validation accuracy."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asymtrain.errors import UsageError, unknown_name
from asymtrain.lab.cli import FAILED, INTERRUPTED
from asymtrain.lab.cli.groups import flattened
from asymtrain.lab.cli.loading import loading
from asymtrain.lab.cli.options import (
    AT,
    BATCH,
    FIRST_SEED,
    INITIAL_WEIGHTS,
    LAYOUT,
    OUT,
    PRECISION,
    REDUNDANCY,
    SETTINGS,
    OutputOptions,
    ScaleOptions,
    TrackOptions,
    TrainingOptions,
    one_or_more,
    parse_seeds,
    parse_settings,
    parse_values,
    typed_command,
)
from asymtrain.lab.cli.report import versions_in
from asymtrain.lab.cli.run import show_failures
from asymtrain.lab.cli.screen import progress_display, show_page, stderr
from asymtrain.lab.cli.watch import WatchOptions

if TYPE_CHECKING:
    from asymtrain.lab.runs import Run, RunSpec
    from asymtrain.lab.search import Search, SearchResult
    from asymtrain.lab.trackers import Tracker

TABLE_13 = "cifar100"  # the dataset of the paper's Table 13
MOST_POINTS = 1000
VALUES = typer.Option(help="Values with commas. Default: the paper's.")
SEARCHED = {"learning_rate": "--learning-rates", "weight_decay": "--weight-decays"}


@dataclass(frozen=True)
class FinalRuns(ScaleOptions):
    """The runs that values are searched for; the seeds are the search's own."""

    seeds: Annotated[
        str | None,
        typer.Option(help="How many (3: 1000 to 1002), from..to (1000..1002), or which (1000,); none of 42 to 51."),
    ] = None
    batch: Annotated[int | None, BATCH] = None
    at: Annotated[list[str] | None, AT] = None
    layout: Annotated[str | None, LAYOUT] = None
    initial_weights: Annotated[str | None, INITIAL_WEIGHTS] = None
    redundancy: Annotated[int | None, REDUNDANCY] = None
    activation: Annotated[str | None, typer.Option(help="Live branches: last or all.")] = None
    alpha: Annotated[float | None, typer.Option(help="With dual: alpha until alpha is searched.")] = None
    precision: Annotated[str | None, PRECISION] = None

    def parse_seeds(self, default: Sequence[int] = ()) -> tuple[int, ...]:
        """Like the seeds of final runs, but a count begins with the first seed of searches."""
        from asymtrain.lab.search import SEARCH_SEEDS

        if not self.seeds:
            return tuple(default or SEARCH_SEEDS)
        seeds, counted = parse_seeds(self.seeds), self.seeds.strip().isdecimal()
        return tuple(SEARCH_SEEDS[0] + seed - FIRST_SEED for seed in seeds) if counted else seeds


@dataclass(frozen=True)
class GridOptions:
    """What is tried, and how the best is chosen."""

    heading = "What is searched"

    strategy: Annotated[
        str, typer.Option(help="gold: Plain's learning rate and weight decay serve both. dual: each has its own.")
    ] = "gold"
    learning_rates: Annotated[str | None, VALUES] = None
    weight_decays: Annotated[str | None, VALUES] = None
    alphas: Annotated[str | None, VALUES] = None
    alpha_points: Annotated[
        int | None, typer.Option(help="Points of the paper's linear alphas, 0 to 50 (MLP on CIFAR-10). Default: 11.")
    ] = None
    fixed_weight_decay: Annotated[
        float | None, typer.Option(help="Weight decay while the learning rate is searched. Default: the paper's.")
    ] = None
    fair: Annotated[
        bool, typer.Option("--fair", help="Give Plain as many trials of dropout and label smoothing as alpha gets.")
    ] = False
    criterion: Annotated[str, typer.Option(help="Validation accuracy of the best epoch, or of the last.")] = "best"
    epochs: Annotated[
        int | None, typer.Option(help="Of a search run. Default: 3/4 of a final run's.", callback=one_or_more)
    ] = None

    def searches(self, bases: "Sequence[RunSpec]", seeds: Sequence[int]) -> "list[Search]":
        from asymtrain.lab.search import STRATEGIES, grids

        linear = [grids.is_linear(base.arch, base.dataset) for base in bases]
        if self.alpha_points is not None and (self.alphas or not any(linear)):
            raise UsageError(
                "--alpha-points applies only to linear alphas, which only the MLP on cifar10 has by default: "
                "leave it out, or list the values with --alphas alone"
            )
        points = grids.LINEAR_POINTS if self.alpha_points is None else self.alpha_points
        if points > MOST_POINTS:
            raise UsageError(f"--alpha-points must be at most {MOST_POINTS}, got {points}")
        decay = self.fixed_weight_decay
        return [
            STRATEGIES[self.strategy](
                base,
                learning_rates=parse_values("--learning-rates", self.learning_rates, grids.LEARNING_RATES),
                weight_decays=parse_values("--weight-decays", self.weight_decays, grids.WEIGHT_DECAYS),
                alphas=parse_values("--alphas", self.alphas, grids.alpha_grid(base.arch, base.dataset, points)),
                fixed_weight_decay=grids.FIXED_WEIGHT_DECAY if decay is None else decay,
                fair=self.fair,
                criterion=self.criterion,
                seeds=seeds,
                epochs=self.epochs,
            )
            for base in bases
        ]


@dataclass(frozen=True)
class SearchOutput(OutputOptions):
    """The folder and the store of a search."""

    out: Annotated[Path, OUT] = Path("asymtrain-search")


@flattened
def search(
    context: typer.Context,
    chosen: FinalRuns,
    grids: GridOptions,
    training: TrainingOptions,
    output: SearchOutput,
    tracks: TrackOptions,
    watch: WatchOptions,
    final_epochs: Annotated[
        int | None, typer.Option(help="Of a final run. Default: the scale's.", callback=one_or_more)
    ] = None,
    settings: Annotated[list[str] | None, SETTINGS] = None,
    paper_values: Annotated[
        bool, typer.Option("--paper-values", help="Show Table 13's values; train nothing.")
    ] = False,
) -> None:
    """Search learning rate, weight decay and alpha by validation accuracy, never by test accuracy.

    Every grid trains as one stack. Called again, it continues where it stopped.
    """
    with loading():
        from asymtrain.lab.executors import check_data, check_executor
        from asymtrain.lab.report import check_folder
        from asymtrain.lab.search import STRATEGIES
    if grids.strategy not in STRATEGIES:
        raise unknown_name("strategy of a search", grids.strategy, STRATEGIES)
    fields = {"epochs": final_epochs, **parse_settings(settings, FinalRuns, SEARCHED)}
    if paper_values:
        if chosen.data not in (None, TABLE_13):
            raise UsageError(f"Table 13 covers {TABLE_13}: leave out --data {chosen.data}, or search there")
        results = [table_13(base) for base in dataclasses.replace(chosen, data=TABLE_13).base_specs(**fields)]
        check_folder(output.out)
        show(context, results, output, None)
        return
    given = {*SEARCHED, "alpha", *(name for name, value in fields.items() if value is not None)}
    bases, defaults = chosen.complete(chosen.base_specs(**fields), given, training.data_root)
    searches = grids.searches(bases, chosen.parse_seeds())
    output.check()
    check_executor(training.executor, training.address)
    tracker = tracks.open(output.out)
    check_data(bases, training.data_root)
    with watch.opened(output.store_path):
        results, interrupted, how_to_continue = train(searches, output.store_path, training, tracker, defaults)
    show(context, results, output, output.store_path)
    failed = False
    if missing := {spec.id for result in results for spec in result.missing}:
        failed = show_failures(output.store_path, missing)
        left = sum(result.runs_left for result in results)
        opening = "Stopped" if interrupted else "Not finished"
        stderr().print(f"{opening}: at most {left} runs are left. {how_to_continue}")
    if interrupted or failed:
        raise typer.Exit(INTERRUPTED if interrupted else FAILED)


def train(
    searches: "Sequence[Search]",
    store: Path,
    training: TrainingOptions,
    tracker: "Tracker | None" = None,
    opening: Sequence[str] = (),
) -> "tuple[list[SearchResult], bool, str]":
    """Where the searches stand, whether Ctrl-C ended the training, and how to go on; `opening` is told first."""
    from asymtrain.lab.search import read_searches, run_searches
    from asymtrain.lab.trackers import tracking

    with progress_display(opening) as display, tracking(tracker, display.update, display.console.print) as update:
        options, interrupted = dataclasses.asdict(training), False
        try:
            results = run_searches(searches, store=store, on_run=display.telling(_line), progress=update, **options)
        except KeyboardInterrupt:
            results, interrupted = read_searches(searches, store, data_root=training.data_root), True
    return results, interrupted, display.going_on(training.minutes, fresh=training.fresh)


def show(context: typer.Context, results: "Sequence[SearchResult]", output: SearchOutput, store: Path | None) -> None:
    """Write the page, and print the chosen values, or everything as JSON."""
    from asymtrain.lab.search.page import chosen_table, search_document, sentence, tried_table, write_search

    files = write_search(output.out, results, _facts(context, results, store))
    if store is not None:
        files["store"] = store
    tables = [table for table in (*map(tried_table, results), chosen_table(results)) if table.rows]
    show_page(files, search_document(results), tables, map(sentence, results), json=output.json)


def table_13(base: "RunSpec") -> "SearchResult":
    from asymtrain.lab.search import given_values
    from asymtrain.lab.studies.paper.numbers import hyperparameters

    row = hyperparameters(base.arch, base.redundancy)
    shared = {"learning_rate": row.learning_rate, "weight_decay": row.weight_decay}
    return given_values(base, shared, {**shared, "alpha": row.alpha})


def _line(run: "Run") -> str:
    spec, best = run.spec, run.best_validation
    settings = f"learning rate {spec.learning_rate:g}, weight decay {spec.weight_decay:g}"
    settings += "" if spec.redundancy == 0 else f", alpha {spec.alpha:g}"
    settings += f", label smoothing {spec.label_smoothing:g}" if spec.label_smoothing else ""
    dropout = dict(spec.arch_options).get("dropout")
    settings += "" if dropout is None else f", dropout {dropout:g}"
    accuracy = "diverged" if best is None or run.outcome == "diverged" else f"{best.validation_accuracy:.3f}"
    return f"{spec.arch} {spec.variant} seed {spec.seed}, {settings}: best validation accuracy {accuracy}"


def _facts(context: typer.Context, results: "Sequence[SearchResult]", store: Path | None) -> dict[str, str]:
    from asymtrain.lab.report.run_report import run_facts
    from asymtrain.lab.store import stored_runs

    facts = {"Command": typed_command(context)}
    if store is None:
        return {**facts, "Source": "Table 13 of the paper"}
    runs = stored_runs(store, {spec_id for result in results for spec_id in result.spec_ids})
    return {**facts, **run_facts(runs, versions_in(store, runs))}
