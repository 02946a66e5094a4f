"""The loss on a grid of points in a plane: a pure function of any parameters.

    point (i, j)  =  center + x_i * first direction + y_j * second direction

`surface` asks for losses of many points at once; what answers is a function of stacked parameters (`module_losses`
makes one from any module, `landscape_module` a faster one) or, for the backbones of this package, `landscape_backbone`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call

from asymtrain.errors import UsageError
from asymtrain.lab.instruments.landscape.directions import Parameters, check_alike

Surface = npt.NDArray[np.float64]  # (n, m): rows follow the first direction, columns the second
LossesAt = Callable[[Parameters], Tensor]
"""Parameters with a leading axis of R grid points -> losses (R,)."""
LossesOn = Callable[[Tensor], Tensor]
"""Coordinates (R, 2) on the plane -> losses (R,)."""


def grid_coordinates(points: int, step: float) -> npt.NDArray[np.float64]:
    """Positions along a direction: `points` of them, `step` apart, with 0 in the middle."""
    if points < 3:
        raise UsageError(f"a grid needs 3 or more points a side, got {points}: a slope is taken across the middle")
    if not (step > 0 and np.isfinite(step)):
        raise UsageError(f"the step between grid points must be above 0, got {step}")
    return (np.arange(points, dtype=np.float64) - (points - 1) / 2) * np.float64(step)


def surface(
    losses_at: LossesAt,
    center: Parameters,
    directions: tuple[Parameters, Parameters],
    grid: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]],
    *,
    chunk: int = 16,
) -> Surface:
    """Losses on the grid, `chunk` points at a time. `center` is not changed; points are made in its type."""
    first, second = directions
    for direction in directions:
        check_alike(direction, center)

    def losses(coordinates: Tensor) -> Tensor:
        points = {}
        for name, value in center.items():
            a, b = (x.to(value).view(-1, *[1] * value.ndim) for x in coordinates.unbind(1))
            points[name] = value + a * first[name].to(value) + b * second[name].to(value)
        return losses_at(points)

    return evaluate(losses, grid, chunk)


def evaluate(losses: LossesOn, grid: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]], chunk: int) -> Surface:
    """Losses on the grid from a function of coordinates. A chunk that does not fit in memory is halved."""
    x, y = grid
    every = torch.from_numpy(np.stack([np.repeat(x, len(y)), np.tile(y, len(x))], 1))  # (n m, 2)
    found: list[Tensor] = []
    done = 0
    with torch.inference_mode():
        while done < len(every):
            try:
                found.append(losses(every[done : done + chunk]))
            except torch.OutOfMemoryError:
                if chunk == 1:
                    raise UsageError("one grid point does not fit in memory: take a smaller sample") from None
                chunk = -(-chunk // 2)
                continue
            done += len(found[-1])
        # One transfer at the end: a device computes on while the next chunk is asked for.
        return torch.cat(found).double().cpu().numpy().reshape(len(x), len(y))


def module_losses(
    module: nn.Module, inputs: Tensor, targets: Tensor, loss_fn: Callable[[Tensor, Tensor], Tensor]
) -> LossesAt:
    """Losses of any module on one batch, as `surface` wants them: `loss_fn(module(inputs), targets)` at each point.

    The module is evaluated in eval mode, with copies of its buffers, and is left as it was. Points are taken one after
    the other, which works for every module; `landscape_module` takes many at once where it can.
    """
    buffers = {name: value.detach().clone() for name, value in module.named_buffers()}

    def losses_at(points: Parameters) -> Tensor:
        count = len(next(iter(points.values())))
        with evaluating(module):
            return torch.stack(
                [
                    loss_fn(
                        functional_call(
                            module,
                            {**{n: v.clone() for n, v in buffers.items()}, **{n: v[i] for n, v in points.items()}},
                            (inputs,),
                        ),
                        targets,
                    )
                    for i in range(count)
                ]
            )

    return losses_at


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards every submodule is in the mode it was in."""
    before = {part: part.training for part in module.modules()}
    try:
        module.eval()
        yield
    finally:
        for part, training in before.items():
            part.training = training
