"""The loss surface around states of runs, at several redundancies, over many draws of directions.

For each state and each draw: two directions, a grid around the state, the loss on a sample at every grid point, and the
statistics of that surface. Surfaces that are the same function at the same points are computed once. That is the rule,
not the exception: idle branches never enter the loss, so a redundancy of 300 needs what a redundancy of 1 needs, and
along directions of unit variance not even another surface.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from asymtrain.lab.data import Dataset
from asymtrain.lab.engine import default_device
from asymtrain.lab.engine.setup import build_backbone
from asymtrain.lab.engine.states import State
from asymtrain.lab.instruments.landscape.backbone import Plane, Score, plane, points_that_fit
from asymtrain.lab.instruments.landscape.directions import (
    Parameters,
    filter_normalised,
    gaussian_direction,
    idle_squared_norm,
    squared_norm,
)
from asymtrain.lab.instruments.landscape.result import Landscape, Row
from asymtrain.lab.instruments.landscape.settings import Directions, LandscapeSettings, Scaling
from asymtrain.lab.instruments.landscape.statistics import surface_statistics
from asymtrain.lab.instruments.landscape.subjects import Sample, Subject, subjects_of
from asymtrain.lab.instruments.landscape.surface import Surface, evaluate, grid_coordinates
from asymtrain.models import Backbone


def measure_landscape(
    states: State | Sequence[State],
    dataset: Dataset,
    settings: LandscapeSettings | None = None,
    *,
    device: torch.device | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Landscape:
    """The surfaces around one or more states of one backbone, which are not changed.

    Give the states of several redundancies (0 is Plain) and seeds to compare them: draws are keyed by (seed, draw), so
    all redundancies of a seed are looked at along the same directions, on the same images. `progress` is called with
    the number of draws that are done and wanted.
    """
    settings = settings or LandscapeSettings()
    given = [states] if isinstance(states, State) else list(states)
    place, started = default_device(device), time.perf_counter()
    subjects, samples = subjects_of(given, dataset, settings, place)
    backbone = build_backbone(given[0].spec, dataset)
    rows: list[Row] = []
    surfaces: dict[tuple[int, int, Directions, Scaling], Surface] = {}
    evaluations = done = 0
    seeds = dict.fromkeys(subject.level.seed for subject in subjects)
    for seed in seeds:
        chosen = [subject for subject in subjects if subject.level.seed == seed]
        for draw in range(settings.draws):
            known = _Draw(backbone, subjects, samples, settings, seed, draw)
            for subject in chosen:
                for directions, scaling in settings.views():
                    scale = known.scale(subject, directions, scaling)
                    losses = known.surface(subject, directions, scale)
                    key = (subject.level.epoch, subject.level.redundancy, directions, scaling)
                    surfaces.setdefault(key, losses)
                    rows.append(Row(subject.level, directions, scaling, draw, scale, surface_statistics(losses)))
            evaluations += known.evaluations
            done += 1
            if progress:
                progress(done, len(seeds) * settings.draws)
    seconds = time.perf_counter() - started
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"
    return Landscape(settings, tuple(rows), surfaces, evaluations, seconds, name)


class _Draw:
    """Two directions of one seed, and the surfaces along them. Each is computed once."""

    def __init__(
        self,
        backbone: Backbone,
        subjects: list[Subject],
        samples: Mapping[int, tuple[Sample, Score]],
        settings: LandscapeSettings,
        seed: int,
        draw: int,
    ) -> None:
        self.backbone, self.subjects, self.samples = backbone, subjects, samples
        self.settings, self.seed, self.draw = settings, seed, draw
        self.drawn: dict[tuple[tuple[str, torch.Size], ...], list[tuple[Parameters, float]]] = {}
        self.planes: dict[tuple[int, bool], tuple[Plane, int]] = {}
        self.found: dict[tuple[int, bool, tuple[float, float]], Surface] = {}
        self.evaluations = 0

    def surface(self, subject: Subject, directions: Directions, scale: tuple[float, float]) -> Surface:
        """Losses around a subject, whose grid has these steps."""
        by_filter = directions == "filter"
        key = (subject.leader, by_filter, scale)
        if key not in self.found:
            if (subject.leader, by_filter) not in self.planes:
                self.planes[subject.leader, by_filter] = self._plane(self.subjects[subject.leader], by_filter)
            along, chunk = self.planes[subject.leader, by_filter]
            x, y = (grid_coordinates(self.settings.grid, step) for step in scale)
            self.found[key] = evaluate(along, (x, y), chunk)
            self.evaluations += len(x) * len(y)
        return self.found[key]

    def scale(self, subject: Subject, directions: Directions, scaling: Scaling) -> tuple[float, float]:
        """How far one step of the grid goes along each direction as it was drawn."""
        step = self.settings.step_of(scaling)
        if scaling != "norm":
            return step, step
        lengths = []
        for axis, (_, square) in enumerate(self._directions(subject.counted)):
            if directions == "all":
                branches, size = subject.idle
                square += idle_squared_norm(self.seed, self.draw, axis, branches=branches, size=size)
            lengths.append(math.sqrt(square))
        return step / lengths[0], step / lengths[1]

    def _plane(self, subject: Subject, by_filter: bool) -> tuple[Plane, int]:
        first, second = (direction for direction, _ in self._directions(subject.counted))
        if by_filter:
            first, second = (filter_normalised(direction, subject.counted) for direction in (first, second))
        sample, score = self.samples[subject.leader]
        tf32 = self.settings.precision == "tf32"
        made = plane(self.backbone, sample.images, score, subject.center, (first, second), tf32=tf32)
        return made, points_that_fit(made)

    def _directions(self, counted: Parameters) -> list[tuple[Parameters, float]]:
        """Both directions with their squared norms, drawn once for all subjects of the same shapes."""
        key = tuple((name, value.shape) for name, value in counted.items())
        if key not in self.drawn:
            both = [gaussian_direction(counted, self.seed, self.draw, axis) for axis in (0, 1)]
            self.drawn[key] = [(direction, squared_norm(direction)) for direction in both]
        return self.drawn[key]
