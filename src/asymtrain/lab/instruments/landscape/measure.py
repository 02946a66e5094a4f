"""The loss surface around states of runs, at several redundancies, over many draws of directions.

For each state and each draw: two directions, a grid around the state, the loss on a sample at every grid point, and the
statistics of that surface. Surfaces that are the same function at the same points are computed once. This is the usual
case: idle branches never enter the loss, so a redundancy of 300 costs the same as a redundancy of 1, and along
directions of unit variance it needs no other surface at all.

`measure_module_landscape` does the same around any module. It computes many grid points in one call, by
`torch.func.vmap` over the parameters. A module that cannot be vectorised (its forward pass asks for a number, say) is
called once for each point instead, with a warning; convolutions on a CPU also are, without one, since it is faster.
"""

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain.errors import UsageError
from asymtrain.lab.data import Dataset
from asymtrain.lab.devices import default_device, device_name
from asymtrain.lab.engine.parameters import parameter_count
from asymtrain.lab.engine.setup import build_backbone
from asymtrain.lab.engine.states import State
from asymtrain.lab.instruments.landscape import surface as planes
from asymtrain.lab.instruments.landscape.backbone import plane, points_that_fit
from asymtrain.lab.instruments.landscape.result import (
    Directions,
    Floats,
    Landscape,
    LandscapeSettings,
    Level,
    Loss,
    Row,
    Scaling,
    Surface,
    View,
    surface_statistics,
)
from asymtrain.lab.instruments.landscape.states import Subject, subjects_of
from asymtrain.lab.instruments.landscape.surface import LossesAt, LossesOn, Parameters

LossFn = Callable[[Tensor, Tensor], Tensor]
Progress = Callable[[int, int], None]
PlaneOf = Callable[[int, tuple[Parameters, Parameters]], tuple[LossesOn, int]]
"""Parts (R, L) of the losses around a network along two directions, and how many points to compute at a time."""
_ON_CPU, _ON_GPU = 32, 256  # grid points in a call of a module; a chunk that does not fit is halved
_OWN = "own."  # before a name, so that no parameter of a user's model is mistaken for one of our branches


