"""How training goes with and without branches: Tables 2 to 4 and 15, Figures 2, 3 and 8."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from asymtrain.lab.instruments.alignment.measure import VARIANTS, Conflict, RunConflict, conflicts
from asymtrain.lab.instruments.curves import BOUNDS, CURVES, curve, gap
from asymtrain.lab.instruments.trajectory.measure import convergence_epoch, parting
from asymtrain.lab.report.figure import SIGNED, VALUE, Dash, Figure, Line, Lines
from asymtrain.lab.report.table import Cell, Column, Table, interval, missing_cells
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.studies.paper.comparisons import PairedCell, compare, effect_of, specs_of
from asymtrain.lab.studies.paper.evidence import Evidence, Quantity, by_reading, first_epochs
from asymtrain.lab.studies.paper.numbers import note_text, printed
from asymtrain.lab.studies.paper.recipe import RecipeOutput, recipe
from asymtrain.lab.studies.paper.recipes.accuracy import DOSE
from asymtrain.lab.studies.paper.study import (
    ARCHS,
    LONG,
    Part,
    Reading,
    Scope,
    asymmetric_spec,
    over_seeds,
    readings_for,
    stands_note,
    table_values,
    unique,
)
from asymtrain.lab.studies.paper.tables import (
    DIFFERENCE_NOTE,
    READING,
    N,
    arch_cell,
    curve_line,
    difference_cells,
    difference_columns,
    has_points,
    number,
)
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.study import Needs
from asymtrain.lab.studies.timing import class_count
from asymtrain.models import display_name

# Tables 2 and 15, Figure 2: the cosine between the gradients of the two objectives

STATISTICS = {"final": "final", "average": "mean", "min": "min", "max": "max"}
"""The paper's words, and the corresponding fields of `RunConflict`."""
COLUMNS = (
    Column("Backbone"),
    Column("Branches"),
    READING,
    *(number(name, signed=True) for name in ("Final", "Average", "Interval of the average", "Least", "Largest")),
    Column("In conflict", "share", digits=0),
    N,
    *(number(name, 4, signed=True, papers=True) for name in ("final", "average", "least", "largest")),
    number("Difference of the average", signed=True, against_paper="Difference: our average less the paper's."),
)
BRANCHES = {"trained": "as trained", "frozen": "frozen at initialisation", "detached": "on detached features"}


def specs_for(study: Scope, reading: Reading, arch: str, variant: str) -> tuple[RunSpec, ...]:
    """The runs whose cosine is measured: Table 1's at N = 20, with branches as the variant says."""
    values = table_values(study, arch, DOSE)
    spec = asymmetric_spec(study, reading, arch, "cifar100", values, DOSE, VARIANTS[variant])
    return over_seeds(study, spec)


def groups(study: Scope) -> list[tuple[Reading, str, str]]:
    """Reading, backbone and variant of each row; variants other than the first have the primary reading only."""
    trained = readings_for(study, DOSE, "training")
    rows = [(reading, arch, "trained") for arch in ARCHS for reading in trained]
    rows += [(study.readings[0], arch, variant) for arch in ARCHS for variant in ("frozen", "detached")]
    return rows


def make_table2(study: Scope, snapshot: Snapshot) -> RecipeOutput:
    rows, evidence = [], list[tuple[str, Evidence]]()
    for reading, arch, variant in groups(study):
        runs = [first_epochs(run, study.window) for run in snapshot.of(specs_for(study, reading, arch, variant))]
        conflict = conflicts(runs)[0] if runs else None
        rows.append(_cosine_row(reading, arch, variant, conflict))
        names = [reading.name] if variant == "trained" else []
        names += [r.name for r in study.readings if r.changes == "instruments" and r.signal == variant]
        if conflict is not None:
            evidence += [(name, quantity) for name in names for quantity in _quantities(study, arch, conflict)]
    note = note_text("table2", epochs=study.window, dose=DOSE)
    table = Table("table2", "Tables 2 and 15: gradient cosine", COLUMNS, tuple(rows), note)
    return RecipeOutput((table,), (_figure2(study, snapshot),), by_reading(evidence))


