"""What a measurement of landscapes gives: a row for each surface, and the rows of many draws together."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asymtrain.gradients._intervals import Bounds
from asymtrain.lab.instruments.landscape.settings import Directions, LandscapeSettings, Scaling
from asymtrain.lab.instruments.landscape.statistics import STATISTICS, Interval, SurfaceStatistics, interval
from asymtrain.lab.instruments.landscape.surface import Surface

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
        return [_summarise(rows, groups.get((epoch, 0, directions, scaling), []))
                for (epoch, _, directions, scaling), rows in groups.items()]  # fmt: skip

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
    found = {
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
        statistics=found,
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
