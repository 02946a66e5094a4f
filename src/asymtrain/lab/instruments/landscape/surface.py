"""The loss on a grid of points in a plane through any parameters, and the directions that span it.

    point (i, j)  =  center + x_i * first direction + y_j * second direction

A direction has one entry for each parameter, drawn from N(0, 1) and keyed by (seed, draw, axis): the backbone's entries
are the same for every redundancy, and so are those of the live branch. What differs is the scale:

- unit variance: the entries as drawn. Nothing depends on how many parameters there are.
- unit norm: divided by the norm of the whole direction. Parameters that count in that norm but never enter the loss,
  such as idle branches, only shrink the part that moves the network.
- filter: each filter rescaled to the norm of the filter it moves (Li et al. 2018); biases and norm layers stay.

Idle branches have no entries here: they enter a surface only through the norm. The squared norm of k standard normal
entries is a chi-square variable with k degrees of freedom, and that is what is drawn for them.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from asymtrain import streams
from asymtrain.errors import UsageError
from asymtrain.lab.devices import evaluating
from asymtrain.lab.engine.parameters import is_branch
from asymtrain.lab.instruments.landscape.result import Floats

Parameters = Mapping[str, Tensor]
LossesAt = Callable[[Parameters], Tensor]  # parameters with a leading axis of R grid points -> losses (R,)
LossesOn = Callable[[Tensor], Tensor]  # coordinates (R, 2) on the plane -> losses (R,), or parts of them (R, L)


def gaussian_direction(center: Parameters, seed: int, draw: int, axis: int) -> dict[str, Tensor]:
    """Standard normal entries like `center`, in float32; drawn on the CPU.

    Branches have their own random stream, so that the backbone's entries do not depend on them.
    """
    shared, branches = (
        streams.generator(seed, f"landscape draw {draw} axis {axis}{kind}") for kind in ("", " of branches")
    )
    return {
        name: torch.randn(value.shape, generator=branches if is_branch(name) else shared, dtype=torch.float32).to(
            value.device
        )
        for name, value in center.items()
    }


def filter_normalised(direction: Parameters, center: Parameters) -> dict[str, Tensor]:
    """The direction with every filter rescaled to the norm of that filter in `center`.

    A filter is all weights of one output: a row of a matrix, a kernel of a convolution, a row of a branch (N, C, D).
    Tensors with a single filter, such as a class token or positions (1, T, D), are scaled as a whole. Biases and the
    parameters of norm layers (one axis, or a name that ends in "bias") do not move.
    """
    scaled = {}
    for name, value in center.items():
        if value.ndim < 2 or name.endswith("bias"):
            scaled[name] = torch.zeros_like(direction[name])
            continue
        axes = tuple(range(2 if is_branch(name) else 1, value.ndim))
        moved = direction[name]
        length = torch.linalg.vector_norm(value, dim=axes, keepdim=True)
        # A filter whose direction is all zeros cannot be rescaled.
        norm = torch.linalg.vector_norm(moved, dim=axes, keepdim=True).clamp(min=1e-30)
        scaled[name] = moved * (length / norm)
    return scaled


def squared_norm(direction: Parameters) -> float:
    return math.fsum(float(value.double().square().sum()) for value in direction.values())


def idle_squared_norm(seed: int, draw: int, axis: int, *, branches: int, size: int) -> float:
    """Squared norm of the entries of `branches` idle branches of `size` weights each (all points together).

    A sum of chi-square variables, one for each branch: the first 20 of 300 branches are those of redundancy 20.
    """
    if not branches or not size:
        return 0.0
    key = streams.key(seed, f"landscape draw {draw} axis {axis} of idle branches") & (2**63 - 1)
    return math.fsum(np.random.default_rng(key).chisquare(size, branches))


def grid_coordinates(points: int, step: float) -> Floats:
    """Positions along a direction: `points` of them, `step` apart, with 0 in the middle."""
    return (np.arange(points, dtype=np.float64) - (points - 1) / 2) * np.float64(step)


def plane_through(losses_at: LossesAt, center: Parameters, directions: tuple[Parameters, Parameters]) -> LossesOn:
    """Losses on the plane along two directions. `center` is not changed; points have its dtype."""
    first, second = directions

    def losses(coordinates: Tensor) -> Tensor:
        points = {}
        for name, value in center.items():
            a, b = (x.to(value).view(-1, *[1] * value.ndim) for x in coordinates.unbind(1))
            points[name] = value + a * first[name].to(value) + b * second[name].to(value)
        return losses_at(points)

    return losses


def evaluate(losses: LossesOn, grid: tuple[Floats, Floats], chunk: int) -> Floats:
    """Losses (n, m) on the grid, or their parts (n, m, L), from a function of coordinates.

    A chunk that does not fit in memory is halved.
    """
    x, y = grid
    every = torch.from_numpy(np.stack([np.repeat(x, len(y)), np.tile(y, len(x))], 1))  # (n m, 2)
    losses_of: list[Tensor] = []
    done = 0
    with torch.inference_mode():
        while done < len(every):
            try:
                losses_of.append(losses(every[done : done + chunk]))
            except torch.OutOfMemoryError:
                if chunk == 1:
                    raise UsageError("one grid point does not fit in memory: take a smaller sample") from None
                chunk = -(-chunk // 2)
                continue
            done += len(losses_of[-1])
        # One transfer at the end: the device goes on computing while the next chunk is requested.
        all_losses: Floats = torch.cat(losses_of).double().cpu().numpy()
    return all_losses.reshape(len(x), len(y), *all_losses.shape[1:])


def module_losses(
    module: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    *,
    together: bool = False,
) -> LossesAt:
    """Losses of any module on one batch, for `plane_through`: `loss_fn(module(inputs), targets)` at each point.

    The module is evaluated in eval mode, with copies of its buffers, and is left as it was. Points are computed one
    after the other, which works for every module, or `together`, if `torch.func.vmap` can vectorise the module.
    """
    buffers = {name: value.detach().clone() for name, value in module.named_buffers()}

    def loss_at(point: Parameters) -> Tensor:
        own = {name: value.clone() for name, value in buffers.items()}
        return loss_fn(functional_call(module, {**own, **point}, (inputs,)), targets)

    def losses_at(points: Parameters) -> Tensor:
        with evaluating(module), torch.no_grad():
            if together:
                return vmap(loss_at)(dict(points))
            count = len(next(iter(points.values())))
            return torch.stack([loss_at({name: value[i] for name, value in points.items()}) for i in range(count)])

    return losses_at
