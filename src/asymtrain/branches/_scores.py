"""Loss and accuracy of one place, from the logits of its live branches: pure functions.

Axis letters: B batch, N branches, C classes. Logits are (B, C), or (N, B, C) where all branches are live.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from asymtrain.errors import UsageError
from asymtrain.objectives import ClassReduction, check_targets, sigmoid_loss

BranchReduction = Literal["sum", "mean"]
Objective = Callable[[Tensor, Tensor], Tensor]


def place_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    branch_reduction: BranchReduction,
    class_reduction: ClassReduction,
    ignore_index: int,
    loss_fn: Objective | None,
) -> Tensor:
    """The auxiliary loss of one place; over several live branches the sum or mean of their losses."""
    if loss_fn is not None:
        if logits.ndim == 2:
            return _scalar(loss_fn(logits, targets))
        losses = torch.stack([_scalar(loss_fn(one, targets)) for one in logits])
        return losses.sum() if branch_reduction == "sum" else losses.mean()
    targets = as_targets(targets, logits)
    if logits.ndim == 2:
        return sigmoid_loss(logits, targets, class_reduction=class_reduction, ignore_index=ignore_index)
    check_targets(logits[0], targets, ignore_index)
    branches = len(logits)
    # One call for all branches: the mean over N * B rows is the mean over branches.
    every = targets.repeat(branches, *[1] * (targets.ndim - 1))
    mean = sigmoid_loss(logits.flatten(0, 1), every, class_reduction=class_reduction, ignore_index=ignore_index)
    return mean * branches if branch_reduction == "sum" else mean


def place_accuracy(logits: Tensor, targets: Tensor, *, ignore_index: int) -> Tensor:
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
