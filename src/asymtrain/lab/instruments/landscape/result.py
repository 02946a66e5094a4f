"""The settings of a landscape, the statistics of a surface, and summaries of many surfaces."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from asymtrain.errors import UsageError, unknown_name
from asymtrain.intervals import ANYTHING, Bounds
from asymtrain.lab.instruments.instrument import differing_fields
from asymtrain.lab.statistics.estimates import POSITIVE, SHARES, Estimate, estimate

Floats = npt.NDArray[np.float64]
Surface = Floats  # (n, m): rows follow the first direction, columns the second
Directions = Literal["all", "live", "filter"]
Scaling = Literal["variance", "norm", "filter"]
Loss = Literal["main", "total"]
View = tuple[Directions, Scaling]
SCALINGS: dict[Directions, tuple[Scaling, ...]] = {
    "all": ("variance", "norm"),
    "live": ("variance", "norm"),
    "filter": ("filter",),
}
STATISTICS: dict[str, Bounds] = {
    "std": POSITIVE,
    "range": POSITIVE,
    "mean_gradient": POSITIVE,
    "plane_r2": SHARES,
    "residual_std": POSITIVE,
}
"""The statistics of a surface, with the smallest and the largest possible value of each."""
CHANGED = ("std", "range", "mean_gradient", "residual_std")  # statistics whose change against Plain is meaningful
AT_LEAST: Bounds = (-100.0, math.inf)  # percent: nothing can fall by more than all of it


@dataclass(frozen=True)
class LandscapeSettings:
    """Which loss, on how many images, on which grid, along which directions.

    Losses are as in training, but without dropout and augmentation; for the total, main + alpha * auxiliary, the
    weights of the live branches move as well.

    Directions: "all", one Gaussian over all parameters, idle branches included; "live", over the trained parameters,
    which are the backbone and the live branches; "filter", normalised by filter. The first two are measured with both
    scalings. A live branch does not enter the main loss either: with directions of unit norm its weights alone make the
    surface of N >= 1 a little flatter than Plain's.

    Precision "tf32" makes products on a GPU faster. A CNN's then act on differences from the center, so rounding is a
    small part of the surface's variation (`CNNDifferences`; a test allows a hundredth of the deviation in a tiny
    network, where few units average it out). In other networks it moves a weight by about 5e-6, which is similar to a
    step along directions of unit norm in a large network: there, use it for `step` alone.
    """

    grid: int = 51  # points along each of the two directions
    sample: int = 500  # training images on which the loss is the mean
    draws: int = 10  # pairs of directions
    # Between neighbouring grid points. For directions of unit variance, `step` is how far each weight moves, in
    # standard deviations: the grid reaches 0.01 to each side. For unit norm and filter-normalised ones it reaches 1.
    step: float = 4e-4
    norm_step: float = 0.04
    filter_step: float = 0.04
    loss: Loss = "main"
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
        words = [("loss", self.loss, ("main", "total")), ("precision", self.precision, ("fp32", "tf32"))]
        for name, value, choices in [*words, *(("kind of direction", kind, SCALINGS) for kind in self.directions)]:
            if value not in choices:
                raise unknown_name(name, str(value), choices)
        if not self.directions:
            raise UsageError(f"name at least one kind of direction: {', '.join(SCALINGS)}")

    @property
    def key(self) -> str:
        """A short name of these settings: "landscape" and what differs from the defaults."""
        return " ".join(["landscape", *differing_fields(self, "g")])

    def views(self) -> list[View]:
        """Each kind of direction with each of its scalings."""
        return [(direction, scaling) for direction in self.directions for scaling in SCALINGS[direction]]

    def step_of(self, scaling: Scaling) -> float:
        return {"variance": self.step, "norm": self.norm_step, "filter": self.filter_step}[scaling]


@dataclass(frozen=True)
class SurfaceStatistics:
    """One surface in numbers. All but `non_finite` are None if a point of the surface is not finite.

    The gradient is the difference of neighbouring grid points per grid index: half of (next - previous) inside,
    (next - this) at an edge, as numpy.gradient with spacing 1.
    """

    std: float | None = None  # of the losses over all grid points (divided by their number)
    range: float | None = None  # largest loss minus smallest
    mean_gradient: float | None = None  # mean over grid points of the gradient's length
    plane_r2: float | None = None  # share of the variance that the least-squares plane explains; None if constant
    residual_std: float | None = None  # of the residuals of that plane
    center: float | None = None  # see `middle_loss`
    non_finite: int = 0  # how many grid points have an infinite or undefined loss


def surface_statistics(losses: Floats) -> SurfaceStatistics:
    if non_finite := int(np.count_nonzero(~np.isfinite(losses))):
        return SurfaceStatistics(non_finite=non_finite)
    center = middle_loss(losses)
    shifted = losses - center  # relative to the middle's loss: the variation may be a millionth of the loss itself
    along, across = np.gradient(shifted)
    residual = shifted - fitted_plane(shifted)
    variance = float(shifted.var())
    # Below this, the variation is float64 rounding of numbers of this size.
    constant = math.sqrt(variance) <= 1e-15 * max(1.0, abs(center))
    return SurfaceStatistics(
        std=math.sqrt(variance),
        range=float(np.ptp(shifted)),
        mean_gradient=float(np.hypot(along, across).mean()),
        plane_r2=None if constant else max(0.0, 1 - float(residual.var()) / variance),  # below 0 only by rounding
        residual_std=float(residual.std()),
        center=center,
    )


def middle_loss(losses: Floats) -> float:
    """The loss in the middle of the grid; the mean of the middle points if the grid is even."""
    rows, columns = losses.shape
    return float(losses[(rows - 1) // 2 : rows // 2 + 1, (columns - 1) // 2 : columns // 2 + 1].mean())


def fitted_plane(losses: Floats) -> Floats:
    """The least-squares plane of a surface, on its grid. On a full grid the slopes can be fitted one by one."""
    x, y = (np.arange(n) - (n - 1) / 2 for n in losses.shape)
    slope_x = (x @ losses.mean(1)) / (x @ x)
    slope_y = (losses.mean(0) @ y) / (y @ y)
    return losses.mean() + slope_x * x[:, None] + slope_y * y[None, :]


@dataclass(frozen=True)
class DrawsEstimate(Estimate):
    """An estimate over n draws, or over n seeds' means, and the range of 95% of single draws (percentiles)."""

    percentile_low: float | None
    percentile_high: float | None


