"""Table 13: the settings that a three-stage search chooses, beside the paper's."""

from asymtrain.lab.paper.comparisons import needs_of
from asymtrain.lab.paper.fairness import extra_trials, gains_table, trials_table
from asymtrain.lab.paper.known import Snapshot
from asymtrain.lab.paper.numbers import all_hyperparameters
from asymtrain.lab.paper.recipe import Draw, Needs, Recipe, RecipeOutput
from asymtrain.lab.paper.result import Cell, ResultTable, missing_cell
from asymtrain.lab.paper.searched import gold_search, state_of, trials
from asymtrain.lab.paper.sizes import ARCHS
from asymtrain.lab.paper.study import Study, shown_dataset
from asymtrain.lab.runs import NAMES
from asymtrain.lab.search import Search, SearchResult

DATASETS = ("cifar100", "cifar10")
FIELDS = {"learning_rate": "Learning rate", "weight_decay": "Weight decay", "alpha": "Alpha"}


def searches(study: Study, *, fair: bool = False) -> dict[tuple[str, str], Search]:
    """One for each dataset and backbone."""
    return {(dataset, arch): gold_search(study, arch, dataset, fair=fair) for dataset in DATASETS for arch in ARCHS}


def needs(study: Study, known: Snapshot) -> Needs:
    """All trials of the stages that can be named."""
    found = [trials(search, known) for search in searches(study).values()]
    if study.fair:
        fair = searches(study, fair=True)
        found += [extra_trials(search, fair[case], known) for case, search in searches(study).items()]
    return needs_of(study, [], *found)


def make(study: Study, known: Snapshot, draw: Draw) -> RecipeOutput:
    """What was chosen beside the paper's, and every trial; then those of Plain where it gets some of its own."""
    states = {key: state_of(search, known) for key, search in searches(study).items()}
    return RecipeOutput(
        (_chosen(study, states), _tried(study, states), *_fair_tables(study, known)), notes=_notes(states)
    )


def _fair_tables(study: Study, known: Snapshot) -> tuple[ResultTable, ...]:
    if not study.fair:
        return ()
    states = [
        ((shown_dataset(study, dataset), NAMES[arch]), state_of(search, known))
        for (dataset, arch), search in searches(study, fair=True).items()
    ]
    headings = ("Data", "Backbone")
    gains = gains_table("table13-fair", headings, states, study.search_epochs)
    return gains, trials_table("table13-fair-trials", headings, states)


def _chosen(study: Study, states: dict[tuple[str, str], SearchResult]) -> ResultTable:
    rows = []
    for dataset in DATASETS:
        for arch in ARCHS:
            paper = [row for row in all_hyperparameters() if row.arch == arch] if dataset == "cifar100" else [None]
            for printed in paper:
                level = "any" if printed is None else f"{printed.redundancy}x"
                cells = [Cell(shown_dataset(study, dataset)), Cell(NAMES[arch]), Cell(level)]
                for name in FIELDS:
                    cells += [
                        _chosen_cell(states[dataset, arch], name),
                        Cell("—") if printed is None else Cell(f"{getattr(printed, name):g}", getattr(printed, name)),
                    ]
                rows.append(tuple(cells))
    headings = [text for shown in FIELDS.values() for text in (shown, f"Paper: {shown.lower()}")]
    return ResultTable(
        "table13",
        "Table 13: settings found by the search",
        ("Data", "Backbone", "N", *headings),
        tuple(rows),
        "Learning rate and weight decay are searched on Plain, so they cannot depend on N; with one live branch alpha "
        "cannot either. Our values are therefore the same in every row of a backbone. * marks an end of the grid.",
    )


def _chosen_cell(state: SearchResult, name: str) -> Cell:
    for stage in state.stages:
        if stage.chosen and name in stage.chosen:
            ids = tuple(one for trial in stage.trials for one in trial.spec_ids)
            edge = "*" if name in stage.edges else ""
            return Cell(f"{stage.chosen[name]:g}{edge}", float(stage.chosen[name]), ids)
    return missing_cell()


def _tried(study: Study, states: dict[tuple[str, str], SearchResult]) -> ResultTable:
    rows = []
    for (dataset, arch), state in states.items():
        for stage in state.stages:
            for trial in stage.trials:
                shown = ", ".join(f"{value:g}" for value in trial.settings.values())
                mark = "chosen" if stage.chosen == trial.settings else ""
                mean = missing_cell() if trial.mean is None else Cell(f"{trial.mean:.3f}", trial.mean, trial.spec_ids)
                texts = [shown_dataset(study, dataset), NAMES[arch], stage.stage.name, shown]
                count = Cell(str(trial.n), trial.n, trial.spec_ids) if trial.n else missing_cell()
                rows.append((*map(Cell, texts), mean, count, Cell(mark)))
        for later in [stage for stages in state.search.rounds for stage in stages][len(state.stages) :]:
            texts = [shown_dataset(study, dataset), NAMES[arch], later.name]
            rows.append((*map(Cell, texts), *(missing_cell() for _ in range(3)), Cell("")))
    return ResultTable(
        "table13-trials",
        "What the search tried",
        ("Data", "Backbone", "Stage", "Value", "Validation accuracy", "n", ""),
        tuple(rows),
        f"Best validation accuracy within {study.search_epochs} epochs, mean over search seeds "
        f"{', '.join(map(str, study.sizes.search_seeds))}; test accuracy is never computed.",
    )


def _notes(states: dict[tuple[str, str], SearchResult]) -> tuple[str, ...]:
    chosen = [(stage, name) for state in states.values() for stage in state.stages for name in stage.chosen or ()]
    edges = sum(name in stage.edges for stage, name in chosen)
    return (f"{edges} of {len(chosen)} chosen values lie at an end of their grid.",) if chosen else ()


RECIPE = Recipe(
    name="table13",
    covers=("table13",),
    title="Table 13: hyperparameters by the three-stage search",
    question="Which learning rate, weight decay and alpha does validation accuracy choose?",
    how="Learning rate on Plain, then weight decay on Plain, then alpha on Asymmetric, each grid as one stack, on "
    "seeds that no final result uses.",
    claims=(),
    needs=needs,
    make=make,
)
