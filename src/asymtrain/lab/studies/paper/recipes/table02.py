"""Tables 2 and 15, Figure 2: the cosine between the gradients of the two objectives."""

from asymtrain.lab.instruments.alignment.measure import VARIANTS, Conflict, RunConflict, conflicts
from asymtrain.lab.instruments.curves import BOUNDS, CURVES, curve
from asymtrain.lab.report.figure import SIGNED, Figure, Lines
from asymtrain.lab.report.table import Cell, Column, Table, interval, missing_cells
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.studies.paper import study as studies
from asymtrain.lab.studies.paper.evidence import Evidence, Quantity, first_epochs
from asymtrain.lab.studies.paper.numbers import note_text, printed
from asymtrain.lab.studies.paper.recipe import RecipeOutput, recipe
from asymtrain.lab.studies.paper.recipes.table01 import DOSE
from asymtrain.lab.studies.paper.study import ARCHS, Reading, Scope, readings_for
from asymtrain.lab.studies.paper.tables import READING, N, arch_cell, curve_line, has_points, number
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.study import Needs
from asymtrain.models import display_name

STATISTICS = {"final": "final", "average": "mean", "min": "min", "max": "max"}
"""The paper's words, and those of `RunConflict`."""
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
    """The runs whose cosine is taken: Table 1's at N = 20, with branches as the variant says."""
    values = studies.table_values(study, arch, DOSE)
    spec = studies.asymmetric_spec(study, reading, arch, "cifar100", values, DOSE, VARIANTS[variant])
    return studies.over_seeds(study, spec)


def groups(study: Scope) -> list[tuple[Reading, str, str]]:
    """Reading, backbone and variant of each row; the variants beside the first are of the primary reading."""
    trained = readings_for(study, DOSE, "training")
    rows = [(reading, arch, "trained") for arch in ARCHS for reading in trained]
    rows += [(study.readings[0], arch, variant) for arch in ARCHS for variant in ("frozen", "detached")]
    return rows


def needs(study: Scope, snapshot: Snapshot) -> Needs:
    return Needs(studies.unique(specs_for(study, *group) for group in groups(study)))


def make(study: Scope, snapshot: Snapshot) -> RecipeOutput:
    rows, evidence = [], dict[str, dict[str, Evidence]]()
    for reading, arch, variant in groups(study):
        runs = [first_epochs(run, study.window) for run in snapshot.of(specs_for(study, reading, arch, variant))]
        conflict = conflicts(runs)[0] if runs else None
        rows.append(_row(reading, arch, variant, conflict))
        names = [reading.name] if variant == "trained" else []
        names += [r.name for r in study.readings if r.changes == "instruments" and r.signal == variant]
        if conflict is not None:
            for name in names:
                evidence.setdefault(name, {}).update(_quantities(study, arch, conflict))
    note = note_text("table2", epochs=study.window, dose=DOSE)
    table = Table("table2", "Tables 2 and 15: gradient cosine", COLUMNS, tuple(rows), note)
    return RecipeOutput((table,), (_figure(study, snapshot),), evidence)


def _row(reading: Reading, arch: str, variant: str, conflict: Conflict | None) -> tuple[Cell, ...]:
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


def _quantities(study: Scope, arch: str, conflict: Conflict) -> dict[str, Quantity]:
    quantities = {}
    for name, field in STATISTICS.items():
        runs: list[RunConflict] = [run for run in conflict.runs if getattr(run, field) is not None]
        if runs:
            label = f"table2/{arch}/{name}"
            values = tuple(float(getattr(run, field)) for run in runs)
            ids, seeds = tuple(run.id for run in runs), tuple(run.seed for run in runs)
            quantities[label] = Quantity(label, values, study.window, ids, seeds, study.stand_in)
    return quantities


def _figure(study: Scope, snapshot: Snapshot) -> Figure:
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


RECIPES = (recipe("table2", needs, make),)
