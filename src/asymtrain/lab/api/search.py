"""`asymtrain.search`: learning rate, weight decay and alpha by validation accuracy, as `asymtrain search` finds them.

`from asymtrain import *` reads this file too, also where only torch is installed: other imports are inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asymtrain.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from torch import nn

    from asymtrain.lab.data import Dataset
    from asymtrain.lab.runs import Run, RunSpec
    from asymtrain.lab.search import Search, SearchResult
    from asymtrain.lab.terminal import Display
    from asymtrain.lab.trackers import Tracker


def search(
    build: str | Callable[..., nn.Module],
    data: str | Dataset | Sequence[Any] | Mapping[str, Any],
    *,
    strategy: str = "gold",
    learning_rates: Iterable[float] | None = None,
    weight_decays: Iterable[float] | None = None,
    alphas: Iterable[float] | None = None,
    fixed_weight_decay: float | None = None,
    fair: bool = False,
    seeds: int | Iterable[int] = 1,
    epochs: int | None = None,
    final_epochs: int | None = None,
    recipe: str | None = "ordinary",
    build_options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
    device: str | None = None,
    data_root: str | Path | None = None,
    store: str | Path | None = None,
    out: str | Path | None = None,
    fresh: bool = False,
    progress: bool = True,
    **fields: Any,
) -> SearchResult:
    """Search learning rate, weight decay and alpha by validation accuracy; no test accuracy is computed.

    >>> import numpy as np, torch, asymtrain
    >>> x = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    >>> y = (x[:, 0] > 0).astype(np.int64)
    >>> def net(classes):
    ...     return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, classes))
    >>> result = asymtrain.search(
    ...     net, (x, y), learning_rates=[0.001, 0.01], weight_decays=[0.1], alphas=[0.3, 1.0], epochs=1,
    ...     recipe="paper", at="1", progress=False,
    ... )
    >>> result.complete, sorted(result.chosen["asymmetric"])
    (True, ['alpha', 'learning_rate', 'weight_decay'])

    Arguments that are not listed are those of `asymtrain.compare`.

    Args:
        strategy: gold: Plain's learning rate and weight decay serve both; dual: each has its own.
        learning_rates: to try; the paper's by default, as for weight decays and alphas.
        weight_decays: to try.
        alphas: to try.
        fixed_weight_decay: the weight decay while the learning rate is searched.
        fair: give Plain as many trials of dropout and label smoothing as alpha gets.
        seeds: how many (1: 1000), or which; not 42 to 51, which are for final runs.
        epochs: of a search run; by default three quarters of a final run's.
        final_epochs: of the runs that the values are for.
        store: a file that keeps runs and checkpoints; by default `runs.sqlite` in `out`, if you give `out`.
        out: a folder for search.html and search.json, which `asymtrain run --from-search` reads.
        **fields: any other field of `asymtrain.lab.runs.RunSpec`, such as batch, at, layout, redundancy or clip.
    """
    call_arguments = dict(locals())
    from asymtrain.lab.api import common

    common.import_lab("search")
    from asymtrain.lab.search.grids import SEARCH_SEEDS
    from asymtrain.lab.terminal import progress_display

    own = common.OWN | {"seed": "seeds", "learning_rate": "learning_rates", "weight_decay": "weight_decays"}
    run_fields = common.given_fields("search", {"epochs": final_epochs}, fields, own)
    numbers = common.parse_seeds(seeds, SEARCH_SEEDS[0])
    grids = {"learning_rates": learning_rates, "weight_decays": weight_decays, "alphas": alphas}
    tried: dict[str, Any] = {name: None if values is None else _numbers(name, values) for name, values in grids.items()}
    with common.opened(search, call_arguments, run_fields) as (base, opening, folder, where):
        record = where["store"]
        options: dict[str, Any] = {"fixed_weight_decay": fixed_weight_decay, "fair": fair, "epochs": epochs}
        planned = plan_searches([base], strategy, **tried, **options, seeds=numbers)
        with progress_display(opening, quiet=not progress) as display:
            (result,), interrupt = train_searches(planned, display, fresh=fresh, **where)
    if interrupt is not None:
        again = f"finished runs are in {record}; call it again to go on" if record else "give store= to keep runs"
        interrupt.add_note(f"asymtrain.search: {again}")
        raise interrupt
    if folder is not None and record is not None:
        values = {name: value for name, value in {**tried, **options}.items() if value is not None}
        arguments = {"strategy": strategy, "recipe": recipe, "seeds": list(numbers), **values} | run_fields
        command = common.call_text(
            "search", base, arguments, own, build_options=build_options, data_options=data_options
        )
        write_searches(folder, [result], command, record)
    return result


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    try:
        if not isinstance(values, str):
            return tuple(float(value) for value in values)
    except (TypeError, ValueError):
        pass
    raise UsageError(f"{name} must be a list of numbers, such as [0.001, 0.01], got {values!r}")


def plan_searches(bases: Sequence[RunSpec], strategy: str, **options: Any) -> list[Search]:
    """A search for each base, the Asymmetric run that its values are for.

    `options` go to `lab.search.gold_standard`; None leaves the paper's value.
    """
    from asymtrain.lab.search import STRATEGIES

    if strategy not in STRATEGIES:
        raise unknown_name("strategy of a search", strategy, STRATEGIES)
    settings = {name: value for name, value in options.items() if value is not None}
    return [STRATEGIES[strategy](base, **settings) for base in bases]


def train_searches(
    searches: Sequence[Search], display: Display, *, store: Path | None, tracker: Tracker | None = None, **options: Any
) -> tuple[list[SearchResult], KeyboardInterrupt | None]:
    """The state of the searches after training, and the Ctrl-C that ended it, if any.

    `options` go to `executors.execute`.
    """
    from asymtrain.lab.search import read_searches, run_searches
    from asymtrain.lab.trackers import tracking

    with tracking(tracker, display.update, display.console.print) as update:
        try:
            on_run = display.telling(_line)
            return run_searches(searches, store=store, on_run=on_run, progress=update, **options), None
        except KeyboardInterrupt as interrupt:
            if store is None:
                raise
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


def write_searches(out: Path, results: Sequence[SearchResult], command: str, store: Path) -> dict[str, Path]:
    """Write the page of searches, with what made it."""
    from asymtrain.lab.api.common import versions_in
    from asymtrain.lab.report.run_report import run_facts
    from asymtrain.lab.search.page import write_search
    from asymtrain.lab.store import stored_runs

    runs = stored_runs(store, {spec_id for result in results for spec_id in result.spec_ids})
    return write_search(out, results, {"Command": command, **run_facts(runs, versions_in(store, runs))})
