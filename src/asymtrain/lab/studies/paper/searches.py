"""Learning rate, weight decay and alpha where the paper gives none: what our search chose, read from its runs.

`--fair` asks what becomes of Plain when it gets as many trials of its own as alpha gives Asymmetric. The search's last
round then also tries dropout (where the backbone has it) and label smoothing on Plain. What it chooses stands in tables
of its own, and verdicts do not see it: the paper's Plain had no such trials.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from asymtrain.lab.report.table import Cell, Column, Table, missing_cells
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.search import STRATEGIES, Search, SearchResult, StageResult, Trial, replay
from asymtrain.lab.studies.paper.numbers import Hyperparameters, note_text
from asymtrain.lab.studies.paper.study import PRIMARY, Scope, Sizes, asymmetric_spec, table_values
from asymtrain.lab.studies.paper.tables import NOTHING, N, headings_of, number, percent
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.study import Needs
from asymtrain.lab.studies.timing import class_count

TRIED = 3  # branches at each point in Table 16
START = 1.0  # alpha while Asymmetric's learning rate and weight decay are searched: the two losses as they are


def gold_search(study: Scope, arch: str, dataset: str, *, fair: bool = False) -> Search:
    """The three-stage search of one backbone on one dataset. With one live branch it is the same for every N.

    With `fair` its last round also has trials for Plain; the other trials are the same runs.
    """
    base = asymmetric_spec(study, PRIMARY, arch, dataset, table_values(study, arch, 1), 1)
    linear = (arch, dataset) == ("mlp", "cifar10")
    alphas = study.sizes.alphas_mlp_cifar10 if linear else study.sizes.alphas
    return _search("gold", base, study.sizes, study.search_epochs, alphas, fair)


def dual_of(study: Scope, arch: str, activation: str, *, fair: bool = False) -> Search:
    """The search of Table 16: Plain and Asymmetric each by itself, three branches, all or one active.

    `fair` as in `gold_search`; Plain's trials are the same runs, whichever branches are active.
    """
    auxiliary = {"activation": "all"} if activation == "all" else {}
    start = dataclasses.replace(table_values(study, arch, 1), alpha=START)
    base = asymmetric_spec(study, PRIMARY, arch, "cifar100", start, TRIED, auxiliary)
    return _search("dual", base, study.sizes, study.search_epochs, study.sizes.alphas, fair)


def _search(strategy: str, base: RunSpec, sizes: Sizes, epochs: int, alphas: tuple[float, ...], fair: bool) -> Search:
    grids = {"learning_rates": sizes.learning_rates, "weight_decays": sizes.weight_decays, "alphas": alphas}
    return _kept(strategy, base, **grids, fair=fair, seeds=sizes.search_seeds, epochs=epochs)


@lru_cache(maxsize=256)  # recipes ask for the same ones again and again, and each checks all of its trials
def _kept(strategy: str, base: RunSpec, **options: Any) -> Search:
    return STRATEGIES[strategy](base, **options)


def state_of(search: Search, known: Snapshot) -> SearchResult:
    return replay(search, known.runs, lambda: 1 / class_count(search.base))


def chosen(search: Search, known: Snapshot) -> Mapping[str, Hyperparameters] | None:
    """What a finished search chose for `plain` and `asymmetric`."""
    result = state_of(search, known)
    if not result.complete:
        return None
    base = search.base
    return {
        variant: Hyperparameters(
            base.arch,
            base.redundancy,
            settings["learning_rate"],
            settings["weight_decay"],
            settings.get("alpha", base.alpha),
        )
        for variant, settings in result.chosen.items()
    }


def is_searched(study: Scope, dataset: str) -> bool:
    """Does the study search this dataset's settings? The paper prints those of CIFAR-100."""
    return dataset == "cifar10" and study.hyperparameters == "searched"


def values_for(study: Scope, known: Snapshot, arch: str, dataset: str, redundancy: int) -> Hyperparameters | None:
    """Settings of both sides of a comparison; None while the search for them is not finished."""
    if not is_searched(study, dataset):
        return table_values(study, arch, redundancy)
    settings = chosen(gold_search(study, arch, dataset), known)
    return None if settings is None else settings["asymmetric"]


def waiting(study: Scope, known: Snapshot, arch: str, dataset: str) -> Needs:
    return trials(gold_search(study, arch, dataset), known) if is_searched(study, dataset) else Needs()


def trials(search: Search, known: Snapshot) -> Needs:
    """Every trial of the stages that are known, trained or not, and how many later stages still hold at most."""
    result = state_of(search, known)
    ids = {spec.id: spec for spec in result.missing}
    specs = tuple(ids.get(spec_id) or known.runs[spec_id].spec for spec_id in result.spec_ids)
    base = search.base
    name = f"{search.strategy} {base.dataset} {base.dataset_options} {base.activation}"
    return Needs(specs, later={(base.arch, name): result.runs_left - len(result.missing)})


