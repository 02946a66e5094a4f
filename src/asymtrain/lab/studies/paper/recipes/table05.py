"""Tables 5 and 6, Figure 6: the loss surface around initial networks."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from asymtrain.lab.report.figure import Figure, Surface
from asymtrain.lab.report.table import Cell, Column, Range, Table, Value, missing_cells
from asymtrain.lab.statistics import t_interval
from asymtrain.lab.studies.paper.evidence import Effect, Evidence, by_reading, paired
from asymtrain.lab.studies.paper.measurements import CASES, LANDSCAPE_LEVELS, LOSSES, landscapes_wanted, total_alpha
from asymtrain.lab.studies.paper.numbers import note_text, printed
from asymtrain.lab.studies.paper.recipe import Measuring, RecipeOutput, recipe
from asymtrain.lab.studies.paper.study import Scope
from asymtrain.lab.studies.paper.tables import NOTHING, N, arch_cell, ends_of, number, percent
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.study import Needs
from asymtrain.lab.texts import counted
from asymtrain.models import display_name

STATISTICS = {"std_loss": "std", "range_loss": "range", "mean_grad": "mean_gradient"}
"""The paper's words, and the corresponding fields of `SurfaceStatistics`."""
TABLES = {"mlp": "table5", "cnn": "table6", "vit": "table6"}
HEAD = (Column("Backbone"), Column("Directions"), Column("N"))
DIFFERENCE = "Difference: our change less the paper's, in points."
PAPERS = (
    percent("change of deviation", papers=True),
    number("Difference", 1, signed=True, against_paper=DIFFERENCE),
)
BESIDE = (
    *HEAD,
    number("Alpha", None),
    number("Deviation, main loss", significant=True),
    percent("Change, main loss"),
    number("Deviation, total loss", significant=True),
    percent("Change, total loss"),
    percent("Interval"),
    number("Plane's R²", 4),
    N,
)
BESIDE_NOTE = note_text("table5-total")
VIEWS = {
    ("all", "variance"): "all parameters, unit variance",
    ("all", "norm"): "all parameters, unit norm",
    ("live", "norm"): "live parameters, unit norm",
}
Rows = dict[int, dict[int, list[dict[str, Any]]]]  # by redundancy and seed, a row for each draw


def needs(study: Scope, snapshot: Snapshot) -> Needs:
    measurements = [landscapes_wanted(study, snapshot, *case, loss) for case in CASES for loss in LOSSES]
    return Needs(measurements=tuple(chain.from_iterable(measurements)))


def make(study: Scope, snapshot: Snapshot) -> RecipeOutput:
    tables: dict[str, list[tuple[Cell, ...]]] = {"table5": [], "table6": []}
    beside: dict[str, list[tuple[Cell, ...]]] = {"table5": [], "table6": []}
    evidence: list[tuple[str, Evidence | None]] = []
    for arch, dataset in CASES:
        of_losses = [landscapes_wanted(study, snapshot, arch, dataset, loss) for loss in LOSSES]
        measurements = of_losses[0]
        for view in VIEWS:
            rows, total = (_rows(snapshot, of_loss, view) for of_loss in of_losses)
            tables[TABLES[arch]] += [_row(measurements, arch, level, view, rows) for level in LANDSCAPE_LEVELS]
            beside[TABLES[arch]] += [
                _beside(measurements, arch, level, view, rows, total) for level in LANDSCAPE_LEVELS
            ]
            for reading in study.readings:
                uses = ("all", "norm") if reading.unit_norm else ("all", "variance")
                if reading.changes in (None, "instruments") and view == uses and rows:
                    effects = _effects(study, measurements, arch, rows, same=not reading.unit_norm)
                    evidence += [(reading.name, effect) for effect in effects]
    settings = landscapes_wanted(study, snapshot, *CASES[0])[0].settings
    note = note_text(
        "table5",
        grid=settings.grid,
        images=settings.sample,
        draws=counted(settings.draws, "draw"),
        plain=_paper_deviations(),
    )
    all_tables = []
    for name, title, where, more in (
        ("table5", "Table 5: initial loss landscape, MLP", "CIFAR-10", ""),
        ("table6", "Table 6: initial loss landscape, CNN and ViT", "CIFAR-100", _precisions(study, snapshot)),
    ):
        all_tables.append(Table(name, f"{title}: {where}", COLUMNS, tuple(tables[name]), note + more))
        all_tables.append(
            Table(f"{name}-total", f"{title}, total loss: {where}", BESIDE, tuple(beside[name]), BESIDE_NOTE)
        )
    return RecipeOutput(tuple(all_tables), (_figure(study, snapshot),), by_reading(evidence))


