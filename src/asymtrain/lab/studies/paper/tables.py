"""The columns and cells that the paper's tables share, ours beside the paper's, as values; and lines of its figures.

A table of comparisons (`comparison_table`) has a row for each; its columns are one of the tuples below, with the
function that fills them. Only its column says how a number is written.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from asymtrain.errors import UsageError
from asymtrain.lab import statistics
from asymtrain.lab.instruments.alignment.measure import conflicts
from asymtrain.lab.instruments.curves import Curve
from asymtrain.lab.report.figure import Colour, Dash, Line
from asymtrain.lab.report.table import Cell, Column, Mean, Range, Table, missing_cells
from asymtrain.lab.report.table import interval as ends
from asymtrain.lab.runs import Run
from asymtrain.lab.statistics import (
    bootstrap_images,
    bootstrap_seeds,
    cohen_d_av,
    cohen_d_z,
    minimum_detectable_improvement,
    size_word,
    t_interval,
    unpack_answers,
    wilcoxon_p,
)
from asymtrain.lab.studies.paper.comparisons import PairedCell, effect_of, improvement, interval, pairs_of
from asymtrain.lab.studies.paper.evidence import Effect, first_epochs
from asymtrain.lab.studies.paper.numbers import Printed, note_text
from asymtrain.lab.studies.paper.study import PRIMARY
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.timing import count_test_images
from asymtrain.models import display_name

Ids = tuple[str, ...]
Headings = Sequence[str | Column]
NOTHING = Cell()  # there is no such number


def number(name: str, digits: int | None = 3, **options: Any) -> Column:
    return Column(name, "number", digits=digits, **options)


def percent(name: str, **options: Any) -> Column:
    """A column of changes in percent of Plain, or of their intervals."""
    return Column(name, "number", "%", 1, signed=True, **options)


def sides(digits: int = 3, **options: Any) -> tuple[Column, Column]:
    """Both sides of a comparison: means over seeds."""
    return number("Plain", digits, **options), number("Asymmetric", digits, short="Asymm.", **options)


READING = Column("Reading", only_if_varied=True)
N, P = Column("n", "count"), Column("p", "p", digits=4)
EFFECT = (*sides(), percent("Improvement", short="Change"), percent("Interval"), P, N)
PAPERS = (
    *sides(papers=True),
    percent("improvement", short="change", papers=True),
    number("Difference", 1, signed=True, against_paper="Difference: our improvement less the paper's, in points."),
)


def headings_of(names: Headings) -> tuple[Column, ...]:
    return tuple(Column(name) if isinstance(name, str) else name for name in names)


def heading_cells(values: Sequence[str | float], *archs: str) -> list[Cell]:
    first, *rest = values
    return [Cell(first, about=archs), *map(Cell, rest)]


def arch_cell(arch: str) -> Cell:
    return Cell(display_name(arch), about=(arch,))


def mean_of(values: Sequence[float]) -> Mean:
    return Mean(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)


def ends_of(over_seeds: statistics.Interval | None) -> Range | None:
    """Both ends of a computed interval; None for one seed or equal pairs."""
    return None if over_seeds is None else Range(over_seeds.low, over_seeds.high)


def interval_cells(over_seeds: statistics.Interval | None, family: int, ids: Ids) -> list[Cell]:
    p = None if over_seeds is None else min(1.0, family * over_seeds.p)
    return [Cell(ends_of(over_seeds), ids), Cell(p, ids)]


def comparison_table(
    comparisons: Sequence[PairedCell],
    name: str,
    title: str,
    headings: Headings,
    columns: Sequence[Column],
    cells: Callable[[PairedCell, int], Sequence[Cell]],
    note: str,
) -> Table:
    """A row for each comparison: its headings, its reading if there are several, and the result of `cells`.

    `cells` also gets the number of the table's comparisons with that reading: the family to correct for.
    """
    families = family_sizes(comparisons)
    several = set(families) - {PRIMARY.name}
    rows = []
    for row in comparisons:
        heading = (*row.heading, row.reading.title) if several else row.heading
        rows.append((*heading_cells(heading, row.arch), *cells(row, families[row.reading.name])))
    all_columns = (*headings_of(headings), *([READING] if several else []), *columns)
    return Table(name, title, all_columns, tuple(rows), note)


def family_sizes(comparisons: Sequence[PairedCell]) -> Counter[str]:
    return Counter(row.reading.name for row in comparisons)


# Accuracy, beside the paper's


def effect_table(
    snapshot: Snapshot,
    comparisons: Sequence[PairedCell],
    name: str,
    title: str,
    headings: Headings,
    note: str = "",
    *,
    over_images: bool = False,
) -> Table:
    """Ours beside the paper's. Intervals and p are corrected (Bonferroni) for the cells of one reading.

    `over_images`: does it have a column with the interval over test images?
    """
    at = 4  # after the interval over seeds

    def cells(row: PairedCell, family: int) -> list[Cell]:
        ours = effect_cells(snapshot, row, family)
        images = [image_interval_cell(snapshot, row)] if over_images else []
        return [*ours[:at], *images, *ours[at:], *_paper_cells(snapshot, row)]

    sizes = sorted(set(family_sizes(comparisons).values()))
    counts, of = " or ".join(map(str, sizes)) or "1", " of a reading" if len(sizes) > 1 else ""
    correction = note_text("effect", cells=counts, of=of)
    columns = (*EFFECT[:at], *([OVER_IMAGES] if over_images else []), *EFFECT[at:], *PAPERS)
    return comparison_table(comparisons, name, title, headings, columns, cells, f"{note} {correction}".strip())


def effect_cells(snapshot: Snapshot, comparison: PairedCell, family: int) -> list[Cell]:
    """The cells under `EFFECT`, with corrections for a family of tests."""
    effect = effect_of(snapshot, comparison)
    if effect is None:
        return missing_cells(len(EFFECT))
    ids = effect.spec_ids
    return [
        Cell(mean_of(effect.plain), ids[::2]),
        Cell(mean_of(effect.asymmetric), ids[1::2]),
        Cell(improvement(effect), ids),
        *interval_cells(interval(effect, family), family, ids),
        Cell(len(effect.seeds), ids),
    ]


def _paper_cells(snapshot: Snapshot, comparison: PairedCell) -> list[Cell]:
    paper, effect = comparison.paper, effect_of(snapshot, comparison)
    if paper is None or paper.improvement is None:
        return [NOTHING] * len(PAPERS)
    change = None if effect is None else improvement(effect)
    means = ((paper.plain, paper.plain_std), (paper.asymmetric, paper.asymmetric_std))
    return [
        *(NOTHING if mean is None else Cell(Mean(mean, deviation)) for mean, deviation in means),
        Cell(paper.improvement),
        *(missing_cells() if effect is None or change is None else [Cell(change - paper.improvement, effect.spec_ids)]),
    ]


# The improvement's interval over test images, beside the one over seeds: all seeds share one test set

OVER_IMAGES = percent("Interval over images")
OVER_IMAGES_NOTE = note_text("over-images", column=OVER_IMAGES.name)


def image_interval_cell(snapshot: Snapshot, comparison: PairedCell) -> Cell:
    """The interval of a comparison's finished pairs.

    A dash if a run did not record which images it got right (it diverged, or an older version trained it), and for the
    best validation epoch: the records are from the last epoch.
    """
    pairs = pairs_of(snapshot, comparison)
    if not pairs:
        return Cell(missing=True)
    ids = tuple(run.spec.id for pair in pairs for run in pair)
    plain, asymmetric = (tuple(run.answers for run in side if run.answers) for side in zip(*pairs, strict=True))
    over_images = None
    if comparison.reading.accuracy == "last" and len(plain) == len(asymmetric) == len(pairs):
        over_images = _over_images(plain, asymmetric, count_test_images(comparison.plain[0]))
    return Cell(over_images, ids)


@lru_cache(maxsize=1024)  # cells share runs, and thousands of draws of ten thousand images take a second
def _over_images(plain: tuple[bytes, ...], asymmetric: tuple[bytes, ...], images: int) -> Range | None:
    before, after = (unpack_answers(side, images) for side in (plain, asymmetric))
    try:
        return Range(*bootstrap_images(before, after))
    except UsageError:  # Plain is right in hardly any image: a draw may have none of them
        return None


# Effect sizes, a test without assuming normality, what n can find

SIZES = (
    number("d_z", 2, signed=True),
    number("d_av", 2, signed=True),
    Column("In words"),
    Column("Wilcoxon p", "p", digits=4),
    percent("Bootstrap over seeds"),
    Column("Detectable", "number", "%", 1),
    N,
)
SIZES_NOTE = note_text("sizes")


def sizes_table(
    snapshot: Snapshot, comparisons: Sequence[PairedCell], name: str, title: str, headings: Headings
) -> Table:
    def cells(row: PairedCell, family: int) -> list[Cell]:
        effect = effect_of(snapshot, row)
        if effect is None:
            return missing_cells(len(SIZES))
        plain, asymmetric = effect.plain, effect.asymmetric
        d_av, n = cohen_d_av(plain, asymmetric), len(plain)
        p = wilcoxon_p([after - before for before, after in zip(plain, asymmetric, strict=True)])
        bootstrap = detectable = None
        if n > 1 and any(plain):
            bootstrap = Range(*bootstrap_seeds(plain, asymmetric))
            detectable = minimum_detectable_improvement(plain, asymmetric, family=family)
        values = (cohen_d_z(plain, asymmetric), d_av, size_word(d_av), p, bootstrap, detectable, n)
        return [Cell(value, effect.spec_ids) for value in values]

    return comparison_table(comparisons, name, title, headings, SIZES, cells, SIZES_NOTE)


# How well the training images were fitted at the end: a difference may explain one in test accuracy

FIT = (*sides(), N)
FIT_NOTE = note_text("fit")


def fit_table(
    snapshot: Snapshot, comparisons: Sequence[PairedCell], name: str, title: str, headings: Headings
) -> Table:
    def cells(row: PairedCell, family: int) -> list[Cell]:
        pairs = [pair for pair in pairs_of(snapshot, row) if all(run.history for run in pair)]
        if not pairs:
            return missing_cells(len(FIT))
        sides = list(zip(*pairs, strict=True))
        ids = [tuple(run.spec.id for run in side) for side in sides]
        fitted = [mean_of([run.history[-1].train_accuracy for run in side]) for side in sides]
        return [Cell(fitted[0], ids[0]), Cell(fitted[1], ids[1]), Cell(len(pairs), (*ids[0], *ids[1]))]

    return comparison_table(comparisons, name, title, headings, FIT, cells, FIT_NOTE)


# The gradient cosine beside the effect, row by row: the paper claims that one's sign predicts the other's

COSINE = (
    number("Alpha", None),
    percent("Change"),
    percent("Interval"),
    number("Mean cosine", signed=True),
    number("Interval of the cosine", signed=True),
    Column("In conflict", "share", digits=0),
    Column("Signs"),
    number("Pull at first", significant=True),
    number("Pull", significant=True),
    N,
)
SAME, OPPOSITE, UNCLEAR = "same", "opposite", "unclear"


def cosine_table(
    snapshot: Snapshot, comparisons: Sequence[PairedCell], name: str, title: str, headings: Headings, window: int
) -> Table:
    """The cosine of a comparison's Asymmetric runs, over their first `window` epochs, beside the effect."""

    def cells(row: PairedCell, family: int) -> list[Cell]:
        alpha, effect = Cell(row.asymmetric[0].alpha), effect_of(snapshot, row)
        if effect is None:
            return [alpha, *missing_cells(len(COSINE) - 1)]
        runs = [run for _, run in pairs_of(snapshot, row)]
        conflict = conflicts([first_epochs(run, window) for run in runs])[0]
        of_change = ends_of(interval(effect, family))
        of_cosine = ends(conflict.mean.low, conflict.mean.high)
        values = (improvement(effect), of_change, conflict.mean.mean, of_cosine, conflict.conflict.mean,
                  _signs(of_change, of_cosine), _pull(runs, 1), _pull(runs, window), len(effect.seeds))  # fmt: skip
        return [alpha, *(Cell(value, effect.spec_ids) for value in values)]

    note = note_text("cosine", window=window, cells=max(family_sizes(comparisons).values(), default=1), unclear=UNCLEAR)
    return comparison_table(comparisons, name, title, headings, COSINE, cells, note)


