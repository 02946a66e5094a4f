"""Tables 3 and 4, Figures 3 and 8: how training goes with and without branches."""

from collections.abc import Callable, Sequence
from typing import Any

from asymtrain.lab.instruments.trajectory.trajectory import BOUNDS, CURVES, convergence_epoch, curve, gap, parting
from asymtrain.lab.paper.comparisons import Comparison, compare, specs_of
from asymtrain.lab.paper.differences import COLUMNS, NOTE, difference_cells
from asymtrain.lab.paper.evidence import Effect
from asymtrain.lab.paper.known import Snapshot, class_count, first_epochs
from asymtrain.lab.paper.numbers import printed
from asymtrain.lab.paper.panels import Line, Panel, Panels, curve_line, has_points
from asymtrain.lab.paper.recipe import Draw, Needs, Recipe, RecipeOutput
from asymtrain.lab.paper.recipes.table01 import DOSE
from asymtrain.lab.paper.result import Cell, ResultFigure, ResultTable
from asymtrain.lab.paper.sizes import ARCHS
from asymtrain.lab.paper.study import Study, readings_for, stands_note, table_values
from asymtrain.lab.runs import NAMES, Run

GAP_EPOCHS = (10, 50, 100)


def comparisons(study: Study) -> list[Comparison]:
    """The runs of Table 1 at N = 20. A constant learning rate makes their first 100 epochs a run of 100 epochs."""
    return [
        compare(
            study, reading, arch, (NAMES[arch],), arch, "cifar100", table_values(study, arch, DOSE), DOSE
        )
        for reading in readings_for(study, DOSE, "training")
        for arch in ARCHS
    ]  # fmt: skip


def needs(study: Study, known: Snapshot) -> Needs:
    """They are Table 1's."""
    return Needs(specs_of(comparisons(study)))


def effect(
    study: Study, known: Snapshot, one: Comparison, label: str, epochs: int, value: Callable[[Run], float | None]
) -> Effect | None:
    """A value of each run's first 100 epochs, paired by seed; pairs without it are left out."""
    pairs = []
    for plain, asymmetric in zip(one.plain, one.asymmetric, strict=True):
        if plain.id in known.runs and asymmetric.id in known.runs:
            runs = [first_epochs(known.runs[spec.id], study.window) for spec in (plain, asymmetric)]
            before, after = map(value, runs)
            if before is not None and after is not None:
                pairs.append((plain, asymmetric, before, after))
    if not pairs:
        return None
    return Effect(
        label,
        plain=tuple(before for _, _, before, _ in pairs),
        asymmetric=tuple(after for _, _, _, after in pairs),
        epochs=epochs,
        spec_ids=tuple(spec.id for plain, asymmetric, _, _ in pairs for spec in (plain, asymmetric)),
        seeds=tuple(plain.seed for plain, _, _, _ in pairs),
        stand_in=study.stand_in,
    )


def convergence(run: Run) -> float | None:
    """First epoch within 1% of the best validation accuracy; none for a diverged run."""
    seen = [epoch.validation_accuracy for epoch in run.history if epoch.validation_accuracy is not None]
    return float(convergence_epoch(seen)) if seen and run.outcome == "finished" else None


def final(run: Run) -> float | None:
    """Validation accuracy at the end; chance for a diverged run."""
    if run.outcome == "diverged":
        return 1 / class_count(run.spec)
    return run.history[-1].validation_accuracy


def gap_at(number: int) -> Callable[[Run], float | None]:
    """Training less validation accuracy at an epoch; none where the run did not reach it."""
    return lambda run: gap(run.history[number - 1]) if len(run.history) >= number else None


