"""Each backbone trained with several variants of branches, all against one partner: the recipes beyond the paper.

Every variant has Table 13's learning rate, weight decay and alpha at the redundancy of Table 2, so that Plain and the
paper's own branches are runs that other tables have too.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asymtrain.lab.paper.comparisons import Comparison, compare, effect_of, improvement, interval, pairs_of
from asymtrain.lab.paper.evidence import Effect
from asymtrain.lab.paper.recipes.table01 import DOSE
from asymtrain.lab.paper.snapshot import Snapshot
from asymtrain.lab.paper.study import ARCHS, PRIMARY, SIZES, Study, readings_for, table_values
from asymtrain.lab.paper.tables import EFFECT, comparison_table, effect_cells, family_sizes, number, percent
from asymtrain.lab.report.figure import Bar, Bars, Figure
from asymtrain.lab.report.table import Cell, Table
from asymtrain.lab.statistics import NAMES

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


def against_plain(study: Study, recipe: str, variants: Sequence[Variant]) -> list[Comparison]:
    """Every variant of every backbone, with Plain as its partner."""
    rows = []
    for reading in readings_for(study, DOSE, "accuracy"):
        for arch in ARCHS:
            values = table_values(study, arch, DOSE)
            for variant in variants:
                alpha = values.alpha / variant.weaker if variant.alpha is None else variant.alpha
                own = dataclasses.replace(values, alpha=alpha)
                label, heading = f"{recipe}/{arch}/{variant.name}", (NAMES[arch], variant.words)
                rows.append(compare(study, reading, label, heading, arch, "cifar100", own, DOSE, variant.fields))
    return rows


def against_first(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The other variants of each backbone, with its first variant as their partner."""
    firsts: dict[tuple[str, str], Comparison] = {}
    rows = []
    for row in comparisons:
        first = firsts.setdefault((row.reading.name, row.arch), row)
        if row is not first:
            rows.append(dataclasses.replace(row, plain=first.asymmetric))
    return rows


def variants_table(
    known: Snapshot, comparisons: Sequence[Comparison], name: str, title: str, sides: tuple[str, str], note: str
) -> Table:
    """Effects with intervals over seeds (Bonferroni over the cells of one reading) and the mean cosine."""

    def cells(row: Comparison, family: int) -> list[Cell]:
        effect, ours = effect_of(known, row), effect_cells(known, row, family)
        if effect is not None and effect.plain == effect.asymmetric:
            ours[2] = Cell(0.0, effect.spec_ids, words=EXACT)
        return [*ours, _cosine_cell(known, row)]

    columns = (*map(number, sides), percent("Effect"), *EFFECT[3:], number("Mean cosine", signed=True))
    correction = (
        f"Effect: mean over seeds of the difference in test accuracy, in percent of the mean of {sides[0]}. Intervals "
        f"are 95% t intervals over seeds, corrected for {max(family_sizes(comparisons).values(), default=1)} cells; "
        "p too."
    )
    headings = ("Backbone", "Branches")
    return comparison_table(comparisons, name, title, headings, columns, cells, f"{note} {correction}")


def _cosine_cell(known: Snapshot, comparison: Comparison) -> Cell:
    runs = [run for _, run in pairs_of(known, comparison)]
    if not runs:
        return Cell(missing=True)
    cosines = [run.mean_cosine for run in runs if run.mean_cosine is not None]
    return Cell(float(np.mean(cosines)) if cosines else "undefined", tuple(run.spec.id for run in runs))


def variants_figure(known: Snapshot, comparisons: Sequence[Comparison], name: str, title: str, partner: str) -> Figure:
    """The effects of the primary reading, a panel for each backbone."""
    shown = [row for row in comparisons if row.reading == PRIMARY]
    label = f"effect against {partner} (%)"
    panels = [
        Bars(NAMES[arch], label, arch, tuple(_bar(known, row, len(shown)) for row in shown if row.arch == arch))
        for arch in ARCHS
    ]
    if not any(bar.estimate is not None for panel in panels for bar in panel.bars):
        return Figure(name, title, (), caption="Waits for its runs.")
    caption = (
        "Bars are the intervals of the table, dots the seeds. A bar that ends in an arrow goes on: few seeds have wide "
        "intervals."
    )
    return Figure(name, title, panels, len(panels), caption)


def _bar(known: Snapshot, comparison: Comparison, family: int) -> Bar:
    effect, words = effect_of(known, comparison), comparison.heading[1]
    if effect is None:
        return Bar(words, None, None, None)
    base, over_seeds = float(np.mean(effect.plain)), interval(effect, family)
    seeds = [100 * (b - a) / base for a, b in zip(effect.plain, effect.asymmetric, strict=True)] if base else []
    low, high = (None, None) if over_seeds is None else (over_seeds.low, over_seeds.high)
    return Bar(words, improvement(effect), low, high, tuple(seeds))


def sentences(study: Study, known: Snapshot, comparisons: Sequence[Comparison], partner: str) -> tuple[str, ...]:
    """For each backbone, of which variants the interval excludes 0 under the primary reading; nothing without rows."""
    shown = [row for row in comparisons if row.reading == PRIMARY]
    texts = []
    for arch in ARCHS:
        rows = ((row.heading[1], effect_of(known, row)) for row in shown if row.arch == arch)
        effects = {words: effect for words, effect in rows if effect is not None}
        if effects:
            size = _study_size(study, effects)
            texts.append(f"{NAMES[arch]} against {partner} ({size}): {_by_interval(effects, len(shown))}.")
    return tuple(texts)


def _study_size(study: Study, effects: Mapping[str, Effect]) -> str:
    """How many seeds, and the size that the paper's tables have where this study is smaller."""
    seeds, epochs = min(len(effect.seeds) for effect in effects.values()), study.epochs
    short = [f"{seeds} of {len(FULL.seeds)} seeds"] if seeds < len(FULL.seeds) else []
    short += [f"{epochs} of {FULL.epochs} epochs"] if epochs < FULL.epochs else []
    short += [study.stand_in] if study.stand_in else []
    return f"preliminary: {', '.join(short)}" if short else f"{seeds} seeds"


def _by_interval(effects: Mapping[str, Effect], family: int) -> str:
    clear = "the interval excludes 0 for"
    unclear = "the interval includes 0 for"
    same = "the accuracy is the same in every seed, an effect of exactly 0, for"
    rest = "without an interval are"
    kinds: dict[str, list[str]] = {clear: [], unclear: [], same: [], rest: []}
    for words, effect in effects.items():
        change, over_seeds = improvement(effect), interval(effect, family)
        if effect.plain == effect.asymmetric:
            kinds[same].append(words)
        elif change is None:
            kinds[rest].append(f"{words} (undefined: its partner got nothing right)")
        elif over_seeds is None:
            kinds[rest].append(f"{words} ({change:+.1f}%)")
        elif over_seeds.low > 0 or over_seeds.high < 0:
            kinds[clear].append(f"{words} ({change:+.1f}%, {over_seeds.low:+.1f}% to {over_seeds.high:+.1f}%)")
        else:
            kinds[unclear].append(f"{words} ({change:+.1f}%)")
    return "; ".join(f"{opening} {', '.join(members)}" for opening, members in kinds.items() if members)
