"""The page of training trajectories: Tables 3 and 4 and Figures 3 and 8 of the paper, with intervals."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asymtrain.lab.instruments.trajectory import figures
from asymtrain.lab.instruments.trajectory.trajectory import Comparison, Trajectories, Trajectory
from asymtrain.lab.report.measurement import Drawn, Listed, interval, number, spec_labels, write_measurement
from asymtrain.lab.report.summary import MISSING

LEAD = (
    "How training went with and without branches: when validation accuracy was near its best, how far training "
    "accuracy ran ahead of it, and from which epoch on the two ways of training differ."
)
CAPTIONS = {
    "accuracy": "Thick: validation; thin: training. The dotted vertical line is where the validation curves part.",
    "difference": "Asymmetric less Plain of one seed, validation accuracy.",
    "gap": "Training accuracy less validation accuracy.",
    "loss": "Thick: main loss; thin: auxiliary loss, before alpha.",
    "norm": "Thick: main gradient; thin: auxiliary gradient, before alpha; over the weights that both reach.",
}


def write_trajectory(
    found: Trajectories, out: Path, facts: Mapping[str, str], *, tolerance: float = 0.01, confidence: float = 0.95
) -> tuple[list[Listed], dict[str, Any], dict[str, Path]]:
    """Write trajectory.html, trajectory.json and the figures; tables, document and paths."""
    labels = _labels(found)
    tables = trajectory_tables(found, labels, tolerance=tolerance, confidence=confidence)
    document = {
        "measurement": "trajectory",
        "tolerance": tolerance,
        "confidence": confidence,
        "comparisons": [
            {"label": label, **one.to_dict()} for label, one in zip(labels, found.comparisons, strict=False)
        ],
        "alone": [one.to_dict() for one in found.alone],
        "lost": [spec.to_dict() for spec in found.lost],
    }
    lead = LEAD
    if found.lost:
        lead += f"\n\nOf {len(found.lost)} settings every seed diverged; they are not shown."
    paths = write_measurement(
        out,
        "trajectory",
        title="Training trajectories",
        lead=lead,
        tables=tables,
        figures=trajectory_drawings(found, labels),
        facts=facts,
        document=document,
    )
    return tables, document, paths


def trajectory_tables(
    found: Trajectories, labels: Sequence[str], *, tolerance: float = 0.01, confidence: float = 0.95
) -> list[Listed]:
    """Convergence and final accuracy, the generalisation gap, where the curves part."""
    level = f"{confidence:.0%} interval"
    groups = _groups(found, labels)
    diverged = " Diverged runs are left out." if any(one.diverged for _, sides in groups for one in sides) else ""
    tables = [
        Listed(
            "Convergence and accuracy",
            ("Backbone", "Training", "Convergence", level, "Of the mean", "Final accuracy", level, "Seeds"),
            [
                (
                    label, one.spec.variant.capitalize(), number(one.convergence.mean, ".1f"),
                    interval(one.convergence, ".1f"), str(one.convergence_of_mean), number(one.final.mean),
                    interval(one.final), f"{len(one.seeds)}{f', {one.diverged} diverged' if one.diverged else ''}",
                )
                for label, sides in groups
                for one in sides
            ],
            f"Convergence: the first epoch whose validation accuracy is within {100 * tolerance:.3g}% of the run's "
            "best; the mean over seeds, and that epoch of the mean curve. Final accuracy: validation, after the last "
            f"epoch.{diverged}",
        ),
        Listed(
            "Generalisation gap",
            ("Backbone", "Training", "Epoch", "Gap", level),
            [
                (label, one.spec.variant.capitalize(), str(epoch), number(point.mean), interval(point))
                for label, sides in groups
                for one in sides
                for epoch, point in one.gaps
            ],
            "Training accuracy, on the batches as they were trained, less validation accuracy after the epoch.",
        ),
    ]  # fmt: skip
    if found.comparisons:
        named = zip(labels, found.comparisons, strict=False)
        tables.append(
            Listed(
                "Where the curves part",
                ("Backbone", "From epoch", "Asymmetric is", "Final difference", level, "Pairs"),
                [_parting_row(label, one) for label, one in named],
                "The first epoch from which the interval of the paired difference in validation accuracy excludes 0, "
                "on one side, to the end. The intervals are of single epochs.",
            )
        )
    return tables


def trajectory_drawings(found: Trajectories, labels: Sequence[str]) -> list[Drawn]:
    """Accuracy, difference, gap, losses and gradient norms of each group."""
    drawn = []
    for i, (label, sides) in enumerate(_groups(found, labels)):
        parting = found.comparisons[i].parting if i < len(found.comparisons) else None
        parted = parting.epoch if parting else None
        titles = {kind: f"{label}: {kind}" for kind in ("accuracy", "difference", "gap", "loss")}
        titles["norm"] = f"{label}: gradient norms"
        texts = {
            "accuracy": figures.accuracy_curves(sides, parted, f"accuracy-{i}", titles["accuracy"]),
            "difference": figures.difference_curve(parting, f"difference-{i}", titles["difference"])
            if parting and parting.pairs
            else None,
            "gap": figures.gap_curves(sides, f"gap-{i}", titles["gap"]),
            "loss": figures.loss_curves(sides, f"loss-{i}", titles["loss"]),
            "norm": figures.norm_curves(sides, f"norm-{i}", titles["norm"]),
        }
        drawn += [Drawn(f"{kind}-{i}", titles[kind], svg, CAPTIONS[kind]) for kind, svg in texts.items() if svg]
    return drawn


def _labels(found: Trajectories) -> list[str]:
    """Of the comparisons, then of what stands alone."""
    return spec_labels([*(one.asymmetric.spec for one in found.comparisons), *(one.spec for one in found.alone)])


def _groups(found: Trajectories, labels: Sequence[str]) -> list[tuple[str, list[Trajectory]]]:
    sides = [*([one.plain, one.asymmetric] for one in found.comparisons), *([one] for one in found.alone)]
    return list(zip(labels, sides, strict=True))


def _parting_row(label: str, one: Comparison) -> tuple[str, ...]:
    parting, points = one.parting, one.parting.difference.points
    where = "never" if parting.epoch is None else str(parting.epoch)
    side = "neither" if parting.side is None else parting.side
    if not points:
        return label, MISSING, MISSING, MISSING, MISSING, "0"
    return label, where, side, number(points[-1].mean, "+.3f"), interval(points[-1], "+.3f"), str(parting.pairs)
