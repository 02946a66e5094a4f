"""What a search tried and chose, as tables, figures and a page."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from asymtrain.lab.report.figure import VALUE, Figure, Headline, Line, Lines
from asymtrain.lab.report.page import write_page
from asymtrain.lab.report.table import NOTHING, Cell, Column, Mean, Table, Value, make_rows
from asymtrain.lab.search import SearchResult, StageResult, Trial
from asymtrain.lab.search.stages import Settings, Variant
from asymtrain.models import display_name

SIDES: dict[Variant, str] = {"plain": "Plain", "asymmetric": "Asymmetric"}
END = "*"
ALWAYS = ("learning_rate", "weight_decay", "alpha")


def write_search(out: Path, results: Sequence[SearchResult], facts: Mapping[str, str]) -> dict[str, Path]:
    """Write search.html, search.json and the figures into the folder `out`."""
    tried = [
        dataclasses.replace(tried_table(result), name=f"tried-{i}", detail=True) for i, result in enumerate(results)
    ]
    return write_page(
        out,
        "search",
        title="Hyperparameter search",
        headline=_headline(results),
        lead="\n\n".join([*map(sentence, results), _lead(results)]),
        tables=[chosen_table(results), *tried],
        figures=[figure for i, result in enumerate(results) for figure in _figures(i, result)],
        facts=facts,
        document=search_document(results),
    )


def search_document(results: Sequence[SearchResult]) -> dict[str, Any]:
    return {"searches": [result.to_dict() for result in results]}


def chosen_table(results: Sequence[SearchResult]) -> Table:
    """The chosen values, two rows for each search: Plain's and Asymmetric's."""
    all_settings = [settings for result in results for settings in result.chosen.values()]
    others = dict.fromkeys(name for settings in all_settings for name in settings if name not in ALWAYS)
    names = [*ALWAYS, *others]
    columns = (
        Column("Backbone"),
        Column("Variant"),
        Column("N", "count"),
        *(Column(_words(name).capitalize(), "number", digits=None) for name in names),
        Column("Accuracy", "number"),
        Column("n", "count"),
    )
    rows = make_rows(_chosen_row(result, side, names) for result in results for side in SIDES)
    note = "Accuracy is validation accuracy of the search runs, as mean and deviation over n seeds."
    if any(cell.mark == END for row in rows for cell in row):
        note += f" {END} is at an end of its grid: a better value may lie beyond."
    return Table("chosen", "Chosen values", columns, rows, note)


def tried_table(result: SearchResult) -> Table:
    """Every trial of a search with its validation accuracy."""
    accuracy, n = Column("Validation accuracy", "number"), Column("n", "count")
    columns = (Column("Stage"), Column("Variant"), Column("Tried"), accuracy, n, Column("Result"))
    rows = make_rows(_tried_row(stage, trial) for stage in result.stages for trial in stage.trials)
    note = "" if result.complete else f"Not finished: at most {result.runs_left} runs are left."
    if any(trial.diverged for stage in result.stages for trial in stage.trials):
        note = f"{note} Diverged runs count at chance accuracy.".strip()
    return Table("tried", f"Trials: {label(result)}", columns, rows, note)


def label(result: SearchResult) -> str:
    base = result.search.base
    return f"{display_name(base.arch)} on {base.dataset}, N = {base.redundancy}"


def sentence(result: SearchResult) -> str:
    """The result of a search in words."""
    settings_words = [
        f"{SIDES[side]} {_setting_words(settings)}" for side, settings in result.chosen.items() if settings
    ]
    parts = [f"{label(result)}: {'; '.join(settings_words) or 'nothing is chosen yet'}."]
    ends = [
        f"{SIDES[stage.stage.trains]} {_words(name)} ({where})"
        for stage in result.stages
        for name, where in _ends(stage).items()
    ]
    if ends:
        parts.append(f"At an end of the grid, so a better value may lie beyond: {', '.join(ends)}.")
    if not result.complete:
        parts.append(f"At most {result.runs_left} runs are left.")
    return " ".join(parts)


def _headline(results: Sequence[SearchResult]) -> Headline:
    """The values chosen for Asymmetric, else for Plain; for several searches, how many are complete."""
    (first, *others) = results
    settings = first.chosen["asymmetric"] or first.chosen["plain"]
    if others or not settings:
        complete = sum(result.complete for result in results)
        return "soft", f"{complete} of {len(results)} searches complete"
    return "soft", f"Chosen for {label(first)}: {_setting_words(settings)}"


def _lead(results: Sequence[SearchResult]) -> str:
    seeds = ", ".join(map(str, results[0].search.seeds))
    return (
        "Each value was chosen by validation accuracy, of the best epoch of every run, averaged over the seeds of the "
        f"search ({seeds}), which no final run has. No test accuracy was computed. Of equal values the smaller was "
        "chosen, of equal regularisers what Plain had before."
    )


def _chosen_row(result: SearchResult, side: Variant, names: Sequence[str]) -> tuple[Value | Cell, ...]:
    settings = result.chosen[side]
    ends = {name for stage in result.stages if side in stage.stage.decides for name in _ends(stage)}
    trial = next((stage.best for stage in reversed(result.stages) if stage.stage.trains == side and stage.best), None)
    base = result.search.base
    return (
        f"{display_name(base.arch)}, {base.dataset}",
        SIDES[side],
        base.redundancy if side == "asymmetric" else 0,
        *(Cell(settings.get(name), mark=END if name in settings and name in ends else "") for name in names),
        Cell() if trial is None else _accuracy(trial),
        None if trial is None else trial.n,
    )


def _tried_row(stage: StageResult, trial: Trial) -> tuple[Value | Cell, ...]:
    results = [f"{trial.diverged} diverged"] if trial.diverged else []
    if trial.settings == stage.chosen:
        results += ["chosen", *(f"{where} of its grid" for where in _ends(stage).values())]
    return (
        stage.stage.name,
        SIDES[stage.stage.trains],
        _setting_words(trial.settings),
        _accuracy(trial),
        Cell(trial.n, mark=f"of {len(trial.spec_ids)}" if trial.n < len(trial.spec_ids) else ""),
        ", ".join(results) or NOTHING,
    )


def _accuracy(trial: Trial) -> Cell:
    return Cell(None if trial.mean is None else Mean(trial.mean, trial.std), tuple(trial.spec_ids))


def _figures(i: int, result: SearchResult) -> list[Figure]:
    """One for each finished grid that varies a single setting."""
    figures = []
    for stage in result.stages:
        names = {name for trial in stage.trials for name in trial.settings}
        if stage.best is None or len(names) != 1 or len(stage.trials) < 2:
            continue
        (name,) = names
        trains = stage.stage.trains
        title = f"{stage.stage.name.capitalize()} of {SIDES[trains]}: {label(result)}"
        dots = "; the dots are the seeds" if len(result.search.seeds) > 1 else ""
        caption = f"The ring marks the chosen value{dots}."
        arch = re.sub(r"[^\w.-]", "-", result.search.base.arch)  # not every system allows timm:resnet18 as a file name
        file = f"{arch}-{i}-{trains}-{name}"
        figures.append(Figure(file, title, [_accuracy_by_setting(stage, name)], caption=caption))
    return figures


def _accuracy_by_setting(stage: StageResult, name: str) -> Lines:
    """Validation accuracy over the values of one setting: the mean, each seed, and a ring around the chosen one.

    The values are evenly spaced, like the steps of a grid: most grids are logarithmic, and some start at 0.
    """
    values = [trial.settings[name] for trial in stage.trials]
    x = tuple(float(i) for i in range(len(values)))
    means = tuple(trial.mean for trial in stage.trials)
    several = [trial.accuracies_there if len(trial.accuracies_there) > 1 else () for trial in stage.trials]
    seeds = tuple(zip_longest(*several))
    line = Line("", stage.stage.trains, x, means, seeds=seeds, marker=True)
    labels = tuple(f"{value:g}" for value in values)
    best = stage.best
    ring = None if best is None or best.mean is None else (x[stage.trials.index(best)], best.mean)
    return Lines(
        "", _words(name), "validation accuracy", (line,), ticks=x, tick_labels=labels, ring=ring, written=VALUE
    )


def _ends(stage: StageResult) -> dict[str, str]:
    """Chosen settings at an end of their grid, beyond which more could have been tried; below 0 nothing can."""
    return {name: where for name, where in stage.edges.items() if where != "off"}


def _words(name: str) -> str:
    return name.replace("_", " ")


def _setting_words(settings: Settings) -> str:
    return ", ".join(f"{_words(name)} {value:g}" for name, value in settings.items())
