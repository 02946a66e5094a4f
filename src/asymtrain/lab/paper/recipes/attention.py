"""Table 14 and Figures 4, 7 and 9: how the ViT attends, with and without branches."""

from typing import Any

import numpy as np

from asymtrain.lab.instruments.attention.pictures import MapPicture, MapRow
from asymtrain.lab.instruments.trajectory.trajectory import Curve
from asymtrain.lab.paper.differences import COLUMNS, NOTE, difference_cells
from asymtrain.lab.paper.evidence import Effect
from asymtrain.lab.paper.measurements import (
    EPOCHS,
    AttentionWanted,
    attention_epochs,
    attentions_wanted,
    pixels_of,
)
from asymtrain.lab.paper.numbers import printed
from asymtrain.lab.paper.panels import Line, Panel, Panels, curve_line, has_points
from asymtrain.lab.paper.recipe import Draw, Needs, Recipe, RecipeOutput
from asymtrain.lab.paper.result import Cell, ResultFigure, ResultTable
from asymtrain.lab.paper.snapshot import Snapshot
from asymtrain.lab.paper.study import Reading, Study, shown_dataset, stands_note
from asymtrain.lab.statistics.estimates import estimate

METRICS = {
    "peak_strength": ("peak_strength", "Peak strength"),
    "map_entropy": ("entropy", "Map entropy (nats)"),
    "gini_sparsity": ("gini", "Sparsity (Gini)"),
    "object_coverage": ("coverage_above", "Coverage (patches above half the uniform weight)"),
}
"""The paper's names, those of the instrument, and the headings."""
MORE = {"coverage_of_saliency": "Weight on the salient region", "coverage_of_mask": "Weight on the object"}
VARIANTS = ("plain", "asymmetric")


def readings_of(study: Study) -> list[Reading]:
    """Those under which attention differs."""
    return [reading for reading in study.readings if reading.changes != "accuracy"]


def needs(study: Study, known: Snapshot) -> Needs:
    """The attention of both variants; their weights are trained again where no state is kept."""
    wanted = {
        (one.spec.id, one.name): one
        for reading in readings_of(study)
        for variant in VARIANTS
        for one in attentions_wanted(study, reading, variant)
    }
    return Needs(measurements=tuple(wanted.values()))


def values(
    known: Snapshot, wanted: tuple[AttentionWanted, ...], metric: str, epoch: int
) -> dict[int, tuple[float, str]]:
    """By seed the mean over images and layers, and the spec's id."""
    found = {}
    for one in wanted:
        seen = (known.values(one.spec, one.name) or {}).get(epoch)
        mean = seen["scopes"]["mean"].get(metric, [None])[0] if seen else None
        if mean is not None:
            found[one.spec.seed] = (float(mean), one.spec.id)
    return found


def effect(study: Study, known: Snapshot, reading: Reading, metric: str, epoch: int, label: str) -> Effect | None:
    """Plain and Asymmetric by seed."""
    plain, other = (values(known, attentions_wanted(study, reading, variant), metric, epoch) for variant in VARIANTS)
    seeds = tuple(sorted(set(plain) & set(other)))
    if not seeds:
        return None
    ids = tuple(side[seed][1] for seed in seeds for side in (plain, other))
    before, after = (tuple(side[seed][0] for seed in seeds) for side in (plain, other))
    return Effect(label, before, after, epoch, ids, seeds, study.stand_in)


def make_table14(study: Study, known: Snapshot, draw: Draw) -> RecipeOutput:
    """The four metrics at three epochs, and the two other coverages."""
    rows, evidence = [], dict[str, dict[str, Any]]()
    for reading in readings_of(study):
        for paper_name, (metric, heading) in METRICS.items():
            for epoch in EPOCHS:
                label = f"table14/{paper_name}/{epoch}"
                found = effect(study, known, reading, metric, study.at(epoch), label)
                if found:
                    evidence.setdefault(reading.name, {})[label] = found
                head = (Cell(heading), Cell(str(study.at(epoch))), Cell(reading.title))
                rows.append((*head, *difference_cells(found, printed(label))))
        for metric, heading in MORE.items():
            for epoch in EPOCHS:
                found = effect(study, known, reading, metric, study.at(epoch), f"{metric}/{epoch}")
                if found:  # CIFAR has no masks
                    head = (Cell(heading), Cell(str(study.at(epoch))), Cell(reading.title))
                    rows.append((*head, *difference_cells(found, None)))
    columns = ("Metric", "Epoch", "Reading", *COLUMNS)
    settings = attentions_wanted(study, study.readings[0], "plain")[0].settings
    note = (
        f"{settings.sample} test images of {shown_dataset(study, 'cifar100')}, mean over layers and images; from the "
        "class token, heads averaged, renormalised over patches. The reading 'other instruments' averages all queries. "
        "The paper does not define object coverage; docs/method.md says why ours is a share of patches. "
        f"{stands_note(study, EPOCHS)}{NOTE}"
    )
    return RecipeOutput((ResultTable("table14", "Table 14: attention", columns, tuple(rows), note),), evidence=evidence)


