"""Beyond the paper: each backbone trained with several variants of branches, all against one partner.

- `alphas`: the backbones at equal alpha. The paper gives each backbone an alpha of its own, so its comparison of
  backbones is one of alphas too.
- `schedules`: alpha that changes over training, and a signal that is used only where it agrees.
- `controls`: what in the branches acts? Each control removes one thing from them.

Every variant has Table 13's learning rate, weight decay and alpha at the redundancy of Table 2, so that Plain and the
paper's own branches are runs that other tables share.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from asymtrain.lab.report.figure import PERCENT, Bar, Bars, Figure
from asymtrain.lab.report.table import Cell, Table, missing_cells
from asymtrain.lab.statistics import t_interval
from asymtrain.lab.studies.paper import tables
from asymtrain.lab.studies.paper.comparisons import (
    PairedCell,
    compare,
    effect_of,
    improvement,
    interval,
    pairs_of,
    specs_of,
)
from asymtrain.lab.studies.paper.evidence import Effect, accuracy
from asymtrain.lab.studies.paper.numbers import note_text
from asymtrain.lab.studies.paper.recipe import Recipe, RecipeOutput, recipe
from asymtrain.lab.studies.paper.recipes.accuracy import DOSE
from asymtrain.lab.studies.paper.study import ARCHS, PRIMARY, SIZES, Scope, readings_for, shown_dataset, table_values
from asymtrain.lab.studies.paper.tables import EFFECT, READING, N, P, number, percent
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.study import Needs
from asymtrain.models import display_name

EXACT = "exactly 0"
FULL = SIZES["paper"]


@dataclass(frozen=True)
class Variant:
    """One way to train with branches: its name in labels, its words in tables and sentences."""

    name: str
    words: str
    fields: Mapping[str, Any] = field(default_factory=dict)  # of the spec, in addition to the paper's
    weaker: float = 1.0  # alpha is divided by this
    alpha: float | None = None  # in place of the paper's


def against_plain(study: Scope, recipe: str, variants: Sequence[Variant]) -> list[PairedCell]:
    """Every variant of every backbone, with Plain as its partner."""
    rows = []
    for reading in readings_for(study, DOSE, "accuracy"):
        for arch in ARCHS:
            values = table_values(study, arch, DOSE)
            for variant in variants:
                alpha = values.alpha / variant.weaker if variant.alpha is None else variant.alpha
                own = dataclasses.replace(values, alpha=alpha)
                label, heading = f"{recipe}/{arch}/{variant.name}", (display_name(arch), variant.words)
                rows.append(compare(study, reading, label, heading, arch, "cifar100", own, DOSE, variant.fields))
    return rows


def against_first(comparisons: Sequence[PairedCell]) -> list[PairedCell]:
    """The other variants of each backbone, with its first variant as their partner."""
    firsts: dict[tuple[str, str], PairedCell] = {}
    rows = []
    for row in comparisons:
        first = firsts.setdefault((row.reading.name, row.arch), row)
        if row is not first:
            rows.append(dataclasses.replace(row, plain=first.asymmetric))
    return rows


def variants_output(
    study: Scope,
    snapshot: Snapshot,
    comparisons: Sequence[PairedCell],
    name: str,
    title: str,
    note: str,
    *,
    sides: tuple[str, str] = ("Plain", "Asymmetric"),
    partner: str = "Plain",
    figure_title: str = "",
) -> RecipeOutput:
    """A table of effects, a figure of the primary reading's effects, and a sentence for each backbone."""
    primary = [row for row in comparisons if row.reading == PRIMARY]
    table = _table(snapshot, comparisons, name, title, sides, note)
    figure = _figure(snapshot, primary, f"figure-{name}", figure_title or title, partner)
    return RecipeOutput((table,), (figure,), notes=tuple(_sentences(study, snapshot, primary, partner)))


def _table(
    snapshot: Snapshot, comparisons: Sequence[PairedCell], name: str, title: str, sides: tuple[str, str], note: str
) -> Table:
    """Effects with intervals over seeds (Bonferroni over the cells of one reading) and the mean cosine."""

    def cells(row: PairedCell, family: int) -> list[Cell]:
        effect, ours = effect_of(snapshot, row), tables.effect_cells(snapshot, row, family)
        if effect is not None and effect.plain == effect.asymmetric:
            ours[2] = Cell(0.0, effect.spec_ids, words=EXACT)
        runs = [run for _, run in pairs_of(snapshot, row)]
        cosines = [run.mean_cosine for run in runs if run.mean_cosine is not None]
        cosine = float(np.mean(cosines)) if cosines else "undefined"
        return [*ours, Cell(cosine, tuple(run.spec.id for run in runs)) if runs else Cell(missing=True)]

    columns = (*map(number, sides), percent("Effect"), *EFFECT[3:], number("Mean cosine", signed=True))
    cell_count = max(tables.family_sizes(comparisons).values(), default=1)
    correction = note_text("effects", side=sides[0], cells=cell_count)
    headings = ("Backbone", "Branches")
    return tables.comparison_table(comparisons, name, title, headings, columns, cells, f"{note} {correction}")


