"""Tables 5 and 6, Figure 6: the loss surface around initial networks."""

import math
from typing import Any

from asymtrain.lab.paper.comparisons import mean_cell
from asymtrain.lab.paper.evidence import Effect
from asymtrain.lab.paper.known import Snapshot
from asymtrain.lab.paper.landscape_values import CASES, LEVELS, LandscapeWanted, landscapes_wanted
from asymtrain.lab.paper.numbers import printed
from asymtrain.lab.paper.recipe import Draw, Needs, Recipe, RecipeOutput
from asymtrain.lab.paper.result import Cell, ResultFigure, ResultTable, missing_cell
from asymtrain.lab.paper.study import Study, shown_dataset
from asymtrain.lab.runs import NAMES
from asymtrain.lab.statistics import t_interval

STATISTICS = {"std_loss": "std", "range_loss": "range", "mean_grad": "mean_gradient"}
"""The paper's words, and those of `SurfaceStatistics`."""
TABLES = {"mlp": "table5", "cnn": "table6", "vit": "table6"}
VIEWS = {
    ("all", "variance"): "all parameters, unit variance",
    ("all", "norm"): "all parameters, unit norm",
    ("live", "norm"): "live parameters, unit norm",
}
Rows = dict[tuple[int, int], list[dict[str, Any]]]  # by seed and redundancy, a row for each draw


def needs(study: Study, known: Snapshot) -> Needs:
    """Measurements alone: nothing is trained."""
    return Needs(measurements=tuple(one for case in CASES for one in landscapes_wanted(study, *case)))


def make(study: Study, known: Snapshot, draw: Draw) -> RecipeOutput:
    """A table for each of the paper's two, and the surfaces of the MLP."""
    tables = {"table5": list[tuple[Cell, ...]](), "table6": list[tuple[Cell, ...]]()}
    evidence: dict[str, dict[str, Any]] = {}
    for arch, dataset in CASES:
        wanted = landscapes_wanted(study, arch, dataset)
        for view in VIEWS:
            rows = _rows(known, wanted, view)
            tables[TABLES[arch]] += [_row(wanted, arch, level, view, rows) for level in LEVELS]
            for reading in study.readings:
                uses = ("all", "norm") if reading.unit_norm else ("all", "variance")
                if reading.changes in (None, "instruments") and view == uses and rows:
                    evidence.setdefault(reading.name, {}).update(_effects(study, wanted, arch, rows))
    columns = ("Backbone", "Directions", "N", "Parameters", "Deviation", "Change", "Interval", "By parameter count",
               "Range", "Change of range", "Mean gradient", "Change of gradient", "Plane's R²", "n",
               "Paper: change of deviation", "Difference")  # fmt: skip
    settings = landscapes_wanted(study, *CASES[0])[0].settings
    note = (
        f"{settings.grid} x {settings.grid} grid, {settings.sample} images, {settings.draws} "
        f"draw{'s' if settings.draws > 1 else ''} of directions "
        "around each of n initial networks; main loss. All redundancies of a network share the directions. "
        "Changes are each network's own against its Plain, with a 95% t interval over networks, not corrected; the "
        "verdicts take them in percent of Plain's mean over networks, as everywhere, and correct for the cells, so "
        "their intervals are wider. 'By parameter count' is the change that the number of weights alone makes of a "
        "direction of unit norm. A plane's R² near 1 says that the surface is a tilted plane: deviation, range and "
        "gradient are then one number."
    )
    made = tuple(
        ResultTable(name, f"{title}: {shown_dataset(study, data)}", columns, tuple(tables[name]), note)
        for name, title, data in (
            ("table5", "Table 5: initial loss landscape, MLP", "cifar10"),
            ("table6", "Table 6: initial loss landscape, CNN and ViT", "cifar100"),
        )
    )
    return RecipeOutput(made, (_figure(study, known, draw),), evidence)


def _rows(known: Snapshot, wanted: tuple[LandscapeWanted, ...], view: tuple[str, str]) -> Rows:
    found: Rows = {}
    for one in wanted:
        values = known.values(one.spec, one.name)
        for row in values[0]["rows"] if values else []:
            if (row["directions"], row["scaling"]) == view and row["std"] is not None:
                found.setdefault((row["seed"], row["redundancy"]), []).append(row)
    return found


def _means(rows: Rows, level: int, name: str) -> dict[int, float]:
    """By seed, over draws."""
    return {
        seed: math.fsum(row[name] for row in draws) / len(draws)
        for (seed, redundancy), draws in rows.items()
        if redundancy == level
    }


def _changes(rows: Rows, level: int, name: str) -> list[float]:
    """In percent of Plain, by seed."""
    plain, here = _means(rows, 0, name), _means(rows, level, name)
    return [100 * (here[seed] / plain[seed] - 1) for seed in plain if seed in here and plain[seed]]


