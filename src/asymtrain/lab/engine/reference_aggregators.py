"""Gradient surgery as its definitions say it, for the reference loop: two long vectors in float64, no closed forms.

The plain counterpart of `aggregators.py`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from asymtrain.lab.engine.reference_dialogue import Pairs


def aggregate(pairs: Pairs, name: str) -> dict[str, Tensor]:
    """One gradient for each parameter from its two; their sum where one of the two is zero everywhere."""
    if name == "sum":
        return {parameter: first + second for parameter, (first, second) in pairs.items()}
    main, part = (torch.cat([pair[side].double().flatten() for pair in pairs.values()]) for side in (0, 1))
    joined = _RULES[name](main, part) if main.any() and part.any() else main + part
    sizes = [first.numel() for first, _ in pairs.values()]
    pieces = zip(pairs.items(), joined.split(sizes), strict=True)
    return {parameter: piece.view_as(first).to(first.dtype) for (parameter, (first, _)), piece in pieces}


def _projected(one: Tensor, other: Tensor) -> Tensor:
    """`one` without its part along `other`, where the two conflict."""
    along = one @ other
    return one - along / (other @ other) * other if along < 0 else one


def _pcgrad(main: Tensor, part: Tensor) -> Tensor:
    return _projected(main, part) + _projected(part, main)


def _upgrad(main: Tensor, part: Tensor) -> Tensor:
    return (_projected(main, part) + _projected(part, main)) / 2


def _mgda(main: Tensor, part: Tensor) -> Tensor:
    """The shortest vector on the line between the two, found by halving the interval that holds it."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        point = middle * main + (1 - middle) * part
        low, high = (low, middle) if point @ (main - part) > 0 else (middle, high)
    return low * main + (1 - low) * part


def _imtl_g(main: Tensor, part: Tensor) -> Tensor:
    """Weights of sum one whose combination has the same component along both directions."""
    apart = main / main.norm() - part / part.norm()
    equations = torch.stack([torch.stack([main @ apart, part @ apart]), torch.ones(2).to(main)])
    weights = torch.linalg.solve(equations, torch.tensor([0.0, 1.0]).to(main))
    return weights[0] * main + weights[1] * part


def _aligned_mtl(main: Tensor, part: Tensor) -> Tensor:
    """Mean row of the nearest matrix whose singular values all are the least of the two."""
    left, values, right = torch.linalg.svd(torch.stack([main, part]), full_matrices=False)
    return (values.min() * (left @ right)).mean(0)


_RULES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "pcgrad": _pcgrad,
    "upgrad": _upgrad,
    "mgda": _mgda,
    "imtl_g": _imtl_g,
    "aligned_mtl": _aligned_mtl,
}
