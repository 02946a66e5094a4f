"""How a landscape is looked at, what a surface is described by, and what many surfaces say together."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from asymtrain.errors import UsageError, unknown_name
from asymtrain.gradients._intervals import ANYTHING, Bounds
from asymtrain.lab.instruments.landscape.surface import Floats, Surface
from asymtrain.lab.statistics.estimates import POSITIVE, SHARES, estimate

Directions = Literal["all", "live", "filter"]
Scaling = Literal["variance", "norm", "filter"]


@dataclass(frozen=True)
class LandscapeSettings:
    """Which loss, on how many images, on which grid, along which directions.

    Attributes:
        grid: points along each of the two directions.
        sample: training images on which the loss is the mean.
        draws: pairs of directions.
        step: between neighbouring grid points, along directions of unit variance: how far each weight moves, in
            standard deviations. By default the grid reaches 0.01 to each side.
        norm_step: the same along directions of unit norm, and `filter_step` along filter-normalised ones. By default
            the grid reaches 1 to each side.
        loss: "main": the network's own loss; "total": main + alpha * auxiliary, where the weights of the live branches
            move as well. Both as in training, but without dropout and augmentation.
        directions: "all": one Gaussian over all parameters, idle branches included; "live": over those that are
            trained, which the backbone and the live branches are; "filter": normalised by filter. The first two are
            measured with both scalings. A live branch does not enter the main loss either: with directions of unit
            norm its weights alone make the surface of N >= 1 a little flatter than Plain's.
        precision: "fp32", or "tf32" for faster products on a GPU. Those of a CNN then act on differences from the
            center, so rounding is a small part of what the surface varies by (`CNNDifferences`; a test
            allows a hundredth of the deviation in a tiny network, where few units average it out). For the others it
            moves a weight by about 5e-6, which is of the order of the step along directions of unit norm in a large
            network: take it for `step` alone.
    """

    grid: int = 51
    sample: int = 500
    draws: int = 10
    step: float = 4e-4
    norm_step: float = 0.04
    filter_step: float = 0.04
    loss: Literal["main", "total"] = "main"
    directions: tuple[Directions, ...] = ("all", "live")
    precision: Literal["fp32", "tf32"] = "fp32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "directions", tuple(dict.fromkeys(self.directions)))
        if self.grid < 3:
            raise UsageError(
                f"the grid needs 3 or more points a side, got {self.grid}: a slope is taken across the middle"
            )
        for name in ("sample", "draws"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("step", "norm_step", "filter_step"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise UsageError(f"{name} must be above 0, got {value}")
        for name, kind in (("loss", ("main", "total")), ("precision", ("fp32", "tf32"))):
            if getattr(self, name) not in kind:
                raise unknown_name(name, str(getattr(self, name)), kind)
        for direction in self.directions:
            if direction not in get_args(Directions):
                raise unknown_name("kind of direction", str(direction), get_args(Directions))
        if not self.directions:
            raise UsageError(f"name at least one kind of direction: {', '.join(get_args(Directions))}")

    @property
    def key(self) -> str:
        """A short name of these settings: "landscape" and what differs from the defaults."""
        parts = ["landscape"]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                shown = "+".join(value) if isinstance(value, tuple) else f"{value:g}" if field.type is float else value
                parts.append(f"{field.name}={shown}")
        return " ".join(map(str, parts))

    def views(self) -> list[tuple[Directions, Scaling]]:
        """Each kind of direction with each of its scalings."""
        scalings: dict[Directions, tuple[Scaling, ...]] = {
            "all": ("variance", "norm"),
            "live": ("variance", "norm"),
            "filter": ("filter",),
        }
        return [(direction, scaling) for direction in self.directions for scaling in scalings[direction]]

    def step_of(self, scaling: Scaling) -> float:
        """Between neighbouring grid points of a scaling."""
        return {"variance": self.step, "norm": self.norm_step, "filter": self.filter_step}[scaling]


STATISTICS: dict[str, Bounds] = {
    "std": POSITIVE,
    "range": POSITIVE,
    "mean_gradient": POSITIVE,
    "plane_r2": SHARES,
    "residual_std": POSITIVE,
}
"""What a surface is described by, with the least and the largest value of each."""
CONFIDENCE = 0.95


@dataclass(frozen=True)
class SurfaceStatistics:
    """One surface in numbers. All but `non_finite` are None where a point of the surface is not finite.

    Attributes:
        std: standard deviation of the losses over all grid points (divided by their number).
        range: largest loss less smallest.
        mean_gradient: mean over grid points of the gradient's length, where the gradient is the difference of
            neighbouring grid points per grid index: half of (next - previous) inside, (next - this) at an edge, as
            numpy.gradient with spacing 1.
        plane_r2: share of the variance that the least-squares plane explains; None for a constant surface.
        residual_std: standard deviation of what the plane leaves.
        center: the loss in the middle of the grid; between the middle points where the grid is even.
        non_finite: how many grid points have an infinite loss or none.
    """

    std: float | None
    range: float | None
    mean_gradient: float | None
    plane_r2: float | None
    residual_std: float | None
    center: float | None
    non_finite: int = 0


@dataclass(frozen=True)
class Interval:
    """A mean over n draws, or over the means of n seeds; its t interval; and the range of 95% of single draws.

    The t interval is cut at the values that there can be (see `estimate`), the range is that of percentiles. Intervals
    are None where there is one value.
    """

    n: int
    mean: float | None
    low: float | None
    high: float | None
    percentile_low: float | None
    percentile_high: float | None


def surface_statistics(losses: Floats) -> SurfaceStatistics:
    """The numbers of a surface (n, m)."""
    non_finite = int(np.count_nonzero(~np.isfinite(losses)))
    if non_finite:
        return SurfaceStatistics(None, None, None, None, None, None, non_finite)
    rows, columns = losses.shape
    middle = losses[(rows - 1) // 2 : rows // 2 + 1, (columns - 1) // 2 : columns // 2 + 1]
    # From the middle's loss on: the variation may be a millionth of the loss itself.
    shifted = losses - middle.mean()
    along, across = np.gradient(shifted)
    plane = fitted_plane(shifted)
    residual = shifted - plane
    variance = float(shifted.var())
    # Below this the variation is the rounding of float64 numbers of this size.
    constant = math.sqrt(variance) <= 1e-15 * max(1.0, abs(float(middle.mean())))
    return SurfaceStatistics(
        std=math.sqrt(variance),
        range=float(np.ptp(shifted)),
        mean_gradient=float(np.hypot(along, across).mean()),
        plane_r2=None if constant else max(0.0, 1 - float(residual.var()) / variance),  # below 0 is rounding
        residual_std=float(residual.std()),
        center=float(middle.mean()),
    )


def fitted_plane(losses: Floats) -> Floats:
    """The least-squares plane of a surface, on its grid. On a full grid the slopes can be fitted one by one."""
    x, y = (np.arange(n) - (n - 1) / 2 for n in losses.shape)
    slope_x = (x @ losses.mean(1)) / (x @ x)
    slope_y = (losses.mean(0) @ y) / (y @ y)
    return losses.mean() + slope_x * x[:, None] + slope_y * y[None, :]


def interval(groups: Sequence[Sequence[float | None]], within: Bounds = ANYTHING) -> Interval:
    """Mean and intervals of the draws of each seed; missing ones are left out.

    Of one seed, over its draws. Of several, over the seeds' means, since draws around one state say nothing of another;
    the percentiles are those of all single draws.
    """
    defined = [[value for value in group if value is not None] for group in groups]
    draws = [value for group in defined for value in group]
    means = [math.fsum(group) / len(group) for group in defined if group]
    over = estimate(draws if len(groups) == 1 else means, CONFIDENCE, within)
    low = high = None
    if len(draws) > 1:
        tail = 100 * (1 - CONFIDENCE) / 2
        low, high = map(float, np.percentile(draws, [tail, 100 - tail]))
    return Interval(over.n, over.mean, over.low, over.high, low, high)


AT_LEAST: Bounds = (-100.0, math.inf)  # percent: nothing can lose more than all of it
CHANGED = ("std", "range", "mean_gradient", "residual_std")  # statistics whose change against Plain has a meaning


@dataclass(frozen=True)
class Level:
    """A state that was looked at."""

    spec_id: str
    seed: int
    redundancy: int
    epoch: int
    live_parameters: int  # backbone and the branches that can be live
    parameters: int  # idle branches included


@dataclass(frozen=True)
class Row:
    """One surface. `scale` is how long one step of the grid is for a weight, in deviations of the direction drawn."""

    level: Level
    directions: Directions
    scaling: Scaling
    draw: int
    scale: tuple[float, float]
    statistics: SurfaceStatistics


@dataclass(frozen=True)
class Summary:
    """Many draws of one view of one redundancy.

    Over the draws of one seed, or over the means of several (see `interval`). Draws with a loss that is not finite are
    left out, and counted in `non_finite`.

    Attributes:
        statistics: by name (`STATISTICS`).
        changes: in percent of Plain with the same seed and draw; empty for Plain, or where Plain was not measured.
        predicted_change: in percent, what the number of parameters alone makes of the deviation: with directions of
            unit norm a weight moves by sqrt(parameters of Plain / parameters) as far, else as far as before.
    """

    epoch: int
    redundancy: int
    directions: Directions
    scaling: Scaling
    live_parameters: int
    parameters: int
    seeds: int
    draws: int
    non_finite: int
    statistics: Mapping[str, Interval]
    changes: Mapping[str, Interval]
    predicted_change: float | None


@dataclass(frozen=True)
class Landscape:
    """Every surface in numbers; `surfaces` holds the first draw of the first seed, by (epoch, redundancy, view)."""

    settings: LandscapeSettings
    rows: tuple[Row, ...]
    surfaces: Mapping[tuple[int, int, Directions, Scaling], Surface]
    evaluations: int  # grid points whose loss was computed; equal surfaces are computed once
    seconds: float
    device: str

    def summaries(self) -> list[Summary]:
        """One for each epoch, view and redundancy, in the order measured."""
        groups: dict[tuple[int, int, Directions, Scaling], list[Row]] = {}
        for row in self.rows:
            groups.setdefault((row.level.epoch, row.level.redundancy, row.directions, row.scaling), []).append(row)
        return [_summarise(rows, groups.get((key[0], 0, *key[2:]), [])) for key, rows in groups.items()]

    def of_state(self, spec_id: str, epoch: int) -> dict[str, Any]:
        """The rows of one state as JSON values, for the store."""
        rows = [row for row in self.rows if (row.level.spec_id, row.level.epoch) == (spec_id, epoch)]
        return {"settings": dataclasses.asdict(self.settings), "rows": [row_values(row) for row in rows]}

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "settings": dataclasses.asdict(self.settings),
            "device": self.device,
            "seconds": self.seconds,
            "evaluations": self.evaluations,
            "summaries": [dataclasses.asdict(summary) for summary in self.summaries()],
            "rows": [row_values(row) for row in self.rows],
            "surfaces": [
                {"epoch": epoch, "redundancy": redundancy, "directions": directions, "scaling": scaling,
                 "losses": [[x if math.isfinite(x) else None for x in line] for line in losses.tolist()]}
                for (epoch, redundancy, directions, scaling), losses in self.surfaces.items()
            ],
        }  # fmt: skip


def row_values(row: Row) -> dict[str, Any]:
    """A row as flat JSON values."""
    own = {"directions": row.directions, "scaling": row.scaling, "draw": row.draw, "scale": list(row.scale)}
    return {**dataclasses.asdict(row.level), **own, **dataclasses.asdict(row.statistics)}


def _summarise(rows: list[Row], plain: list[Row]) -> Summary:
    first = rows[0]
    partners = {(row.level.seed, row.draw): row for row in plain}
    changes: dict[str, Interval] = {}
    predicted = None
    if plain and first.level.redundancy:
        changes = {
            name: _over_draws(rows, [_change(row, partners, name) for row in rows], AT_LEAST) for name in CHANGED
        }
        predicted = _predicted(first, plain[0])
    statistics = {
        name: _over_draws(rows, [getattr(row.statistics, name) for row in rows], within)
        for name, within in STATISTICS.items()
    }
    return Summary(
        epoch=first.level.epoch,
        redundancy=first.level.redundancy,
        directions=first.directions,
        scaling=first.scaling,
        live_parameters=first.level.live_parameters,
        parameters=first.level.parameters,
        seeds=len({row.level.seed for row in rows}),
        draws=len({row.draw for row in rows}),
        non_finite=sum(row.statistics.non_finite > 0 for row in rows),
        statistics=statistics,
        changes=changes,
        predicted_change=predicted,
    )


def _over_draws(rows: list[Row], values: list[float | None], within: Bounds) -> Interval:
    by_seed: dict[int, list[float | None]] = {}
    for row, value in zip(rows, values, strict=True):
        by_seed.setdefault(row.level.seed, []).append(value)
    return interval(list(by_seed.values()), within)


def _change(row: Row, partners: Mapping[tuple[int, int], Row], name: str) -> float | None:
    partner = partners.get((row.level.seed, row.draw))
    value = getattr(row.statistics, name)
    base = None if partner is None else getattr(partner.statistics, name)
    return None if value is None or not base else 100 * (value / base - 1)


def _predicted(row: Row, plain: Row) -> float:
    if row.scaling != "norm":
        return 0.0
    counted = row.level.parameters if row.directions == "all" else row.level.live_parameters
    return 100 * (math.sqrt(plain.level.parameters / counted) - 1)
