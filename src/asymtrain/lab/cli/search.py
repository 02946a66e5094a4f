"""`asymtrain search`: find learning rate, weight decay and alpha by validation accuracy."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from asymtrain.lab.api.common import FIRST_SEED
from asymtrain.lab.api.search import plan_searches, train_searches, write_searches
from asymtrain.lab.cli.groups import flattened
from asymtrain.lab.cli.loading import loading
from asymtrain.lab.cli.options import (
    OUT,
    SETTINGS,
    OutputOptions,
    RunOptions,
    TrackOptions,
    TrainingOptions,
    one_or_more,
    parse_seeds,
    parse_settings,
    parse_values,
    typed_command,
)
from asymtrain.lab.cli.run import show_failures
from asymtrain.lab.cli.screen import end, show_page, show_rest
from asymtrain.lab.cli.watch import WatchOptions
from asymtrain.lab.terminal import progress_display

VALUES = typer.Option(help="Values with commas. Default: the paper's.")
SEARCHED = {"learning_rate": "--learning-rates", "weight_decay": "--weight-decays"}


@dataclass(frozen=True)
class FinalRuns(RunOptions):
    """The final runs that the values are for; the seeds here are the search's own."""

    without = ("epochs", "learning_rate", "weight_decay")

    seeds: Annotated[
        str | None,
        typer.Option(help="How many (3: 1000 to 1002), from..to (1000..1002), or which (1000,); none of 42 to 51."),
    ] = None
    activation: Annotated[str | None, typer.Option(help="Live branches: last or all.")] = None
    alpha: Annotated[float | None, typer.Option(help="With dual: alpha until alpha is searched.")] = None

    def parse_seeds(self, default: Sequence[int] = ()) -> tuple[int, ...]:
        """Like the seeds of final runs, but a count begins at the first seed of searches."""
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
    fixed_weight_decay: Annotated[
        float | None, typer.Option(help="Weight decay while the learning rate is searched. Default: the paper's.")
    ] = None
    fair: Annotated[
        bool, typer.Option("--fair", help="Give Plain as many trials of dropout and label smoothing as alpha gets.")
    ] = False
    epochs: Annotated[
        int | None, typer.Option(help="Of a search run. Default: 3/4 of a final run's.", callback=one_or_more)
    ] = None

    def values(self) -> dict[str, Any]:
        """Arguments of `plan_searches`."""
        grids = {
            name: parse_values(f"--{name.replace('_', '-')}", getattr(self, name))
            for name in ("learning_rates", "weight_decays", "alphas")
        }
        return {**vars(self), **grids}


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
) -> None:
    """Search learning rate, weight decay and alpha by validation accuracy, never by test accuracy.

    Every grid trains as one stack. Called again, it continues where it stopped.
    """
    with loading():
        from asymtrain.lab.executors import check_data, check_executor
        from asymtrain.lab.search.page import chosen_table, search_document, sentence, tried_table
    fields = {"epochs": final_epochs, **parse_settings(settings, FinalRuns, SEARCHED)}
    named_fields = {*SEARCHED, "alpha", *(name for name, value in fields.items() if value is not None)}
    values = grids.values()
    bases, defaults = chosen.complete(chosen.base_specs(**fields), named_fields, training.data_root)
    searches = plan_searches(bases, seeds=chosen.parse_seeds(), **values)
    output.check()
    check_executor(training.executor, training.address)
    tracker, store = tracks.open(output.out), output.store_path
    check_data(bases, training.data_root)
    with watch.opened(store), progress_display(defaults) as display:
        options = dataclasses.asdict(training)
        results, interrupt = train_searches(searches, display, store=store, tracker=tracker, **options)
    files = {**write_searches(output.out, results, typed_command(context), store), "store": store}
    tables = (*map(tried_table, results), chosen_table(results))
    show_page(files, search_document(results), tables, map(sentence, results), json=output.json)
    failed = False
    if missing := {spec.id for result in results for spec in result.missing}:
        failed = show_failures(store, missing)
        left = sum(result.runs_left for result in results)
        how_to_continue = display.going_on(training.minutes, fresh=training.fresh)
        show_rest(f"at most {left} runs are left", interrupt, how_to_continue)
    end(interrupt, failed)
