"""Table 13: the settings that a three-stage search chooses, beside the paper's."""

from asymtrain.lab.report.table import Cell, Column, Table, missing_cells
from asymtrain.lab.search import Search, SearchResult
from asymtrain.lab.studies.paper.comparisons import needs_of
from asymtrain.lab.studies.paper.numbers import all_hyperparameters, note_text
from asymtrain.lab.studies.paper.recipe import RecipeOutput, recipe
from asymtrain.lab.studies.paper.searches import gold_search, state_of, trials
from asymtrain.lab.studies.paper.study import ARCHS, Scope, shown_dataset
from asymtrain.lab.studies.paper.tables import NOTHING, N, arch_cell, headings_of, number
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.study import Needs

DATASETS = ("cifar100", "cifar10")
FIELDS = {"learning_rate": "Learning rate", "weight_decay": "Weight decay", "alpha": "Alpha"}


def searches(study: Scope) -> dict[tuple[str, str], Search]:
    return {(dataset, arch): gold_search(study, arch, dataset) for dataset in DATASETS for arch in ARCHS}


def needs(study: Scope, snapshot: Snapshot) -> Needs:
    return needs_of(study, [], *(trials(search, snapshot) for search in searches(study).values()))


def make(study: Scope, snapshot: Snapshot) -> RecipeOutput:
    states = {key: state_of(search, snapshot) for key, search in searches(study).items()}
    chosen = [(stage, name) for state in states.values() for stage in state.stages for name in stage.chosen or ()]
    edges = sum(name in stage.edges for stage, name in chosen)
    notes = (f"{edges} of {len(chosen)} chosen values lie at an end of their grid.",) if chosen else ()
    return RecipeOutput((_chosen(study, states), _tried(study, states)), notes=notes)


def _chosen(study: Scope, states: dict[tuple[str, str], SearchResult]) -> Table:
    rows = []
    for (dataset, arch), state in states.items():
        paper = [row for row in all_hyperparameters() if row.arch == arch] if dataset == "cifar100" else [None]
        for printed in paper:
            level = "any" if printed is None else f"{printed.redundancy}x"
            cells = [Cell(shown_dataset(study, dataset)), arch_cell(arch), Cell(level)]
            for name in FIELDS:
                cells += [_chosen_cell(state, name), NOTHING if printed is None else Cell(getattr(printed, name))]
            rows.append(tuple(cells))
    pairs = [(number(name, None), number(name.lower(), None, papers=True)) for name in FIELDS.values()]
    return Table(
        "table13",
        "Table 13: settings found by the search",
        (*headings_of(("Data", "Backbone", "N")), *(column for pair in pairs for column in pair)),
        tuple(rows),
        note_text("table13"),
    )


def _chosen_cell(state: SearchResult, name: str) -> Cell:
    for stage in state.stages:
        if stage.chosen and name in stage.chosen:
            ids = tuple(spec_id for trial in stage.trials for spec_id in trial.spec_ids)
            return Cell(float(stage.chosen[name]), ids, mark="*" if name in stage.edges else "")
    return Cell(missing=True)


def _tried(study: Scope, states: dict[tuple[str, str], SearchResult]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for (dataset, arch), state in states.items():
        head = (Cell(shown_dataset(study, dataset)), arch_cell(arch))
        for stage in state.stages:
            for trial in stage.trials:
                settings = ", ".join(f"{value:g}" for value in trial.settings.values())
                accuracy = Cell(missing=True) if trial.mean is None else Cell(trial.mean, trial.spec_ids)
                count = Cell(trial.n, trial.spec_ids) if trial.n else Cell(missing=True)
                chosen = Cell("chosen" if stage.chosen == trial.settings else "")
                rows.append((*head, Cell(stage.stage.name), Cell(settings), accuracy, count, chosen))
        for later in [stage for stages in state.search.rounds for stage in stages][len(state.stages) :]:
            rows.append((*head, Cell(later.name), *missing_cells(3), Cell("")))
    return Table(
        "table13-trials",
        "What the search tried",
        (*headings_of(("Data", "Backbone", "Stage", "Value")), number("Validation accuracy"), N, Column("")),
        tuple(rows),
        note_text("table13-trials", epochs=study.search_epochs, seeds=", ".join(map(str, study.sizes.search_seeds))),
    )


RECIPES = (recipe("table13", needs, make),)