def _table(
    study: Study,
    known: Snapshot,
    cells: Sequence[tuple[str, str, str, int, Callable[[Run], float | None]]],
    digits: int,
    printed_digits: int | None = None,
) -> tuple[list[tuple[Cell, ...]], dict[str, dict[str, Any]]]:
    """Rows and evidence of cells (backbone, what, label, epochs, value), for each reading."""
    rows, evidence = [], dict[str, dict[str, Any]]()
    for one in comparisons(study):
        for arch, what, label, epochs, value in cells:
            if arch != one.plain[0].arch:
                continue
            found = effect(study, known, one, label, epochs, value)
            if found is not None:
                evidence.setdefault(one.reading.name, {})[label] = found
            head = (Cell(NAMES[arch]), Cell(what), Cell(one.reading.title))
            rows.append((*head, *difference_cells(found, printed(label), digits, printed_digits)))
    return rows, evidence


def make_table3(study: Study, known: Snapshot, draw: Draw) -> RecipeOutput:
    """Convergence epoch and final validation accuracy."""
    tables, evidence = [], dict[str, dict[str, Any]]()
    for what, title, value, digits, printed_digits in (
        ("convergence", "Table 3: convergence epoch", convergence, 1, 0),  # of one run it is a whole number
        ("final", "Table 3: final validation accuracy", final, 4, 4),
    ):
        cells = [(arch, what, f"table3/{arch}/{what}", study.window, value) for arch in ARCHS]
        rows, found = _table(study, known, cells, digits, printed_digits)
        shown = tuple((row[0], *row[2:]) for row in rows)
        note = (
            f"First {study.window} epochs. Converged: the first epoch within 1% of the best validation accuracy. {NOTE}"
        )
        tables.append(ResultTable(f"table3-{what}", title, ("Backbone", "Reading", *COLUMNS), shown, note))
        for reading, labelled in found.items():
            evidence.setdefault(reading, {}).update(labelled)
    return RecipeOutput(tuple(tables), evidence=evidence)


def make_table4(study: Study, known: Snapshot, draw: Draw) -> RecipeOutput:
    """Training less validation accuracy at three epochs."""
    cells = [
        (arch, str(study.at(epoch)), f"table4/{arch}/{epoch}", study.at(epoch), gap_at(study.at(epoch)))
        for arch in ARCHS
        for epoch in GAP_EPOCHS
    ]
    rows, evidence = _table(study, known, cells, 4)
    note = (
        "Training accuracy is that of the batches as they were trained, dropout included: so the gap may be negative."
    )
    note += f" {stands_note(study, GAP_EPOCHS)}{NOTE}"
    columns = ("Backbone", "Epoch", "Reading", *COLUMNS)
    return RecipeOutput(
        (ResultTable("table4", "Table 4: generalisation gap", columns, tuple(rows), note),), evidence=evidence
    )


def _sides(study: Study, known: Snapshot, one: Comparison) -> dict[str, list[Run]]:
    sides = {"plain": one.plain, "asymmetric": one.asymmetric}
    return {
        name: [first_epochs(run, study.window) for run in known.of(specs) if run.outcome == "finished"]
        for name, specs in sides.items()
    }


def _lines(sides: dict[str, list[Run]], what: str, dash: Any = "solid", suffix: str = "") -> list[Line]:
    lines = [
        curve_line(f"{name.capitalize()}{suffix}", name, curve(runs, CURVES[what], within=BOUNDS[what]), dash=dash)  # type: ignore[arg-type]
        for name, runs in sides.items()
    ]
    return [line for line in lines if has_points([line])]


def _trained(study: Study, known: Snapshot) -> tuple[list[tuple[str, dict[str, list[Run]]]], str]:
    """Both sides of the backbones that have them, by name, and a word on those that are still to come."""
    found = [(one.heading[0], _sides(study, known, one)) for one in comparisons(study)[: len(ARCHS)]]
    there = [(name, sides) for name, sides in found if all(sides.values())]
    absent = [name for name, sides in found if not all(sides.values())]
    return there, f" To come: {', '.join(absent)}." if absent else ""


def _waits(name: str, title: str) -> RecipeOutput:
    caption = f"Waits for the runs of Table 1 at N = {DOSE}."
    return RecipeOutput(figures=(ResultFigure(name, title, "", caption, missing=True),))


