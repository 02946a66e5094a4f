"""Losses of a stack of runs, as one pure function of its parameters and a batch.

The stack's gradient is the gradient of the sum over runs: runs share nothing, so each run's part is its own.
Axis letters: R runs, B batch, C classes, D width, N branches.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from asymtrain.models import Backbone
from asymtrain.runs import RunSpec


class Batch(NamedTuple):
    """One step's inputs. The last batch of an epoch is filled up with images of weight 0."""

    images: Tensor  # (R, B, 3, H, W), normalised
    targets: Tensor  # (R, B)
    weight: Tensor  # (B,), 1 or 0
    keep: Tensor | None  # (R, B, W), the scaled dropout mask
    live: Tensor | None  # (R, K), which branch of each point is live; None where that is fixed


class Losses(NamedTuple):
    """What one forward pass gives."""

    total: Tensor  # the sum over runs that is differentiated
    main: Tensor  # (R,)
    auxiliary: Tensor  # (R,)
    correct: Tensor  # (R,), training images classified right


@dataclass(frozen=True)
class Objective:
    """The loss of a stack: a backbone's stacked form and the auxiliary settings that its runs share."""

    backbone: Backbone
    branches: bool  # False where every run is Plain
    combine: str
    over_classes: str

    @property
    def settings(self) -> tuple[object, ...]:
        """What a compiled form of this objective depends on, beside the backbone."""
        return (self.backbone.classes, self.branches, self.combine, self.over_classes)

    def __call__(self, parameters: Mapping[str, Tensor], batch: Batch, alpha: Tensor) -> Losses:
        """Losses of R runs; `alpha` is (R,), 0 for Plain."""
        logits, features = self.backbone.stacked(parameters, batch.images, batch.keep)
        logits = logits.float()
        share = batch.weight / batch.weight.sum()
        main = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none")
        main = (main.view_as(batch.targets) * share).sum(1)
        auxiliary = torch.zeros_like(main)
        if self.branches:
            points = [self.point(parameters, k, h, batch) for k, h in enumerate(features)]
            auxiliary = (torch.stack(points).sum(0) * share).sum(1)
        correct = ((logits.argmax(2) == batch.targets) * batch.weight).sum(1)
        return Losses((main + alpha * auxiliary).sum(), main, auxiliary, correct)

    def logits(self, parameters: Mapping[str, Tensor], images: Tensor) -> Tensor:
        """Logits (R, B, C) without dropout."""
        return self.backbone.stacked(parameters, images)[0]

    def point(self, parameters: Mapping[str, Tensor], k: int, features: Tensor, batch: Batch) -> Tensor:
        """Sigmoid losses (R, B) of point k, whose features are (R, B, D) and weights (R, N, C, D)."""
        weight = parameters[f"branch.{k}"]
        if batch.live is not None:
            chosen = batch.live[:, k].view(-1, 1, 1, 1).expand(-1, 1, *weight.shape[2:])
            weight = weight.gather(1, chosen)
        runs, count, classes, _ = weight.shape
        logits = torch.bmm(features, weight.flatten(1, 2).mT).view(runs, -1, count, classes).float()
        goal = F.one_hot(batch.targets, classes)[:, :, None].to(logits.dtype)
        losses = F.binary_cross_entropy_with_logits(logits, goal.expand_as(logits), reduction="none")
        rows = losses.mean(3) if self.over_classes == "mean" else losses.sum(3)
        return rows.mean(2) if self.combine == "mean" else rows.sum(2)


def objective_of(specs: list[RunSpec], backbone: Backbone) -> Objective:
    """The objective that all runs of a stack share; Plain runs take part with alpha 0."""
    lead = next((spec for spec in specs if spec.redundancy), specs[0])
    return Objective(backbone, bool(lead.redundancy), lead.combine, lead.over_classes)