def measure_landscape(
    states: State | Sequence[State],
    dataset: Dataset,
    settings: LandscapeSettings | None = None,
    *,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> Landscape:
    """The surfaces around one or more states of one backbone, which stay unchanged.

    Give the states of several redundancies (0 is Plain) and seeds to compare them: draws are keyed by (seed, draw), so
    all redundancies of a seed have the same directions and the same images. `progress` is called with the numbers of
    finished and of wanted draws.
    """
    settings = settings or LandscapeSettings()
    all_states = [states] if isinstance(states, State) else list(states)
    (landscape,) = measure_losses(all_states, dataset, settings, [settings.loss], device=device, progress=progress)
    return landscape


def measure_losses(
    states: Sequence[State],
    dataset: Dataset,
    settings: LandscapeSettings,
    losses: Sequence[Loss],
    *,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> list[Landscape]:
    """`measure_landscape` for several losses, in place of the one in the settings, from the same forward passes.

    The network is nearly all of the work: the total loss adds only the cost of its branches to the main loss.
    """
    started, where = time.perf_counter(), default_device(device)
    subjects, networks = subjects_of(states, dataset, settings.sample, losses, where)
    backbone, tf32 = build_backbone(states[0].spec, dataset), settings.precision == "tf32"

    def plane_of(network: int, directions: tuple[Parameters, Parameters]) -> tuple[LossesOn, int]:
        own_network = networks[network]
        along = plane(backbone, own_network.sample.images, own_network.score, own_network.center, directions, tf32=tf32)
        return along, points_that_fit(along)

    centers, views = [network.center for network in networks], settings.views()
    return _look_around(subjects, centers, plane_of, settings, losses, views, where, progress, started)


def measure_module_landscape(
    module: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss_fn: LossFn = F.cross_entropy,
    settings: LandscapeSettings | None = None,
    *,
    seed: int = 0,
    chunk: int | None = None,
    progress: Progress | None = None,
) -> Landscape:
    """The surfaces of `loss_fn(module(inputs), targets)` around a module in its current state, which stays unchanged.

    All parameters that require a gradient move; the module is in eval mode. Of `settings`, it uses grid, draws, steps
    and kinds of directions; the inputs are the sample, and without idle branches "live" equals "all". Draws are keyed
    by `seed`. `chunk` is how many grid points one call computes (by default one for convolutions on a CPU, which are
    slower together), `progress` is called with the numbers of finished and of wanted draws.
    """
    started, settings = time.perf_counter(), settings or LandscapeSettings()
    if settings.loss != "main" or settings.precision != "fp32":
        raise UsageError("a module's landscape is of the loss and in the precision that you give it: leave both out")
    if chunk is not None and chunk < 1:
        raise UsageError(f"chunk must be 1 or more, got {chunk}")
    center = {_OWN + name: value.detach() for name, value in module.named_parameters() if value.requires_grad}
    if not center:
        raise UsageError("no parameter of the module requires a gradient: there is nothing to move")
    device = next(iter(center.values())).device
    if chunk is None:
        # Vectorised over weights, a convolution becomes a grouped one: several times slower on a CPU than one by one.
        convolves = any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules())
        chunk = _ON_GPU if device.type != "cpu" else 1 if convolves else _ON_CPU
    losses_at = _module_losses(module, inputs, targets, loss_fn, center, together=chunk > 1)
    size = parameter_count(center)
    subject = Subject(Level(type(module).__name__, seed, 0, 0, size, size), center, network=0, idle=(0, 0))
    views: dict[View, None] = dict.fromkeys(
        ("all" if directions == "live" else directions, scaling) for directions, scaling in settings.views()
    )

    def plane_of(network: int, directions: tuple[Parameters, Parameters]) -> tuple[LossesOn, int]:
        losses = planes.plane_through(losses_at, center, directions)
        return lambda coordinates: losses(coordinates)[:, None], chunk

    (landscape,) = _look_around([subject], [center], plane_of, settings, ["main"], views, device, progress, started)
    return landscape


def _look_around(
    subjects: list[Subject],
    centers: list[Parameters],
    plane_of: PlaneOf,
    settings: LandscapeSettings,
    losses: Sequence[Loss],
    views: Iterable[View],
    device: torch.device,
    progress: Progress | None,
    started: float,
) -> list[Landscape]:
    rows: dict[Loss, list[Row]] = {loss: [] for loss in losses}
    surfaces: dict[Loss, dict[tuple[int, int, *View], Surface]] = {loss: {} for loss in losses}
    evaluations = 0
    draws = list(product(dict.fromkeys(subject.level.seed for subject in subjects), range(settings.draws)))
    for done, (seed, draw) in enumerate(draws, 1):
        along = _Draw(centers, plane_of, settings, seed, draw)
        for subject, (directions, scaling) in product(subjects, views):
            if subject.level.seed == seed:
                scale = along.scale(subject, directions, scaling)
                parts, level = along.parts_around(subject, directions, scale), subject.level
                for loss in losses:
                    surface = subject.surface(parts, loss)
                    surfaces[loss].setdefault((level.epoch, level.redundancy, directions, scaling), surface)
                    rows[loss].append(Row(level, directions, scaling, draw, scale, surface_statistics(surface)))
        evaluations += len(along.parts) * settings.grid**2
        if progress:
            progress(done, len(draws))
    share = (time.perf_counter() - started) / len(losses)
    return [
        Landscape(
            dataclasses.replace(settings, loss=loss),
            tuple(rows[loss]),
            surfaces[loss],
            evaluations,
            share,
            device_name(device),
        )
        for loss in losses
    ]


class _Draw:
    """Two directions of one seed, and the losses along them. Each is computed only once."""

    def __init__(
        self, centers: list[Parameters], plane_of: PlaneOf, settings: LandscapeSettings, seed: int, draw: int
    ) -> None:
        self.centers, self.plane_of, self.settings, self.seed, self.draw = centers, plane_of, settings, seed, draw
        self.by_shapes: dict[object, list[tuple[Parameters, float]]] = {}
        self.planes: dict[tuple[int, bool], tuple[LossesOn, int]] = {}
        self.parts: dict[tuple[int, bool, tuple[float, float]], Floats] = {}

    def parts_around(self, subject: Subject, directions: Directions, scale: tuple[float, float]) -> Floats:
        """Parts (n, m, L) of the losses around a subject, on a grid with these steps."""
        by_filter = directions == "filter"
        key = (subject.network, by_filter, scale)
        if key not in self.parts:
            if key[:2] not in self.planes:
                center = self.centers[subject.network]
                first, second = (direction for direction, _ in self.directions(center))
                if by_filter:
                    first, second = (planes.filter_normalised(part, center) for part in (first, second))
                self.planes[key[:2]] = self.plane_of(subject.network, (first, second))
            losses, chunk = self.planes[key[:2]]
            x, y = (planes.grid_coordinates(self.settings.grid, step) for step in scale)
            self.parts[key] = planes.evaluate(losses, (x, y), chunk)
        return self.parts[key]

    def scale(self, subject: Subject, directions: Directions, scaling: Scaling) -> tuple[float, float]:
        """The length of one grid step along each direction as it was drawn."""
        step = self.settings.step_of(scaling)
        if scaling != "norm":
            return step, step
        (_, first), (_, second) = self.directions(subject.counted)
        if directions == "all":
            branches, size = subject.idle
            first += planes.idle_squared_norm(self.seed, self.draw, 0, branches=branches, size=size)
            second += planes.idle_squared_norm(self.seed, self.draw, 1, branches=branches, size=size)
        return step / math.sqrt(first), step / math.sqrt(second)

    def directions(self, counted: Parameters) -> list[tuple[Parameters, float]]:
        """Both directions with their squared norms, drawn once for all subjects of the same shapes."""
        key = tuple((name, value.shape) for name, value in counted.items())
        if key not in self.by_shapes:
            both = [planes.gaussian_direction(counted, self.seed, self.draw, axis) for axis in (0, 1)]
            self.by_shapes[key] = [(direction, planes.squared_norm(direction)) for direction in both]
        return self.by_shapes[key]


def _module_losses(
    module: nn.Module, inputs: Tensor, targets: Tensor, loss_fn: LossFn, center: Parameters, *, together: bool
) -> LossesAt:
    """Losses of many points: in one call if wanted and the module can be vectorised, else in one call for each."""

    def losses_of(together: bool) -> LossesAt:
        losses_at = planes.module_losses(module, inputs, targets, loss_fn, together=together)
        return lambda points: losses_at({name.removeprefix(_OWN): value for name, value in points.items()})

    slow, point = losses_of(together=False), {name: value[None] for name, value in center.items()}
    try:
        loss = slow(point)
    except (RuntimeError, ValueError, TypeError) as problem:
        raise UsageError(f"the loss cannot be computed: {problem}") from problem
    if loss.shape != (1,):
        raise UsageError(f"loss_fn must give one number, it gave {tuple(loss.shape[1:])}: take its mean")
    if not together:
        return slow
    fast = losses_of(together=True)
    try:
        fast(point)
    except Exception as problem:  # user models fail under vmap in many ways
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        warnings.warn(
            f"{type(module).__name__} cannot be vectorised ({reason}): every grid point is a call of its own",
            stacklevel=3,
        )
        return slow
    return fast
