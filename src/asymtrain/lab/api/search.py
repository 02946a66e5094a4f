"""Learning rate, weight decay and alpha by validation accuracy: what `asymtrain search` does, as functions.

searches = [plan_search(base, alphas=(0.1, 1.0))]            # base: the Asymmetric run that the values are for
results, interrupt = train_searches(searches, display, store=path)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asymtrain.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from asymtrain.lab.runs import Run, RunSpec
    from asymtrain.lab.search import Search, SearchResult
    from asymtrain.lab.terminal import Display
    from asymtrain.lab.trackers import Tracker

MOST_POINTS = 1000  # of linear alphas


def plan_searches(
    bases: Sequence[RunSpec],
    strategy: str = "gold",
    *,
    alphas: Sequence[float] | None = None,
    alpha_points: int | None = None,
    **options: Any,
) -> list[Search]:
    """A search for each base, the Asymmetric run that its values are for.

    `alpha_points` are those of linear alphas, for the bases that have them. `options` are those of
    `lab.search.gold_standard`; None leaves the paper's value.
    """
    from asymtrain.lab.search import STRATEGIES, grids

    if strategy not in STRATEGIES:
        raise unknown_name("strategy of a search", strategy, STRATEGIES)
    if alpha_points is not None and (alphas or not any(grids.is_linear(base.arch, base.dataset) for base in bases)):
        raise UsageError(
            "--alpha-points applies only to linear alphas, which only the MLP on cifar10 has by default: "
            "leave it out, or list the values with --alphas alone"
        )
    points = grids.LINEAR_POINTS if alpha_points is None else alpha_points
    if points > MOST_POINTS:
        raise UsageError(f"--alpha-points must be at most {MOST_POINTS}, got {points}")
    given = {name: value for name, value in options.items() if value is not None}
    return [
        STRATEGIES[strategy](
            base, alphas=grids.alpha_grid(base.arch, base.dataset, points) if alphas is None else alphas, **given
        )
        for base in bases
    ]


def train_searches(
    searches: Sequence[Search], display: Display, *, store: Path, tracker: Tracker | None = None, **options: Any
) -> tuple[list[SearchResult], KeyboardInterrupt | None]:
    """Where the searches stand after they were trained, and the Ctrl-C that ended the training, if one did.

    `options` are those of `executors.execute`.
    """
    from asymtrain.lab.search import read_searches, run_searches
    from asymtrain.lab.trackers import tracking

    with tracking(tracker, display.update, display.console.print) as update:
        try:
            on_run = display.telling(_line)
            return run_searches(searches, store=store, on_run=on_run, progress=update, **options), None
        except KeyboardInterrupt as interrupt:
            return read_searches(searches, store, data_root=options.get("data_root")), interrupt


def _line(run: Run) -> str:
    spec, best = run.spec, run.best_validation
    settings = f"learning rate {spec.learning_rate:g}, weight decay {spec.weight_decay:g}"
    settings += "" if spec.redundancy == 0 else f", alpha {spec.alpha:g}"
    settings += f", label smoothing {spec.label_smoothing:g}" if spec.label_smoothing else ""
    dropout = dict(spec.arch_options).get("dropout")
    settings += "" if dropout is None else f", dropout {dropout:g}"
    accuracy = "diverged" if best is None or run.outcome == "diverged" else f"{best.validation_accuracy:.3f}"
    return f"{spec.arch} {spec.variant} seed {spec.seed}, {settings}: best validation accuracy {accuracy}"


def search_facts(results: Sequence[SearchResult], store: Path) -> dict[str, str]:
    """What a page says of the runs of searches."""
    from asymtrain.lab.api.common import versions_in
    from asymtrain.lab.report.run_report import run_facts
    from asymtrain.lab.store import stored_runs

    runs = stored_runs(store, {spec_id for result in results for spec_id in result.spec_ids})
    return run_facts(runs, versions_in(store, runs))
