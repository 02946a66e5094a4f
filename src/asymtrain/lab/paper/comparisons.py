"""Plain against Asymmetric, seed by seed: the form that most of the paper's tables have.

A recipe lists its `Comparison`s; the specs that it needs, the table beside the paper's and the evidence for the
verdicts all follow from that list.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asymtrain.lab.paper.evidence import Effect
from asymtrain.lab.paper.numbers import Hyperparameters, Printed, cells
from asymtrain.lab.paper.recipe import Needs
from asymtrain.lab.paper.result import MISSING, Cell, ResultTable, missing_cell
from asymtrain.lab.paper.snapshot import Snapshot, accuracy
from asymtrain.lab.paper.study import PRIMARY, Reading, Study, asymmetric_spec, over_seeds, plain_spec, unique
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.search.stages import with_settings
from asymtrain.lab.statistics import Interval, t_interval

RESULTS = ("Plain", "Asymmetric", "Improvement", "Interval", "p", "n")
PAPER = ("Paper: Plain", "Paper: Asymmetric", "Paper: improvement", "Difference")


@dataclass(frozen=True)
class Comparison:
    """One cell of the paper under one reading.

    Attributes:
        label: names it in the evidence: `table1/vit/20`.
        heading: its first cells in the table.
        reading: under which it is made.
        plain: the specs over seeds.
        asymmetric: the specs over the same seeds.
        paper: the paper's numbers.
        stand_in: what stands in for the paper's data and networks.
    """

    label: str
    heading: tuple[str, ...]
    reading: Reading
    plain: tuple[RunSpec, ...]
    asymmetric: tuple[RunSpec, ...]
    paper: Printed | None = None
    stand_in: str = ""


def compare(
    study: Study,
    reading: Reading,
    label: str,
    heading: tuple[str, ...],
    arch: str,
    dataset: str,
    values: Hyperparameters | None,
    redundancy: int,
    auxiliary: Mapping[str, Any] | None = None,
    *,
    plain_values: Hyperparameters | None = None,
    plain_settings: Mapping[str, float] | None = None,
    paper: str | None = None,
    **fields: Any,
) -> Comparison:
    """The comparison of one backbone, dataset and setting over the study's seeds.

    Without `values` (a search is to find them) it has no specs yet. `plain_values` are Plain's where it has its own,
    `plain_settings` what else it alone has (dropout, label smoothing).
    `paper` is the label of the paper's cell where it is not `label`; `auxiliary` and `fields` as in `asymmetric_spec`.
    """
    plain: tuple[RunSpec, ...] = ()
    asymmetric: tuple[RunSpec, ...] = ()
    if values is not None:
        without = plain_spec(study, arch, dataset, plain_values or values, **fields)
        plain = over_seeds(study, with_settings(without, plain_settings or {}))
        branched = asymmetric_spec(study, reading, arch, dataset, values, redundancy, auxiliary, **fields)
        asymmetric = over_seeds(study, branched)
    return Comparison(label, heading, reading, plain, asymmetric, cells().get(paper or label), study.stand_in)


def needs_of(study: Study, comparisons: Sequence[Comparison], *searches: Needs) -> Needs:
    """The searches' trials, then the runs of the comparisons that can be named."""
    found = unique([*(one.specs for one in searches), specs_of(comparisons)])
    later = {name: count for one in searches for name, count in one.later.items()}
    later |= {f"{one.label} {one.reading.name}": 2 * len(study.seeds) for one in comparisons if not one.plain}
    return Needs(found, later=later)


def specs_of(comparisons: Iterable[Comparison]) -> tuple[RunSpec, ...]:
    """Every spec behind the comparisons, pairs side by side."""
    return unique(pair for one in comparisons for pair in zip(one.plain, one.asymmetric, strict=True))


def pairs_of(known: Snapshot, one: Comparison) -> list[tuple[Run, Run]]:
    """Plain and Asymmetric of the seeds for which both are there."""
    return [
        (known.runs[plain.id], known.runs[asymmetric.id])
        for plain, asymmetric in zip(one.plain, one.asymmetric, strict=True)
        if plain.id in known.runs and asymmetric.id in known.runs
    ]


def effect_of(known: Snapshot, one: Comparison) -> Effect | None:
    """The finished pairs; None where there is none."""
    pairs = pairs_of(known, one)
    if not pairs:
        return None
    return Effect(
        label=one.label,
        plain=tuple(accuracy(plain, one.reading) for plain, _ in pairs),
        asymmetric=tuple(accuracy(asymmetric, one.reading) for _, asymmetric in pairs),
        epochs=one.plain[0].epochs,
        spec_ids=tuple(run.spec.id for pair in pairs for run in pair),
        seeds=tuple(plain.spec.seed for plain, _ in pairs),
        stand_in=one.stand_in,
    )


