"""Tables of accuracy with and without branches: 1, 7 to 12, 16 and 17, and Figure 5."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from asymtrain.lab.report.figure import PERCENT, Figure, Line, Lines
from asymtrain.lab.report.table import Column, Table
from asymtrain.lab.studies.paper import searches
from asymtrain.lab.studies.paper.comparisons import (
    PairedCell,
    compare,
    effect_of,
    evidence_of,
    improvement,
    interval,
    needs_of,
    specs_of,
)
from asymtrain.lab.studies.paper.numbers import Hyperparameters, labels, note_text
from asymtrain.lab.studies.paper.recipe import Recipe, RecipeOutput, recipe, recipe_words
from asymtrain.lab.studies.paper.searches import TRIED, dual_of, settled, values_for, waiting
from asymtrain.lab.studies.paper.study import (
    ARCHS,
    Scope,
    few_shot_size,
    readings_for,
    shown_dataset,
    table_values,
)
from asymtrain.lab.studies.paper.tables import (
    OVER_IMAGES_NOTE,
    cosine_table,
    effect_table,
    fit_table,
    has_points,
    sizes_table,
)
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.study import Needs
from asymtrain.models import display_name

# Table 1 and Figure 5: CIFAR-100 against redundancy, and the dose at equal settings

LEVELS = (1, 7, 10, 20)
DOSE = 20  # the redundancy whose settings serve all levels, to show the effect of N alone
DOSES = (1, 3, 7, 10, 20)  # with all branches active, so that N can act: one more than the paper has


def table1_cells(study: Scope) -> list[PairedCell]:
    return [
        compare(
            study, reading, f"table1/{arch}/{level}", (display_name(arch), f"{level}x"), arch, "cifar100",
            table_values(study, arch, level), level,
        )
        for reading in readings_for(study, DOSE, "training", "accuracy", "recipe")
        for arch in ARCHS for level in LEVELS
    ]  # fmt: skip


def doses(study: Scope) -> list[PairedCell]:
    """The same learning rate, weight decay and alpha at each level: only N differs."""
    return [
        compare(
            study, reading, f"redundancy/{arch}/{level}", (display_name(arch), f"{level}x"), arch, "cifar100",
            table_values(study, arch, DOSE), level, paper=f"table1/{arch}/{level}" if level == DOSE else None,
        )
        for reading in readings_for(study, DOSE, "training", "accuracy")
        for arch in ARCHS for level in (DOSES if "activation" in reading.fields else LEVELS)
    ]  # fmt: skip


def make_table1(study: Scope, snapshot: Snapshot) -> RecipeOutput:
    main, dose = table1_cells(study), doses(study)
    headings = ("Backbone", "N")

    def tables() -> Iterator[Table]:
        yield effect_table(
            snapshot,
            main,
            "table1",
            "Table 1: accuracy against redundancy",
            headings,
            f"Each row has Table 13's weight decay and alpha, so N is not all that differs. {OVER_IMAGES_NOTE}",
            over_images=True,
        )
        title = "Table 1 at equal settings: only N differs"
        yield effect_table(snapshot, dose, "table1-equal", title, headings, note_text("table1-equal", dose=DOSE))
        title = "Table 1: effect sizes, and what so many seeds can find"
        yield sizes_table(snapshot, main, "table1-sizes", title, headings)
        title = "Table 1: the gradient cosine beside the change"
        yield cosine_table(snapshot, main, "table1-cosine", title, headings, study.window)

    # The labels of the two families differ, so one list serves both.
    return RecipeOutput(tables(), (_figure(study, snapshot, main),), evidence_of(snapshot, [*main, *dose]))


def _figure(study: Scope, snapshot: Snapshot, main: list[PairedCell]) -> Figure:
    title = "Figure 5: improvement against redundancy"
    lines: list[Line] = []
    for arch in ARCHS:
        rows = [row for row in main if row.reading == study.readings[0] and row.arch == arch]
        effects = [effect_of(snapshot, row) for row in rows]
        changes = [None if effect is None else improvement(effect) for effect in effects]
        intervals = [None if effect is None else interval(effect) for effect in effects]
        x = tuple(float(level) for level in LEVELS)
        low = tuple(None if ends is None else ends.low for ends in intervals)
        high = tuple(None if ends is None else ends.high for ends in intervals)
        lines.append(Line(display_name(arch), arch, x, tuple(changes), low, high, marker=True))
        paper = tuple(row.paper.improvement if row.paper else None for row in rows)
        lines.append(Line(f"{display_name(arch)}, paper", arch, x, paper, dash="dotted"))
    if not has_points(lines[::2]):
        return Figure("figure5", title, (), caption="Waits for the runs of Table 1.")
    panel = Lines(
        "",
        "branches at each point (N)",
        "improvement over Plain (%)",
        tuple(lines),
        zero=True,
        ticks=LEVELS,
        written=PERCENT,
    )
    caption = "Bars are 95% intervals over seeds, not corrected. Dotted: the paper's. Settings are those of Table 13."
    return Figure("figure5", title, (panel,), caption=caption)


# Tables 7 to 9, 11 and 12: one backbone on one dataset, with few images a class or with flipped labels

IMAGES, NOISE = "Images a class", "Flipped labels"
HEADINGS = {IMAGES: Column(IMAGES), NOISE: Column(NOISE, "share", digits=0)}


@dataclass(frozen=True)
class Sweep:
    """A table: what is swept, on which backbone and dataset, and with how many branches."""

    table: str
    swept: str
    arch: str
    dataset: str
    redundancy: int


# The paper states N only for Table 9; in Table 1 the MLP gains with one branch.
SWEEPS = {
    sweep.table: sweep
    for sweep in (
        Sweep("table7", IMAGES, "mlp", "cifar10", 1),
        Sweep("table8", IMAGES, "mlp", "cifar100", 1),
        Sweep("table9", IMAGES, "vit", "cifar100", 20),
        Sweep("table11", NOISE, "mlp", "cifar10", 1),
        Sweep("table12", NOISE, "mlp", "cifar100", 1),
    )
}


def swept_cells(study: Scope, snapshot: Snapshot, table: str) -> list[PairedCell]:
    sweep = SWEEPS[table]
    values = values_for(study, snapshot, sweep.arch, sweep.dataset, sweep.redundancy)
    rows = []
    for reading in readings_for(study, sweep.redundancy, "training"):  # without a validation split: no best epoch
        for label in labels(table):
            level, fields = label.rpartition("/")[2], dict[str, Any](validation="none", test="last")
            if sweep.swept == NOISE:
                heading: str | float = float(level)
                fields["label_noise"] = heading
            else:
                images = few_shot_size(study, sweep.dataset, int(level))
                own = "" if images in (int(level), None) else f" ({images} here)"
                heading, fields["per_class"] = f"{int(level):,}{own}", images
            rows.append(
                compare(
                    study, reading, label, (heading,), sweep.arch, sweep.dataset, values, sweep.redundancy,
                    **fields,
                )
            )  # fmt: skip
    return rows


def _swept_recipe(sweep: Sweep) -> Recipe:
    def needs(study: Scope, snapshot: Snapshot) -> Needs:
        rows = swept_cells(study, snapshot, sweep.table)
        return needs_of(study, rows, waiting(study, snapshot, sweep.arch, sweep.dataset))

    def make(study: Scope, snapshot: Snapshot) -> RecipeOutput:
        rows, headings = swept_cells(study, snapshot, sweep.table), (HEADINGS[sweep.swept],)
        settings = settled(study, snapshot, sweep.arch, sweep.dataset, sweep.redundancy)
        note = f"Trained on {shown_dataset(study, sweep.dataset)}. {settings}"
        title = recipe_words(sweep.table)["title"]
        fit_title = f"{title.partition(':')[0]}: training accuracy at the end"
        tables = (
            effect_table(snapshot, rows, sweep.table, title, headings, note),
            fit_table(snapshot, rows, f"{sweep.table}-fit", fit_title, headings),
        )
        return RecipeOutput(tables, evidence=evidence_of(snapshot, rows))

    return recipe(sweep.table, needs, make)


# Tables 10 and 17: the three backbones on CIFAR-10 with one branch


def table10_cells(study: Scope, snapshot: Snapshot) -> list[PairedCell]:
    """One cell for each backbone."""
    return [
        compare(
            study, reading, f"table10/{arch}", (display_name(arch),), arch, "cifar10",
            values_for(study, snapshot, arch, "cifar10", 1), 1,
        )
        for reading in readings_for(study, 1, "training", "accuracy")
        for arch in ARCHS
    ]  # fmt: skip


def needs_table10(study: Scope, snapshot: Snapshot) -> Needs:
    trials = [waiting(study, snapshot, arch, "cifar10") for arch in ARCHS]
    return needs_of(study, table10_cells(study, snapshot), *trials)


def make_table10(study: Scope, snapshot: Snapshot) -> RecipeOutput:
    rows = table10_cells(study, snapshot)
    settings = " ".join(f"{display_name(arch)}: {settled(study, snapshot, arch, 'cifar10', 1)}" for arch in ARCHS)
    note = f"Trained on {shown_dataset(study, 'cifar10')}. {settings}"
    table = effect_table(snapshot, rows, "table10", "Tables 10 and 17: CIFAR-10, one branch", ("Backbone",), note)
    return RecipeOutput((table,), evidence=evidence_of(snapshot, rows))


# Table 16: three branches, all or one active, each side with settings of its own

ACTIVATIONS = {"all": {"activation": "all"}, "one": {"activation": "last"}}


def table16_cells(study: Scope, snapshot: Snapshot) -> list[PairedCell]:
    """Six cells.

    The activation is the table's own. The reading with losses summed over classes would need a search of its own.
    """
    rows = []
    for reading in readings_for(study, TRIED, "accuracy"):
        for activation, auxiliary in ACTIVATIONS.items():
            for arch in ARCHS:
                heading = (f"{activation} active", display_name(arch))
                plain, asymmetric = _dual_values(study, snapshot, arch, activation)
                rows.append(
                    compare(
                        study, reading, f"table16/{activation}/{arch}", heading, arch, "cifar100", asymmetric,
                        TRIED, auxiliary, plain_values=plain,
                    )
                )  # fmt: skip
    return rows


def needs_table16(study: Scope, snapshot: Snapshot) -> Needs:
    rows = table16_cells(study, snapshot)
    if study.hyperparameters == "paper":
        return needs_of(study, rows)
    cases = [(arch, activation) for activation in ACTIVATIONS for arch in ARCHS]
    trials = [searches.trials(dual_of(study, *case), snapshot) for case in cases]
    return needs_of(study, rows, *trials)


def make_table16(study: Scope, snapshot: Snapshot) -> RecipeOutput:
    rows = table16_cells(study, snapshot)
    note = f"Trained on {shown_dataset(study, 'cifar100')}."
    for activation in ACTIVATIONS:
        for arch in ARCHS:
            sides = zip(("Plain", "Asymmetric"), _dual_values(study, snapshot, arch, activation), strict=True)
            settings = [f"{side} {v.learning_rate:g}, {v.weight_decay:g}, {v.alpha:g}" for side, v in sides if v]
            note += f" {display_name(arch)}, {activation}: {'; '.join(settings) or 'not yet chosen'}."
    note += " These are learning rate, weight decay and alpha."
    title = "Table 16: dual search, three branches"
    table = effect_table(snapshot, rows, "table16", title, ("Branches", "Backbone"), note)
    return RecipeOutput((table,), evidence=evidence_of(snapshot, rows))


def _dual_values(
    study: Scope, snapshot: Snapshot, arch: str, activation: str
) -> tuple[Hyperparameters | None, Hyperparameters | None]:
    if study.hyperparameters == "paper":
        values = table_values(study, arch, 1)
        return values, values
    settings = searches.chosen(dual_of(study, arch, activation), snapshot)
    return (None, None) if settings is None else (settings["plain"], settings["asymmetric"])


RECIPES = (
    recipe("table1", lambda study, _: Needs(specs_of([*table1_cells(study), *doses(study)])), make_table1),
    *map(_swept_recipe, SWEEPS.values()),
    recipe("table10", needs_table10, make_table10),
    recipe("table16", needs_table16, make_table16),
)