def over_draws(groups: Sequence[Sequence[float | None]], within: Bounds = ANYTHING) -> DrawsEstimate:
    """Mean and intervals of the draws of each seed; missing ones are left out.

    For one seed, intervals are over its draws. For several, over the seeds' means, since draws around one state say
    nothing of another; the percentiles are always over all single draws.
    """
    defined = [[value for value in group if value is not None] for group in groups]
    draws = [value for group in defined for value in group]
    means = [math.fsum(group) / len(group) for group in defined if group]
    over = estimate(draws if len(groups) == 1 else means, within=within)
    low, high = map(float, np.percentile(draws, [2.5, 97.5])) if len(draws) > 1 else (None, None)
    return DrawsEstimate(**vars(over), percentile_low=low, percentile_high=high)


@dataclass(frozen=True)
class Level:
    """A measured state."""

    spec_id: str
    seed: int
    redundancy: int
    epoch: int
    live_parameters: int  # backbone and the branches that can be live
    parameters: int  # idle branches included


@dataclass(frozen=True)
class Row:
    """One surface. `scale` is one step of the grid for a weight, in deviations of the direction drawn."""

    level: Level
    directions: Directions
    scaling: Scaling
    draw: int
    scale: tuple[float, float]
    statistics: SurfaceStatistics


