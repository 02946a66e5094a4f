"""The loss surface around states of runs, at several redundancies, over many draws of directions.

For each state and each draw: two directions, a grid around the state, the loss on a sample at every grid point, and the
statistics of that surface. Surfaces that are the same function at the same points are computed once. That is the rule,
not the exception: idle branches never enter the loss, so a redundancy of 300 needs what a redundancy of 1 needs, and
along directions of unit variance not even another surface.

`measure_module_landscape` does the same around any module. Many grid points are computed in one call of it, by
`torch.func.vmap` over its parameters. A module that cannot be vectorised (its forward pass asks for a number, say) is
called once for each point instead, with a warning; so are convolutions on a CPU, where that is faster, without one.
"""

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from asymtrain.errors import UsageError
from asymtrain.lab.data import Dataset
from asymtrain.lab.devices import default_device, device_name, evaluating
from asymtrain.lab.engine.setup import build_backbone
from asymtrain.lab.engine.states import State
from asymtrain.lab.instruments.landscape.backbone import Plane, Score, plane, points_that_fit
from asymtrain.lab.instruments.landscape.result import (
    Directions,
    Landscape,
    LandscapeSettings,
    Level,
    Row,
    Scaling,
    surface_statistics,
)
from asymtrain.lab.instruments.landscape.states import Sample, Subject, subjects_of
from asymtrain.lab.instruments.landscape.surface import (
    LossesAt,
    Parameters,
    Surface,
    evaluate,
    filter_normalised,
    gaussian_direction,
    grid_coordinates,
    idle_squared_norm,
    module_losses,
    parameter_count,
    squared_norm,
    surface,
)
from asymtrain.models import Backbone

LossFn = Callable[[Tensor, Tensor], Tensor]
Surfaces = dict[tuple[int, int, Directions, Scaling], Surface]
_ON_CPU, _ON_GPU = 32, 256  # grid points in a call of a module; a chunk that does not fit is halved
_OWN = "own."  # before a name, so that no parameter of a stranger's is taken for one of our branches


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
    where, started = default_device(device), time.perf_counter()
    subjects, samples = subjects_of(given, dataset, settings, where)
    backbone = build_backbone(given[0].spec, dataset)
    rows: list[Row] = []
    surfaces: Surfaces = {}
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
    return Landscape(settings, tuple(rows), surfaces, evaluations, seconds, device_name(where))


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
        self.surfaces: dict[tuple[int, bool, tuple[float, float]], Surface] = {}
        self.evaluations = 0

    def surface(self, subject: Subject, directions: Directions, scale: tuple[float, float]) -> Surface:
        """Losses around a subject, whose grid has these steps."""
        by_filter = directions == "filter"
        key = (subject.leader, by_filter, scale)
        if key not in self.surfaces:
            if (subject.leader, by_filter) not in self.planes:
                self.planes[subject.leader, by_filter] = self._plane(self.subjects[subject.leader], by_filter)
            along, chunk = self.planes[subject.leader, by_filter]
            x, y = (grid_coordinates(self.settings.grid, step) for step in scale)
            self.surfaces[key] = evaluate(along, (x, y), chunk)
            self.evaluations += len(x) * len(y)
        return self.surfaces[key]

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