def settled(study: Scope, known: Snapshot, arch: str, dataset: str, redundancy: int) -> str:
    values = values_for(study, known, arch, dataset, redundancy)
    if values is None:
        return "Its settings are those that the search of Table 13 chooses, which is not finished."
    shown = f"learning rate {values.learning_rate:g}, weight decay {values.weight_decay:g}, alpha {values.alpha:g}"
    if is_searched(study, dataset):
        return f"Settings found by our search: {shown}."
    own = "the scale's learning rate and " if arch in study.sizes.learning_rate else ""
    return f"Settings: {own}Table 13's at N = {redundancy} on CIFAR-100: {shown}."


STAGE = "regularisation"
WORDS = {"dropout": "dropout", "label_smoothing": "label smoothing"}
States = Sequence[tuple[tuple[Cell, ...], SearchResult]]  # the first cells of the rows, and the fair search


def extra_trials(usual: Search, fair: Search, known: Snapshot) -> Needs:
    """The search's trials with those of Plain's regularisers, and how many of the latter cannot be named yet."""
    before, after = (trials(search, known) for search in (usual, fair))
    later = sum(after.later.values()) - sum(before.later.values())
    return Needs(after.specs, later={(arch, f"fair {name}"): later for arch, name in after.later})


def chosen_regularisers(fair: Search, known: Snapshot) -> Mapping[str, float] | None:
    """What the fair search chose for Plain beside learning rate and weight decay; None while it is not finished."""
    stage = _stage(state_of(fair, known), STAGE)
    return None if stage is None else stage.chosen


def regulariser_words(settings: Mapping[str, float] | None) -> str:
    if settings is None:
        return "not yet chosen"
    return ", ".join(f"{WORDS[name]} {value:g}" for name, value in settings.items())


def gains_table(name: str, headings: Sequence[str], states: States, epochs: int) -> Table:
    """Validation accuracy of Plain before and after its extra trials, beside Asymmetric's."""
    columns = (
        *headings_of(headings),
        Column("Trials", "count"),
        *map(number, ("Plain as it is", "Plain, best of its trials", "Asymmetric, best alpha")),
        percent("Plain's gain"),
        percent("Asymmetric's gain"),
    )
    note = note_text("gains", epochs=epochs)
    rows = tuple((*head, *_gain_cells(state)) for head, state in states)
    return Table(name, "The same number of trials for Plain", columns, rows, note)


def trials_table(name: str, headings: Sequence[str], states: States) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for head, state in states:
        stage = _stage(state, STAGE)
        if stage is None:
            rows.append((*head, NOTHING, *missing_cells(2), Cell("")))
            continue
        for trial in stage.trials:
            rows.append((*head, Cell(regulariser_words(trial.settings)), *trial_cells(stage, trial)))
    columns = (*headings_of((*headings, "Plain with")), *TRIAL)
    note = "The first of each backbone is Plain as it is."
    return Table(name, "What was tried on Plain", columns, tuple(rows), note)


TRIAL = (number("Validation accuracy"), N, Column(""))


def trial_cells(stage: StageResult, trial: Trial) -> list[Cell]:
    count = Cell(trial.n, trial.spec_ids) if trial.n else Cell(missing=True)
    return [_mean_cell(trial), count, Cell("chosen" if stage.chosen == trial.settings else "")]


def _gain_cells(state: SearchResult) -> list[Cell]:
    plain, alphas = _stage(state, STAGE), _stage(state, "alpha")
    if plain is None or alphas is None or plain.best is None or alphas.best is None:
        return missing_cells(6)
    before, after, other = plain.trials[0], plain.best, alphas.best  # the first is Plain as it is
    count = len(plain.trials) - 1
    return [Cell(count), *map(_mean_cell, (before, after, other)), _gain(before, after), _gain(before, other)]


def _stage(state: SearchResult, name: str) -> StageResult | None:
    return next((stage for stage in state.stages if stage.stage.name == name), None)


def _mean_cell(trial: Trial) -> Cell:
    return Cell(missing=True) if trial.mean is None else Cell(trial.mean, trial.spec_ids)


def _gain(before: Trial, after: Trial) -> Cell:
    """In percent of Plain as it is."""
    ids = tuple(dict.fromkeys([*before.spec_ids, *after.spec_ids]))
    if not before.mean or after.mean is None:
        return Cell(None, ids)
    return Cell(100 * (after.mean - before.mean) / before.mean, ids)
