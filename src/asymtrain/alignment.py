"""Do two objectives pull the shared parameters the same way? Cosines between their gradients.

Pure functions. A cosine with a zero gradient is undefined: it is `None`, never 0 and never NaN.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from asymtrain.errors import UsageError


@dataclass(frozen=True)
class Alignment:
    """How an auxiliary gradient lies to the main gradient over shared parameters."""

    cosine: float | None
    main_norm: float
    auxiliary_norm: float
    by_parameter: Mapping[str, float | None]


def alignment(main: Tensor, auxiliary: Tensor, model: nn.Module) -> Alignment:
    """Cosine between the gradients of two losses over the parameters of `model` that both reach.

    A parameter whose gradient is exactly zero counts as not reached: a compiled model cannot tell the two apart.
    Call it before `backward`: it keeps the graph, and leaves `.grad` and the parameters as they are.
    Two plain backward passes, so it works under autocast and with a compiled model.
    """
    named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    if not named:
        raise UsageError("the model has no parameter that requires a gradient: alignment needs shared parameters")
    parameters = [value for _, value in named]
    mains = torch.autograd.grad(main, parameters, retain_graph=True, allow_unused=True)
    auxiliaries = torch.autograd.grad(auxiliary, parameters, retain_graph=True, allow_unused=True)
    both = {
        name.replace("_orig_mod.", ""): (g.detach(), h.detach())  # torch.compile's prefix is no part of the name
        for (name, _), g, h in zip(named, mains, auxiliaries, strict=True)
        if g is not None and h is not None
    }
    if not both:
        raise UsageError("no parameter is reached by both losses: are the branches attached, not detached?")
    shared = {name: (g, h) for name, (g, h) in both.items() if _norm([g]) != 0 and _norm([h]) != 0} or both
    return Alignment(
        cosine=cosine([g for g, _ in shared.values()], [h for _, h in shared.values()]),
        main_norm=_norm([g for g, _ in shared.values()]),
        auxiliary_norm=_norm([h for _, h in shared.values()]),
        by_parameter={name: cosine([g], [h]) for name, (g, h) in shared.items()},
    )


def cosine(first: Sequence[Tensor], second: Sequence[Tensor]) -> float | None:
    """Cosine between two gradients, each given as a list of tensors; `None` where one is zero or not finite."""
    product = sum(torch.sum(g.double() * h.double()).item() for g, h in zip(first, second, strict=True))
    scale = _norm(first) * _norm(second)
    value = product / scale if scale > 0 else float("nan")
    return max(-1.0, min(1.0, value)) if value == value else None  # NaN is the one value that differs from itself


def stacked_cosine(first: Tensor, second: Tensor) -> Tensor:
    """Cosines of R pairs of flat gradients, (R, P) and (R, P) -> (R,); NaN where undefined, for `nanmean`-like use."""
    product = (first * second).sum(1)
    return (product / (first.square().sum(1).sqrt() * second.square().sum(1).sqrt())).clamp(-1, 1)


def _norm(gradient: Sequence[Tensor]) -> float:
    return sum(torch.sum(g.double().square()).item() for g in gradient) ** 0.5
