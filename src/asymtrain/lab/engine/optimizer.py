"""AdamW whose learning rate and weight decay are vectors over runs.

The arithmetic is that of `torch.optim.AdamW` (decoupled decay, bias correction), on the flat matrix (R, P).
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.optim.adamw import adamw

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
_fused_adamw = partial(adamw, fused=True, amsgrad=False, maximize=False, beta1=BETA_1, beta2=BETA_2, eps=EPSILON)


@dataclass(frozen=True)
class Moments:
    """The optimiser's memory: first and second moments (R, P) and the number of updates made, a float64 scalar."""

    first: Tensor
    second: Tensor
    updates: Tensor

    @classmethod
    def zeros(cls, flat: Tensor) -> "Moments":
        updates = torch.zeros((), dtype=torch.float64, device=flat.device)
        return cls(torch.zeros_like(flat), torch.zeros_like(flat), updates)


def adamw_(flat: Tensor, gradient: Tensor, moments: Moments, rate: Tensor, decay: Tensor) -> None:
    """Update flat (R, P) in place. rate: (R, 1). decay: weight decay, (R, 1) or (R, P), 0 where it does not act."""
    if flat.is_cpu and decay.shape[1] == 1:
        # torch's own for each run: one pass over memory, where the elementwise form makes a dozen on a CPU.
        rows = zip(flat, gradient, moments.first, moments.second, rate.tolist(), decay.tolist(), strict=True)
        for weights, grad, first, second, (lr,), (weight_decay,) in rows:
            updates = [moments.updates.float()]
            _fused_adamw([weights], [grad], [first], [second], [], updates, lr=lr, weight_decay=weight_decay)
    else:
        adamw_elementwise_(flat, gradient, moments.first, moments.second, moments.updates + 1, rate, decay)
    moments.updates.add_(1)


def adamw_elementwise_(
    flat: Tensor, gradient: Tensor, first: Tensor, second: Tensor, updates: Tensor, rate: Tensor, decay: Tensor
) -> None:
    """The elementwise part: one pass over memory once it is compiled."""
    correction_1 = (1 - BETA_1**updates).float()
    correction_2 = (1 - BETA_2**updates).float()
    first.lerp_(gradient, 1 - BETA_1)
    second.mul_(BETA_2).addcmul_(gradient, gradient, value=1 - BETA_2)
    scale = second.sqrt().div_(correction_2.sqrt()).add_(EPSILON)
    flat.mul_(1 - rate * decay)
    flat.addcdiv_(first * (rate / correction_1), scale, value=-1)
