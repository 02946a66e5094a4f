"""The page of gradient alignment: Table 2 and 15 of the paper, with intervals, and the cosine over training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asymtrain.gradients._intervals import COSINES
from asymtrain.lab.instruments.alignment.conflict import Conflict, conflicts
from asymtrain.lab.instruments.alignment.figures import cosines_by_layer, cosines_over_training
from asymtrain.lab.instruments.trajectory.trajectory import Curve, curve
from asymtrain.lab.report.measurement import Drawn, Listed, interval, number, spec_labels, write_measurement
from asymtrain.lab.report.summary import MISSING
from asymtrain.lab.runs import Run

VARIANT_FIELDS = ("branch_weights", "signal")  # named in a column of their own
MEANINGS = {
    "trained": "learn with the network, as in training",
    "frozen": "keep their initial weights",
    "detached": "learn beside a Plain network that does not hear them, and the cosine is of the gradient that they "
    "would send back",
    "noise": "learn, and noise of the same norm takes the place of their gradient",
    "gated": "learn, and their gradient is weighed by its cosine where that is positive",
}
LEAD = (
    "The cosine between the gradients of the main and of the auxiliary loss, over the weights that both reach: above "
    "zero they pull the same way, below zero against each other. It is measured on training batches before the "
    "update, and measuring changes no weight."
)


def write_alignment(
    runs: Sequence[Run], out: Path, facts: Mapping[str, str], confidence: float = 0.95
) -> tuple[list[Listed], dict[str, Any], dict[str, Path]]:
    """Write alignment.html, alignment.json and the figures of the runs with branches; tables, document and paths."""
    found = conflicts(runs, confidence)
    labels = spec_labels([one.spec for one in found], without=VARIANT_FIELDS)
    by_id = {run.spec.id: run for run in runs}
    curves = [_cosines([by_id[one.id] for one in group.runs], confidence) for group in found]
    tables = alignment_tables(found, labels, confidence)
    document = {
        "measurement": "alignment",
        "confidence": confidence,
        "groups": [
            {"label": label, **one.to_dict(), "cosine": [_point(e, p) for e, p in zip(c.epochs, c.points, strict=True)]}
            for label, one, c in zip(labels, found, curves, strict=True)
        ],
    }
    paths = write_measurement(
        out,
        "alignment",
        title="Gradient alignment",
        lead=LEAD,
        tables=tables,
        figures=_figures(found, labels, curves),
        facts=facts,
        document=document,
    )
    return tables, document, paths


def alignment_tables(found: Sequence[Conflict], labels: Sequence[str], confidence: float = 0.95) -> list[Listed]:
    """Over seeds, gradient norms, within each run, and layer by layer where that was recorded."""
    level = f"{confidence:.0%} interval"
    named = list(zip(labels, found, strict=True))
    kinds = "; ".join(f"{variant} ones {MEANINGS[variant]}" for variant in dict.fromkeys(one.variant for one in found))
    lost = " A run that diverged counts with the epochs before it did." if any(map(_diverged, found)) else ""
    has_norms = any(one.main_norm.mean is not None for one in found)
    old = "" if has_norms else " Conflicts and gradient norms were not recorded yet when these runs were trained."
    tables = [
        Listed(
            "Gradient cosine",
            ("Backbone", "Branches", "Final", "Average", level, "Least", "Largest", "In conflict", "Seeds"),
            [
                (
                    label, one.variant, number(one.final.mean, "+.3f"), number(one.mean.mean, "+.3f"),
                    interval(one.mean, "+.3f"), number(one.min.mean, "+.3f"), number(one.max.mean, "+.3f"),
                    number(one.conflict.mean, ".0%"), _seeds(one),
                )
                for label, one in named
            ],
            "Means over seeds. Final: the last epoch. Average: over epochs, with the t interval over seeds. Least and "
            "largest: of a single measured step. In conflict: share of measured steps with a negative cosine. "
            f"Branches: {kinds}.{lost}{old}",
        ),
        Listed(
            "Gradient norms",
            ("Backbone", "Branches", "Main", f"Main, {level}", "Auxiliary", f"Auxiliary, {level}"),
            [
                (
                    label, one.variant, number(one.main_norm.mean, ".3g"), interval(one.main_norm, ".3g"),
                    number(one.auxiliary_norm.mean, ".3g"), interval(one.auxiliary_norm, ".3g"),
                )
                for label, one in named
            ],
            "Average over epochs, over the weights that both losses reach; the auxiliary gradient before alpha.",
        ),
        Listed(
            "Within each run",
            ("Backbone", "Branches", "Seed", "Average", f"{level} over batches", "Blocks", "Correlation", "Undefined"),
            [
                (
                    label, one.variant, str(run.seed), number(run.mean, "+.3f"),
                    MISSING if run.low is None else f"{run.low:+.3f} to {run.high:+.3f}", str(run.blocks),
                    number(run.autocorrelation, "+.2f"), f"{run.undefined} of {run.epochs}",
                )
                for label, one in named
                for run in one.runs
            ],
            "The interval is by batch means: the t interval of the means of blocks of epochs. Where the correlation "
            "between neighbouring blocks is well above 0 the cosine drifts, and the interval describes this training "
            "rather than another one. Undefined: epochs in which a gradient was zero at every measured step.",
            detail=True,
        ),
    ]  # fmt: skip
    if not has_norms:
        tables = [one for one in tables if one.title != "Gradient norms"]
    rows: list[tuple[str, ...]] = [
        (f"{label}, {layer}", one.variant, number(estimate.mean, "+.3f"), interval(estimate, "+.3f"), str(estimate.n))
        for label, one in named
        for layer, estimate in one.layers
    ]
    if rows:
        columns = ("Layer", "Branches", "Average cosine", level, "Seeds")
        note = "Average over epochs of each layer's own cosine, over the weights of the layer that both losses reach."
        tables.append(Listed("Layer by layer", columns, rows, note, detail=True))
    return tables


def _figures(found: Sequence[Conflict], labels: Sequence[str], curves: Sequence[Curve]) -> list[Drawn]:
    drawn = []
    several = len({one.variant for one in found}) > 1
    lines = [f"{label}, {one.variant}" if several else label for label, one in zip(labels, found, strict=True)]
    caption = "Means over seeds; the bands are their intervals."
    title = "Gradient cosine over training"
    if several:  # what is compared stands in one figure
        for i, label in enumerate(dict.fromkeys(labels)):
            chosen = {one.variant: c for name, one, c in zip(labels, found, curves, strict=True) if name == label}
            svg = cosines_over_training(chosen, f"cosine-{i}", f"{title}, {label}")
            drawn.append(Drawn(f"cosine-{i}", f"{title}, {label}", svg, caption))
    else:
        name = f"cosine-{found[0].variant}"
        svg = cosines_over_training(dict(zip(labels, curves, strict=True)), name, title)
        drawn.append(Drawn(name, title, svg, caption))
    for i, (line, one) in enumerate(zip(lines, found, strict=True)):
        if one.layers:
            seeds = [[dict(run.layers).get(layer) for run in one.runs] for layer, _ in one.layers]
            title = f"Layers of {line}"
            svg = cosines_by_layer(one.layers, seeds, f"layers-{i}", title)
            drawn.append(
                Drawn(f"layers-{i}", title, svg, "Diamonds are means, bars their intervals, dots single seeds.")
            )
    return drawn


def _diverged(one: Conflict) -> int:
    return sum(run.outcome == "diverged" for run in one.runs)


def _seeds(one: Conflict) -> str:
    return f"{len(one.runs)}{f', {lost} diverged' if (lost := _diverged(one)) else ''}"


def _cosines(runs: Sequence[Run], confidence: float) -> Curve:
    """The cosine of each epoch that every run reached: one that ended early must not move the mean by leaving it."""
    reached = min(len(run.history) for run in runs)
    cut = [Run(run.spec, run.history[:reached], run.outcome) for run in runs]
    return curve(cut, lambda epoch: epoch.cosine, confidence, COSINES)


def _point(epoch: int, point: Any) -> dict[str, Any]:
    return {"epoch": epoch, "n": point.n, "mean": point.mean, "low": point.low, "high": point.high}
