"""The losses that a head can learn with: one class for each objective, with settings as fields, and a table.

- `Softmax` (competitive): cross-entropy over classes, the main objective;
- `Distill`: the same, with the model's own logits as a second target;
- `Sigmoid` (non-competitive): one binary cross-entropy per class, the auxiliary objective of the paper;
- `Mse`, `Huber`: regression, or the regression of one-hot classes;
- `Dice`: the overlap of predicted and true regions, for segmentation.

`OBJECTIVES` is the only table of objectives by name: branches, run specs, the reference loop, stacks of runs and the
initial bias read it.

Logits are (..., C). Targets are class indices (...), or one value for each class (..., C). Axis letters: B batch,
R rows (samples or positions), C classes.
"""

import math
import operator
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from asymtrain.errors import UsageError, unknown_name

ClassReduction = Literal["mean", "sum"]


@dataclass(frozen=True)
class Objective(ABC):
    """One way to learn from targets. To add one: a subclass of `RowObjective`, and an entry in `OBJECTIVES`.

    Rows whose class index is `ignore_index` do not count.
    """

    shares: ClassVar[bool] = True  # whether target values are shares of classes, between 0 and 1
    competes: ClassVar[bool] = False  # whether classes compete: then the loss with a single class is always 0
    needs_model: ClassVar[bool] = False  # whether it also learns from the model's own logits
    # The formula for class indices with which `branches/_fused.py` computes loss and gradient together
    formula: ClassVar[Literal["sigmoid", "softmax"] | None] = None

    ignore_index: int = field(default=-100, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.ignore_index, bool) or not isinstance(self.ignore_index, int):
            raise UsageError(f"ignore_index must be a whole number such as 255, got {self.ignore_index!r}")
        reduction = getattr(self, "class_reduction", "mean")
        if reduction not in get_args(ClassReduction):
            raise unknown_name("class_reduction", str(reduction), get_args(ClassReduction))

    @abstractmethod
    def losses(
        self, logits: Tensor, targets: Tensor, keep: Tensor | None, model_logits: Tensor | None = None
    ) -> Tensor:
        """Losses (...) of logits (..., R, C) over the rows that count (R), or all; targets broadcast to the logits.

        `model_logits` (R, C), or with the leading axes of the logits, are given if `needs_model` is set.
        """

    def loss(
        self, logits: Tensor, targets: Tensor, *, mask: Tensor | None = None, model_logits: Tensor | None = None
    ) -> Tensor:
        """The loss of logits (..., C), a scalar; raises a `UsageError` if the targets do not fit.

        Rows whose `mask` (...) is 0 do not count.
        """
        if mask is not None:
            targets = without_masked(targets, mask, self.ignore_index)
        self.check(logits, targets)
        rows, goals = logits.flatten(0, -2), targets.flatten(0, logits.ndim - 2)
        goals, keep = kept_rows(goals, rows, self.ignore_index, None if mask is None else mask.flatten())
        return self.losses(rows, goals, keep, *(() if model_logits is None else (model_logits.flatten(0, -2),)))

    def bias_at(self, shares: Tensor) -> Tensor:
        """The logits (C,) that predict exactly these class shares."""
        return shares.log()

    def accuracy(self, logits: Tensor, targets: Tensor, keep: Tensor | None) -> Tensor:
        """The share of right answers (...) for logits (..., R, C), over the rows that count (R) or all.

        With class indices the answer is the largest logit; with values, a logit above 0 stands for 0.5 or more.
        """
        if targets.ndim == logits.ndim:
            return _mean(((logits > 0) == (targets >= 0.5)).to(torch.float32).mean(-1), keep)
        return _mean(Objective.correct(logits, targets).to(torch.float32), keep)

    @staticmethod
    def correct(logits: Tensor, targets: Tensor) -> Tensor:
        """Which rows (...) of logits (..., C) are right, by class indices (...): the largest logit is the answer."""
        return logits.argmax(-1) == targets

    def check(self, logits: Tensor, targets: Tensor) -> None:
        """Raise a `UsageError` if the targets do not fit the logits."""
        check_targets(logits, targets, self.ignore_index, shares=self.shares, competes=self.competes)