@dataclass(frozen=True)
class ViewSummary:
    """Many draws of one view at one redundancy: over the draws of one seed, or over the means of several."""

    epoch: int
    redundancy: int
    directions: Directions
    scaling: Scaling
    live_parameters: int
    parameters: int
    seeds: int
    draws: int
    non_finite: int  # draws with a loss that is not finite; they are left out
    statistics: Mapping[str, DrawsEstimate]  # by name (`STATISTICS`)
    changes: Mapping[str, DrawsEstimate]  # in percent of Plain with the same seed and draw; empty for and without Plain
    # In percent: the change of the deviation that the number of parameters alone causes. With directions of unit norm a
    # weight moves by sqrt(parameters of Plain / parameters) as far, else as far as before.
    predicted_change: float | None


@dataclass(frozen=True)
class Landscape:
    """Every surface in numbers; `surfaces` holds the first draw of the first seed, by (epoch, redundancy, view)."""

    settings: LandscapeSettings
    rows: tuple[Row, ...]
    surfaces: Mapping[tuple[int, int, Directions, Scaling], Surface]
    evaluations: int  # grid points whose loss was computed; equal surfaces are computed once
    seconds: float  # an equal share, if several losses were computed together
    device: str

    def summaries(self) -> list[ViewSummary]:
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
        return {
            "settings": dataclasses.asdict(self.settings),
            "device": self.device,
            "seconds": self.seconds,
            "evaluations": self.evaluations,
            "summaries": [dataclasses.asdict(summary) for summary in self.summaries()],
            "rows": [row_values(row) for row in self.rows],
            "surfaces": [
                {"epoch": epoch, "redundancy": redundancy, "directions": directions, "scaling": scaling,
                 "losses": finite_values(losses)}
                for (epoch, redundancy, directions, scaling), losses in self.surfaces.items()
            ],
        }  # fmt: skip


def finite_values(surface: Floats) -> list[list[float | None]]:
    """The surface row by row, with None for values that are not finite."""
    return [[value if math.isfinite(value) else None for value in row] for row in surface.tolist()]


def row_values(row: Row) -> dict[str, Any]:
    """A row as flat JSON values."""
    own = {"directions": row.directions, "scaling": row.scaling, "draw": row.draw, "scale": list(row.scale)}
    return {**dataclasses.asdict(row.level), **own, **dataclasses.asdict(row.statistics)}


def _summarise(rows: Sequence[Row], plain: Sequence[Row]) -> ViewSummary:
    first, level = rows[0], rows[0].level
    partners = {(row.level.seed, row.draw): row.statistics for row in plain}

    def summarised(value: Callable[[Row], float | None], within: Bounds) -> DrawsEstimate:
        by_seed: dict[int, list[float | None]] = {}
        for row in rows:
            by_seed.setdefault(row.level.seed, []).append(value(row))
        return over_draws(list(by_seed.values()), within)

    def statistic(row: Row, name: str) -> float | None:
        return getattr(row.statistics, name)

    def change(row: Row, name: str) -> float | None:
        value, base = statistic(row, name), getattr(partners.get((row.level.seed, row.draw)), name, None)
        return None if value is None or not base else 100 * (value / base - 1)

    changes, predicted = {}, None
    if plain and level.redundancy:
        changes = {name: summarised(partial(change, name=name), AT_LEAST) for name in CHANGED}
        counted = level.parameters if first.directions == "all" else level.live_parameters
        predicted = 100 * (math.sqrt(plain[0].level.parameters / counted) - 1) if first.scaling == "norm" else 0.0
    return ViewSummary(
        epoch=level.epoch,
        redundancy=level.redundancy,
        directions=first.directions,
        scaling=first.scaling,
        live_parameters=level.live_parameters,
        parameters=level.parameters,
        seeds=len({row.level.seed for row in rows}),
        draws=len({row.draw for row in rows}),
        non_finite=sum(row.statistics.non_finite > 0 for row in rows),
        statistics={name: summarised(partial(statistic, name=name), within) for name, within in STATISTICS.items()},
        changes=changes,
        predicted_change=predicted,
    )
