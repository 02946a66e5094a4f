"""Each backbone trained in several ways, all against one partner: what the recipes beyond the paper are made of.

Every way has Table 13's learning rate, weight decay and alpha at the redundancy of Table 2, so that Plain and the
paper's own way are runs that other tables have too.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from asymtrain.lab.paper.comparisons import (
    RESULTS,
    Comparison,
    compare,
    effect_cells,
    effect_of,
    heading_cells,
    improvement,
    interval,
    pairs_of,
)
from asymtrain.lab.paper.evidence import Effect
from asymtrain.lab.paper.known import Snapshot
from asymtrain.lab.paper.panels import Bar, BarPanel, Colour, Effects
from asymtrain.lab.paper.readings import PRIMARY
from asymtrain.lab.paper.recipe import Draw
from asymtrain.lab.paper.recipes.table01 import DOSE
from asymtrain.lab.paper.result import Cell, ResultFigure, ResultTable, missing_cell
from asymtrain.lab.paper.sizes import ARCHS, SIZES
from asymtrain.lab.paper.study import Study, readings_for, table_values
from asymtrain.lab.runs import NAMES

EXACT = "exactly 0"
FULL = SIZES["paper"]


@dataclass(frozen=True)
class Variant:
    """One way to train with branches.

    Attributes:
        name: in labels.
        words: in tables and sentences.
        fields: of the spec, beside the paper's.
        weaker: by which alpha is divided.
        alpha: in place of the paper's.
    """

    name: str
    words: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    weaker: float = 1.0
    alpha: float | None = None


def against_plain(study: Study, recipe: str, ways: Sequence[Variant]) -> list[Comparison]:
    """Every way of every backbone, with Plain as its partner."""
    found = []
    for reading in readings_for(study, DOSE, "accuracy"):
        for arch in ARCHS:
            values = table_values(study, arch, DOSE)
            for way in ways:
                alpha = values.alpha / way.weaker if way.alpha is None else way.alpha
                own = dataclasses.replace(values, alpha=alpha)
                label, heading = f"{recipe}/{arch}/{way.name}", (NAMES[arch], way.words)
                found.append(compare(study, reading, label, heading, arch, "cifar100", own, DOSE, way.fields))
    return found


def against_first(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The other ways of each backbone, with its first way as their partner."""
    firsts: dict[tuple[str, str], Comparison] = {}
    found = []
    for one in comparisons:
        first = firsts.setdefault((one.reading.name, one.heading[0]), one)
        if one is not first:
            found.append(dataclasses.replace(one, plain=first.asymmetric))
    return found


def ways_table(
    known: Snapshot, comparisons: Sequence[Comparison], name: str, title: str, sides: tuple[str, str], note: str
) -> ResultTable:
    """Effects with intervals over seeds (Bonferroni over the cells of one reading) and the mean cosine."""
    sizes = Counter(one.reading.name for one in comparisons)
    several = any(reading != PRIMARY.name for reading in sizes)
    columns = (
        "Backbone",
        "Branches",
        *(("Reading",) if several else ()),
        *sides,
        "Effect",
        *RESULTS[3:],
        "Mean cosine",
    )
    rows = []
    for one in comparisons:
        cells = effect_cells(known, one, sizes[one.reading.name])
        effect = effect_of(known, one)
        if effect is not None and effect.plain == effect.asymmetric:
            cells[2] = Cell(EXACT, 0.0, effect.spec_ids)
        rows.append((*heading_cells(one, several), *cells, _cosine_cell(known, one)))
    correction = (
        f"Effect: mean over seeds of the difference in test accuracy, in percent of the mean of {sides[0]}. Intervals "
        f"are 95% t intervals over seeds, corrected for {max(sizes.values(), default=1)} cells; p too."
    )
    return ResultTable(name, title, columns, tuple(rows), f"{note} {correction}")


def _cosine_cell(known: Snapshot, one: Comparison) -> Cell:
    runs = [run for _, run in pairs_of(known, one)]
    if not runs:
        return missing_cell()
    seen = [run.mean_cosine for run in runs if run.mean_cosine is not None]
    mean = float(np.mean(seen)) if seen else None
    return Cell("undefined" if mean is None else f"{mean:+.3f}", mean, tuple(run.spec.id for run in runs))