def _pull(runs: Sequence[Run], epochs: int) -> float | None:
    """Median of alpha * auxiliary norm / main norm over the first epochs; None if norms were not recorded.

    The median, because the ratio grows without bound as the main gradient nearly vanishes, at the start or once
    everything is fitted.
    """
    shares = [
        run.spec.alpha * epoch.auxiliary_norm / epoch.main_norm
        for run in runs
        for epoch in run.history[:epochs]
        if epoch.auxiliary_norm is not None and epoch.main_norm
    ]
    return float(np.median(shares)) if shares else None


def _signs(*intervals: Range | None) -> str:
    signs = {0 if span is None else (span.low > 0) - (span.high < 0) for span in intervals}
    if 0 in signs:
        return UNCLEAR
    return SAME if len(signs) == 1 else OPPOSITE


# Quantities that are compared by their plain difference: epochs, gaps, attention

DIFFERENCE_NOTE = "Change: Asymmetric less Plain, with a 95% t interval over pairs of one seed, not corrected."


def difference_columns(digits: int = 3, printed_digits: int | None = None) -> tuple[Column, ...]:
    """Our columns and the paper's; `printed_digits` are the paper's if it prints fewer."""
    printed = digits if printed_digits is None else printed_digits
    return (
        *sides(digits),
        number("Change", digits, signed=True),
        number("Interval", digits, signed=True),
        N,
        *sides(printed, papers=True),
        number("change", printed, signed=True, papers=True),
        number("Difference", digits, signed=True, against_paper="Difference: our change less the paper's."),
    )