def measure_module_landscape(
    module: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss_fn: LossFn = F.cross_entropy,
    settings: LandscapeSettings | None = None,
    *,
    seed: int = 0,
    chunk: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Landscape:
    """The surfaces of `loss_fn(module(inputs), targets)` around a module as it is, which is not changed.

    All parameters that require a gradient move; the module is in eval mode. Of `settings`, grid, draws, steps and kinds
    of directions are taken; the inputs are the sample, and without idle branches "live" directions are those over all.
    Draws are keyed by `seed`. `chunk` is how many grid points one call computes (by default one where there are
    convolutions on a CPU, which are slower together), `progress` is called with the number of draws that are done
    and wanted.
    """
    settings = settings or LandscapeSettings()
    if settings.loss != "main" or settings.precision != "fp32":
        raise UsageError("a module's landscape is of the loss and in the precision that you give it: leave both out")
    if chunk is not None and chunk < 1:
        raise UsageError(f"chunk must be 1 or more, got {chunk}")
    started = time.perf_counter()
    center = {name: value.detach() for name, value in module.named_parameters() if value.requires_grad}
    if not center:
        raise UsageError("no parameter of the module requires a gradient: there is nothing to move")
    device = next(iter(center.values())).device
    chunk = chunk or _points_in_a_call(module, device)
    losses_at = _losses(module, inputs, targets, loss_fn, center, together=chunk > 1)
    size = parameter_count(center)
    level = Level(type(module).__name__, seed, 0, 0, size, size)
    # Without idle branches, directions over live parameters are those over all.
    views: dict[tuple[Directions, Scaling], None] = dict.fromkeys(
        ("all" if kind == "live" else kind, scaling) for kind, scaling in settings.views()
    )
    rows: list[Row] = []
    surfaces: Surfaces = {}
    for draw in range(settings.draws):
        drawn = [_direction(center, seed, draw, axis) for axis in (0, 1)]
        by_filter = [_filtered(direction, center) for direction in drawn]
        lengths = [squared_norm(direction) ** 0.5 for direction in drawn]
        for directions, scaling in views:
            step = settings.step_of(scaling)
            scale = (step / lengths[0], step / lengths[1]) if scaling == "norm" else (step, step)
            first, second = by_filter if directions == "filter" else drawn
            x, y = (grid_coordinates(settings.grid, length) for length in scale)
            losses = surface(losses_at, center, (first, second), (x, y), chunk=chunk)
            surfaces.setdefault((0, 0, directions, scaling), losses)
            rows.append(Row(level, directions, scaling, draw, scale, surface_statistics(losses)))
        if progress:
            progress(draw + 1, settings.draws)
    evaluations = len(rows) * settings.grid**2
    return Landscape(settings, tuple(rows), surfaces, evaluations, time.perf_counter() - started, device_name(device))


def _direction(center: Parameters, seed: int, draw: int, axis: int) -> dict[str, Tensor]:
    drawn = gaussian_direction({_OWN + name: value for name, value in center.items()}, seed, draw, axis)
    return {name: drawn[_OWN + name].to(value.device) for name, value in center.items()}


def _filtered(direction: Parameters, center: Parameters) -> dict[str, Tensor]:
    scaled = filter_normalised(*({_OWN + name: value for name, value in side.items()} for side in (direction, center)))
    return {name: scaled[_OWN + name] for name in center}


def _points_in_a_call(module: nn.Module, device: torch.device) -> int:
    if device.type != "cpu":
        return _ON_GPU
    # Vectorised over weights, a convolution is one of many groups: several times slower there than one by one.
    return 1 if any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules()) else _ON_CPU


def _losses(
    module: nn.Module, inputs: Tensor, targets: Tensor, loss_fn: LossFn, center: Parameters, *, together: bool
) -> LossesAt:
    """Losses of many points: in one call where that is wanted and the module can be vectorised, else in a call each."""
    slow = module_losses(module, inputs, targets, loss_fn)
    point = {name: value[None] for name, value in center.items()}
    try:
        loss = slow(point)
    except (RuntimeError, ValueError, TypeError) as problem:
        raise UsageError(f"the loss cannot be computed: {problem}") from problem
    if loss.shape != (1,):
        raise UsageError(f"loss_fn must give one number, it gave {tuple(loss.shape[1:])}: take its mean")
    if not together:
        return slow
    fast = _vectorised(module, inputs, targets, loss_fn)
    try:
        fast(point)
    except Exception as problem:  # whatever a stranger's forward pass and vmap make of each other
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        warnings.warn(
            f"{type(module).__name__} cannot be vectorised ({reason}): every grid point is a call of its own",
            stacklevel=3,
        )
        return slow
    return fast


def _vectorised(module: nn.Module, inputs: Tensor, targets: Tensor, loss_fn: LossFn) -> LossesAt:
    buffers = {name: value.detach().clone() for name, value in module.named_buffers()}

    def loss(point: Parameters) -> Tensor:
        return loss_fn(functional_call(module, {**buffers, **point}, (inputs,)), targets)

    def losses_at(points: Parameters) -> Tensor:
        with evaluating(module), torch.no_grad():
            return vmap(loss)(dict(points))

    return losses_at
