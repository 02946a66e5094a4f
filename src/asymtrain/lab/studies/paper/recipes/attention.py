"""Table 14 and Figures 4, 7 and 9: how the ViT attends, with and without branches."""

from itertools import product

import numpy as np

from asymtrain.lab.instruments.attention.result import Floats
from asymtrain.lab.instruments.attention.show import VARIANTS, map_panels
from asymtrain.lab.instruments.curves import Curve
from asymtrain.lab.report.figure import VALUE, Figure, Line, Lines
from asymtrain.lab.report.table import Cell, Table
from asymtrain.lab.statistics.estimates import estimate
from asymtrain.lab.studies.paper.evidence import Effect, Evidence, by_reading, paired
from asymtrain.lab.studies.paper.measurements import (
    ATTENTION_EPOCHS,
    ATTENTION_REDUNDANCY,
    attention_epochs,
    attentions_wanted,
    pixels_of,
)
from asymtrain.lab.studies.paper.numbers import note_text, printed
from asymtrain.lab.studies.paper.recipe import Measuring, RecipeOutput, recipe
from asymtrain.lab.studies.paper.study import Reading, Scope, readings_for, shown_dataset, stands_note
from asymtrain.lab.studies.paper.tables import (
    DIFFERENCE_NOTE,
    READING,
    curve_line,
    difference_cells,
    difference_columns,
    has_points,
    headings_of,
)
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.study import Needs

METRICS = {
    "peak_strength": ("peak_strength", "Peak strength", "", ""),
    "map_entropy": ("entropy", "Map entropy", " (nats)", ""),
    "gini_sparsity": ("gini", "Sparsity", " (Gini)", ""),
    "object_coverage": ("coverage_above", "Coverage", "", " (share of patches)"),
}
"""The paper's names; the instrument's names, words, unit, and what else a table's heading says."""
MORE = {"coverage_of_saliency": "Weight on the salient region", "coverage_of_mask": "Weight on the object"}
WAITS = "Waits for the measurements of Table 14."


def readings_of(study: Scope) -> list[Reading]:
    return readings_for(study, ATTENTION_REDUNDANCY, "training", "instruments")


def needs(study: Scope, snapshot: Snapshot) -> Needs:
    measurements = {
        (attention.spec.id, attention.name): attention
        for reading in readings_of(study)
        for variant in VARIANTS
        for attention in attentions_wanted(study, reading, variant)
    }
    return Needs(measurements=tuple(measurements.values()))


def values(
    snapshot: Snapshot, measurements: tuple[Measuring, ...], metric: str, epoch: int, scope: str = "mean"
) -> dict[int, tuple[float, str]]:
    """By seed, the mean over images for the mean over layers or another scope, and the spec's id."""
    by_seed = {}
    for attention in measurements:
        measured = (snapshot.values(attention.spec, attention.name) or {}).get(epoch)
        mean = measured["scopes"].get(scope, {}).get(metric, [None])[0] if measured else None
        if mean is not None:
            by_seed[attention.spec.seed] = (float(mean), attention.spec.id)
    return by_seed


def effect(
    study: Scope, snapshot: Snapshot, reading: Reading, metric: str, epoch: int, label: str, scope: str = "mean"
) -> Effect | None:
    sides = (attentions_wanted(study, reading, variant) for variant in VARIANTS)
    plain, other = (values(snapshot, measurements, metric, epoch, scope) for measurements in sides)
    return paired(label, plain, other, epoch, study.stand_in)


def make_table14(study: Scope, snapshot: Snapshot) -> RecipeOutput:
    rows, evidence = [], list[tuple[str, Evidence | None]]()
    metrics = [("".join(heading), metric, f"table14/{name}") for name, (metric, *heading) in METRICS.items()]
    more = [(heading, metric, "") for metric, heading in MORE.items()]
    for reading in readings_of(study):
        for heading, metric, cell in (*metrics, *more):
            for epoch in ATTENTION_EPOCHS:
                label = f"{cell}/{epoch}" if cell else ""
                measured = effect(study, snapshot, reading, metric, study.at(epoch), label)
                if label:
                    evidence.append((reading.name, measured))
                if label or measured:  # CIFAR has no masks
                    head = map(Cell, (heading, str(study.at(epoch)), reading.title))
                    rows.append((*head, *difference_cells(measured, printed(label) if label else None)))
    columns = (*headings_of(("Metric", "Epoch", READING)), *difference_columns())
    settings = attentions_wanted(study, study.readings[0], "plain")[0].settings
    note = note_text(
        "table14",
        images=settings.sample,
        data=shown_dataset(study, "cifar100"),
        stands=stands_note(study, ATTENTION_EPOCHS),
        difference=DIFFERENCE_NOTE,
    )
    table = Table("table14", "Table 14: attention", columns, tuple(rows), note)
    return RecipeOutput((table, _rollout_table(study, snapshot)), evidence=by_reading(evidence))