def _precisions(study: Scope, snapshot: Snapshot) -> str:
    """The precision of each of the CNN's networks, unless all are in float32; a sentence for the note."""
    if not study.sizes.landscape_of:
        return ""
    measurements = landscapes_wanted(study, snapshot, "cnn", "cifar100")
    stored = [one.settings.precision for one in measurements if snapshot.values(one.spec, one.name) is not None]
    return (
        " Surfaces are in float32, except those of the CNN: in TF32, by differences from the center, unless they were "
        f"measured before 2026-11-18. Of its networks here, float32: {stored.count('fp32')}, TF32: "
        f"{stored.count('tf32')}. This was decided after one CNN had been seen in float32."
    )


def _paper_deviations() -> str:
    plains = {arch: printed(f"{TABLES[arch]}/{arch}/1/std_loss").plain for arch, _ in CASES}
    return ", ".join(f"{plain} ({display_name(arch)})" for arch, plain in plains.items())


def _rows(snapshot: Snapshot, measurements: tuple[Measuring, ...], view: tuple[str, str]) -> Rows:
    rows: Rows = {}
    for landscape in measurements:
        values = snapshot.values(landscape.spec, landscape.name)
        for row in values[0]["rows"] if values else []:
            if (row["directions"], row["scaling"]) == view and row["std"] is not None:
                rows.setdefault(row["redundancy"], {}).setdefault(row["seed"], []).append(row)
    return rows


def _means(rows: Rows, level: int, name: str) -> dict[int, float]:
    """Means over draws, by seed."""
    of_level = rows.get(level, {})
    return {seed: math.fsum(row[name] for row in draws) / len(draws) for seed, draws in of_level.items()}


def _changes(rows: Rows, level: int, name: str) -> list[float]:
    plain, here = _means(rows, 0, name), _means(rows, level, name)
    return [100 * (here[seed] / plain[seed] - 1) for seed in plain if seed in here and plain[seed]]


def _mean(rows: Rows, level: int, name: str) -> float:
    """The mean over networks."""
    return float(np.mean(list(_means(rows, level, name).values())))


def _change(rows: Rows, level: int, name: str) -> float | None:
    changes = _changes(rows, level, name) if level else []
    return math.fsum(changes) / len(changes) if changes else None


def _interval(rows: Rows, level: int) -> Range | None:
    """The interval of the changes over networks; None if all are 0, which is an identity and not a measurement."""
    changes = _changes(rows, level, "std") if level else []
    return ends_of(t_interval(changes)) if len(changes) > 1 and any(changes) else None


def _flatness(rows: Rows, level: int) -> float:
    draws = [row for members in rows[level].values() for row in members]
    return math.fsum(row["plane_r2"] or 0.0 for row in draws) / len(draws)


def _predicted(rows: Rows, level: int) -> float | None:
    """The change that the number of weights alone causes with directions of unit norm; None for unit variance."""
    if level == 0 or 0 not in rows:
        return None
    plain, here = (next(iter(rows[at].values()))[0] for at in (0, level))
    counted = here["parameters" if here["directions"] == "all" else "live_parameters"]
    return 100 * (math.sqrt(plain["parameters"] / counted) - 1) if here["scaling"] == "norm" else 0.0


# The columns that describe a network's surfaces, and how the rows of a view and a level fill them.
MEASURED: tuple[tuple[Column, Callable[[Rows, int], Value]], ...] = (
    (Column("Parameters", "millions", digits=2), lambda rows, level: next(iter(rows[level].values()))[0]["parameters"]),
    (number("Deviation", significant=True), partial(_mean, name="std")),
    (percent("Change"), partial(_change, name="std")),
    (percent("Interval"), _interval),
    (percent("By parameter count"), _predicted),
    (number("Range", significant=True), partial(_mean, name="range")),
    (percent("Change of range"), partial(_change, name="range")),
    (number("Mean gradient", significant=True), partial(_mean, name="mean_gradient")),
    (percent("Change of gradient"), partial(_change, name="mean_gradient")),
    (number("Plane's R²", 4), _flatness),
    (N, lambda rows, level: len(rows[level])),
)
COLUMNS = (*HEAD, *(column for column, _ in MEASURED), *PAPERS)


