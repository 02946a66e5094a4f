"""`asymtrain search`: find learning rate, weight decay and alpha by validation accuracy."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from asymtrain.cli.options import FIRST_SEED, STORE_NAME, parse_archs, parse_seeds, typed_command
from asymtrain.cli.provenance import versions_in
from asymtrain.cli.screen import progress_display, show_json, show_table, stderr, stdout
from asymtrain.engine import load_for
from asymtrain.errors import UsageError, unknown_name
from asymtrain.report import check_folder, duration
from asymtrain.report.search_page import chosen_table, search_document, sentence, tried_table, write_search
from asymtrain.runs import Run, RunSpec
from asymtrain.scales import get_scale, scaled_spec
from asymtrain.search import (
    FIXED_WEIGHT_DECAY,
    LEARNING_RATES,
    LINEAR_POINTS,
    SEARCH_SEEDS,
    STRATEGIES,
    WEIGHT_DECAYS,
    Search,
    SearchResult,
    alpha_grid,
    given_values,
    read_searches,
    run_searches,
)
from asymtrain.store import Store

SEARCH_OUT = Path("asymtrain-search")
TABLE_13 = "cifar100"


def search(
    context: typer.Context,
    data: Annotated[str | None, typer.Option(help="shapes, cifar10, cifar100 or folder:PATH.")] = None,
    arch: Annotated[list[str] | None, typer.Option(help="mlp, cnn, vit; several with commas. Default: all.")] = None,
    strategy: Annotated[
        str, typer.Option(help="gold: Plain's learning rate and weight decay serve both. dual: each has its own.")
    ] = "gold",
    redundancy: Annotated[int | None, typer.Option(help="Branches at each point.")] = None,
    activation: Annotated[str | None, typer.Option(help="Live branches: last, all, random or cycle.")] = None,
    learning_rates: Annotated[str | None, typer.Option(help="Values with commas. Default: the paper's.")] = None,
    weight_decays: Annotated[str | None, typer.Option(help="Values with commas. Default: the paper's.")] = None,
    alphas: Annotated[str | None, typer.Option(help="Values with commas. Default: the paper's.")] = None,
    alpha_points: Annotated[
        int, typer.Option(help="Points of the paper's linear alphas, 0 to 50 (MLP on CIFAR-10).")
    ] = LINEAR_POINTS,
    alpha: Annotated[float | None, typer.Option(help="With dual: alpha until alpha is searched.")] = None,
    fixed_weight_decay: Annotated[
        float, typer.Option(help="Weight decay while the learning rate is searched.")
    ] = FIXED_WEIGHT_DECAY,
    fair: Annotated[
        bool, typer.Option("--fair", help="Give Plain as many trials of dropout and label smoothing as alpha gets.")
    ] = False,
    criterion: Annotated[str, typer.Option(help="Validation accuracy of the best epoch, or of the last.")] = "best",
    paper_values: Annotated[
        bool, typer.Option("--paper-values", help="Show Table 13's values; train nothing.")
    ] = False,
    seeds: Annotated[
        str | None,
        typer.Option(help="How many (3: 1000 to 1002), from..to (1000..1002), or which (1000,); none of 42 to 51."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Of a search run. Default: 3/4 of a final run's.")] = None,
    scale: Annotated[str, typer.Option(help="quick: small nets. paper: as published.")] = "quick",
    out: Annotated[Path, typer.Option(help="Folder of the page, the numbers and the store.")] = SEARCH_OUT,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    data_root: Annotated[Path | None, typer.Option(help="Where downloaded data lies.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1. Default: the fastest there is.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, tf32 or bf16.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after this time; the next call goes on.")] = None,
    store: Annotated[Path | None, typer.Option(help=f"Record of runs. Default: {STORE_NAME} in the folder.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train again what the store holds already.")] = False,
    executor: Annotated[str, typer.Option(help="local, or ray for a cluster.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster. Default: one on this machine.")] = None,
) -> None:
    """Search learning rate, weight decay and alpha by validation accuracy, never by test accuracy.

    Every grid trains as one stack. Called again, it goes on where it stopped.
    """
    if redundancy is not None and redundancy < 1:
        raise UsageError(f"--redundancy must be 1 or more, got {redundancy}")
    if minutes is not None and not minutes > 0:
        raise UsageError(f"--minutes must be above 0, got {minutes:g}")
    if strategy not in STRATEGIES:
        raise unknown_name("strategy of a search", strategy, STRATEGIES)
    chosen = get_scale(scale)
    fields = {"redundancy": redundancy, "activation": activation, "alpha": alpha, "precision": precision}
    if paper_values:
        if data not in (None, TABLE_13):
            raise UsageError(f"Table 13 is of {TABLE_13}: leave out --data {data}, or search there")
        data = TABLE_13
    bases = [scaled_spec(chosen, name, data, **fields) for name in parse_archs(arch)]
    if paper_values:
        results = [_paper_values(base) for base in bases]
        check_folder(out)
        show(context, results, out, None, json=json)
        return
    options: dict[str, Any] = {
        "learning_rates": parse_values("--learning-rates", learning_rates, LEARNING_RATES),
        "weight_decays": parse_values("--weight-decays", weight_decays, WEIGHT_DECAYS),
        "fixed_weight_decay": fixed_weight_decay,
        "fair": fair,
        "criterion": criterion,
        "seeds": parse_search_seeds(seeds) if seeds else SEARCH_SEEDS,
        "epochs": epochs,
    }
    searches = []
    for base in bases:
        tried = parse_values("--alphas", alphas, alpha_grid(base.arch, base.dataset, alpha_points))
        searches.append(STRATEGIES[strategy](base, alphas=tried, **options))
    check_folder(out)
    place = store or out / STORE_NAME
    check_folder(place.parent)
    load_for(bases[0], data_root)  # data that are missing or broken show before anything is written
    where = {"executor": executor, "address": address, "device": device, "minutes": minutes, "fresh": fresh}
    results, interrupted = train(searches, store=place, data_root=data_root, **where)
    show(context, results, out, place, json=json)
    remarks(results, place, interrupted)
    if interrupted:
        raise typer.Exit(130)


def parse_values(option: str, text: str | None, default: Sequence[float]) -> tuple[float, ...]:
    """Numbers with commas; the default where nothing is given."""
    if text is None:
        return tuple(default)
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UsageError(f"{option} {text}: write numbers with commas, such as 0.001,0.01") from None


def parse_search_seeds(text: str) -> tuple[int, ...]:
    """Like the seeds of final runs, but a count begins with the first seed of searches."""
    seeds = parse_seeds(text)
    return tuple(SEARCH_SEEDS[0] + seed - FIRST_SEED for seed in seeds) if text.strip().isdecimal() else seeds


def train(searches: Sequence[Search], *, store: Path, **options: Any) -> tuple[list[SearchResult], bool]:
    """Where the searches stand, and whether Ctrl-C ended the training."""
    with progress_display() as display:

        def tell(run: Run, done: int, total: int) -> None:
            if not display.console.is_terminal:
                display.console.print(f"{done}/{total} {_line(run)}")

        try:
            return run_searches(searches, store=store, on_run=tell, progress=display.update, **options), False
        except KeyboardInterrupt:
            return read_searches(searches, store, data_root=options.get("data_root")), True


def show(context: typer.Context, results: Sequence[SearchResult], out: Path, store: Path | None, *, json: bool) -> None:
    """Write the page, and print the chosen values, or everything as JSON."""
    files = write_search(out, results, _facts(context, results, store))
    if json:
        paths = {kind: str(path) for kind, path in files.items()}
        show_json({**search_document(results), "files": paths if store is None else {**paths, "store": str(store)}})
    else:
        for table in [*map(tried_table, results), chosen_table(results)]:
            if table.rows:
                stdout().print(table.title)
                show_table(table.columns, table.rows, left=3, wrapped=(0, 2))
                stdout().print()
        for result in results:
            stdout().print(sentence(result))
    stderr().print(f"Page: {files['page']}")


def remarks(results: Sequence[SearchResult], store: Path, interrupted: bool) -> None:
    """What failed and why, and how to go on."""
    console, missing = stderr(), {spec.id for result in results for spec in result.missing}
    if not missing:
        return
    failures: list[str] = []
    if store.exists():  # a time limit that was over at once leaves none
        with Store(store, read_only=True) as opened:
            failures = [failure.reason for failure in opened.failures() if failure.spec.id in missing]
    for reason, count in Counter(failures).items():
        console.print(f"{count} run{'s' if count > 1 else ''} failed: {reason}")
    left = sum(result.runs_left for result in results)
    opening = "Stopped" if interrupted else "Not finished"
    console.print(f"{opening}: at most {left} runs are left. Give the same command again to go on.")


def _paper_values(base: RunSpec) -> SearchResult:
    from asymtrain.paper.numbers import hyperparameters

    row = hyperparameters(base.arch, base.redundancy)
    shared = {"learning_rate": row.learning_rate, "weight_decay": row.weight_decay}
    return given_values(base, shared, {**shared, "alpha": row.alpha})


def _line(run: Run) -> str:
    spec, best = run.spec, run.best_validation
    settings = f"learning rate {spec.learning_rate:g}, weight decay {spec.weight_decay:g}"
    settings += "" if spec.redundancy == 0 else f", alpha {spec.alpha:g}"
    settings += f", label smoothing {spec.label_smoothing:g}" if spec.label_smoothing else ""
    dropout = dict(spec.arch_options).get("dropout")
    settings += "" if dropout is None else f", dropout {dropout:g}"
    accuracy = "diverged" if best is None or run.outcome == "diverged" else f"{best.validation_accuracy:.3f}"
    return f"{spec.arch} {spec.variant} seed {spec.seed}, {settings}: best validation accuracy {accuracy}"


def _facts(context: typer.Context, results: Sequence[SearchResult], store: Path | None) -> dict[str, str]:
    facts = {"Command": typed_command(context)}
    if store is None:
        return {**facts, "Source": "Table 13 of the paper"}
    ids = {spec_id for result in results for spec_id in result.spec_ids}
    runs: list[Run] = []
    if store.exists():
        with Store(store, read_only=True) as opened:
            runs = opened.runs(ids)
    versions = versions_in(store, runs)
    return {
        **facts,
        "Runs": f"{len(runs)}, of which {sum(run.outcome == 'diverged' for run in runs)} diverged",
        "Training time": f"{duration(sum(run.seconds for run in runs))}, summed over runs",
        "Device": ", ".join(sorted({run.device for run in runs})) or "none yet",
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()) or "none yet",
    }
