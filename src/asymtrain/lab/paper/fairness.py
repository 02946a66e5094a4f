"""`--fair`: what becomes of Plain when it gets as many trials of its own as alpha gives Asymmetric.

The search's last round then also tries dropout (where the backbone has it) and label smoothing on Plain. What it
chooses stands in tables of its own, and verdicts do not see it: the paper's Plain had no such trials.
"""

from collections.abc import Mapping, Sequence

from asymtrain.lab.paper.known import Snapshot
from asymtrain.lab.paper.recipe import Needs
from asymtrain.lab.paper.result import MISSING, Cell, ResultTable, missing_cell
from asymtrain.lab.paper.searched import state_of, trials
from asymtrain.lab.search import Search, SearchResult, StageResult, Trial

STAGE = "regularisation"
WORDS = {"dropout": "dropout", "label_smoothing": "label smoothing"}
States = Sequence[tuple[tuple[str, ...], SearchResult]]  # the first cells of the rows, and the fair search


def extra_trials(usual: Search, fair: Search, known: Snapshot) -> Needs:
    """The search's trials with those of Plain's regularisers, and how many of the latter cannot be named yet."""
    before, after = (trials(search, known) for search in (usual, fair))
    later = sum(after.later.values()) - sum(before.later.values())
    return Needs(after.specs, later={f"fair {name}": later for name in after.later})


def chosen_regularisers(fair: Search, known: Snapshot) -> Mapping[str, float] | None:
    """What the fair search chose for Plain beside learning rate and weight decay; None while it is not finished."""
    stage = _stage(state_of(fair, known), STAGE)
    return None if stage is None else stage.chosen


def regulariser_words(settings: Mapping[str, float] | None) -> str:
    """As they are shown in a row."""
    if settings is None:
        return "not yet chosen"
    return ", ".join(f"{WORDS[name]} {value:g}" for name, value in settings.items())


def gains_table(name: str, headings: Sequence[str], states: States, epochs: int) -> ResultTable:
    """Validation accuracy of Plain before and after its extra trials, beside Asymmetric's."""
    rows = [(*map(Cell, head), *_compared(state)) for head, state in states]
    note = (
        f"Validation accuracy within {epochs} epochs of the search; test accuracy is never computed. "
        "Plain as it is has the learning rate and weight decay that were chosen on it; then it gets as many trials of "
        "dropout (where the backbone has it) and label smoothing as alpha has values. Asymmetric is that of the chosen "
        "alpha."
    )
    columns = (*headings, "Trials", "Plain as it is", "Plain, best of its trials", "Asymmetric, best alpha",
               "Plain's gain", "Asymmetric's gain")  # fmt: skip
    return ResultTable(name, "The same number of trials for Plain", columns, tuple(rows), note)


def trials_table(name: str, headings: Sequence[str], states: States) -> ResultTable:
    """Every extra trial of Plain."""
    rows = [(*map(Cell, head), *row) for head, state in states for row in _tried(state)]
    columns = (*headings, "Plain with", "Validation accuracy", "n", "")
    note = "The first of each backbone is Plain as it is."
    return ResultTable(name, "What was tried on Plain", columns, tuple(rows), note)


def _compared(state: SearchResult) -> tuple[Cell, ...]:
    plain, alphas = _stage(state, STAGE), _stage(state, "alpha")
    if plain is None or alphas is None or plain.chosen is None or alphas.chosen is None:
        return tuple(missing_cell() for _ in range(6))
    before, after, other = plain.trials[0], _chosen_trial(plain), _chosen_trial(alphas)
    gains = [_gain(before, after), _gain(before, other)]
    count = len(plain.trials) - 1  # the first is Plain as it is
    return (Cell(str(count), count), *map(_mean_cell, (before, after, other)), *gains)


def _tried(state: SearchResult) -> list[tuple[Cell, ...]]:
    stage = _stage(state, STAGE)
    if stage is None:
        return [(Cell(MISSING), missing_cell(), missing_cell(), Cell(""))]
    return [
        (
            Cell(regulariser_words(trial.settings)),
            _mean_cell(trial),
            Cell(str(trial.n), trial.n, trial.spec_ids) if trial.n else missing_cell(),
            Cell("chosen" if stage.chosen == trial.settings else ""),
        )
        for trial in stage.trials
    ]


def _stage(state: SearchResult, name: str) -> StageResult | None:
    return next((stage for stage in state.stages if stage.stage.name == name), None)


def _chosen_trial(stage: StageResult) -> Trial:
    return next(trial for trial in stage.trials if trial.settings == stage.chosen)


def _mean_cell(trial: Trial) -> Cell:
    return missing_cell() if trial.mean is None else Cell(f"{trial.mean:.3f}", trial.mean, trial.spec_ids)


def _gain(before: Trial, after: Trial) -> Cell:
    """In percent of Plain as it is."""
    ids = tuple(dict.fromkeys([*before.spec_ids, *after.spec_ids]))
    if not before.mean or after.mean is None:
        return Cell(MISSING, spec_ids=ids)
    value = 100 * (after.mean - before.mean) / before.mean
    return Cell(f"{value:+.1f}%", value, ids)
