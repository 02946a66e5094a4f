"""`--fair`: what becomes of Plain when it gets as many trials of its own as alpha gives Asymmetric.

The search's last round then also tries dropout (where the backbone has it) and label smoothing on Plain. What it
chooses stands in tables of its own, and verdicts do not see it: the paper's Plain had no such trials.
"""

from collections.abc import Mapping, Sequence

from asymtrain.paper.known import Known
from asymtrain.paper.recipe import Needs
from asymtrain.paper.result import MISSING, Cell, ResultTable, missing_cell
from asymtrain.paper.searched import gold_search, state_of, trials
from asymtrain.paper.study import Study, shown_dataset
from asymtrain.search import SearchResult, StageResult, Trial
from asymtrain.statistics import NAMES

STAGE = "regularisation"
WORDS = {"dropout": "dropout", "label_smoothing": "label smoothing"}
Case = tuple[str, str]  # dataset and backbone


def extra_trials(study: Study, known: Known, arch: str, dataset: str) -> Needs:
    """The search's trials with those of Plain's regularisers, and how many of the latter cannot be named yet."""
    usual, fair = (trials(gold_search(study, arch, dataset, fair=fair), known) for fair in (False, True))
    later = sum(fair.later.values()) - sum(usual.later.values())
    return Needs(fair.specs, later={f"fair {name}": later for name in fair.later})


def chosen_regularisers(study: Study, known: Known, arch: str, dataset: str) -> Mapping[str, float] | None:
    """What the fair search chose for Plain beside learning rate and weight decay; None while it is not finished."""
    stage = _stage(state_of(gold_search(study, arch, dataset, fair=True), known), STAGE)
    return None if stage is None else stage.chosen


def regulariser_words(settings: Mapping[str, float] | None) -> str:
    """As they are shown in a row."""
    if settings is None:
        return "not yet chosen"
    return ", ".join(f"{WORDS[name]} {value:g}" for name, value in settings.items())


def fair_tables(study: Study, known: Known, cases: Sequence[Case]) -> tuple[ResultTable, ResultTable]:
    """Plain before and after its extra trials beside Asymmetric, and every such trial."""
    states = {(dataset, arch): state_of(gold_search(study, arch, dataset, fair=True), known) for dataset, arch in cases}
    compared, tried = [], []
    for (dataset, arch), state in states.items():
        head = (Cell(shown_dataset(study, dataset)), Cell(NAMES[arch]))
        compared.append((*head, *_compared(state)))
        tried += [(*head, *row) for row in _tried(state)]
    note = (
        f"Validation accuracy within {study.search_epochs} epochs of the search; test accuracy is never computed. "
        "Plain as it is has the learning rate and weight decay that were chosen on it; then it gets as many trials of "
        "dropout (where the backbone has it) and label smoothing as alpha has values. Asymmetric is that of the chosen "
        "alpha."
    )
    columns = ("Data", "Backbone", "Trials", "Plain as it is", "Plain, best of its trials", "Asymmetric, best alpha",
               "Plain's gain", "Asymmetric's gain")  # fmt: skip
    trial_columns = ("Data", "Backbone", "Plain with", "Validation accuracy", "n", "")
    return (
        ResultTable("table13-fair", "The same number of trials for Plain", columns, tuple(compared), note),
        ResultTable("table13-fair-trials", "What was tried on Plain", trial_columns, tuple(tried),
                    "The first of each backbone is Plain as it is."),
    )  # fmt: skip


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
