"""The page of training trajectories: Tables 3 and 4 and Figures 3 and 8 of the paper, with intervals."""

from collections.abc import Sequence
from dataclasses import replace

from asymtrain.lab.instruments.curves import cells, counted, spec_labels
from asymtrain.lab.instruments.trajectory.measure import TOLERANCE, Trajectories, Trajectory, compare_trajectories
from asymtrain.lab.report.figure import AS_NEEDED, SIGNED, VALUE, Figure, Headline, Lines, Page
from asymtrain.lab.report.table import Column, Table, Value, value_text
from asymtrain.lab.runs import Run
from asymtrain.lab.statistics.estimates import Estimate
from asymtrain.lab.texts import listing

LEAD = (
    "How training went with and without branches: when validation accuracy was near its best, how far training "
    "accuracy ran ahead of it, and from which epoch on the two ways of training differ."
)
# By figure: the axis, the curve drawn thick, the one drawn thin, what these are called, and the caption.
CURVES: dict[str, tuple[str, str, str, tuple[str, str] | None, str]] = {
    "accuracy": (
        "accuracy", "validation_accuracy", "train_accuracy", ("validation", "training"),
        "Thick: validation; thin: training. The dotted vertical line is where the validation curves part.",
    ),
    "gap": ("generalisation gap", "gap", "", None, "Training accuracy less validation accuracy."),
    "loss": (
        "loss", "main_loss", "auxiliary_loss", ("main", "auxiliary"),
        "Thick: main loss; thin: auxiliary loss, before alpha.",
    ),
    "norm": (
        "gradient norm", "main_norm", "auxiliary_norm", ("main", "auxiliary"),
        "Thick: main gradient; thin: auxiliary gradient, before alpha; over the weights that both reach.",
    ),
}  # fmt: skip
Group = tuple[str, list[Trajectory]]  # a label, and Plain beside Asymmetric or one of them alone


def trajectory_page(runs: Sequence[Run]) -> Page:
    result = compare_trajectories(runs)
    sides = [*([pair.plain, pair.asymmetric] for pair in result.comparisons), *([side] for side in result.alone)]
    labels = spec_labels([group[-1].spec for group in sides])
    groups = list(zip(labels, sides, strict=True))
    lost = f"\n\nOf {len(result.lost)} settings every seed diverged; they are not shown." if result.lost else ""
    return Page(
        title="Training trajectories",
        headline=_headline(result, labels),
        lead=LEAD + lost,
        tables=trajectory_tables(result, groups),
        figures=trajectory_figures(result, groups),
        document={
            "measurement": "trajectory",
            "tolerance": TOLERANCE,
            "confidence": 0.95,
            "comparisons": [
                {"label": label, **pair.to_dict()} for label, pair in zip(labels, result.comparisons, strict=False)
            ],
            "alone": [side.to_dict() for side in result.alone],
            "lost": [spec.to_dict() for spec in result.lost],
        },
        specs=[run.spec for run in runs],
    )


def _headline(result: Trajectories, labels: Sequence[str]) -> Headline | None:
    """Where the curves part, and the final difference, for three comparisons at most."""
    partings = [(label, pair.parting) for label, pair in zip(labels, result.comparisons, strict=False)]
    partings = [(label, parting) for label, parting in partings if parting.pairs]
    if not partings:
        return None
    parted = sum(parting.epoch is not None for _, parting in partings)
    words = f"Validation curves with and without branches part in {parted} of {len(partings)} comparisons"
    ends = [f"{label} {value_text(part.difference.points[-1].mean, SIGNED)}" for label, part in partings]
    return "soft", f"{words}. Final difference: {listing(ends)}" if len(ends) <= 3 else words


