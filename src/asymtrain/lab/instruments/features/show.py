"""The page of features: what units do in the first steps, Plain beside branches of several kinds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from asymtrain.lab.instruments.curves import by_setting, cells, spec_labels
from asymtrain.lab.instruments.features.measure import VARIANTS, FeatureStatistics, variant_of
from asymtrain.lab.report.figure import Figure, Headline, Line, Lines, Page
from asymtrain.lab.report.table import Column, Table, value_text
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.statistics.estimates import POSITIVE, SHARES, Estimate, estimate

Points = Sequence[FeatureStatistics]
Followed = Mapping[int, Points]  # by step, then by point
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
COLUMNS = {
    "silent": Column("Silent", "share", digits=1),
    "scale": Column("Scale", "number", significant=True),
    "directions": Column("Directions", "number", digits=1),
}


@dataclass(frozen=True)
class FeatureGroup:
    """Runs that differ in their seed only, and the features of each."""

    label: str
    variant: str
    specs: tuple[RunSpec, ...]
    followed: tuple[Followed, ...]

    def over_seeds(self, step: int, quantity: Callable[[Points], float | None]) -> Estimate:
        """A quantity of the points at a step, over seeds."""
        within = SHARES if quantity is silent else POSITIVE
        return estimate((quantity(steps[step]) for steps in self.followed), within=within)

    @property
    def ids(self) -> list[str]:
        return [spec.id for spec in self.specs]


def silent(points: Points) -> float:
    """The share of silent units, over all points."""
    return sum(point.silent * point.units for point in points) / sum(point.units for point in points)


def of_point(index: int, name: str) -> Callable[[Points], float | None]:
    return lambda points: getattr(points[index], name)


# By figure: its title, the quantity.
QUANTITIES: dict[str, tuple[str, Callable[[Points], float | None]]] = {
    "silent": ("Share of silent units", silent),
    "scale": ("Scale of the last point", of_point(-1, "scale")),
    "directions": ("Directions of the last point", of_point(-1, "directions")),
}


def features_page(followed: Mapping[RunSpec, Followed], images: int) -> Page:
    groups = group_features(followed)
    steps = next(iter(followed.values()))
    table, points = _tables(groups)
    return Page(
        title="Features in the first steps",
        headline=_headline(groups),
        lead=LEAD,
        tables=[table],
        page_only=[points],
        figures=_figures(groups),
        document={
            "measurement": "features",
            "groups": [
                {"label": group.label, "variant": group.variant, "runs": [
                    {"seed": spec.seed, "steps": {str(at): [p.to_dict() for p in points] for at, points in by.items()}}
                    for spec, by in zip(group.specs, group.followed, strict=True)
                ]}
                for group in groups
            ],
        },
        specs=list(followed),
        facts={"Steps": ", ".join(map(str, steps)), "Images": str(images)},
    )  # fmt: skip


def _headline(groups: Sequence[FeatureGroup]) -> Headline:
    """How many units are silent at the last step, in the first three groups."""
    words = []
    for group in groups[:3]:
        step = max(group.followed[0])
        share = value_text(group.over_seeds(step, silent).mean, COLUMNS["silent"])
        words.append(f"{share} in {group.label}, branches: {WORDS[group.variant]}")
    return "soft", f"Silent units after {step} steps: {'; '.join(words)}"


def group_features(followed: Mapping[RunSpec, Followed]) -> list[FeatureGroup]:
    """Groups over seeds, in the order in which they come. Plain's name has no settings of branches."""
    fields = {field for changed in VARIANTS.values() for field in changed}
    groups = by_setting(followed, lambda spec: spec)
    branched = [spec for spec in groups if spec.redundancy]
    names = dict(zip(groups, spec_labels(list(groups), without=(*fields, "alpha", "redundancy")), strict=True))
    names |= dict(zip(branched, spec_labels(branched, without=tuple(fields)), strict=True))
    return [
        FeatureGroup(names[setting], variant_of(setting), tuple(specs), tuple(followed[spec] for spec in specs))
        for setting, specs in groups.items()
    ]


def _tables(groups: Sequence[FeatureGroup]) -> tuple[Table, Table]:
    """Over all points, and point by point."""
    rows, details = [], []
    for group in groups:
        words = WORDS[group.variant]
        for step, points in group.followed[0].items():
            share, scale, directions = (group.over_seeds(step, quantity) for _, quantity in QUANTITIES.values())
            numbers = share.mean, share, scale.mean, directions.mean, share.n
            rows.append(cells(group.ids, group.label, words, step, *numbers))
            for index, point in enumerate(points):
                means = (group.over_seeds(step, of_point(index, name)).mean for name in COLUMNS)
                label = f"{group.label}, point {index + 1} ({point.units} units)"
                details.append(cells(group.ids, label, words, step, *means))
    interval, seeds = Column("95% interval", "share", digits=1), Column("Seeds", "count")
    first, *rest = COLUMNS.values()
    head = (Column("Branches"), Column("Steps", "count"), first)
    note = "Means over seeds, from the input to the output."
    columns = (Column("Backbone"), *head, interval, *rest, seeds)
    return (
        Table("features", "Features in the first steps", columns, tuple(rows), NOTE),
        Table("points", "Point by point", (Column("Point"), *head, *rest), tuple(details), note, detail=True),
    )


def _figures(groups: Sequence[FeatureGroup]) -> list[Figure]:
    """Each quantity over steps, a line for each kind of branches; Plain is the first."""
    figures, colours = [], ("plain", "asymmetric", *range(len(VARIANTS)))
    for i, label in enumerate(dict.fromkeys(group.label for group in groups)):
        for name, (title, quantity) in QUANTITIES.items():
            lines = []
            for colour, group in zip(colours, (group for group in groups if group.label == label), strict=False):
                steps = group.followed[0]
                values = tuple(group.over_seeds(step, quantity).mean for step in steps)
                lines.append(Line(WORDS[group.variant], colour, tuple(map(float, steps)), values, marker=True))
            if any(value for line in lines for value in line.y):  # all values may be 0: no unit of a ViT is ever silent
                panel = Lines(
                    "", "steps", name, tuple(lines), log=name == "scale", from_zero=True, written=COLUMNS[name]
                )
                caption = "Means over seeds, by the kind of branches."
                figures.append(Figure(f"{name}-{i}", f"{title}, {label}", [panel], caption=caption))
    return figures
