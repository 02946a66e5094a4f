"""The two objectives and their dialogue, as pure functions.

- competitive: softmax cross-entropy over classes (the main objective);
- non-competitive: one sigmoid binary cross-entropy per class (the auxiliary objective);
- dialogue: main + alpha * sum over attachment points of the auxiliary losses.

Axis letters: B batch, C classes.
"""

from collections.abc import Iterable
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from asymtrain.errors import UsageError, unknown_name

ClassReduction = Literal["mean", "sum"]


def softmax_loss(logits: Tensor, targets: Tensor, *, ignore_index: int = -100) -> Tensor:
    """Cross-entropy of logits (B, C) with class indices (B,) or class probabilities (B, C), mean over the batch."""
    check_targets(logits, targets, ignore_index)
    if targets.ndim == logits.ndim:
        return F.cross_entropy(logits, targets.to(logits.dtype))
    targets = targets.long()
    keep = targets != ignore_index
    losses = F.cross_entropy(logits, targets, ignore_index=ignore_index, reduction="none")
    return losses.sum() / keep.sum().clamp(min=1)


def sigmoid_loss(
    logits: Tensor, targets: Tensor, *, over_classes: ClassReduction = "mean", ignore_index: int = -100
) -> Tensor:
    """Per-class binary cross-entropy of logits (B, C), mean over the batch.

    Targets are class indices (B,), or a row of probabilities for each class (B, C): soft labels and
    multi-label targets are the same thing here, since classes do not compete.
    `over_classes="mean"` is what frameworks do by default; `"sum"` adds the C terms, so the loss is C times larger.
    """
    if over_classes not in get_args(ClassReduction):
        raise unknown_name("over_classes", str(over_classes), get_args(ClassReduction))
    check_targets(logits, targets, ignore_index)
    if targets.ndim == logits.ndim:
        goal, keep = targets.to(logits.dtype), None
    else:
        targets = targets.long()
        keep = targets != ignore_index
        goal = F.one_hot(targets.where(keep, 0), logits.shape[-1]).to(logits.dtype)
    losses = F.binary_cross_entropy_with_logits(logits, goal, reduction="none")
    rows = losses.mean(-1) if over_classes == "mean" else losses.sum(-1)
    if keep is None:
        return rows.mean()
    return (rows * keep).sum() / keep.sum().clamp(min=1)


def dialogue(main: Tensor, auxiliary: Iterable[Tensor], alpha: float | Tensor) -> Tensor:
    """The training objective: main + alpha * sum over points of the auxiliary losses, or of one tensor of them."""
    if isinstance(alpha, int | float) and not alpha >= 0:
        raise UsageError(f"alpha must be 0 or more, got {alpha}: it weighs the auxiliary losses")
    points = [auxiliary] if isinstance(auxiliary, Tensor) else list(auxiliary)
    if not points:
        return main
    return main + alpha * torch.stack(points).sum()


def check_targets(logits: Tensor, targets: Tensor, ignore_index: int = -100) -> None:
    """Raise a `UsageError` where targets do not fit logits (B, C)."""
    if logits.ndim != 2:
        raise UsageError(f"logits must have shape (batch, classes), got {tuple(logits.shape)}")
    batch, classes = logits.shape
    if targets.shape == (batch, classes):
        _check_shares(targets)
        return
    if targets.shape != (batch,):
        raise UsageError(
            f"targets must have shape ({batch},) for class indices or ({batch}, {classes}) for one value "
            f"a class, got {tuple(targets.shape)}"
        )
    if targets.dtype.is_floating_point or targets.dtype == torch.bool:
        raise UsageError(f"class indices must be integers, got {targets.dtype}: call targets.long()")
    if not _readable(targets):  # out-of-range indices trip torch's own device-side assertion there
        return
    indices = targets.long()  # comparisons of bytes wrap: 156 would pass for -100
    wrong = (indices != ignore_index) & ((indices < 0) | (indices >= classes))
    if wrong.any():
        raise UsageError(
            f"targets must lie in 0..{classes - 1} (or be ignore_index={ignore_index}), "
            f"got {int(indices[wrong][0])}: check `classes`"
        )


def _check_shares(targets: Tensor) -> None:
    if _readable(targets) and not ((targets >= 0) & (targets <= 1)).all():  # false for NaN as well
        raise UsageError("targets with one value a class must lie between 0 and 1 and not be NaN: they are shares")


def _readable(targets: Tensor) -> bool:
    """May values be read? From a GPU that would stall every step, and a compiled graph would break there."""
    return targets.device.type == "cpu" and not torch.compiler.is_compiling()
