"""The gradient of an update, if it is not the gradient of the total loss.

A signal replaces the auxiliary gradient: noise of the same norm in each layer, or the gradient times a gate.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from asymtrain import streams
from asymtrain.lab.engine.parameters import ALIGNMENT, alignment_sums, layer_sums
from asymtrain.lab.runs import RunSpec


def needs_both_gradients(spec: RunSpec) -> bool:
    """Whether every update needs the auxiliary gradient separately."""
    return spec.signal in ("noise", "gated")


def noise_like(auxiliary: Tensor, keys: Tensor, step: Tensor | int, members: Tensor, inside: Tensor) -> Tensor:
    """Gaussian noise (R, P) with the norm of the auxiliary gradient in each layer, keyed by run and step."""
    position = torch.arange(auxiliary.shape[1], device=auxiliary.device)
    noise = streams.normal(keys[:, None], step, position) * inside
    target, present = layer_sums(auxiliary.square(), members), layer_sums(noise.square(), members)
    scale = ((target / present).sqrt() @ members.T).float()  # (R, P / ALIGNMENT)
    return (noise.view(*scale.shape, ALIGNMENT) * scale[:, :, None]).view_as(noise)


@cache  # compiled forms are kept by function
def update_gradient(signal: str) -> Callable[..., Tensor]:
    """The function that computes the update's gradient:

    (total (R, P), auxiliary (R, P), alpha (R, 1), keys (R,), step, members (rows, L), inside (1, P)) -> (R, P).
    """

    def update(
        total: Tensor, auxiliary: Tensor, alpha: Tensor, keys: Tensor, step: Tensor, members: Tensor, inside: Tensor
    ) -> Tensor:
        match signal:
            case "gated":
                product, main, other = alignment_sums(total, auxiliary, alpha, members).sum(2)
                # The positive cosine, 0 where it is undefined: (R, 1).
                weight = (product / (main * other).sqrt()).nan_to_num(0.0).clamp(0, 1).float()[:, None]
                return total + alpha * (weight - 1) * auxiliary
            case "noise":
                return total + alpha * (noise_like(auxiliary, keys, step, members, inside) - auxiliary)
            case _:
                raise AssertionError(f"the signal {signal!r} needs no update of its own, or has no case here")

    return update
