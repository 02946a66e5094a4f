"""Losses of a stack of runs, as one pure function of its parameters and a batch.

The stack's gradient is the gradient of the sum over runs: runs share nothing, so each run's part is its own.
Axis letters: R runs, B batch, C classes, D width, N branches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from asymtrain.lab.runs import RunSpec
from asymtrain.models import Backbone


class Batch(NamedTuple):
    """One step's inputs. The last batch of an epoch is filled up with images of weight 0."""

    images: Tensor  # (R, B, 3, H, W), normalised
    targets: Tensor  # (R, B)
    weight: Tensor  # (B,), 1 or 0
    keep: Tensor | None  # (R, B, W), the scaled dropout mask
    live: Tensor | None  # (R, K), which branch of each point is live; None where that is fixed
    branch_targets: Tensor | None = None  # (R, B), where the branches learn other labels
    smoothing: Tensor | None = None  # (R,), label smoothing of the main loss


class Losses(NamedTuple):
    """What one forward pass gives."""

    total: Tensor  # the sum over runs that is differentiated
    main: Tensor  # (R,)
    auxiliary: Tensor  # (R,), with the graph that leads to the backbone whatever the signal
    correct: Tensor  # (R,), training images classified right


@dataclass(frozen=True)
class Objective:
    """The loss of a stack: a backbone's stacked form and the auxiliary settings that its runs share."""

    backbone: Backbone
    branches: bool  # False where every run is Plain
    combine: str
    over_classes: str
    loss: str  # of a branch: sigmoid or softmax
    frozen: bool  # branches keep their initial weights
    detached: bool  # branches learn, and the backbone does not hear of it

    @property
    def settings(self) -> tuple[object, ...]:
        """What a compiled form of this objective depends on, beside the backbone."""
        chosen = (self.combine, self.over_classes, self.loss, self.frozen, self.detached)
        return (self.backbone.classes, self.branches, *chosen)

    def __call__(self, parameters: Mapping[str, Tensor], batch: Batch, alpha: Tensor) -> Losses:
        """Losses of R runs; `alpha` is (R,), 0 for Plain."""
        logits, features = self.backbone.stacked(parameters, batch.images, batch.keep)
        logits = logits.float()
        share = batch.weight / batch.weight.sum()
        main = (_main_losses(logits, batch) * share).sum(1)
        auxiliary = applied = torch.zeros_like(main)
        if self.branches:
            auxiliary = applied = self._auxiliary(parameters, features, batch, share)
            if self.detached:
                applied = self._auxiliary(parameters, [point.detach() for point in features], batch, share)
        correct = ((logits.argmax(2) == batch.targets) * batch.weight).sum(1)
        return Losses((main + alpha * applied).sum(), main, auxiliary, correct)

    def logits(self, parameters: Mapping[str, Tensor], images: Tensor) -> Tensor:
        """Logits (R, B, C) without dropout."""
        return self.backbone.stacked(parameters, images)[0]

    def _auxiliary(
        self, parameters: Mapping[str, Tensor], features: Sequence[Tensor], batch: Batch, share: Tensor
    ) -> Tensor:
        points = [self.point(parameters, k, h, batch) for k, h in enumerate(features)]
        return (torch.stack(points).sum(0) * share).sum(1)

    def point(self, parameters: Mapping[str, Tensor], k: int, features: Tensor, batch: Batch) -> Tensor:
        """Losses (R, B) of point k: features (R, B, D), weights (R, N, C, D), biases, if any, (R, N, C)."""
        weight, bias = parameters[f"branch.{k}"], parameters.get(f"branch.{k}.bias")
        if self.frozen:
            weight, bias = weight.detach(), None if bias is None else bias.detach()
        if batch.live is not None:
            chosen = batch.live[:, k].view(-1, 1, 1, 1).expand(-1, 1, *weight.shape[2:])
            weight = weight.gather(1, chosen)
            bias = None if bias is None else bias.gather(1, chosen[..., 0])
        runs, count, classes, _ = weight.shape
        logits = torch.bmm(features, weight.flatten(1, 2).mT).view(runs, -1, count, classes).float()
        if bias is not None:
            logits = logits + bias[:, None].float()
        rows = self._rows(logits, batch.targets if batch.branch_targets is None else batch.branch_targets)
        return rows.mean(2) if self.combine == "mean" else rows.sum(2)

    def _rows(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Losses (R, B, N) of logits (R, B, N, C)."""
        goal = F.one_hot(targets, logits.shape[-1])[:, :, None].to(logits.dtype).expand_as(logits)
        if self.loss == "softmax":
            return -(logits.log_softmax(3) * goal).sum(3)
        losses = F.binary_cross_entropy_with_logits(logits, goal, reduction="none")
        return losses.mean(3) if self.over_classes == "mean" else losses.sum(3)


def objective_of(specs: list[RunSpec], backbone: Backbone) -> Objective:
    """The objective that all runs of a stack share; Plain runs take part with alpha 0."""
    lead = next((spec for spec in specs if spec.redundancy), specs[0])
    return Objective(
        backbone,
        branches=bool(lead.redundancy),
        combine=lead.combine,
        over_classes=lead.over_classes,
        loss=lead.objective,
        frozen=lead.branch_weights == "frozen",
        detached=lead.signal == "detached",
    )


def _main_losses(logits: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy (R, B) of logits (R, B, C); a run's smoothing spreads that share of the target over all classes."""
    losses = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none").view_as(batch.targets)
    if batch.smoothing is None:
        return losses
    smoothing = batch.smoothing[:, None]
    return (1 - smoothing) * losses - smoothing * logits.log_softmax(2).mean(2)
