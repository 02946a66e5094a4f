"""What `asymtrain search` does with its options: training, the page, what is printed."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from asymtrain.lab.cli.options import FIRST_SEED, parse_seeds, typed_command
from asymtrain.lab.cli.provenance import versions_in
from asymtrain.lab.cli.screen import progress_display, show_json, show_table, stderr, stdout
from asymtrain.lab.report import duration
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.search import SEARCH_SEEDS, Search, SearchResult, given_values, read_searches, run_searches
from asymtrain.lab.search.page import chosen_table, search_document, sentence, tried_table, write_search
from asymtrain.lab.store import Store


def parse_search_seeds(text: str) -> tuple[int, ...]:
    """Like the seeds of final runs, but a count begins with the first seed of searches."""
    seeds = parse_seeds(text)
    return tuple(SEARCH_SEEDS[0] + seed - FIRST_SEED for seed in seeds) if text.strip().isdecimal() else seeds


def train(searches: Sequence[Search], *, store: Path, **options: Any) -> tuple[list[SearchResult], bool, str]:
    """Where the searches stand, whether Ctrl-C ended the training, and how to go on."""
    with progress_display() as display:

        def tell(run: Run, done: int, total: int) -> None:
            if not display.console.is_terminal:
                display.console.print(f"{done}/{total} {_line(run)}")

        interrupted = False
        try:
            results = run_searches(searches, store=store, on_run=tell, progress=display.update, **options)
        except KeyboardInterrupt:
            results, interrupted = read_searches(searches, store, data_root=options.get("data_root")), True
    return results, interrupted, display.going_on(options.get("minutes"), fresh=bool(options.get("fresh")))


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


def remarks(results: Sequence[SearchResult], store: Path, interrupted: bool, going_on: str) -> None:
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
    console.print(f"{opening}: at most {left} runs are left. {going_on}")


def table_13(base: RunSpec) -> SearchResult:
    """The paper's values in place of a search's."""
    from asymtrain.lab.paper.numbers import hyperparameters

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
