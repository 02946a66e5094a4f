"""AdamW with a vector over runs for each setting; which weights decay, gradient clipping, averaged weights.

The arithmetic is that of `torch.optim.AdamW` (decoupled decay, bias correction), on the flat matrix (R, P).
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from asymtrain.lab.engine.parameters import is_branch
from asymtrain.lab.runs import RunSpec

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
_fused_adamw = partial(adamw, fused=True, amsgrad=False, maximize=False, beta1=BETA_1, beta2=BETA_2, eps=EPSILON)


@dataclass(frozen=True)
class Moments:
    """The optimiser's state: first and second moments (R, P), and the number of updates as a float64 scalar."""

    first: Tensor
    second: Tensor
    updates: Tensor

    @classmethod
    def zeros(cls, flat: Tensor) -> "Moments":
        updates = torch.zeros((), dtype=torch.float64, device=flat.device)
        return cls(torch.zeros_like(flat), torch.zeros_like(flat), updates)


def adamw_(flat: Tensor, gradient: Tensor, moments: Moments, rate: Tensor, decay: Tensor) -> None:
    """Update flat (R, P) in place. rate: (R, 1). decay: weight decay, (R, 1) or (R, P), 0 for weights without it."""
    if flat.is_cpu:
        # torch's fused AdamW for each run: one pass over memory; on a CPU the elementwise form needs a dozen.
        if decay.shape[1] > 1:
            flat.mul_(1 - rate * decay)
            decay = torch.zeros_like(rate)
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
    """The update as elementwise operations: compiled, one pass over memory."""
    correction_1 = (1 - BETA_1**updates).float()
    correction_2 = (1 - BETA_2**updates).float()
    first.lerp_(gradient, 1 - BETA_1)
    second.mul_(BETA_2).addcmul_(gradient, gradient, value=1 - BETA_2)
    scale = second.sqrt().div_(correction_2.sqrt()).add_(EPSILON)
    flat.mul_(1 - rate * decay)
    flat.addcdiv_(first * (rate / correction_1), scale, value=-1)


def clipped(gradient: Tensor, limit: Tensor) -> Tensor:
    """Gradients (R, P), each scaled down to a norm of at most `limit` (R, 1), like `clip_grad_norm_`; 0 is no limit."""
    scale = (limit / (torch.linalg.vector_norm(gradient, dim=1, keepdim=True) + 1e-6)).clamp(max=1)
    return gradient * torch.where(limit > 0, scale, 1.0)


def average_(average: Tensor, values: Tensor, decay: Tensor, updates: Tensor) -> None:
    """Move the average (R, ...) towards the values in place. decay: (R, 1); updates: how many averages were taken.

    The effective decay grows with `updates` from 0 to `decay`: else the initial weights would stay in it for long.
    """
    weight = torch.minimum(decay, (updates / (updates + 9)).to(decay.dtype))
    average.lerp_(values, (1 - weight).view(-1, *[1] * (values.ndim - 1)))


def decays(spec: RunSpec, name: str, value: Tensor) -> bool:
    """Whether weight decay applies to this parameter; `value` is one run's tensor."""
    if is_branch(name) and spec.branch_weights == "frozen":
        return False
    if spec.decay == "all":
        return True
    # Only a parameter whose own name says token: layers that mix tokens have ordinary matrices.
    matrix = not name.endswith("bias") and value.ndim >= 2 and "position" not in name and "pos_embed" not in name
    return matrix and "token" not in name.rpartition(".")[2]