def _cosine_row(reading: Reading, arch: str, variant: str, conflict: Conflict | None) -> tuple[Cell, ...]:
    heading = (arch_cell(arch), Cell(BRANCHES[variant]), Cell(reading.title))
    paper = [printed(f"table2/{arch}/{name}").value for name in STATISTICS]
    papers, average = map(Cell, paper), paper[1]
    if conflict is None:
        return (*heading, *missing_cells(7), *papers, *missing_cells())
    ids, mean = tuple(run.id for run in conflict.runs), conflict.mean

    def cell(value: float | None) -> Cell:
        return Cell("undefined" if value is None else value, ids)

    return (
        *heading,
        cell(conflict.final.mean),
        cell(mean.mean),
        Cell(interval(mean.low, mean.high), ids),
        cell(conflict.min.mean),
        cell(conflict.max.mean),
        cell(conflict.conflict.mean),
        Cell(mean.n, ids),
        *papers,
        cell(None if mean.mean is None or average is None else mean.mean - average),
    )


def _quantities(study: Scope, arch: str, conflict: Conflict) -> Iterator[Quantity]:
    for name, field in STATISTICS.items():
        runs: list[RunConflict] = [run for run in conflict.runs if getattr(run, field) is not None]
        if runs:
            values = tuple(float(getattr(run, field)) for run in runs)
            ids, seeds = tuple(run.id for run in runs), tuple(run.seed for run in runs)
            yield Quantity(f"table2/{arch}/{name}", values, study.window, ids, seeds, study.stand_in)


def _figure2(study: Scope, snapshot: Snapshot) -> Figure:
    title = "Figure 2: gradient cosine over training"
    lines = []
    for arch in ARCHS:
        runs = snapshot.of(specs_for(study, study.readings[0], arch, "trained"))
        finished = [first_epochs(run, study.window) for run in runs if run.outcome == "finished"]
        line = curve(finished, CURVES["cosine"], within=BOUNDS["cosine"])
        lines.append(curve_line(display_name(arch), arch, line, seeds=True))
    if not has_points(lines):
        return Figure("figure2", title, (), caption="Waits for the runs of Table 2.")
    panel = Lines("", "epoch", "gradient cosine", tuple(lines), zero=True, written=SIGNED)
    caption = "Mean over each epoch's measured steps, branches as trained; thin lines are seeds, thick ones their mean."
    return Figure("figure2", title, (panel,), caption=caption)


# Tables 3 and 4, Figures 3 and 8: trajectories

GAP_EPOCHS = (10, 50, 100)


def comparisons(study: Scope, *more: Part) -> list[PairedCell]:
    """The runs of Table 1 at N = 20. A constant learning rate makes their first 100 epochs a run of 100 epochs."""
    return [
        compare(study, reading, arch, (display_name(arch),), arch, "cifar100", table_values(study, arch, DOSE), DOSE)
        for reading in readings_for(study, DOSE, "training", *more)
        for arch in ARCHS
    ]


def needs(study: Scope, snapshot: Snapshot, *more: Part) -> Needs:
    return Needs(specs_of(comparisons(study, *more)))


def convergence(run: Run) -> float | None:
    """First epoch within 1% of the best validation accuracy; None for a diverged run."""
    accuracies = [epoch.validation_accuracy for epoch in run.history if epoch.validation_accuracy is not None]
    return float(convergence_epoch(accuracies)) if accuracies and run.outcome == "finished" else None


def final(run: Run) -> float | None:
    """Validation accuracy at the end; chance for a diverged run."""
    if run.outcome == "diverged":
        return 1 / class_count(run.spec)
    return run.history[-1].validation_accuracy


def gap_at(number: int) -> Callable[[Run], float | None]:
    """Training minus validation accuracy at an epoch; None if the run did not reach it."""
    return lambda run: gap(run.history[number - 1]) if len(run.history) >= number else None


