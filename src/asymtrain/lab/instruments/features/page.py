"""The page of features: what units do in the first steps, Plain beside branches of several kinds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from asymtrain.lab.instruments.features.features import VARIANTS, FeatureStatistics, variant_of
from asymtrain.lab.instruments.features.figures import Series, over_steps
from asymtrain.lab.report.measurement import Drawn, Listed, interval, number, spec_labels, write_measurement
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.statistics.estimates import POSITIVE, SHARES, Estimate, estimate

Seen = Mapping[int, tuple[FeatureStatistics, ...]]  # by step, then by point
WORDS = {
    "plain": "none",
    "trained": "as in the paper",
    "prior": "bias at the prior",
    "softmax": "softmax loss",
    "random": "random labels",
    "frozen": "frozen weights",
}
LEAD = (
    "What the units that branches see do in the first steps of training: how many are silent (the same value for every "
    "image; after a ReLU, 0), how large they are, and in how many directions they vary. Features are those of test "
    "images, without dropout."
)
NOTE = (
    "Means over seeds. Silent: share of the units of all points, with the t interval over seeds. Scale (root mean "
    "square) and directions are those of the last point. Directions: the exponential of the entropy of the principal "
    "components' shares in the variance; 1 is a line."
)


@dataclass(frozen=True)
class FeatureGroup:
    """Runs that differ in their seed only, and what was seen of each."""

    label: str
    variant: str
    seeds: tuple[int, ...]
    seen: tuple[Seen, ...]

    def over_seeds(self, step: int, of: Callable[[Sequence[FeatureStatistics]], float | None]) -> Estimate:
        """A quantity of the points at a step, over seeds."""
        return estimate((of(one[step]) for one in self.seen), within=SHARES if of is silent else POSITIVE)


def silent(points: Sequence[FeatureStatistics]) -> float:
    """Share of all points' units."""
    return sum(one.silent * one.units for one in points) / sum(one.units for one in points)


def last_scale(points: Sequence[FeatureStatistics]) -> float:
    """Of the last point."""
    return points[-1].scale


def last_directions(points: Sequence[FeatureStatistics]) -> float | None:
    """Of the last point."""
    return points[-1].directions


QUANTITIES: tuple[tuple[str, str, Callable[[Sequence[FeatureStatistics]], float | None]], ...] = (
    ("silent", "share of silent units", silent),
    ("scale", "scale of the last point", last_scale),
    ("directions", "directions of the last point", last_directions),
)


def write_features(
    seen: Mapping[RunSpec, Seen], out: Path, facts: Mapping[str, str]
) -> tuple[list[Listed], dict[str, Any], dict[str, Path]]:
    """Write features.html, features.json and the figures; the table for a screen, document and paths."""
    groups = group_features(seen)
    table = _table(groups)
    document = {
        "measurement": "features",
        "groups": [
            {
                "label": one.label,
                "variant": one.variant,
                "runs": [
                    {
                        "seed": seed,
                        "steps": {str(step): [p.to_dict() for p in points] for step, points in steps.items()},
                    }
                    for seed, steps in zip(one.seeds, one.seen, strict=True)
                ],
            }
            for one in groups
        ],
    }
    paths = write_measurement(
        out, "features", title="Features in the first steps", lead=LEAD, tables=[table, _details(groups)],
        figures=_figures(groups),
        facts=facts, document=document,
    )  # fmt: skip
    return [table], document, paths  # point by point is for the page: it has hundreds of rows


def group_features(seen: Mapping[RunSpec, Seen]) -> list[FeatureGroup]:
    """Over seeds, in the order in which they come."""
    fields = {field for one in VARIANTS.values() for field in one}
    groups: dict[RunSpec, list[RunSpec]] = {}
    for spec in seen:
        groups.setdefault(replace(spec, seed=0), []).append(spec)
    branched = [spec for spec in groups if spec.redundancy]
    names = dict(zip(branched, spec_labels(branched, without=tuple(fields)), strict=True))
    plain = dict(zip(groups, spec_labels(list(groups), without=(*fields, "alpha", "redundancy")), strict=True))
    return [
        FeatureGroup(
            names.get(group, plain[group]),
            variant_of(group),
            tuple(spec.seed for spec in members),
            tuple(seen[spec] for spec in members),
        )
        for group, members in groups.items()
    ]


def _table(groups: Sequence[FeatureGroup]) -> Listed:
    rows: list[tuple[str, ...]] = []
    for one in groups:
        for step in one.seen[0]:
            found = one.over_seeds(step, silent)
            rows.append(
                (
                    one.label, WORDS[one.variant], str(step), number(found.mean, ".1%"), interval(found, ".1%"),
                    number(one.over_seeds(step, last_scale).mean, ".3g"),
                    number(one.over_seeds(step, last_directions).mean, ".1f"), str(found.n),
                )
            )  # fmt: skip
    columns = ("Backbone", "Branches", "Steps", "Silent", "95% interval", "Scale", "Directions", "Seeds")
    return Listed("Features in the first steps", columns, rows, NOTE)


def _details(groups: Sequence[FeatureGroup]) -> Listed:
    rows: list[tuple[str, ...]] = []
    for one in groups:
        for step, points in one.seen[0].items():
            for place, point in enumerate(points):
                cells = [
                    number(one.over_seeds(step, partial(_at, place, name)).mean, form)
                    for name, form in (("silent", ".1%"), ("scale", ".3g"), ("directions", ".1f"))
                ]
                label = f"{one.label}, point {place + 1} ({point.units} units)"
                rows.append((label, WORDS[one.variant], str(step), *cells))
    columns = ("Point", "Branches", "Steps", "Silent", "Scale", "Directions")
    return Listed("Point by point", columns, rows, "Means over seeds, from the input to the output.", detail=True)


def _at(place: int, name: str, points: Sequence[FeatureStatistics]) -> float | None:
    value: float | None = getattr(points[place], name)
    return value


def _figures(groups: Sequence[FeatureGroup]) -> list[Drawn]:
    drawn = []
    for i, label in enumerate(dict.fromkeys(one.label for one in groups)):
        members = [one for one in groups if one.label == label]
        for name, words, of in QUANTITIES:
            lines: list[Series] = []
            for one in members:
                steps = [(step, one.over_seeds(step, of).mean) for step in one.seen[0]]
                lines.append((WORDS[one.variant], [(step, value) for step, value in steps if value is not None]))
            if any(value for _, points in lines for _, value in points):  # no unit of a ViT is ever silent
                title = f"{words[0].upper()}{words[1:]}, {label}"
                svg = over_steps(lines, name, f"{name}-{i}", title, log=name == "scale")
                drawn.append(Drawn(f"{name}-{i}", title, svg, "Means over seeds, by the kind of branches."))
    return drawn