def trajectory_tables(result: Trajectories, groups: Sequence[Group]) -> list[Table]:
    """Convergence and final accuracy, the generalisation gap, where the curves part."""
    converged, gaps, partings = [], [], []
    for label, sides in groups:
        for side in sides:
            ids, name = _ids(side), (label, side.spec.variant.capitalize())
            epochs = side.convergence.mean, side.convergence, side.convergence_of_mean
            runs = counted(len(side.seeds), side.diverged)
            converged.append(cells(ids, *name, *epochs, side.final.mean, side.final, runs))
            gaps += [cells(ids, *name, epoch, gap.mean, gap) for epoch, gap in side.gaps]
    for (label, sides), comparison in zip(groups, result.comparisons, strict=False):
        parting, ids = comparison.parting, tuple(spec_id for side in sides for spec_id in _ids(side))
        values: tuple[Value | Estimate, ...] = (None,) * 4
        if parting.pairs:
            last, since = parting.difference.points[-1], "never" if parting.epoch is None else parting.epoch
            values = (since, parting.side or "neither", last.mean, last)
        partings.append(cells(ids, label, *values, parting.pairs))

    backbone, training, seeds = Column("Backbone"), Column("Training"), Column("Seeds", "count")
    level = "95% interval"
    interval = Column(level, "number")
    epochs_of = (*(Column(name, "number", digits=1) for name in ("Convergence", level)), Column("Of the mean", "count"))
    columns = (backbone, training, *epochs_of, Column("Final accuracy", "number"), interval, seeds)
    diverged = " Diverged runs are left out." if any(side.diverged for _, sides in groups for side in sides) else ""
    note = (
        f"Convergence: the first epoch whose validation accuracy is within {100 * TOLERANCE:.3g}% of the run's "
        "best; the mean over seeds, and that epoch of the mean curve. Final accuracy: validation, after the last "
        f"epoch.{diverged}"
    )
    tables = [Table("convergence", "Convergence and accuracy", columns, tuple(converged), note)]
    columns = (backbone, training, Column("Epoch", "count"), Column("Gap", "number"), interval)
    note = "Training accuracy, on the batches as they were trained, less validation accuracy after the epoch."
    tables.append(Table("gap", "Generalisation gap", columns, tuple(gaps), note))
    if partings:
        signed = (Column(name, "number", signed=True) for name in ("Final difference", level))
        since_column, pairs = Column("From epoch", "count"), Column("Pairs", "count")
        columns = (backbone, since_column, Column("Asymmetric is"), *signed, pairs)
        note = (
            "The first epoch from which the interval of the paired difference in validation accuracy excludes 0, "
            "on one side, to the end. The intervals are of single epochs."
        )
        tables.append(Table("parting", "Where the curves part", columns, tuple(partings), note))
    return tables


def trajectory_figures(result: Trajectories, groups: Sequence[Group]) -> list[Figure]:
    """Accuracy, difference, gap, losses and gradient norms of each group."""
    figures = []
    for i, (label, sides) in enumerate(groups):
        parting = result.comparisons[i].parting if i < len(result.comparisons) else None
        marks = (float(parting.epoch),) if parting and parting.epoch is not None else ()
        for kind, (axis, thick, thin, kinds, caption) in CURVES.items():
            lines = tuple(
                side.curves[name].line(side.spec.variant.capitalize(), side.spec.variant, thin=name == thin)
                for name in (thin, thick)
                for side in sides
                if name in side.curves
            )
            words = "gradient norms" if kind == "norm" else kind
            panel = Lines("", "epoch", axis, lines, marks if kind == "accuracy" else (), zero=kind == "gap",
                          log=kind in ("loss", "norm"), kinds=kinds,
                          written=AS_NEEDED if kind in ("loss", "norm") else VALUE)  # fmt: skip
            if lines:
                figures.append(Figure(f"{kind}-{i}", f"{label}: {words}", [panel], caption=caption))
            if kind == "accuracy" and parting and parting.pairs:
                line = parting.difference.line("Asymmetric", "asymmetric")
                panel = Lines("", "epoch", "difference in accuracy", (line,), marks, zero=True, written=SIGNED)
                caption = "Asymmetric less Plain of one seed, validation accuracy."
                figures.append(Figure(f"difference-{i}", f"{label}: difference", [panel], caption=caption))
    return figures


def _ids(side: Trajectory) -> tuple[str, ...]:
    return tuple(replace(side.spec, seed=seed).id for seed in side.seeds)