def _row(
    wanted: tuple[LandscapeWanted, ...], arch: str, level: int, view: tuple[str, str], rows: Rows
) -> tuple[Cell, ...]:
    label = f"{TABLES[arch]}/{arch}/{level}/std_loss"
    paper = printed(label).improvement if level else None
    theirs = Cell("—") if paper is None else Cell(f"{paper:+.1f}%", paper)
    name = "Plain" if level == 0 else f"{level}x"
    head = (Cell(NAMES[arch]), Cell(VIEWS[view]), Cell(name))
    mine = [row for (_, redundancy), draws in rows.items() if redundancy == level for row in draws]
    if not mine:
        return (*head, *(missing_cell() for _ in range(11)), theirs, theirs if paper is None else missing_cell())
    seeds = {row["seed"] for row in mine}
    ids = tuple(one.spec.id for one in wanted if one.spec.seed in seeds)

    def number(name: str) -> Cell:
        cell = mean_cell(list(_means(rows, level, name).values()), ids, 5)
        return Cell(f"{cell.value:.3g}", cell.value, ids)

    def change(name: str) -> Cell:
        found = _changes(rows, level, name) if level else []
        mean = math.fsum(found) / len(found) if found else None
        return Cell("—" if mean is None else f"{mean:+.1f}%", mean, ids)

    spread = t_interval(_changes(rows, level, "std")) if level and len(_changes(rows, level, "std")) > 1 else None
    moved = change("std")
    apart = None if moved.value is None or paper is None else moved.value - paper
    ends = "—" if spread is None or spread.low is None else f"{spread.low:+.1f}% to {spread.high:+.1f}%"
    return (
        *head,
        Cell(f"{mine[0]['parameters'] / 1e6:.2f}M", mine[0]["parameters"], ids),
        number("std"),
        moved,
        Cell(ends, None, ids),
        _predicted(rows, level, view, ids),
        number("range"),
        change("range"),
        number("mean_gradient"),
        change("mean_gradient"),
        Cell(f"{math.fsum(row['plane_r2'] or 0.0 for row in mine) / len(mine):.4f}", None, ids),
        Cell(str(len(seeds)), len(seeds), ids),
        theirs,
        Cell("—" if apart is None else f"{apart:+.1f}", apart, ids),
    )


def _predicted(rows: Rows, level: int, view: tuple[str, str], ids: tuple[str, ...]) -> Cell:
    """What the number of weights alone makes of a direction of unit norm; nothing of one of unit variance."""
    if level == 0:
        return Cell("—", None, ids)
    counts = {redundancy: draws[0] for (_, redundancy), draws in rows.items()}
    if 0 not in counts or level not in counts:
        return missing_cell()
    counted = counts[level]["parameters" if view[0] == "all" else "live_parameters"]
    value = 100 * (math.sqrt(counts[0]["parameters"] / counted) - 1) if view[1] == "norm" else 0.0
    return Cell(f"{value:+.1f}%", value, ids)


def _effects(study: Study, wanted: tuple[LandscapeWanted, ...], arch: str, rows: Rows) -> dict[str, Effect]:
    found = {}
    for level in LEVELS[1:]:
        for paper_name, name in STATISTICS.items():
            plain, here = _means(rows, 0, name), _means(rows, level, name)
            seeds = tuple(sorted(set(plain) & set(here)))
            label = f"{TABLES[arch]}/{arch}/{level}/{paper_name}"
            ids = tuple(one.spec.id for one in wanted if one.spec.seed in seeds)
            sides = tuple(plain[seed] for seed in seeds), tuple(here[seed] for seed in seeds)
            if seeds:
                found[label] = Effect(label, *sides, 0, ids, seeds, study.stand_in)
    return found


def _figure(study: Study, known: Snapshot, draw: Draw) -> ResultFigure:
    title = "Figure 6: loss surface of the MLP before training"
    first = landscapes_wanted(study, *CASES[0])[0]
    values = known.values(first.spec, first.name)
    if values is None:
        return ResultFigure("figure6", title, "", "Waits for the measurement of Table 5.", missing=True)
    data = {"title": title, "surfaces": values[0]["surfaces"], "settings": first.settings}
    caption = (
        f"Seed {first.spec.seed}, first draw, directions over all parameters. Of unit variance, every redundancy has "
        "the same surface; of unit norm, more weights mean a smaller step for each, and the surface flattens."
    )
    return ResultFigure("figure6", title, draw("surfaces", "figure6", data), caption)


RECIPE = Recipe(
    name="table5",
    covers=("table5", "table6", "figure6"),
    title="Tables 5 and 6, Figure 6: the initial loss landscape",
    question="Does redundancy smooth the loss surface, or only shorten the step that a direction makes?",
    how="The loss of untrained networks on training images over a plane of two random directions. The paper does not "
    "say how long a direction is: both readings are shown, and directions over live parameters only as a control.",
    claims=("c18", "c19", "c20", "c21"),
    needs=needs,
    make=make,
)
