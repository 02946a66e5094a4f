"""Directions in which a loss surface is looked at, and what their scale is.

A direction has one entry for each parameter, drawn from N(0, 1) and keyed by (seed, draw, axis): the backbone's entries
are the same for every redundancy, and so are those of the live branch. What differs is the scale:

- unit variance: the entries as drawn. Nothing depends on how many parameters there are.
- unit norm: divided by the norm of the whole direction. Whatever is counted in that norm and never enters the loss, as
  idle branches do, only makes the part that moves the network smaller.
- filter: each filter rescaled to the norm of the filter it moves (Li et al. 2018); biases and norm layers stay.

Idle branches have no entries here: they enter a surface through the norm alone, and the squared norm of k standard
normal entries is a chi-square variable with k degrees of freedom. That is what is drawn for them.
"""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from asymtrain import streams
from asymtrain.errors import UsageError

Parameters = Mapping[str, Tensor]


def is_branch(name: str) -> bool:
    """Does this parameter of a state belong to a branch, not to the backbone?"""
    return name.startswith("branch.")


def gaussian_direction(center: Parameters, seed: int, draw: int, axis: int) -> dict[str, Tensor]:
    """Standard normal entries like `center`, float32 on the CPU.

    Branches have a stream of their own, so that the backbone's entries do not depend on whether there are any.
    """
    shared = streams.generator(seed, f"landscape draw {draw} axis {axis}")
    branches = streams.generator(seed, f"landscape draw {draw} axis {axis} of branches")
    return {
        name: torch.randn(value.shape, generator=branches if is_branch(name) else shared, dtype=torch.float32)
        for name, value in center.items()
    }


def filter_normalised(direction: Parameters, center: Parameters) -> dict[str, Tensor]:
    """The direction with every filter rescaled to the norm of that filter in `center`.

    A filter is what leads to one output: a row of a matrix, a kernel of a convolution, a row of a branch (N, C, D).
    Tensors of a single such filter, as a class token or positions (1, T, D) are, are scaled as a whole. Biases and the
    parameters of norm layers (one axis, or a name that ends in "bias") do not move.
    """
    check_alike(direction, center)
    scaled = {}
    for name, value in center.items():
        if value.ndim < 2 or name.endswith("bias"):
            scaled[name] = torch.zeros_like(direction[name])
            continue
        axes = tuple(range(2 if is_branch(name) else 1, value.ndim))
        moved = direction[name]
        length = torch.linalg.vector_norm(value, dim=axes, keepdim=True)
        # A filter whose direction is all zeros cannot be scaled to anything.
        drawn = torch.linalg.vector_norm(moved, dim=axes, keepdim=True).clamp(min=1e-30)
        scaled[name] = moved * (length / drawn)
    return scaled


def squared_norm(direction: Parameters, names: Iterable[str] | None = None) -> float:
    """Sum of squares over the named tensors (all by default), added in float64."""
    chosen = direction if names is None else {name: direction[name] for name in names}
    return math.fsum(float(value.double().square().sum()) for value in chosen.values())


def idle_squared_norm(seed: int, draw: int, axis: int, *, branches: int, size: int) -> float:
    """Squared norm of the entries of `branches` idle branches of `size` weights each (all points together).

    A sum of chi-square variables, one for each branch: those of 20 branches are the first of those of 300.
    """
    if not branches or not size:
        return 0.0
    key = streams.key(seed, f"landscape draw {draw} axis {axis} of idle branches") & (2**63 - 1)
    return math.fsum(np.random.default_rng(key).chisquare(size, branches))


def parameter_count(parameters: Parameters) -> int:
    """How many numbers these are."""
    return sum(value.numel() for value in parameters.values())


def check_alike(direction: Parameters, center: Parameters) -> None:
    """Raise a `UsageError` unless a direction has an entry for each parameter."""
    for name, value in center.items():
        if name not in direction or direction[name].shape != value.shape:
            found = tuple(direction[name].shape) if name in direction else "nothing"
            raise UsageError(f"the direction has {found} for {name!r}, the parameters have {tuple(value.shape)}")