def difference_cells(effect: Effect | None, paper: Printed | None) -> list[Cell]:
    printed_change, papers = None, [NOTHING] * 3
    if paper is not None and paper.plain is not None and paper.asymmetric is not None:
        printed_change = paper.asymmetric - paper.plain
        papers = [Cell(paper.plain), Cell(paper.asymmetric), Cell(printed_change)]
    if effect is None:
        return [*missing_cells(5), *papers, *([NOTHING] if printed_change is None else missing_cells())]
    ids, change = effect.spec_ids, float(np.mean(effect.asymmetric) - np.mean(effect.plain))
    changes = [after - before for before, after in zip(effect.plain, effect.asymmetric, strict=True)]
    return [
        Cell(mean_of(effect.plain), ids[::2]),
        Cell(mean_of(effect.asymmetric), ids[1::2]),
        Cell(change, ids),
        Cell(ends_of(t_interval(changes)) if len(changes) > 1 else None, ids),
        Cell(len(effect.seeds), ids),
        *papers,
        NOTHING if printed_change is None else Cell(change - printed_change, ids),
    ]


# Lines of figures from curves over seeds

LEAST = 4  # seeds for a band: with fewer, the t interval is wider than the figure


def curve_line(label: str, colour: Colour, curve: Curve, *, dash: Dash = "solid", seeds: bool = False) -> Line:
    """A curve with its interval over seeds; with each seed's line if asked for, or if there are few."""
    line = dataclasses.replace(curve.line(label, colour), dash=dash)
    alone = seeds or len(curve.seeds) < LEAST
    return dataclasses.replace(line, low=(), high=(), seeds_on_demand=False) if alone else line


def has_points(lines: Iterable[Line]) -> bool:
    return any(value is not None for line in lines for value in line.y)
