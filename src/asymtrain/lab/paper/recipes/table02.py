"""Tables 2 and 15, Figure 2: the cosine between the gradients of the two objectives."""

from typing import Any, cast

from asymtrain.lab.instruments.alignment.conflict import VARIANTS, Conflict, RunConflict, conflicts
from asymtrain.lab.instruments.trajectory.trajectory import BOUNDS, CURVES, curve
from asymtrain.lab.paper.evidence import Quantity
from asymtrain.lab.paper.known import Snapshot, first_epochs
from asymtrain.lab.paper.numbers import printed
from asymtrain.lab.paper.panels import Colour, Panel, Panels, curve_line, has_points
from asymtrain.lab.paper.readings import Reading
from asymtrain.lab.paper.recipe import Draw, Needs, Recipe, RecipeOutput
from asymtrain.lab.paper.recipes.table01 import DOSE
from asymtrain.lab.paper.result import Cell, ResultFigure, ResultTable, missing_cell
from asymtrain.lab.paper.sizes import ARCHS
from asymtrain.lab.paper.study import Study, asymmetric_spec, over_seeds, readings_for, table_values, unique
from asymtrain.lab.runs import NAMES, RunSpec

STATISTICS = {"final": "final", "average": "mean", "min": "min", "max": "max"}
"""The paper's words, and those of `RunConflict`."""
BRANCHES = {"trained": "as trained", "frozen": "frozen at initialisation", "detached": "on detached features"}


def specs_for(study: Study, reading: Reading, arch: str, variant: str) -> tuple[RunSpec, ...]:
    """The runs whose cosine is taken: Table 1's at N = 20, with branches as the variant says."""
    values = table_values(study, arch, DOSE)
    return over_seeds(study, asymmetric_spec(study, reading, arch, "cifar100", values, DOSE, VARIANTS[variant]))


def groups(study: Study) -> list[tuple[Reading, str, str]]:
    """Reading, backbone and variant of each row; the variants beside the first are of the primary reading."""
    trained = readings_for(study, DOSE, "training")
    rows = [(reading, arch, "trained") for arch in ARCHS for reading in trained]
    rows += [(study.readings[0], arch, variant) for arch in ARCHS for variant in ("frozen", "detached")]
    return rows


def needs(study: Study, known: Snapshot) -> Needs:
    """The runs of every row."""
    return Needs(unique(specs_for(study, *group) for group in groups(study)))


def make(study: Study, known: Snapshot, draw: Draw) -> RecipeOutput:
    """The table with its variants, and the curve of each backbone."""
    found = {(*group[1:], group[0].name): _conflict(study, known, *group) for group in groups(study)}
    rows, evidence = [], dict[str, dict[str, Any]]()
    for reading, arch, variant in groups(study):
        conflict = found[arch, variant, reading.name]
        rows.append(_row(reading, arch, variant, conflict))
        names = [reading.name] if variant == "trained" else []
        names += [r.name for r in study.readings if r.changes == "instruments" and r.signal == variant]
        for name in names if conflict else []:
            assert conflict is not None
            evidence.setdefault(name, {}).update(_quantities(study, arch, conflict))
    columns = ("Backbone", "Branches", "Reading", "Final", "Average", "Interval of the average", "Least", "Largest",
               "In conflict", "n", "Paper: final", "Paper: average", "Paper: least", "Paper: largest",
               "Difference of the average")  # fmt: skip
    note = (
        f"Over the first {study.window} epochs of the runs of Table 1 at N = {DOSE}. Average: over epochs; least and "
        "largest: of a single measured step, as a mean over seeds. The interval is a 95% t interval over seeds, "
        "not corrected; verdicts correct theirs for the cells."
    )
    table = ResultTable("table2", "Tables 2 and 15: gradient cosine", columns, tuple(rows), note)
    return RecipeOutput((table,), (_figure(study, known, draw),), evidence)


def _conflict(study: Study, known: Snapshot, reading: Reading, arch: str, variant: str) -> Conflict | None:
    runs = [first_epochs(run, study.window) for run in known.of(specs_for(study, reading, arch, variant))]
    return conflicts(runs)[0] if runs else None


def _row(reading: Reading, arch: str, variant: str, conflict: Conflict | None) -> tuple[Cell, ...]:
    heading = (Cell(NAMES[arch]), Cell(BRANCHES[variant]), Cell(reading.title))
    paper = [printed(f"table2/{arch}/{name}").value for name in STATISTICS]
    theirs = tuple(Cell("—" if value is None else f"{value:+.4f}", value) for value in paper)
    if conflict is None:
        return (*heading, *(missing_cell() for _ in range(7)), *theirs, missing_cell())
    ids = tuple(run.id for run in conflict.runs)

    def cell(value: float | None, text: str = "{:+.3f}") -> Cell:
        return Cell("undefined" if value is None else text.format(value), value, ids)

    mean = conflict.mean
    spread = "—" if mean.low is None or mean.high is None else f"{mean.low:+.3f} to {mean.high:+.3f}"
    ours = (
        cell(conflict.final.mean),
        cell(mean.mean),
        Cell(spread, None, ids),
        cell(conflict.min.mean),
        cell(conflict.max.mean),
        cell(conflict.conflict.mean, "{:.0%}"),
        Cell(str(mean.n), mean.n, ids),
    )
    said = paper[1]
    apart = None if mean.mean is None or said is None else mean.mean - said
    return (*heading, *ours, *theirs, cell(apart))


def _quantities(study: Study, arch: str, conflict: Conflict) -> dict[str, Quantity]:
    found = {}
    for name, field in STATISTICS.items():
        seen: list[RunConflict] = [run for run in conflict.runs if getattr(run, field) is not None]
        if seen:
            label = f"table2/{arch}/{name}"
            values = tuple(float(getattr(run, field)) for run in seen)
            ids, seeds = tuple(run.id for run in seen), tuple(run.seed for run in seen)
            found[label] = Quantity(label, values, study.window, ids, seeds, study.stand_in)
    return found


def _figure(study: Study, known: Snapshot, draw: Draw) -> ResultFigure:
    title = "Figure 2: gradient cosine over training"
    lines = []
    for arch in ARCHS:
        runs = [
            run for run in known.of(specs_for(study, study.readings[0], arch, "trained")) if run.outcome == "finished"
        ]
        shown = curve([first_epochs(run, study.window) for run in runs], CURVES["cosine"], within=BOUNDS["cosine"])
        lines.append(curve_line(NAMES[arch], cast(Colour, arch), shown, seeds=True))
    if not has_points(lines):
        return ResultFigure("figure2", title, "", "Waits for the runs of Table 2.", missing=True)
    panel = Panel("", "epoch", "gradient cosine", tuple(lines), zero=True)
    caption = "Mean over each epoch's measured steps, branches as trained; thin lines are seeds, thick ones their mean."
    return ResultFigure("figure2", title, draw("panels", "figure2", Panels(title, (panel,))), caption)


RECIPE = Recipe(
    name="table2",
    covers=("table2", "table15", "figure2"),
    title="Tables 2 and 15, Figure 2: gradient conflict",
    question="Do the gradients of the two objectives agree in the ViT and conflict in the CNN?",
    how="Cosine between the gradients of the main and of the auxiliary loss over all shared parameters, on training "
    "batches, every 16th step; with branches as trained, frozen at initialisation, and on detached features.",
    claims=("c07", "c08", "c09", "c10", "c11", "c12"),
    needs=needs,
    make=make,
)
