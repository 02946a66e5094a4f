"""The page of gradient alignment: Tables 2 and 15 of the paper, with intervals, and the cosine over training."""

from collections.abc import Sequence

from asymtrain.lab.instruments.alignment.measure import Conflict, conflicts, cosine_curve
from asymtrain.lab.instruments.curves import Curve, cells, counted, spec_labels
from asymtrain.lab.report.figure import SIGNED, Figure, Headline, Line, Lines, Page
from asymtrain.lab.report.table import Cell, Column, Table, interval, value_text
from asymtrain.lab.runs import Run
from asymtrain.lab.texts import listing

VARIANT_FIELDS = ("branch_weights", "signal")  # named in a column of their own
MEANINGS = {
    "trained": "learn with the network, as in training",
    "frozen": "keep their initial weights",
    "detached": "learn beside a Plain network that they do not influence, and the cosine is of the gradient that they "
    "would send back",
    "noise": "learn, and noise of the same norm takes the place of their gradient",
    "gated": "learn, and their gradient is weighted by its cosine where that is positive",
}
LEAD = (
    "The cosine between the gradients of the main and of the auxiliary loss, over the weights that both reach: above "
    "zero they pull the same way, below zero against each other. It is measured on training batches before the "
    "update, and measuring changes no weight."
)
OVER_SEEDS = (
    "Means over seeds. Final: the last epoch. Average: over epochs, with the t interval over seeds. Least and "
    "largest: of a single measured step. In conflict: share of measured steps with a negative cosine."
)
WITHIN_RUNS = (
    "The interval is by batch means: the t interval of the means of blocks of epochs. Where the correlation "
    "between neighbouring blocks is well above 0 the cosine drifts, and the interval describes this training "
    "rather than another one. Undefined: epochs in which a gradient was zero at every measured step."
)


def alignment_page(runs: Sequence[Run]) -> Page:
    groups = conflicts(runs)
    labels = spec_labels([group.spec for group in groups], without=VARIANT_FIELDS)
    by_id = {run.spec.id: run for run in runs}
    curves = [cosine_curve([by_id[run.id] for run in group.runs]) for group in groups]
    measured = [run.spec for run in runs if run.spec.redundancy]
    every = " and ".join(map(str, sorted({spec.cosine_every for spec in measured})))
    return Page(
        title="Gradient alignment",
        headline=_headline(groups, labels),
        lead=LEAD,
        tables=alignment_tables(groups, labels),
        figures=_curve_figures(groups, labels, curves),
        document={
            "measurement": "alignment",
            "confidence": 0.95,
            "groups": [
                {"label": label, **group.to_dict(), "cosine": [
                    {"epoch": epoch, "n": point.n, "mean": point.mean, "low": point.low, "high": point.high}
                    for epoch, point in zip(curve.epochs, curve.points, strict=True)
                ]}
                for label, group, curve in zip(labels, groups, curves, strict=True)
            ],
        },
        specs=measured,
        facts={"Measured": f"every {every} steps and at the start of each epoch"},
    )  # fmt: skip


def _headline(groups: Sequence[Conflict], labels: Sequence[str]) -> Headline | None:
    """The mean cosine of each group; for many groups, the smallest and the largest."""
    means = zip((group.mean.mean for group in groups), labels, strict=True)
    pairs = [(mean, label) for mean, label in means if mean is not None]
    if not pairs:
        return None
    if len(pairs) <= 3:
        words = [f"{value_text(mean, SIGNED)} for {label}" for mean, label in pairs]
        return "soft", f"The mean gradient cosine is {listing(words)}"
    (low, least), (high, most) = min(pairs), max(pairs)
    ends = f"{value_text(low, SIGNED)} ({least}) to {value_text(high, SIGNED)} ({most})"
    return "soft", f"The mean gradient cosines are {ends}"


def alignment_tables(groups: Sequence[Conflict], labels: Sequence[str]) -> list[Table]:
    """Over seeds, gradient norms, and within each run."""
    cosines, norms, within = [], [], []
    for label, group in zip(labels, groups, strict=True):
        ids, name = [run.id for run in group.runs], (label, group.variant)
        main, auxiliary = group.main_norm, group.auxiliary_norm
        ends = group.min.mean, group.max.mean, group.conflict.mean, counted(len(group.runs), group.diverged)
        cosines.append(cells(ids, *name, group.final.mean, group.mean.mean, group.mean, *ends))
        norms.append(cells(ids, *name, main.mean, main, auxiliary.mean, auxiliary))
        for run in group.runs:
            batches = interval(run.low, run.high), run.blocks, run.autocorrelation
            undefined = Cell(run.undefined, mark=f"of {run.epochs}")
            within.append(cells([run.id], *name, run.seed, run.mean, *batches, undefined))

    def signed(*names: str, digits: int = 3) -> list[Column]:
        return [Column(name, "number", signed=True, digits=digits) for name in names]

    level, head = "95% interval", (Column("Backbone"), Column("Branches"))
    seeds = Column("Seeds", "count")
    kinds = "; ".join(f"{variant} ones {MEANINGS[variant]}" for variant in dict.fromkeys(g.variant for g in groups))
    lost = " A run that diverged counts with the epochs before it did." if any(g.diverged for g in groups) else ""
    has_norms = any(group.main_norm.mean is not None for group in groups)
    old = "" if has_norms else " Conflicts and gradient norms were not recorded yet when these runs were trained."
    conflict = Column("In conflict", "share", digits=0)
    columns = (*head, *signed("Final", "Average", level, "Least", "Largest"), conflict, seeds)
    note = f"{OVER_SEEDS} Branches: {kinds}.{lost}{old}"
    tables = [Table("cosine", "Gradient cosine", columns, tuple(cosines), note)]
    if has_norms:
        names = ("Main", f"Main, {level}", "Auxiliary", f"Auxiliary, {level}")
        columns = (*head, *(Column(name, "number", significant=True) for name in names))
        note = "Average over epochs, over the weights that both losses reach; the auxiliary gradient before alpha."
        tables.append(Table("norms", "Gradient norms", columns, tuple(norms), note))
    seed, blocks, undefined_epochs = (Column(name, "count") for name in ("Seed", "Blocks", "Undefined"))
    average = signed("Average", f"{level} over batches")
    columns = (*head, seed, *average, blocks, *signed("Correlation", digits=2), undefined_epochs)
    tables.append(Table("runs", "Within each run", columns, tuple(within), WITHIN_RUNS, detail=True))
    return tables


def _curve_figures(groups: Sequence[Conflict], labels: Sequence[str], curves: Sequence[Curve]) -> list[Figure]:
    """One for all backbones; if kinds of branches are compared, one for each backbone."""
    title, caption = "Gradient cosine over training", "Means over seeds; the bands are their intervals."
    panels: dict[tuple[str, str], list[Line]] = {}
    several = len({group.variant for group in groups}) > 1
    for label, group, curve in zip(labels, groups, curves, strict=True):
        key, name = (f"cosine-{group.variant}", title), label
        if several:  # compared items share one figure
            key, name = (f"cosine-{list(dict.fromkeys(labels)).index(label)}", f"{title}, {label}"), group.variant
        lines = panels.setdefault(key, [])
        lines.append(curve.line(name, len(lines)))
    return [
        Figure(
            name,
            words,
            [Lines("", "epoch", "gradient cosine", tuple(lines), zero=True, written=SIGNED)],
            caption=caption,
        )
        for (name, words), lines in panels.items()
    ]