def _rollout_table(study: Scope, snapshot: Snapshot) -> Table:
    """The same values by attention rollout, for the primary reading, and after the last epoch too."""
    rows = []
    epochs: dict[int, int | None] = {study.epochs: None} | {study.at(epoch): epoch for epoch in ATTENTION_EPOCHS}
    for name, (metric, *heading) in METRICS.items():
        for at, epoch in sorted(epochs.items()):
            measured = effect(study, snapshot, study.readings[0], metric, at, "", "rollout")
            paper = printed(f"table14/{name}/{epoch}") if epoch else None
            rows.append((Cell("".join(heading)), Cell(str(at)), *difference_cells(measured, paper)))
    note = note_text("table14-rollout", stands=stands_note(study, ATTENTION_EPOCHS), difference=DIFFERENCE_NOTE)
    columns = (*headings_of(("Metric", "Epoch")), *difference_columns())
    return Table("table14-rollout", "Table 14 by attention rollout", columns, tuple(rows), note)


def make_figure9(study: Scope, snapshot: Snapshot) -> RecipeOutput:
    title, panels, epochs = "Figure 9: attention over training", list[Lines](), attention_epochs(study)
    ticks = tuple(sorted({*map(study.at, ATTENTION_EPOCHS), study.epochs}))
    for metric, words, unit, _ in METRICS.values():
        lines = [_line(study, snapshot, variant, metric, epochs) for variant in VARIANTS]
        panels.append(Lines(f"{words}{unit}", "epoch", words.lower(), tuple(lines), ticks=ticks, written=VALUE))
    if not all(has_points(panel.lines) for panel in panels):
        return RecipeOutput(figures=(Figure("figure9", title, (), caption=WAITS),))
    caption = (
        "Mean over layers and images; bands are 95% intervals over seeds, thin lines are seeds where there are few."
    )
    evidence = by_reading(
        (reading.name, effect(study, snapshot, reading, metric, study.epochs, f"figure9/{paper_name}"))
        for paper_name, (metric, *_) in METRICS.items()
        for reading in readings_of(study)
    )
    return RecipeOutput(figures=(Figure("figure9", title, panels, 2, caption),), evidence=evidence)


def _line(study: Scope, snapshot: Snapshot, variant: str, metric: str, epochs: tuple[int, ...]) -> Line:
    measurements = attentions_wanted(study, study.readings[0], variant)
    by_epoch = [values(snapshot, measurements, metric, epoch) for epoch in epochs]
    seeds = tuple(tuple(at[seed][0] if seed in at else None for at in by_epoch) for seed in study.seeds)
    points = tuple(estimate(column) for column in zip(*seeds, strict=True))
    return curve_line(variant.capitalize(), variant, Curve(epochs, points, seeds))


def make_maps(study: Scope, snapshot: Snapshot) -> RecipeOutput:
    """The last layer of several images (Figure 4), and the first, third and last layer of one (Figure 7), by epoch."""
    first = {variant: attentions_wanted(study, study.readings[0], variant)[0] for variant in VARIANTS}
    maps_of = {variant: snapshot.values(measuring.spec, measuring.name) or {} for variant, measuring in first.items()}
    epochs = sorted({study.at(epoch) for epoch in ATTENTION_EPOCHS})
    titles = {"figure4": "Figure 4: attention through training", "figure7": "Figure 7: attention by layer"}
    if any(epoch not in values for epoch in epochs for values in maps_of.values()):
        waiting = (Figure(name, title, (), caption=WAITS) for name, title in titles.items())
        return RecipeOutput(figures=tuple(waiting))
    example = maps_of["plain"][epochs[0]]
    layers, last = example["layers"], example["layers"][-1]
    chosen = list(dict.fromkeys([layers[0], layers[min(2, len(layers) - 1)], last]))
    rows = {
        "figure4": [(example["labels"][image], image, last) for image in range(len(example["pixels"]))],
        "figure7": [(f"layer {layers.index(layer) + 1}", 0, layer) for layer in chosen],
    }

    def heat(epoch: int, variant: str, layer: str, image: int) -> Floats:
        return np.array(maps_of[variant][epoch]["maps"][layer][image], float)

    columns, pictures = [*product(epochs, VARIANTS)], [*map(pixels_of, example["pixels"])]
    seed = first["plain"].spec.seed
    caption = f"Seed {seed}; from the class token, heads averaged, in multiples of the uniform weight."
    figures = (
        Figure(name, title, map_panels(rows[name], columns, pictures, heat), 1 + len(columns), caption)
        for name, title in titles.items()
    )
    return RecipeOutput(figures=tuple(figures))


RECIPES = (
    recipe("table14", needs, make_table14),
    recipe("figure9", needs, make_figure9),
    recipe("figure4", needs, make_maps),
)