def ways_figure(
    known: Snapshot, comparisons: Sequence[Comparison], name: str, title: str, partner: str, draw: Draw
) -> ResultFigure:
    """The effects of the primary reading, a panel for each backbone."""
    shown = [one for one in comparisons if one.reading == PRIMARY]
    panels = []
    for arch in ARCHS:
        bars = [_bar(known, one, len(shown)) for one in shown if one.heading[0] == NAMES[arch]]
        panels.append(BarPanel(NAMES[arch], cast(Colour, arch), tuple(bars)))
    if not any(bar.estimate is not None for panel in panels for bar in panel.bars):
        return ResultFigure(name, title, "", "Waits for its runs.", missing=True)
    data = Effects(title, f"effect against {partner} (%)", tuple(panels))
    caption = (
        "Bars are the intervals of the table, dots the seeds. A bar that ends in an arrow goes on: few seeds have wide "
        "intervals."
    )
    return ResultFigure(name, title, draw("effects", name, data), caption)


def _bar(known: Snapshot, one: Comparison, family: int) -> Bar:
    effect = effect_of(known, one)
    if effect is None:
        return Bar(one.heading[1], None, None, None)
    base, found = float(np.mean(effect.plain)), interval(effect, family)
    seeds = [100 * (b - a) / base for a, b in zip(effect.plain, effect.asymmetric, strict=True)] if base else []
    low, high = (None, None) if found is None else (found.low, found.high)
    return Bar(one.heading[1], improvement(effect), low, high, tuple(seeds))


def sentences(study: Study, known: Snapshot, comparisons: Sequence[Comparison], partner: str) -> tuple[str, ...]:
    """For each backbone, of which ways the interval excludes 0 under the primary reading; nothing without rows."""
    shown = [one for one in comparisons if one.reading == PRIMARY]
    found = []
    for arch in ARCHS:
        effects = {one.heading[1]: effect_of(known, one) for one in shown if one.heading[0] == NAMES[arch]}
        there = {words: effect for words, effect in effects.items() if effect is not None}
        if there:
            found.append(f"{NAMES[arch]} against {partner}{_preliminary(study, there)}: {_said(there, len(shown))}.")
    return tuple(found)


def _preliminary(study: Study, effects: Mapping[str, Effect]) -> str:
    """The size that the paper's tables have, where this study is smaller."""
    seeds, epochs = min(len(effect.seeds) for effect in effects.values()), study.epochs
    short = [f"{seeds} of {len(FULL.seeds)} seeds"] if seeds < len(FULL.seeds) else []
    short += [f"{epochs} of {FULL.epochs} epochs"] if epochs < FULL.epochs else []
    short += [study.stand_in] if study.stand_in else []
    return f" (preliminary: {', '.join(short)})" if short else f" ({seeds} seeds)"


def _said(effects: Mapping[str, Effect], family: int) -> str:
    clear, unclear, same, rest = "excludes 0", "includes 0", "same", "rest"
    kinds: dict[str, list[str]] = {clear: [], unclear: [], same: [], rest: []}
    for words, effect in effects.items():
        change, found = improvement(effect), interval(effect, family)
        if effect.plain == effect.asymmetric:
            kinds[same].append(words)
        elif change is None:
            kinds[rest].append(f"{words} (undefined: its partner got nothing right)")
        elif found is None:
            kinds[rest].append(f"{words} ({change:+.1f}%)")
        elif found.low > 0 or found.high < 0:
            kinds[clear].append(f"{words} ({change:+.1f}%, {found.low:+.1f}% to {found.high:+.1f}%)")
        else:
            kinds[unclear].append(f"{words} ({change:+.1f}%)")
    openings = {
        clear: "the interval excludes 0 for",
        unclear: "the interval includes 0 for",
        same: "the accuracy is the same in every seed, an effect of exactly 0, for",
        rest: "without an interval are",
    }
    return "; ".join(f"{openings[kind]} {', '.join(members)}" for kind, members in kinds.items() if members)
