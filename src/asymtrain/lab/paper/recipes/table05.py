"""Tables 5 and 6, Figure 6: the loss surface around initial networks."""

import math
from typing import Any

import numpy as np

from asymtrain.lab.paper.evidence import Effect, Evidence
from asymtrain.lab.paper.measurements import CASES, LANDSCAPE_LEVELS, landscapes_wanted
from asymtrain.lab.paper.numbers import printed
from asymtrain.lab.paper.recipe import Measuring, Needs, Recipe, RecipeOutput
from asymtrain.lab.paper.snapshot import Snapshot
from asymtrain.lab.paper.study import Study, shown_dataset
from asymtrain.lab.paper.tables import NOTHING, N, arch_cell, ends_of, number, percent
from asymtrain.lab.report.figure import Figure, Surface
from asymtrain.lab.report.table import Cell, Column, Table, missing_cells
from asymtrain.lab.statistics import t_interval
from asymtrain.models import display_name

STATISTICS = {"std_loss": "std", "range_loss": "range", "mean_grad": "mean_gradient"}
"""The paper's words, and those of `SurfaceStatistics`."""
TABLES = {"mlp": "table5", "cnn": "table6", "vit": "table6"}
COLUMNS = (
    Column("Backbone"),
    Column("Directions"),
    Column("N"),
    Column("Parameters", "millions", digits=2),
    number("Deviation", significant=True),
    percent("Change"),
    percent("Interval"),
    percent("By parameter count"),
    number("Range", significant=True),
    percent("Change of range"),
    number("Mean gradient", significant=True),
    percent("Change of gradient"),
    number("Plane's R²", 4),
    N,
    percent("change of deviation", papers=True),
    number("Difference", 1, signed=True),
)
VIEWS = {
    ("all", "variance"): "all parameters, unit variance",
    ("all", "norm"): "all parameters, unit norm",
    ("live", "norm"): "live parameters, unit norm",
}
Rows = dict[int, dict[int, list[dict[str, Any]]]]  # by redundancy and seed, a row for each draw


def needs(study: Study, known: Snapshot) -> Needs:
    return Needs(measurements=tuple(wanted for case in CASES for wanted in landscapes_wanted(study, *case)))


def make(study: Study, known: Snapshot) -> RecipeOutput:
    tables = {"table5": list[tuple[Cell, ...]](), "table6": list[tuple[Cell, ...]]()}
    evidence: dict[str, dict[str, Evidence]] = {}
    for arch, dataset in CASES:
        wanted = landscapes_wanted(study, arch, dataset)
        for view in VIEWS:
            rows = _rows(known, wanted, view)
            tables[TABLES[arch]] += [_row(wanted, arch, level, view, rows) for level in LANDSCAPE_LEVELS]
            for reading in study.readings:
                uses = ("all", "norm") if reading.unit_norm else ("all", "variance")
                if reading.changes in (None, "instruments") and view == uses and rows:
                    evidence.setdefault(reading.name, {}).update(
                        _effects(study, wanted, arch, rows, same=not reading.unit_norm)
                    )
    settings = landscapes_wanted(study, *CASES[0])[0].settings
    note = (
        f"{settings.grid} x {settings.grid} grid, {settings.sample} images, {settings.draws} "
        f"draw{'s' if settings.draws > 1 else ''} of directions "
        "around each of n initial networks; main loss. All redundancies of a network share the directions. "
        "Changes are each network's own against its Plain, with a 95% t interval over networks, not corrected; the "
        "verdicts take them in percent of Plain's mean over networks, as everywhere, and correct for the cells, so "
        "their intervals are wider. 'By parameter count' is the change that the number of weights alone makes of a "
        "direction of unit norm. A plane's R² near 1 says that the surface is a tilted plane: deviation, range and "
        "gradient are then one number. Difference: our change less the paper's, in points. The paper does not state "
        f"the length of its directions, so only changes compare; its own deviations of Plain are {_paper_deviations()}."
    )
    made = tuple(
        Table(name, f"{title}: {shown_dataset(study, data)}", COLUMNS, tuple(tables[name]), note)
        for name, title, data in (
            ("table5", "Table 5: initial loss landscape, MLP", "cifar10"),
            ("table6", "Table 6: initial loss landscape, CNN and ViT", "cifar100"),
        )
    )
    return RecipeOutput(made, (_figure(study, known),), evidence)


def _paper_deviations() -> str:
    plains = {arch: printed(f"{TABLES[arch]}/{arch}/1/std_loss").plain for arch, _ in CASES}
    return ", ".join(f"{plain} ({display_name(arch)})" for arch, plain in plains.items())


def _rows(known: Snapshot, wanted: tuple[Measuring, ...], view: tuple[str, str]) -> Rows:
    rows: Rows = {}
    for landscape in wanted:
        values = known.values(landscape.spec, landscape.name)
        for row in values[0]["rows"] if values else []:
            if (row["directions"], row["scaling"]) == view and row["std"] is not None:
                rows.setdefault(row["redundancy"], {}).setdefault(row["seed"], []).append(row)
    return rows


def _means(rows: Rows, level: int, name: str) -> dict[int, float]:
    """By seed, over draws."""
    of_level = rows.get(level, {})
    return {seed: math.fsum(row[name] for row in draws) / len(draws) for seed, draws in of_level.items()}


