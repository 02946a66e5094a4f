"""The loss surface around any module: `measure_module_landscape`.

Many grid points are computed in one call of the module, by `torch.func.vmap` over its parameters. A module that cannot
be vectorised (its forward pass asks for a number, say) is called once for each point instead, with a warning; so are
convolutions on a CPU, where that is faster, without one.
"""

import time
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from asymtrain.errors import UsageError
from asymtrain.lab.instruments.landscape.directions import (
    Parameters,
    filter_normalised,
    gaussian_direction,
    parameter_count,
    squared_norm,
)
from asymtrain.lab.instruments.landscape.result import Landscape, Level, Row
from asymtrain.lab.instruments.landscape.settings import Directions, LandscapeSettings, Scaling
from asymtrain.lab.instruments.landscape.statistics import surface_statistics
from asymtrain.lab.instruments.landscape.surface import (
    LossesAt,
    Surface,
    evaluating,
    grid_coordinates,
    module_losses,
    surface,
)

LossFn = Callable[[Tensor, Tensor], Tensor]
_ON_CPU, _ON_GPU = 32, 256  # grid points in a call; a chunk that does not fit is halved
_OWN = "own."  # before a name, so that no parameter of a stranger's is taken for one of our branches


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
    views = dict.fromkeys((_same(directions), scaling) for directions, scaling in settings.views())
    rows: list[Row] = []
    surfaces: dict[tuple[int, int, Directions, Scaling], Surface] = {}
    for draw in range(settings.draws):
        drawn = [_direction(center, seed, draw, axis) for axis in (0, 1)]
        by_filter = [_filtered(direction, center) for direction in drawn]
        lengths = [squared_norm(direction) ** 0.5 for direction in drawn]
        for directions, scaling in views:
            step = settings.step_of(scaling)
            scale = (step / lengths[0], step / lengths[1]) if scaling == "norm" else (step, step)
            first, second = by_filter if directions == "filter" else drawn
            x, y = (grid_coordinates(settings.grid, one) for one in scale)
            found = surface(losses_at, center, (first, second), (x, y), chunk=chunk)
            surfaces.setdefault((0, 0, directions, scaling), found)
            rows.append(Row(level, directions, scaling, draw, scale, surface_statistics(found)))
        if progress:
            progress(draw + 1, settings.draws)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    evaluations = len(rows) * settings.grid**2
    return Landscape(settings, tuple(rows), surfaces, evaluations, time.perf_counter() - started, name)


def _same(directions: Directions) -> Directions:
    return "all" if directions == "live" else directions


def _direction(center: Parameters, seed: int, draw: int, axis: int) -> dict[str, Tensor]:
    drawn = gaussian_direction({_OWN + name: value for name, value in center.items()}, seed, draw, axis)
    return {name: drawn[_OWN + name].to(value.device) for name, value in center.items()}


def _filtered(direction: Parameters, center: Parameters) -> dict[str, Tensor]:
    scaled = filter_normalised(*({_OWN + name: value for name, value in one.items()} for one in (direction, center)))
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
    one = {name: value[None] for name, value in center.items()}
    try:
        here = slow(one)
    except (RuntimeError, ValueError, TypeError) as problem:
        raise UsageError(f"the loss cannot be computed: {problem}") from problem
    if here.shape != (1,):
        raise UsageError(f"loss_fn must give one number, it gave {tuple(here.shape[1:])}: take its mean")
    if not together:
        return slow
    fast = _vectorised(module, inputs, targets, loss_fn)
    try:
        fast(one)
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