Look = Callable[[Run], float | None]
Readout = tuple[str, int, Look]  # the end of its label, its epoch, and how to read it from a run
Rows = tuple[tuple[Cell, ...], ...]


def _rows(
    study: Scope,
    snapshot: Snapshot,
    evidence: list[tuple[str, Evidence | None]],
    table: str,
    readouts: Sequence[Readout],
    *more: Part,
    epochs: bool = False,
    whole: str = "",
) -> Rows:
    """A row for each reading, backbone and readout. Adds to the evidence.

    `epochs`: add a column for the epoch. `whole`: over all epochs, under a label that begins with this.
    """
    cells = []
    for comparison in comparisons(study, *more):
        for name, epoch, value in readouts:
            printed_label = f"{table}/{comparison.arch}/{name}"
            label = f"{whole}/{comparison.arch}" if whole else printed_label
            # If the learning rate falls until the end, the first epochs do not equal a shorter run.
            window = study.epochs if whole or comparison.reading.changes == "recipe" else None

            def look(*pair: Run, value: Look = value, count: int = window or study.window) -> list[float | None]:
                return [value(first_epochs(run, count)) for run in pair]

            measured = effect_of(snapshot, dataclasses.replace(comparison, label=label), look, window or epoch)
            evidence.append((comparison.reading.name, measured))
            head = [arch_cell(comparison.arch), *([Cell(str(epoch))] if epochs else [])]
            cells.append((*head, Cell(comparison.reading.title), *difference_cells(measured, printed(printed_label))))
    return tuple(cells)


def make_table3(study: Scope, snapshot: Snapshot) -> RecipeOutput:
    evidence, first = list[tuple[str, Evidence | None]](), "Table 3: convergence epoch"
    falling = " All of them where the schedule falls." if any(r.changes == "recipe" for r in study.readings) else ""
    note = note_text("table3", epochs=study.window, falling=falling, difference=DIFFERENCE_NOTE)
    # For one run the epoch is a whole number, and the paper prints one.
    epochs = (Column("Backbone"), READING, *difference_columns(1, printed_digits=0))
    converged: list[Readout] = [("convergence", study.window, convergence)]
    rows = _rows(study, snapshot, evidence, "table3", converged, "recipe")
    ends = _rows(study, snapshot, evidence, "table3", [("final", study.window, final)], "recipe")
    accuracies = (Column("Backbone"), READING, *difference_columns(4))
    tables = [
        Table("table3-convergence", first, epochs, rows, note),
        Table("table3-final", "Table 3: final validation accuracy", accuracies, ends, note),
    ]
    if study.epochs > study.window:  # a run that still improves at epoch 100 converges at its last epoch there
        rows = _rows(study, snapshot, evidence, "table3", converged, "recipe", whole="convergence")
        note = note_text("table3-whole", epochs=study.window, long=LONG, difference=DIFFERENCE_NOTE)
        title = f"{first} over all {study.epochs} epochs"
        tables.append(Table("table3-convergence-whole", title, epochs, rows, note))
    return RecipeOutput(tuple(tables), evidence=by_reading(evidence))


def make_table4(study: Scope, snapshot: Snapshot) -> RecipeOutput:
    evidence: list[tuple[str, Evidence | None]] = []
    gaps = [(str(epoch), study.at(epoch), gap_at(study.at(epoch))) for epoch in GAP_EPOCHS]
    rows = _rows(study, snapshot, evidence, "table4", gaps, epochs=True)
    note = note_text("table4", stands=stands_note(study, GAP_EPOCHS), difference=DIFFERENCE_NOTE)
    columns = (Column("Backbone"), Column("Epoch"), READING, *difference_columns(4))
    table = Table("table4", "Table 4: generalisation gap", columns, rows, note)
    return RecipeOutput((table,), evidence=by_reading(evidence))


def _lines(sides: Mapping[str, list[Run]], what: str, dash: Dash = "solid", suffix: str = "") -> list[Line]:
    lines = [
        curve_line(f"{name.capitalize()}{suffix}", name, curve(runs, CURVES[what], within=BOUNDS[what]), dash=dash)
        for name, runs in sides.items()
    ]
    return [line for line in lines if has_points([line])]