def _ids(measurements: tuple[Measuring, ...], rows: Rows, level: int) -> tuple[str, ...]:
    return tuple(landscape.spec.id for landscape in measurements if landscape.spec.seed in rows[level])


def _row(
    measurements: tuple[Measuring, ...], arch: str, level: int, view: tuple[str, str], rows: Rows
) -> tuple[Cell, ...]:
    label = f"{TABLES[arch]}/{arch}/{level}/std_loss"
    paper = printed(label).improvement if level else None
    head = (arch_cell(arch), Cell(VIEWS[view]), Cell("Plain" if level == 0 else f"{level}x"))
    if level not in rows:
        missing = missing_cells(len(MEASURED))
        return (*head, *missing, Cell(paper), *([NOTHING] if paper is None else missing_cells()))
    ids, moved = _ids(measurements, rows, level), _change(rows, level, "std")
    apart = None if moved is None or paper is None else moved - paper
    ours = (Cell(value_of(rows, level), ids) for _, value_of in MEASURED)
    return (*head, *ours, Cell(paper), Cell(apart, ids))


def _beside(
    measurements: tuple[Measuring, ...], arch: str, level: int, view: tuple[str, str], main: Rows, total: Rows
) -> tuple[Cell, ...]:
    """Both losses of the networks that have both."""
    main, total = _common(main, total), _common(total, main)
    alpha = Cell(total_alpha(arch)) if level else NOTHING
    head = (arch_cell(arch), Cell(VIEWS[view]), Cell("Plain" if level == 0 else f"{level}x"), alpha)
    if level not in total:
        return (*head, *missing_cells(7))
    values = (
        *(value for rows in (main, total) for value in (_mean(rows, level, "std"), _change(rows, level, "std"))),
        _interval(total, level),
        _flatness(total, level),
        len(total[level]),
    )
    return (*head, *(Cell(value, _ids(measurements, total, level)) for value in values))


def _common(rows: Rows, others: Rows) -> Rows:
    """The rows of the seeds that the others have too."""
    both = {
        level: {seed: draws for seed, draws in members.items() if seed in others.get(level, ())}
        for level, members in rows.items()
    }
    return {level: members for level, members in both.items() if members}


def _effects(
    study: Scope, measurements: tuple[Measuring, ...], arch: str, rows: Rows, *, same: bool
) -> Iterator[Effect | None]:
    """`same`: with unit variance, a step along the backbone has the same length whatever branches there are."""
    ids = {landscape.spec.seed: landscape.spec.id for landscape in measurements}
    for level in LANDSCAPE_LEVELS[1:]:
        for paper_name, name in STATISTICS.items():
            means = (_means(rows, at, name) for at in (0, level))
            plain, here = ({seed: (mean, ids[seed]) for seed, mean in of_level.items()} for of_level in means)
            yield paired(f"{TABLES[arch]}/{arch}/{level}/{paper_name}", plain, here, 0, study.stand_in, same=same)


def _figure(study: Scope, snapshot: Snapshot) -> Figure:
    title = "Figure 6: loss surface of the MLP before training"
    first = landscapes_wanted(study, snapshot, *CASES[0])[0]
    values = snapshot.values(first.spec, first.name)
    if values is None:
        return Figure("figure6", title, (), caption="Waits for the measurement of Table 5.")
    surfaces = {(surface["scaling"], surface["redundancy"]): surface["losses"] for surface in values[0]["surfaces"]}
    panels = [
        _surface(f"{'Plain' if level == 0 else f'{level}x'}, {words}", surfaces[scaling, level], scaling)
        for scaling, words in (("variance", "unit variance"), ("norm", "unit norm"))
        for level in LANDSCAPE_LEVELS
    ]
    caption = note_text("figure6", seed=first.spec.seed)
    return Figure("figure6", title, panels, len(LANDSCAPE_LEVELS), caption)


def _surface(title: str, losses: list[list[float | None]], scaling: str) -> Surface:
    """A surface as differences from the middle: the loss there is the same for all, and much larger.

    Each scaling has its own extent, so its row of the figure has its own scale.
    """
    half = len(losses) // 2
    middle, ticks = losses[half][half], tuple(float(i - half) for i in range(len(losses)))
    values = tuple(tuple(None if loss is None or middle is None else loss - middle for loss in row) for row in losses)
    return Surface(title, ticks, ticks, values, "main loss - that in the middle", group=scaling)


RECIPES = (recipe("table5", needs, make),)