def _figure(snapshot: Snapshot, comparisons: Sequence[PairedCell], name: str, title: str, partner: str) -> Figure:
    label = f"effect against {partner} (%)"
    panels = [
        Bars(display_name(arch), label, arch, bars, written=PERCENT)
        for arch in ARCHS
        for bars in [tuple(_bar(snapshot, row, len(comparisons)) for row in comparisons if row.arch == arch)]
    ]
    if not any(bar.estimate is not None for panel in panels for bar in panel.bars):
        return Figure(name, title, (), caption="Waits for its runs.")
    caption = note_text("effects-figure")
    return Figure(name, title, panels, len(panels), caption)


def _bar(snapshot: Snapshot, comparison: PairedCell, family: int) -> Bar:
    effect, words = effect_of(snapshot, comparison), str(comparison.heading[1])
    if effect is None:
        return Bar(words, None, None, None)
    over_seeds = interval(effect, family)
    low, high = (None, None) if over_seeds is None else (over_seeds.low, over_seeds.high)
    return Bar(words, improvement(effect), low, high, tuple(effect.changes.values()))


def _sentences(study: Scope, snapshot: Snapshot, comparisons: Sequence[PairedCell], partner: str) -> Iterator[str]:
    """For each backbone with rows, the variants whose interval excludes 0."""
    for arch in ARCHS:
        rows = ((str(row.heading[1]), effect_of(snapshot, row)) for row in comparisons if row.arch == arch)
        effects = {words: effect for words, effect in rows if effect is not None}
        if effects:
            size = _study_size(study, min(len(effect.seeds) for effect in effects.values()))
            yield f"{display_name(arch)} against {partner} ({size}): {_by_interval(effects, len(comparisons))}."


def _study_size(study: Scope, seeds: int) -> str:
    """The number of seeds, and the paper's size if this study is smaller."""
    short = [f"{seeds} of {len(FULL.seeds)} seeds"] if seeds < len(FULL.seeds) else []
    short += [f"{study.epochs} of {FULL.epochs} epochs"] if study.epochs < FULL.epochs else []
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


# The backbones at equal alpha

ALPHAS = tuple(Variant(f"{alpha:g}", f"alpha {alpha:g}", alpha=alpha) for alpha in (0.1, 1.0, 4.642, 100.0))
"""All alphas in Table 13."""
PAIRS = tuple((second, first) for first, second in combinations(("cnn", "mlp", "vit"), 2))
BETWEEN = (number("Difference", 1, signed=True), number("Interval", 1, signed=True), P, N)


def make_alphas(study: Scope, snapshot: Snapshot, rows: Sequence[PairedCell]) -> RecipeOutput:
    note = note_text("alphas", data=shown_dataset(study, "cifar100"), dose=DOSE)
    title = "The backbones at equal alpha"
    output = variants_output(
        study, snapshot, rows, "alphas", title, note, figure_title=f"{title}: effect against Plain"
    )
    return dataclasses.replace(output, tables=(*output.tables, between_table(snapshot, rows)))


def between_table(snapshot: Snapshot, comparisons: Sequence[PairedCell]) -> Table:
    """The effect of one backbone minus that of another, seed by seed, at one alpha."""
    readings = {row.reading.name: row.reading.title for row in comparisons}
    several = set(readings) != {PRIMARY.name}
    effects = {(row.reading.name, row.label): effect_of(snapshot, row) for row in comparisons}
    family = len(ALPHAS) * len(PAIRS)
    rows = []
    for reading, words in readings.items():
        for variant in ALPHAS:
            for second, first in PAIRS:
                difference = f"{display_name(second)} less {display_name(first)}"
                texts = (variant.words, difference, *((words,) if several else ()))
                effect, other = (effects[reading, f"alphas/{arch}/{variant.name}"] for arch in (first, second))
                rows.append((*tables.heading_cells(texts, first, second), *_between_cells(effect, other, family)))
    columns = (*tables.headings_of(("Alpha", "Backbones")), *((READING,) if several else ()), *BETWEEN)
    note = note_text("alphas-between", cells=family)
    return Table("alphas-between", "Between backbones, at equal alpha", columns, tuple(rows), note)


