"""What a head can learn by, and the dialogue of two objectives: pure functions, and one registry of them.

- softmax (competitive): cross-entropy over classes, the main objective;
- sigmoid (non-competitive): one binary cross-entropy per class, the auxiliary objective;
- dialogue: main + alpha * sum over attachment points of the auxiliary losses.

`OBJECTIVES` is the only list of objectives: run specs, the reference loop, stacks of runs and the initial bias read it.
Axis letters: B batch, C classes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from asymtrain._moved import renamed_arguments
from asymtrain.errors import UsageError, unknown_name

ClassReduction = Literal["mean", "sum"]


@dataclass(frozen=True)
class Objective:
    """One way to learn from targets, in the two forms that training needs; tests hold the two together."""

    # logits (B, C) and targets -> the mean over the batch; targets that do not fit are a `UsageError`
    loss: Callable[[Tensor, Tensor], Tensor]
    # The same without the mean, for any leading axes: logits (..., C), class indices that broadcast to (...) -> (...).
    # The last argument is the reduction over classes; one whose classes compete has none.
    rows: Callable[[Tensor, Tensor, ClassReduction], Tensor]
    bias_at: Callable[[Tensor], Tensor]  # shares of the classes (C,) -> the logits that predict just these
    correct: Callable[[Tensor, Tensor], Tensor]  # logits (..., C), class indices (...) -> what is classified right


def find_objective(name: str) -> Objective:
    """The objective of this name; an unknown one is an error."""
    if name not in OBJECTIVES:
        raise unknown_name("objective", name, OBJECTIVES)
    return OBJECTIVES[name]


def softmax_loss(logits: Tensor, targets: Tensor, *, ignore_index: int = -100) -> Tensor:
    """Cross-entropy of logits (B, C) with class indices (B,) or class probabilities (B, C), mean over the batch."""
    check_targets(logits, targets, ignore_index)
    if targets.ndim == logits.ndim:
        return F.cross_entropy(logits, targets.to(logits.dtype))
    targets = targets.long()
    keep = targets != ignore_index
    losses = F.cross_entropy(logits, targets, ignore_index=ignore_index, reduction="none")
    return losses.sum() / keep.sum().clamp(min=1)


@renamed_arguments(over_classes="class_reduction")
def sigmoid_loss(
    logits: Tensor, targets: Tensor, *, class_reduction: ClassReduction = "mean", ignore_index: int = -100
) -> Tensor:
    """Per-class binary cross-entropy of logits (B, C), mean over the batch.

    Targets are class indices (B,), or a row of probabilities for each class (B, C): soft labels and
    multi-label targets are the same thing here, since classes do not compete.
    `class_reduction="mean"` is what frameworks do by default; `"sum"` adds the C terms, so the loss is C times larger.
    """
    if class_reduction not in get_args(ClassReduction):
        raise unknown_name("class_reduction", str(class_reduction), get_args(ClassReduction))
    check_targets(logits, targets, ignore_index)
    if targets.ndim == logits.ndim:
        return _binary_rows(logits, targets.to(logits.dtype), class_reduction).mean()
    targets = targets.long()
    keep = targets != ignore_index
    rows = _sigmoid_rows(logits, targets.where(keep, 0), class_reduction)
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
    # From a GPU, reading values would stall every step; a compiled graph would break there.
    readable = targets.device.type == "cpu" and not torch.compiler.is_compiling()
    if targets.shape == (batch, classes):
        if readable and not ((targets >= 0) & (targets <= 1)).all():  # false for NaN as well
            raise UsageError("targets with one value a class must lie between 0 and 1 and not be NaN: they are shares")
        return
    if targets.shape != (batch,):
        raise UsageError(
            f"targets must have shape ({batch},) for class indices or ({batch}, {classes}) for one value "
            f"a class, got {tuple(targets.shape)}"
        )
    if targets.dtype.is_floating_point or targets.dtype == torch.bool:
        raise UsageError(f"class indices must be integers, got {targets.dtype}: call targets.long()")
    if not readable:  # out-of-range indices trip torch's own device-side assertion there
        return
    indices = targets.long()  # comparisons of bytes wrap: 156 would pass for -100
    wrong = (indices != ignore_index) & ((indices < 0) | (indices >= classes))
    if wrong.any():
        raise UsageError(
            f"targets must lie in 0..{classes - 1} (or be ignore_index={ignore_index}), "
            f"got {int(indices[wrong][0])}: check `classes`"
        )


def _softmax_rows(logits: Tensor, targets: Tensor, class_reduction: ClassReduction) -> Tensor:
    return -(logits.log_softmax(-1) * _one_hot(logits, targets)).sum(-1)


def _sigmoid_rows(logits: Tensor, targets: Tensor, class_reduction: ClassReduction) -> Tensor:
    return _binary_rows(logits, _one_hot(logits, targets), class_reduction)


def _binary_rows(logits: Tensor, goal: Tensor, class_reduction: ClassReduction) -> Tensor:
    losses = F.binary_cross_entropy_with_logits(logits, goal, reduction="none")
    return losses.mean(-1) if class_reduction == "mean" else losses.sum(-1)


def _one_hot(logits: Tensor, targets: Tensor) -> Tensor:
    return F.one_hot(targets, logits.shape[-1]).to(logits.dtype).expand_as(logits)


def _largest_is_right(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.argmax(-1) == targets


OBJECTIVES: dict[str, Objective] = {
    "sigmoid": Objective(sigmoid_loss, _sigmoid_rows, torch.logit, _largest_is_right),
    "softmax": Objective(softmax_loss, _softmax_rows, torch.log, _largest_is_right),
}