class RowObjective(Objective):
    """An objective whose loss is a mean over rows. Runs of the lab use only these."""

    @abstractmethod
    def rows(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Losses (...) of logits (..., C); targets (class indices, or one value for each class) broadcast to them."""

    def losses(
        self, logits: Tensor, targets: Tensor, keep: Tensor | None, model_logits: Tensor | None = None
    ) -> Tensor:
        return _mean(self.rows(logits, targets), keep)


@dataclass(frozen=True)
class Sigmoid(RowObjective):
    """Binary cross-entropy of each class separately, summed over classes, or averaged as in the paper.

    Targets are class indices, or rows of shares: soft or multi-label targets.
    """

    formula: ClassVar[Literal["sigmoid", "softmax"] | None] = "sigmoid"

    class_reduction: ClassReduction = "sum"

    def rows(self, logits: Tensor, targets: Tensor) -> Tensor:
        losses = F.binary_cross_entropy_with_logits(logits, _goal(logits, targets), reduction="none")
        return _over_classes(losses, self.class_reduction)

    def bias_at(self, shares: Tensor) -> Tensor:
        return shares.logit()


@dataclass(frozen=True)
class Softmax(RowObjective):
    """Cross-entropy over classes. Targets are class indices, or rows of probabilities."""

    competes: ClassVar[bool] = True
    formula: ClassVar[Literal["sigmoid", "softmax"] | None] = "softmax"

    def rows(self, logits: Tensor, targets: Tensor) -> Tensor:
        return -(logits.log_softmax(-1) * _goal(logits, targets)).sum(-1)

    def losses(
        self, logits: Tensor, targets: Tensor, keep: Tensor | None, model_logits: Tensor | None = None
    ) -> Tensor:
        if keep is None or targets.ndim == logits.ndim:
            return super().losses(logits, targets, keep)
        # By index, since one-hot rows of a vocabulary would be as large as the logits.
        indices = targets.expand(logits.shape[:-1])
        rows = F.cross_entropy(logits.flatten(0, -2), indices.flatten(), reduction="none")
        return _mean(rows.view(indices.shape), keep)

    def accuracy(self, logits: Tensor, targets: Tensor, keep: Tensor | None) -> Tensor:
        # Only differences of these logits have a meaning, so for shares the right answer is the largest share.
        return super().accuracy(logits, targets.argmax(-1) if targets.ndim == logits.ndim else targets, keep)


@dataclass(frozen=True)
class Distill(Softmax):
    """Self-distillation: cross-entropy on the labels, and the divergence from the model's own softened probabilities.

    (1 - share) cross-entropy + share T^2 KL(softmax(model's logits / T) || softmax(logits / T)). The model's logits are
    constants here: the branches learn from the model, not the model from the branches. T^2 keeps the gradients of both
    parts comparable at any temperature T.
    """

    formula: ClassVar[Literal["sigmoid", "softmax"] | None] = None
    needs_model: ClassVar[bool] = True

    temperature: float = 3.0
    share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.temperature) or not 0 < self.temperature < math.inf:
            raise UsageError(f"temperature must be a number above 0, got {self.temperature!r}")
        if not is_number(self.share) or not 0 <= self.share <= 1:
            raise UsageError(f"share must be a number from 0 (labels alone) to 1 (the model alone), got {self.share!r}")

    def losses(
        self, logits: Tensor, targets: Tensor, keep: Tensor | None, model_logits: Tensor | None = None
    ) -> Tensor:
        if model_logits is None:
            raise UsageError("Distill also learns from the model's own logits: give model_logits=")
        if model_logits.shape[-2:] != logits.shape[-2:]:
            raise UsageError(
                f"Distill needs one row of the model's logits for each row of a branch's: they have shapes "
                f"{tuple(model_logits.shape[-2:])} and {tuple(logits.shape[-2:])}"
            )
        model_log_shares = (model_logits.detach().to(logits.dtype) / self.temperature).log_softmax(-1)
        log_shares = (logits / self.temperature).log_softmax(-1)
        divergence = _mean((model_log_shares.exp() * (model_log_shares - log_shares)).sum(-1), keep)
        on_labels = super().losses(logits, targets, keep)
        return (1 - self.share) * on_labels + self.share * self.temperature**2 * divergence


@dataclass(frozen=True)
class Mse(RowObjective):
    """Squared error of `outputs` quantities; without `outputs`, with classes= given to `attach`, of one-hot classes."""

    shares: ClassVar[bool] = False

    outputs: int | None = None
    class_reduction: ClassReduction = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outputs is not None:
            object.__setattr__(self, "outputs", whole_number("outputs", self.outputs))

    def rows(self, logits: Tensor, targets: Tensor) -> Tensor:
        return _over_classes((logits - _goal(logits, targets)).square(), self.class_reduction)

    def bias_at(self, shares: Tensor) -> Tensor:
        return shares.clone()

    def accuracy(self, logits: Tensor, targets: Tensor, keep: Tensor | None) -> Tensor:
        """R squared: 1 is perfect, 0 as good as the targets' mean. With class indices the share of right answers.

        If the targets do not vary, for example with one row, it is 0 unless the answer is perfect.
        """
        if targets.ndim != logits.ndim:
            return super().accuracy(logits, targets, keep)
        goal = _goal(logits, targets)
        weight = torch.ones_like(goal) if keep is None else keep.unsqueeze(-1).to(goal.dtype).expand_as(goal)
        mean = (goal * weight).sum(-2, keepdim=True) / weight.sum(-2, keepdim=True).clamp(min=1)
        residual = ((logits - goal).square() * weight).sum((-1, -2))
        spread = ((goal - mean).square() * weight).sum((-1, -2))
        return torch.where(spread > 0, 1 - residual / spread, (residual == 0).to(residual.dtype))


@dataclass(frozen=True)
class Huber(Mse):
    """Like `Mse`, with the Huber loss, which is linear for errors above 1."""

    def rows(self, logits: Tensor, targets: Tensor) -> Tensor:
        return _over_classes(F.huber_loss(logits, _goal(logits, targets), reduction="none"), self.class_reduction)


@dataclass(frozen=True)
class Dice(Objective):
    """1 - Dice of each class over all rows; class indices exclude each other (softmax), values do not (sigmoid)."""

    class_reduction: ClassReduction = "mean"

    def losses(
        self, logits: Tensor, targets: Tensor, keep: Tensor | None, model_logits: Tensor | None = None
    ) -> Tensor:
        predicted = logits.sigmoid() if targets.ndim == logits.ndim else logits.softmax(-1)
        goal = _goal(logits, targets)
        if keep is not None:
            predicted, goal = predicted * keep.unsqueeze(-1), goal * keep.unsqueeze(-1)
        overlap, sizes = (predicted * goal).sum(-2), (predicted + goal).sum(-2)
        # 1 on both sides: a class that is neither present nor predicted counts as right.
        return _over_classes(1 - (2 * overlap + 1) / (sizes + 1), self.class_reduction)


OBJECTIVES: dict[str, type[Objective]] = {
    "sigmoid": Sigmoid,
    "softmax": Softmax,
    "distill": Distill,
    "mse": Mse,
    "huber": Huber,
    "dice": Dice,
}


def find_objective(name: str, **settings: Any) -> Objective:
    """The objective of this name; settings that it does not have are ignored, an unknown name is an error."""
    if name not in OBJECTIVES:
        raise unknown_name("objective", name, OBJECTIVES)
    kind = OBJECTIVES[name]
    own_settings = {field.name for field in fields(kind)}
    return kind(**{setting: value for setting, value in settings.items() if setting in own_settings})


def whole_number(what: str, value: object) -> int:
    """The value as an int of 1 or more; accepts numpy's and torch's integers, which `labels.max() + 1` gives."""
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if number < 1:
        raise UsageError(f"{what} must be a whole number of 1 or more, got {value!r}")
    return number


def is_number(value: object) -> bool:
    """Whether a value is a real number, but not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def softmax_loss(logits: Tensor, targets: Tensor, *, ignore_index: int = -100) -> Tensor:
    """Cross-entropy of logits (..., C) with class indices (...) or class probabilities (..., C), mean over all rows.

    >>> import torch
    >>> round(softmax_loss(torch.zeros(3, 10), torch.tensor([1, 2, 3])).item(), 4)
    2.3026
    """
    return Softmax(ignore_index=ignore_index).loss(logits, targets)


def sigmoid_loss(
    logits: Tensor, targets: Tensor, *, class_reduction: ClassReduction = "sum", ignore_index: int = -100
) -> Tensor:
    """Per-class binary cross-entropy of logits (..., C), mean over all rows.

    Targets are class indices (...), or a row of probabilities for each class (..., C): soft labels and
    multi-label targets are the same thing here, since classes do not compete.
    The C terms are summed, as in a cross-entropy; `class_reduction="mean"`, the default of most frameworks and of the
    paper, makes the loss C times smaller.

    >>> import torch
    >>> round(sigmoid_loss(torch.zeros(3, 10), torch.tensor([1, 2, 3])).item(), 4)
    6.9315
    """
    return Sigmoid(class_reduction, ignore_index=ignore_index).loss(logits, targets)


def prior_bias(objective: Objective, classes: int, labels: Tensor | None = None) -> Tensor:
    """Logits (C,) by which a head predicts the class shares of the labels; without labels, equal shares.

    Labels are class indices, or floats with one value for each class (N, C). Half a label is added to each class: a
    class without labels would have a share of 0, and an infinite logit. For rows (N, C), in which classes are
    independent, half a sample without the class is added as well.
    """
    if labels is not None and (labels.is_floating_point() or labels.dtype == torch.bool):
        return objective.bias_at(((labels.double().sum(0) + 0.5) / (len(labels) + 1)).float().cpu())
    labels = torch.empty(0, dtype=torch.int64) if labels is None else labels.flatten().cpu()
    counts = torch.bincount(labels, minlength=classes).double()
    # A single class is either present or not: two outcomes.
    return objective.bias_at(((counts + 0.5) / (counts.sum() + 0.5 * max(classes, 2))).float())


_MOST_SHARES = 1.02  # of a row of probabilities in bfloat16, which add up to 1 but for rounding


def check_targets(
    logits: Tensor, targets: Tensor, ignore_index: int = -100, *, shares: bool = True, competes: bool = False
) -> None:
    """Raise a `UsageError` if the targets do not fit logits (..., C)."""
    if logits.ndim < 2:
        raise UsageError(f"logits must have shape (batch, classes), got {tuple(logits.shape)}")
    if targets.is_complex():
        raise UsageError(f"targets must be real numbers, got {targets.dtype}: call targets.real")
    if targets.layout is not torch.strided:
        raise UsageError(f"targets must be dense, got a tensor of layout {targets.layout}: call targets.to_dense()")
    *rows, classes = logits.shape
    # On a GPU, reading values would stall every step; in a compiled graph it would cause a break.
    readable = targets.device.type == "cpu" and not torch.compiler.is_compiling()
    if targets.shape == logits.shape:
        if shares and readable and not ((targets >= 0) & (targets <= 1)).all():  # false for NaN as well
            raise UsageError("targets with one value a class must lie between 0 and 1 and not be NaN: they are shares")
        # A row may have no label, and its shares may be rounded.
        if shares and competes and readable and (targets.sum(-1, dtype=torch.float32) > _MOST_SHARES).any():
            raise UsageError(
                "targets with one value a class must add up to 1 in each row if classes compete: use "
                "objective='sigmoid' for several classes at once"
            )
        return
    if targets.shape != logits.shape[:-1]:
        remedy = ": call targets.squeeze(-1)" if targets.shape == (*rows, 1) else ""
        raise UsageError(
            f"targets must have shape {tuple(rows)} for class indices or {(*rows, classes)} for one value "
            f"a class, got {tuple(targets.shape)}{remedy}"
        )
    if classes == 1 and not targets.dtype.is_floating_point and targets.dtype != torch.bool:
        # As class indices all would have to be 0, and mean 1: silently wrong if they are meant as values.
        raise UsageError("with one output, targets are its values and not class indices: call targets.float()")
    if targets.dtype.is_floating_point or targets.dtype == torch.bool:
        raise UsageError(f"class indices must be integers, got {targets.dtype}: call targets.long()")
    if not readable:  # there torch's own device-side assertion catches indices out of range
        return
    indices = targets.long()  # comparisons of bytes wrap: 156 would pass for -100
    wrong = (indices != ignore_index) & ((indices < 0) | (indices >= classes))
    if wrong.any():
        raise UsageError(
            f"targets must lie in 0..{classes - 1} (or be ignore_index={ignore_index}), "
            f"got {int(indices[wrong][0])}: check `classes`, and the ignore_index of the objective"
        )


def without_masked(targets: Tensor, mask: Tensor, ignore_index: int) -> Tensor:
    """Targets (...) or (..., C) with harmless values where the mask (...) is 0, since padding may hold anything."""
    if targets.layout is not torch.strided or targets.is_complex():
        return targets  # `check` refuses them
    if targets.ndim > mask.ndim:
        return targets.masked_fill((mask == 0).unsqueeze(-1), 0)  # 0 times NaN would be NaN
    if targets.is_floating_point() or targets.dtype == torch.bool:
        return targets
    return targets.long().masked_fill(mask == 0, ignore_index)  # long, since -100 does not fit a byte


def kept_rows(targets: Tensor, logits: Tensor, ignore_index: int, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Valid targets for rows of logits (R, C), and which rows count (R); None if all do."""
    if targets.ndim == logits.ndim:
        return targets.to(logits.dtype), None if mask is None else mask != 0
    targets = targets.long()
    keep = targets != ignore_index
    if mask is not None:
        keep = keep & (mask != 0)
    return targets.where(keep, 0), keep


def _mean(losses: Tensor, keep: Tensor | None) -> Tensor:
    """The mean of losses (..., R) over the rows that count; 0 if there are none."""
    if keep is None:
        return losses.mean(-1) if losses.shape[-1] else losses.sum(-1)
    return (losses * keep).sum(-1) / keep.sum().clamp(min=1)


def _goal(logits: Tensor, targets: Tensor) -> Tensor:
    """Targets with one value a class (..., C), one-hot for class indices, expanded to the logits' shape."""
    if targets.ndim == logits.ndim:
        return targets.to(logits.dtype).expand_as(logits)
    # Not F.one_hot, which is int64: eight bytes for each class of each pixel.
    classes = torch.arange(logits.shape[-1], device=logits.device)
    return (targets.unsqueeze(-1) == classes).to(logits.dtype).expand_as(logits)


def _over_classes(losses: Tensor, class_reduction: ClassReduction) -> Tensor:
    return losses.mean(-1) if class_reduction == "mean" else losses.sum(-1)