def evidence_of(known: Snapshot, comparisons: Iterable[Comparison]) -> dict[str, dict[str, Any]]:
    """Effects by reading and label."""
    found: dict[str, dict[str, Any]] = {}
    for one in comparisons:
        effect = effect_of(known, one)
        if effect is not None:
            found.setdefault(one.reading.name, {})[one.label] = effect
    return found


def effect_table(
    known: Snapshot,
    comparisons: Sequence[Comparison],
    name: str,
    title: str,
    headings: Sequence[str],
    note: str = "",
    more: tuple[str, Callable[[Snapshot, Comparison], Cell]] | None = None,
) -> ResultTable:
    """Ours beside the paper's. Intervals and p are corrected (Bonferroni) for the cells of one reading.

    `more` is the heading of one more column, which stands after the interval, and what fills it.
    """
    sizes = Counter(one.reading.name for one in comparisons)
    several = any(name != PRIMARY.name for name in sizes)
    at = RESULTS.index("Interval") + 1
    results = RESULTS if more is None else (*RESULTS[:at], more[0], *RESULTS[at:])
    columns = (*headings, *(("Reading",) if several else ()), *results, *PAPER)
    rows = []
    for one in comparisons:
        heading = heading_cells(one, several)
        ours = effect_cells(known, one, sizes[one.reading.name])
        if more is not None:
            ours.insert(at, more[1](known, one))
        rows.append((*heading, *ours, *_papers(known, one)))
    counts = " or ".join(str(count) for count in sorted(set(sizes.values()))) or "1"
    of = " of a reading" if len(set(sizes.values())) > 1 else ""
    correction = f"Intervals are 95% t intervals over seeds, corrected for {counts} cells{of}; p too."
    return ResultTable(name, title, tuple(columns), tuple(rows), f"{note} {correction}".strip())


def heading_cells(one: Comparison, several: bool) -> list[Cell]:
    """The first cells of a row; of several readings also which one it is."""
    return [Cell(text) for text in (*one.heading, *((one.reading.title,) if several else ()))]


def interval(effect: Effect, family: int = 1) -> Interval | None:
    """Improvement in percent of Plain's mean and its Bonferroni t interval; None for one seed, or where Plain is 0."""
    base = float(np.mean(effect.plain))
    if len(effect.seeds) < 2 or not base:
        return None
    changes = [100 * (after - before) / base for before, after in zip(effect.plain, effect.asymmetric, strict=True)]
    return t_interval(changes, family=family)


def improvement(effect: Effect) -> float | None:
    """In percent of Plain's mean."""
    base = float(np.mean(effect.plain))
    return 100 * (float(np.mean(effect.asymmetric)) - base) / base if base else None


def mean_cell(values: Sequence[float], ids: tuple[str, ...], digits: int = 3) -> Cell:
    """Mean and deviation over seeds."""
    mean = float(np.mean(values))
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return Cell(f"{mean:.{digits}f}{spread}", mean, ids)


def p_text(p: float) -> str:
    """As the paper prints it, and never as nought."""
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def effect_cells(known: Snapshot, one: Comparison, family: int) -> list[Cell]:
    """The cells under `RESULTS`, as one of a family of tests."""
    effect = effect_of(known, one)
    if effect is None:
        return [missing_cell() for _ in RESULTS]
    ids, change, found = effect.spec_ids, improvement(effect), interval(effect, family)
    blank = Cell(MISSING, spec_ids=ids)  # not missing: with one seed or equal pairs there is none
    return [
        mean_cell(effect.plain, ids[::2]),
        mean_cell(effect.asymmetric, ids[1::2]),
        blank if change is None else Cell(f"{change:+.1f}%", change, ids),
        Cell(f"{found.low:+.1f}% to {found.high:+.1f}%", None, ids) if found else blank,
        Cell(p_text(min(1.0, family * found.p)), min(1.0, family * found.p), ids) if found else blank,
        Cell(str(len(effect.seeds)), len(effect.seeds), ids),
    ]


def _papers(known: Snapshot, one: Comparison) -> list[Cell]:
    paper, effect = one.paper, effect_of(known, one)
    if paper is None or paper.improvement is None:
        return [Cell(MISSING) for _ in PAPER]
    said, change = paper.improvement, None if effect is None else improvement(effect)
    ids = () if effect is None else effect.spec_ids
    return [
        printed_cell(paper.plain, paper.plain_std),
        printed_cell(paper.asymmetric, paper.asymmetric_std),
        Cell(f"{said:+.1f}%", said),
        missing_cell() if change is None else Cell(f"{change - said:+.1f}", change - said, ids),
    ]


def printed_cell(mean: float | None, spread: float | None = None, digits: int = 3) -> Cell:
    """A number of the paper."""
    if mean is None:
        return Cell(MISSING)
    return Cell(f"{mean:.{digits}f}" + (f" ± {spread:.{digits}f}" if spread is not None else ""), mean)
