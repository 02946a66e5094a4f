"""Loss and accuracy of one place, from the logits of its live branches: pure functions.

Axis letters: B batch, N branches, C classes. Logits are (B, C), or (N, B, C) where all branches are live.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from asymtrain.errors import UsageError
from asymtrain.objectives import ClassReduction, check_targets, sigmoid_loss

BranchReduction = Literal["sum", "mean"]
Objective = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Settings:
    """How logits become losses, and what to do about places that did not run."""

    branch_reduction: BranchReduction = "sum"
    class_reduction: ClassReduction = "mean"
    loss_fn: Objective | None = None
    allow_skipped: bool = False


def place_loss(logits: Tensor, targets: Tensor, settings: Settings, ignore_index: int) -> Tensor:
    """The auxiliary loss of one place; over several live branches the sum or mean of their losses."""
    if settings.loss_fn is not None:
        branches_NBC = logits if logits.ndim == 3 else logits[None]
        losses = torch.stack([_scalar(settings.loss_fn(logits_BC, targets)) for logits_BC in branches_NBC])
        return losses.sum() if settings.branch_reduction == "sum" else losses.mean()
    targets = as_targets(targets, logits)
    loss = partial(sigmoid_loss, class_reduction=settings.class_reduction, ignore_index=ignore_index)
    if logits.ndim == 2:
        return loss(logits, targets)
    check_targets(logits[0], targets, ignore_index)
    # One call for all branches: the mean over N * B rows is the mean over branches.
    repeated = targets.repeat(len(logits), *[1] * (targets.ndim - 1))
    mean = loss(logits.flatten(0, 1), repeated)
    return mean * len(logits) if settings.branch_reduction == "sum" else mean


def place_accuracy(logits: Tensor, targets: Tensor, ignore_index: int) -> Tensor:
    """The share of right answers; over several live branches the mean of their shares.

    With class indices (B,) an answer is the largest logit. With a value for each class (B, C) it is the sign of
    every logit against the target above or below one half.
    """
    targets = as_targets(targets, logits)
    check_targets(logits if logits.ndim == 2 else logits[0], targets, ignore_index)
    if targets.ndim == 2:
        return ((logits > 0) == (targets >= 0.5)).to(torch.float32).mean()
    keep = targets != ignore_index
    right = (logits.argmax(-1) == targets) & keep
    return right.to(torch.float32).mean() * (keep.numel() / keep.sum().clamp(min=1))


def _scalar(loss: Tensor) -> Tensor:
    # One value a sample would be summed with the places, and weigh as many times too much as there are samples.
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        kind = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise UsageError(f"loss_fn must return a scalar tensor, got {kind}: take the mean over the batch in it")
    return loss.reshape(())


def as_targets(targets: Tensor, logits: Tensor) -> Tensor:
    """Targets on the logits' device, integers of any width as int64."""
    if not isinstance(targets, Tensor):
        raise UsageError(f"targets must be a tensor, got a {type(targets).__name__}: call torch.as_tensor(targets)")
    integers = not targets.is_floating_point() and targets.dtype != torch.bool and targets.ndim == 1
    return targets.to(logits.device, torch.int64 if integers else targets.dtype)