def _trained(study: Scope, snapshot: Snapshot) -> tuple[dict[str, dict[str, list[Run]]], str]:
    """By backbone, both sides if they are there, and a note on those that are still to come."""
    trained, absent = dict[str, dict[str, list[Run]]](), []
    for row in comparisons(study)[: len(ARCHS)]:  # of the primary reading
        sides = {
            name: [first_epochs(run, study.window) for run in snapshot.of(specs) if run.outcome == "finished"]
            for name, specs in (("plain", row.plain), ("asymmetric", row.asymmetric))
        }
        if all(sides.values()):
            trained[row.arch] = sides
        else:
            absent.append(display_name(row.arch))
    return trained, f" To come: {', '.join(absent)}." if absent else ""


def _waits(name: str, title: str) -> RecipeOutput:
    return RecipeOutput(figures=(Figure(name, title, (), caption=f"Waits for the runs of Table 1 at N = {DOSE}."),))


def make_figure3(study: Scope, snapshot: Snapshot) -> RecipeOutput:
    title, panels, words = "Figure 3: learning trajectories", list[Lines](), []
    trained, to_come = _trained(study, snapshot)
    if not trained:
        return _waits("figure3", title)
    for arch, sides in trained.items():
        name, parted = display_name(arch), parting(sides["plain"], sides["asymmetric"]).epoch
        marks = () if parted is None else (float(parted),)
        words.append(f"{name} {'never' if parted is None else f'at epoch {parted}'}")
        accuracy = [*_lines(sides, "validation_accuracy"), *_lines(sides, "train_accuracy", "dashed", ", training")]
        loss, gaps = _lines(sides, "main_loss"), _lines(sides, "gap")
        panels += [
            Lines(f"{name}: accuracy", "epoch", "accuracy", tuple(accuracy), marks, about=arch, written=VALUE),
            Lines(f"{name}: main loss", "epoch", "main loss", tuple(loss), log=True, about=arch),
            Lines(f"{name}: gap", "epoch", "training - validation", tuple(gaps), zero=True, about=arch, written=VALUE),
        ]
    caption = note_text("figure3", parted="; ".join(words), to_come=to_come)
    return RecipeOutput(figures=(Figure("figure3", title, panels, 3, caption),))


def make_figure8(study: Scope, snapshot: Snapshot) -> RecipeOutput:
    title, top, bottom = "Figure 8: loss components and gradient norms", list[Lines](), list[Lines]()
    trained, to_come = _trained(study, snapshot)
    if not trained:
        return _waits("figure8", title)
    norms_of_plain = False
    for arch, sides in trained.items():
        for panels, what, words, label in ((top, "loss", "loss", "loss"), (bottom, "norm", "gradient norm", "norm")):
            main = _lines(sides, f"main_{what}", suffix=", main")
            auxiliary = _lines(sides, f"auxiliary_{what}", "dashed", ", auxiliary")
            heading = f"{display_name(arch)}: {words}"
            panels.append(Lines(heading, "epoch", label, (*main, *auxiliary), log=True, about=arch))
        norms_of_plain |= any(line.colour == "plain" for line in bottom[-1].lines)
    caption = (
        "Mean over seeds with its 95% interval. Auxiliary loss and gradient are those of the branches, before alpha."
    )
    if not norms_of_plain:
        caption += " Gradient norms are recorded where the cosine is, so Plain has none."
    return RecipeOutput(figures=(Figure("figure8", title, (*top, *bottom), len(trained), f"{caption}{to_come}"),))


RECIPES = (
    recipe("table2", lambda study, _: Needs(unique(specs_for(study, *group) for group in groups(study))), make_table2),
    recipe("table3", lambda study, snapshot: needs(study, snapshot, "recipe"), make_table3),
    recipe("table4", needs, make_table4),
    recipe("figure3", needs, make_figure3),
    recipe("figure8", needs, make_figure8),
)
