"""The page of usage: by point, Plain beside Asymmetric."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from asymtrain.lab.instruments.curves import by_setting, cells, line_of, spec_labels
from asymtrain.lab.instruments.instrument import Page
from asymtrain.lab.instruments.usage.measure import Usage
from asymtrain.lab.report.figure import Figure, Line, Lines
from asymtrain.lab.report.table import Column, Table
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.statistics.estimates import SHARES, Estimate, estimate

Measured = Mapping[RunSpec, Mapping[int, Sequence[Usage]]]  # by epoch, then by point
LEAD = (
    "How much of the network's answer each point holds already (readable), and how much of the point's variance that "
    "answer reads (used). A branch has little to add where the answer is readable; the variance that is not used is "
    "what it can change without changing the answer that a linear reader sees."
)
NOTE = (
    "Means over seeds with t intervals. Readable: share of the variance of the main head's logits that the best affine "
    "function of the point's features explains. Used: share of the features' variance in the directions which that "
    "function reads. On test images, without dropout."
)
WORDS = {"readable": "share of the answer", "used": "share of the variance"}


def usage_page(measured: Measured, images: int) -> Page:
    groups = by_setting(measured, lambda spec: spec)
    labels = dict(zip(groups, spec_labels(list(groups), without=("alpha", "redundancy")), strict=True))
    rows, lines = [], dict[tuple[str, int, str], list[Line]]()
    for setting, specs in groups.items():
        for epoch, points in measured[specs[0]].items():
            shares: dict[str, list[Estimate]] = {"readable": [], "used": []}
            for index, point in enumerate(points):
                for name, values in shares.items():
                    seeds = (getattr(measured[spec][epoch][index], name) for spec in specs if epoch in measured[spec])
                    values.append(estimate(seeds, within=SHARES))
                readable, used = shares["readable"][-1], shares["used"][-1]
                ids = [spec.id for spec in specs]
                rows.append(cells(ids, labels[setting], setting.variant.capitalize(), epoch, index + 1, point.units,
                                  readable.mean, readable, used.mean, used, readable.n))  # fmt: skip
            for name, values in shares.items():
                line = line_of(setting.variant.capitalize(), setting.variant, range(1, len(points) + 1), values)
                lines.setdefault((labels[setting], epoch, name), []).append(line)
    percents = [Column(name, "share", digits=1) for name in ("Readable", "95% interval", "Used", "95% interval")]
    counts = [Column(name, "count") for name in ("Epoch", "Point", "Units")]
    columns = (Column("Backbone"), Column("Training"), *counts, *percents, Column("Seeds", "count"))
    figures = []
    for i, (label, epoch) in enumerate(dict.fromkeys(key[:2] for key in lines)):
        panels = [
            Lines(name, "point", words, tuple(lines[label, epoch, name]), written=percents[0])
            for name, words in WORDS.items()
        ]
        figures.append(Figure(f"points-{i}", f"{label}, epoch {epoch}", panels, 2, "Means over seeds, with intervals."))
    runs = [
        {"id": spec.id, "variant": spec.variant, "seed": spec.seed, "epoch": epoch, "points": list(map(asdict, points))}
        for spec, epochs in measured.items()
        for epoch, points in epochs.items()
    ]
    table = Table("usage", "What the answer reads of each point", columns, tuple(rows), NOTE)
    document = {"measurement": "usage", "images": images, "runs": runs}
    return Page("Usage of features", LEAD, [table], figures, document, list(measured), {"Images": str(images)})
