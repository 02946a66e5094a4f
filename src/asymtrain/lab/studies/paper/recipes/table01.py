"""Table 1 and Figure 5: accuracy on CIFAR-100 against redundancy, and the dose at equal settings."""

from asymtrain.lab.report.figure import PERCENT, Figure, Line, Lines
from asymtrain.lab.studies.paper.comparisons import (
    PairedCell,
    compare,
    effect_of,
    evidence_of,
    improvement,
    interval,
    specs_of,
)
from asymtrain.lab.studies.paper.numbers import note_text
from asymtrain.lab.studies.paper.recipe import RecipeOutput, recipe
from asymtrain.lab.studies.paper.study import ARCHS, Scope, readings_for, table_values
from asymtrain.lab.studies.paper.tables import OVER_IMAGES_NOTE, cosine_table, effect_table, has_points, sizes_table
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.study import Needs
from asymtrain.models import display_name

LEVELS = (1, 7, 10, 20)
DOSE = 20  # the redundancy whose settings serve all levels where N alone is to be seen
DOSES = (1, 3, 7, 10, 20)  # where all branches are active, and N can act: one more than the paper has


def comparisons(study: Scope) -> list[PairedCell]:
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


def needs(study: Scope, snapshot: Snapshot) -> Needs:
    return Needs(specs_of([*comparisons(study), *doses(study)]))


def make(study: Scope, snapshot: Snapshot) -> RecipeOutput:
    main, dose = comparisons(study), doses(study)
    headings = ("Backbone", "N")
    tables = (
        effect_table(snapshot, main, "table1", "Table 1: accuracy against redundancy", headings,
                     "Each row has Table 13's weight decay and alpha, so N is not all that differs. "
                     f"{OVER_IMAGES_NOTE}",
                     over_images=True),
        effect_table(snapshot, dose, "table1-equal", "Table 1 at equal settings: only N differs", headings,
                     note_text("table1-equal", dose=DOSE)),
        sizes_table(snapshot, main, "table1-sizes", "Table 1: effect sizes, and what so many seeds can find", headings),
        cosine_table(snapshot, main, "table1-cosine", "Table 1: the gradient cosine beside the change", headings,
                     study.window),
    )  # fmt: skip
    # The labels of the two families differ, so one list serves both.
    return RecipeOutput(tables, (_figure(study, snapshot, main),), evidence_of(snapshot, [*main, *dose]))


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


RECIPES = (recipe("table1", needs, make),)