def _between_cells(first: Effect | None, second: Effect | None, family: int) -> list[Cell]:
    if first is None or second is None:
        return missing_cells(len(BETWEEN))
    ids = (*first.spec_ids, *second.spec_ids)
    before, after = first.changes, second.changes
    differences = [after[seed] - before[seed] for seed in sorted(before.keys() & after.keys())]
    if not differences:
        return [Cell(None, ids)] * len(BETWEEN)
    over_seeds = t_interval(differences, family=family) if len(differences) > 1 else None
    ours = tables.interval_cells(over_seeds, family, ids)
    return [Cell(float(np.mean(differences)), ids), *ours, Cell(len(differences), ids)]


# Schedules of alpha

SCHEDULES = (
    Variant("constant", "constant, as in the paper"),
    Variant("linear", "linear to 0", {"alpha_schedule": "linear"}),
    Variant("cosine", "cosine to 0", {"alpha_schedule": "cosine"}),
    Variant("early", "first half only", {"alpha_schedule": "early"}),
    Variant("gated", "gated by the cosine", {"signal": "gated"}),
)


def make_schedules(study: Scope, snapshot: Snapshot, rows: Sequence[PairedCell]) -> RecipeOutput:
    note = note_text("schedules", data=shown_dataset(study, "cifar100"), dose=DOSE)
    title = "Schedules of alpha"
    return variants_output(
        study, snapshot, rows, "schedules", title, note, figure_title=f"{title}: effect against Plain"
    )


# Controls

CONTROLS = (
    Variant("paper", "as in the paper"),
    Variant("softmax", "softmax loss", {"objective": "softmax"}),
    Variant("random-labels", "random labels", {"branch_labels": "random"}),
    Variant("noise", "noise of equal norm", {"signal": "noise"}),
    Variant("detached", "detached from the backbone", {"signal": "detached"}),
    Variant("frozen", "frozen weights", {"branch_weights": "frozen"}),
    Variant("prior-bias", "bias at the prior", {"bias": "prior"}),
    Variant("weak", "alpha / 100", weaker=100.0),
)


def make_controls(study: Scope, snapshot: Snapshot, rows: Sequence[PairedCell]) -> RecipeOutput:
    """Each control against Plain, and against the paper's Asymmetric."""
    note = note_text("controls", data=shown_dataset(study, "cifar100"), dose=DOSE)
    against = {
        "Plain": (rows, "controls", ("Plain", "With branches")),
        "Asymmetric as in the paper": (against_first(rows), "controls-asymmetric", ("Asymmetric", "Control")),
    }
    plain, asymmetric = (
        variants_output(
            study, snapshot, members, name, f"Controls against {partner}", note, sides=sides, partner=partner
        )
        for partner, (members, name, sides) in against.items()
    )
    notes = (*_detached_sentences(snapshot, rows), *plain.notes, *asymmetric.notes)
    return RecipeOutput((*plain.tables, *asymmetric.tables), (*plain.figures, *asymmetric.figures), notes=notes)


def _detached_sentences(snapshot: Snapshot, comparisons: Sequence[PairedCell]) -> tuple[str, ...]:
    """Do detached branches leave Plain's network unchanged? They must, unless other stacks round otherwise."""
    cells = [row for row in comparisons if row.label == f"controls/{row.arch}/detached" and row.reading == PRIMARY]
    pairs = [pair for row in cells for pair in pairs_of(snapshot, row)]
    if not pairs:
        return ()
    same = sum(plain.answers is not None and plain.answers == other.answers for plain, other in pairs)
    if same == len(pairs):
        return (f"Detached branches give Plain's answer to every test image in all {same} pairs.",)
    apart = max(abs(accuracy(other, PRIMARY) - accuracy(plain, PRIMARY)) for plain, other in pairs)
    return (note_text("detached", same=same, pairs=len(pairs), points=100 * apart),)


VARIANTS = {"alphas": ALPHAS, "schedules": SCHEDULES, "controls": CONTROLS}


def needs_for(recipe: str, chosen: Collection[str], study: Scope, snapshot: Snapshot) -> Needs:
    """The runs of some of a recipe's variants, such as `cnn/softmax`, with their partners."""
    rows = against_plain(study, recipe, VARIANTS[recipe])
    assert {f"{recipe}/{name}" for name in chosen} <= {row.label for row in rows}, f"{recipe} has no {chosen}"
    return Needs(specs_of(row for row in rows if row.label.removeprefix(f"{recipe}/") in chosen))


def _recipe(name: str, make: Callable[[Scope, Snapshot, Sequence[PairedCell]], RecipeOutput]) -> Recipe:
    """A recipe whose runs are all variants and their partners; `make` gets them as comparisons with Plain."""
    variants = VARIANTS[name]
    return recipe(
        name,
        lambda study, snapshot: Needs(specs_of(against_plain(study, name, variants))),
        lambda study, snapshot: make(study, snapshot, against_plain(study, name, variants)),
    )


RECIPES = (_recipe("alphas", make_alphas), _recipe("schedules", make_schedules), _recipe("controls", make_controls))