def make_figure9(study: Study, known: Snapshot, draw: Draw) -> RecipeOutput:
    """The four metrics over training, and their change at its end."""
    title, panels, epochs = "Figure 9: attention over training", [], attention_epochs(study)
    evidence: dict[str, dict[str, Any]] = {}
    for paper_name, (metric, heading) in METRICS.items():
        lines = [_line(study, known, variant, metric, epochs) for variant in VARIANTS]
        panels.append(Panel(heading.partition(" (p")[0], "epoch", heading.partition(" (")[0].lower(), tuple(lines)))
        for reading in readings_of(study):
            found = effect(study, known, reading, metric, study.epochs, f"figure9/{paper_name}")
            if found:
                evidence.setdefault(reading.name, {})[found.label] = found
    if not all(has_points(panel.lines) for panel in panels):
        caption = "Waits for the measurements of Table 14."
        return RecipeOutput(figures=(ResultFigure("figure9", title, "", caption, missing=True),))
    caption = (
        "Mean over layers and images; bands are 95% intervals over seeds, thin lines are seeds where there are few."
    )
    svg = draw("panels", "figure9", Panels(title, tuple(panels), columns=2))
    return RecipeOutput(figures=(ResultFigure("figure9", title, svg, caption),), evidence=evidence)


def _line(study: Study, known: Snapshot, variant: Any, metric: str, epochs: tuple[int, ...]) -> Line:
    wanted = attentions_wanted(study, study.readings[0], variant)
    seen = [values(known, wanted, metric, epoch) for epoch in epochs]
    seeds = tuple(tuple(at[seed][0] if seed in at else None for at in seen) for seed in study.seeds)
    points = tuple(estimate(column) for column in zip(*seeds, strict=True))
    return curve_line(variant.capitalize(), variant, Curve(epochs, points, seeds))


def make_maps(study: Study, known: Snapshot, draw: Draw) -> RecipeOutput:
    """The last layer of several images (Figure 4), and the first, third and last layer of one (Figure 7), by epoch."""
    first = {variant: attentions_wanted(study, study.readings[0], variant)[0] for variant in VARIANTS}
    kept = {variant: known.values(one.spec, one.name) or {} for variant, one in first.items()}
    epochs = sorted({study.at(epoch) for epoch in EPOCHS})
    titles = {"figure4": "Figure 4: attention through training", "figure7": "Figure 7: attention by layer"}
    if any(epoch not in found for epoch in epochs for found in kept.values()):
        caption = "Waits for the measurements of Table 14."
        return RecipeOutput(
            figures=tuple(ResultFigure(name, title, "", caption, missing=True) for name, title in titles.items())
        )
    seen = kept["plain"][epochs[0]]
    layers, last = seen["layers"], seen["layers"][-1]
    shown = list(dict.fromkeys([layers[0], layers[min(2, len(layers) - 1)], last]))
    rows = {
        "figure4": [(seen["labels"][image], image, last) for image in range(len(seen["pixels"]))],
        "figure7": [(f"layer {layers.index(layer) + 1}", 0, layer) for layer in shown],
    }
    caption = (
        f"Seed {first['plain'].spec.seed}; from the class token, heads averaged, in multiples of the uniform weight."
    )
    figures = []
    for name, title in titles.items():
        columns = tuple((variant, f"epoch {epoch}") for epoch in epochs for variant in VARIANTS)
        made = tuple(
            MapRow(
                label,
                pixels_of(seen["pixels"][image]),
                tuple(np.array(kept[variant][epoch]["maps"][layer][image]) for epoch in epochs for variant in VARIANTS),
            )
            for label, image, layer in rows[name]
        )
        figures.append(ResultFigure(name, title, draw("maps", name, MapPicture(title, columns, made)), caption))
    return RecipeOutput(figures=tuple(figures))


HOW = (
    "The ViT of Table 1 at N = 20 is trained again to each epoch (a run is a function of its spec), and looked at on a "
    "random sample of test images, the same for every run."
)
RECIPES = (
    Recipe("table14", ("table14",), "Table 14: attention of the ViT",
           "Does Asymmetric training spread the ViT's attention?", HOW, ("c26", "c27"), needs, make_table14),
    Recipe("figure9", ("figure9",), "Figure 9: attention over training",
           "How do peak, entropy, sparsity and coverage develop?", HOW, ("c22", "c23", "c24", "c25"),
           needs, make_figure9),
    Recipe("figure4", ("figure4", "figure7"), "Figures 4 and 7: attention maps",
           "Where does the ViT look?", HOW, (), needs, make_maps),
)  # fmt: skip