def _changes(rows: Rows, level: int, name: str) -> list[float]:
    plain, here = _means(rows, 0, name), _means(rows, level, name)
    return [100 * (here[seed] / plain[seed] - 1) for seed in plain if seed in here and plain[seed]]


def _row(wanted: tuple[Measuring, ...], arch: str, level: int, view: tuple[str, str], rows: Rows) -> tuple[Cell, ...]:
    label = f"{TABLES[arch]}/{arch}/{level}/std_loss"
    paper = printed(label).improvement if level else None
    head = (arch_cell(arch), Cell(VIEWS[view]), Cell("Plain" if level == 0 else f"{level}x"))
    if level not in rows:
        return (*head, *missing_cells(11), Cell(paper), *([NOTHING] if paper is None else missing_cells()))
    seeds, draws = rows[level].keys(), [row for members in rows[level].values() for row in members]
    ids = tuple(landscape.spec.id for landscape in wanted if landscape.spec.seed in seeds)

    def mean(name: str) -> float:
        return float(np.mean(list(_means(rows, level, name).values())))

    def change(name: str) -> float | None:
        changes = _changes(rows, level, name) if level else []
        return math.fsum(changes) / len(changes) if changes else None

    changes, moved = _changes(rows, level, "std"), change("std")
    values = (
        draws[0]["parameters"],
        mean("std"),
        moved,
        ends_of(t_interval(changes)) if level and len(changes) > 1 else None,
        _predicted(rows, level, view),
        mean("range"),
        change("range"),
        mean("mean_gradient"),
        change("mean_gradient"),
        math.fsum(row["plane_r2"] or 0.0 for row in draws) / len(draws),
        len(seeds),
    )
    apart = None if moved is None or paper is None else moved - paper
    return (*head, *(Cell(value, ids) for value in values), Cell(paper), Cell(apart, ids))


def _predicted(rows: Rows, level: int, view: tuple[str, str]) -> float | None:
    """What the number of weights alone makes of a direction of unit norm; nothing of one of unit variance."""
    if level == 0 or 0 not in rows:
        return None
    plain, here = (next(iter(rows[at].values()))[0] for at in (0, level))
    counted = here["parameters" if view[0] == "all" else "live_parameters"]
    return 100 * (math.sqrt(plain["parameters"] / counted) - 1) if view[1] == "norm" else 0.0


def _effects(study: Study, wanted: tuple[Measuring, ...], arch: str, rows: Rows, *, same: bool) -> dict[str, Effect]:
    """`same`: of unit variance, a step along the backbone is as long whatever branches there are."""
    effects = {}
    for level in LANDSCAPE_LEVELS[1:]:
        for paper_name, name in STATISTICS.items():
            plain, here = _means(rows, 0, name), _means(rows, level, name)
            seeds = tuple(sorted(set(plain) & set(here)))
            label = f"{TABLES[arch]}/{arch}/{level}/{paper_name}"
            ids = tuple(landscape.spec.id for landscape in wanted if landscape.spec.seed in seeds)
            sides = tuple(plain[seed] for seed in seeds), tuple(here[seed] for seed in seeds)
            if seeds:
                effects[label] = Effect(label, *sides, 0, ids, seeds, study.stand_in, same and sides[0] == sides[1])
    return effects


def _figure(study: Study, known: Snapshot) -> Figure:
    title = "Figure 6: loss surface of the MLP before training"
    first = landscapes_wanted(study, *CASES[0])[0]
    values = known.values(first.spec, first.name)
    if values is None:
        return Figure("figure6", title, (), caption="Waits for the measurement of Table 5.")
    surfaces = {(surface["scaling"], surface["redundancy"]): surface["losses"] for surface in values[0]["surfaces"]}
    panels = [
        _surface(f"{'Plain' if level == 0 else f'{level}x'}, {words}", surfaces[scaling, level], scaling)
        for scaling, words in (("variance", "unit variance"), ("norm", "unit norm"))
        for level in LANDSCAPE_LEVELS
    ]
    caption = (
        f"Seed {first.spec.seed}, first draw, directions over all parameters. Of unit variance, every redundancy has "
        "the same surface; of unit norm, more weights mean a smaller step for each, and the surface flattens."
    )
    return Figure("figure6", title, panels, len(LANDSCAPE_LEVELS), caption)


def _surface(title: str, losses: list[list[float | None]], scaling: str) -> Surface:
    """Each scaling has an extent of its own, so its row of the figure has a scale of its own.

    As differences from the middle: the loss there is the same for all, and much larger.
    """
    half = len(losses) // 2
    middle, ticks = losses[half][half], tuple(float(i - half) for i in range(len(losses)))
    values = tuple(tuple(None if loss is None or middle is None else loss - middle for loss in row) for row in losses)
    return Surface(title, ticks, ticks, values, "main loss - that in the middle", group=scaling)


RECIPES = (
    Recipe(
        name="table5",
        covers=("table5", "table6", "figure6"),
        title="Tables 5 and 6, Figure 6: the initial loss landscape",
        question="Does redundancy smooth the loss surface, or only shorten the step that a direction makes?",
        how="The loss of untrained networks on training images over a plane of two random directions. The paper does "
        "not say how long a direction is: both readings are shown, and directions over live parameters only as a "
        "control.",
        claims=("c18", "c19", "c20", "c21"),
        needs=needs,
        make=make,
    ),
)
