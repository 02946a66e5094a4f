"""What a search tried and chose, as tables, figures and a page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asymtrain.lab.report.measurement import Drawn, Listed, write_measurement
from asymtrain.lab.report.summary import MISSING, spread
from asymtrain.lab.runs import NAMES
from asymtrain.lab.search import SearchResult, StageResult, Trial
from asymtrain.lab.search.figures import accuracy_by_setting
from asymtrain.lab.search.stages import Variant

NAME = "search"
SIDES: dict[Variant, str] = {"plain": "Plain", "asymmetric": "Asymmetric"}
END = "*"
ALWAYS = ("learning_rate", "weight_decay", "alpha")


def write_search(out: Path, results: Sequence[SearchResult], facts: Mapping[str, str]) -> dict[str, Path]:
    """Write search.html, search.json and the figures into the folder `out`."""
    return write_measurement(
        out,
        NAME,
        title="Hyperparameters",
        lead=_lead(results),
        tables=[chosen_table(results), *map(tried_table, results)],
        figures=[figure for i, result in enumerate(results) for figure in _figures(i, result)],
        facts=facts,
        document=search_document(results),
    )


def search_document(results: Sequence[SearchResult]) -> dict[str, Any]:
    """The results as JSON values."""
    return {"searches": [result.to_dict() for result in results]}


def chosen_table(results: Sequence[SearchResult]) -> Listed:
    """The chosen values, two rows for each search: Plain's and Asymmetric's."""
    chosen = [settings for result in results for settings in result.chosen.values()]
    others = dict.fromkeys(name for settings in chosen for name in settings if name not in ALWAYS)
    names = [*ALWAYS, *others]
    columns = ("Backbone", "Variant", "N", *(_words(name).capitalize() for name in names), "Accuracy", "n")
    rows = [row for result in results for row in (_chosen_row(result, side, names) for side in SIDES)]
    note = "Accuracy is validation accuracy of the search runs, as mean and deviation over n seeds."
    if any(END in cell for row in rows for cell in row):
        note += f" {END} is at an end of its grid: a better value may lie beyond."
    return Listed("What was chosen", columns, rows, note)


def tried_table(result: SearchResult) -> Listed:
    """Every trial of a search with its validation accuracy."""
    rows = [_tried_row(stage, trial) for stage in result.stages for trial in stage.trials]
    note = "" if result.complete else f"Not finished: at most {result.runs_left} runs are left."
    diverged = sum(trial.diverged for stage in result.stages for trial in stage.trials)
    if diverged:
        note = f"{note} Diverged runs count at chance accuracy.".strip()
    title = f"What was tried: {label(result)}"
    return Listed(title, ("Stage", "Variant", "Tried", "Validation accuracy", "n", "Result"), rows, note)


def label(result: SearchResult) -> str:
    """The search's backbone, dataset and redundancy, for a reader."""
    base = result.search.base
    return f"{NAMES.get(base.arch, base.arch)} on {base.dataset}, N = {base.redundancy}"


def sentence(result: SearchResult) -> str:
    """What a search came to, in words."""
    found = [
        f"{SIDES[side]} {', '.join(f'{_words(name)} {value:g}' for name, value in settings.items())}"
        for side, settings in result.chosen.items()
        if settings
    ]
    parts = [f"{label(result)}: {'; '.join(found) or 'nothing is chosen yet'}."]
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


def _lead(results: Sequence[SearchResult]) -> str:
    searched = [result for result in results if result.search.rounds]
    if not searched:
        return "These values were given, not searched."
    epoch = {"best": "its best epoch", "last": "its last epoch"}[searched[0].search.criterion]
    seeds = ", ".join(map(str, searched[0].search.seeds))
    return (
        f"Each value was chosen by validation accuracy, of {epoch} in every run, averaged over the seeds of the search "
        f"({seeds}), which no final run has. No test accuracy was computed. Of equal values the smaller was chosen, "
        "of equal regularisers what Plain had before."
    )


def _chosen_row(result: SearchResult, side: Variant, names: Sequence[str]) -> tuple[str, ...]:
    settings = result.chosen[side]
    ends = {name for stage in result.stages if side in stage.stage.decides for name in _ends(stage)}
    last = next((stage for stage in reversed(result.stages) if stage.stage.trains == side and stage.chosen), None)
    trial = None if last is None else next(one for one in last.trials if one.settings == last.chosen)
    base = result.search.base
    return (
        f"{NAMES.get(base.arch, base.arch)}, {base.dataset}",
        SIDES[side],
        str(base.redundancy if side == "asymmetric" else 0),
        *(f"{settings[name]:g}{END if name in ends else ''}" if name in settings else MISSING for name in names),
        MISSING if trial is None or trial.mean is None else spread(trial.mean, trial.std),
        MISSING if trial is None else str(trial.n),
    )


def _tried_row(stage: StageResult, trial: Trial) -> tuple[str, ...]:
    words = [f"{_words(name)} {value:g}" for name, value in trial.settings.items()]
    results = [f"{trial.diverged} diverged"] if trial.diverged else []
    if trial.settings == stage.chosen:
        results += ["chosen", *(f"{where} of its grid" for where in _ends(stage).values())]
    return (
        stage.stage.name,
        SIDES[stage.stage.trains],
        ", ".join(words),
        MISSING if trial.mean is None else spread(trial.mean, trial.std),
        f"{trial.n} of {len(trial.spec_ids)}" if trial.n < len(trial.spec_ids) else str(trial.n),
        ", ".join(results) or MISSING,
    )


def _figures(i: int, result: SearchResult) -> list[Drawn]:
    """One for each finished grid over one setting of more than one value."""
    drawn = []
    for stage in result.stages:
        names = {name for trial in stage.trials for name in trial.settings}
        if stage.chosen is None or len(names) != 1 or len(stage.trials) < 2:
            continue
        (name,) = names
        place = f"{result.search.base.arch}-{i}-{stage.stage.trains}-{name}"
        title = f"{stage.stage.name.capitalize()} of {SIDES[stage.stage.trains]}: {label(result)}"
        svg = accuracy_by_setting(
            [trial.settings[name] for trial in stage.trials],
            [trial.seen for trial in stage.trials],
            variant=stage.stage.trains,
            setting=_words(name),
            chosen=stage.chosen[name],
            name=place,
            title=title,
        )
        dots = "; the dots are the seeds" if len(result.search.seeds) > 1 else ""
        drawn.append(Drawn(place, title, svg, f"The ring marks what was chosen{dots}."))
    return drawn


def _ends(stage: StageResult) -> dict[str, str]:
    """Chosen settings beyond which something could have been tried: below 0 nothing can."""
    return {name: where for name, where in stage.edges.items() if where != "off"}


def _words(name: str) -> str:
    return name.replace("_", " ")