def make_figure3(study: Study, known: Snapshot, draw: Draw) -> RecipeOutput:
    """Accuracy, loss and gap of each backbone, with the epoch at which the curves part."""
    title, panels, words = "Figure 3: learning trajectories", [], []
    there, to_come = _trained(study, known)
    if not there:
        return _waits("figure3", title)
    for name, sides in there:
        parted = parting(sides["plain"], sides["asymmetric"]).epoch
        marks = () if parted is None else (float(parted),)
        words.append(f"{name} {'never' if parted is None else f'at epoch {parted}'}")
        accuracy = [*_lines(sides, "validation_accuracy"), *_lines(sides, "train_accuracy", "dashed", ", training")]
        panels += [
            Panel(f"{name}: accuracy", "epoch", "accuracy", tuple(accuracy), marks),
            Panel(f"{name}: main loss", "epoch", "main loss", tuple(_lines(sides, "main_loss")), log=True),
            Panel(f"{name}: gap", "epoch", "training - validation", tuple(_lines(sides, "gap")), zero=True),
        ]
    caption = (
        "Mean over seeds with its 95% interval, or with each seed where there are few; dashed is training "
        "accuracy. The vertical line is the first epoch from which "
        f"the interval of the paired difference in validation accuracy stays off 0: {'; '.join(words)}.{to_come}"
    )
    svg = draw("panels", "figure3", Panels(title, tuple(panels), columns=3))
    return RecipeOutput(figures=(ResultFigure("figure3", title, svg, caption),))


def make_figure8(study: Study, known: Snapshot, draw: Draw) -> RecipeOutput:
    """Loss components, then gradient norms, of each backbone."""
    title, top, bottom = "Figure 8: loss components and gradient norms", [], []
    there, to_come = _trained(study, known)
    if not there:
        return _waits("figure8", title)
    for name, sides in there:
        losses = [
            *_lines(sides, "main_loss", suffix=", main"),
            *_lines(sides, "auxiliary_loss", "dashed", ", auxiliary"),
        ]
        norms = [
            *_lines(sides, "main_norm", suffix=", main"),
            *_lines(sides, "auxiliary_norm", "dashed", ", auxiliary"),
        ]
        top.append(Panel(f"{name}: loss", "epoch", "loss", tuple(losses), log=True))
        bottom.append(Panel(f"{name}: gradient norm", "epoch", "norm", tuple(norms), log=True))
    caption = (
        "Mean over seeds with its 95% interval. Auxiliary loss and gradient are those of the branches, before alpha."
    )
    if not any(line.label.startswith("Plain") for panel in bottom for line in panel.lines):
        caption += " Gradient norms are recorded where the cosine is, so Plain has none."
    svg = draw("panels", "figure8", Panels(title, (*top, *bottom), columns=len(there)))
    return RecipeOutput(figures=(ResultFigure("figure8", title, svg, f"{caption}{to_come}"),))


HOW = (
    f"From the runs of Table 1 at N = {DOSE}: with a constant learning rate, their first 100 epochs are a run of 100 "
    "epochs."
)
RECIPES = (
    Recipe("table3", ("table3",), "Table 3: convergence and final validation accuracy",
           "Does the CNN converge early to a worse solution, and the ViT later to a better one?", HOW,
           ("c13", "c14", "c15"), needs, make_table3),
    Recipe("table4", ("table4",), "Table 4: generalisation gap",
           "Do branches shrink the gap between training and validation accuracy?", HOW, ("c16", "c17"),
           needs, make_table4),
    Recipe("figure3", ("figure3",), "Figure 3: learning trajectories",
           "When do the ways of training part?", HOW, (), needs, make_figure3),
    Recipe("figure8", ("figure8",), "Figure 8: loss components and gradient norms",
           "How do the two losses and their gradients develop?", HOW, (), needs, make_figure8),
)  # fmt: skip
