"""The loss of linear branches on rows or means in one node of autograd.

A step of a small model is bound by the calls that it makes, not by their arithmetic. Here places share products where
their widths agree, all share one loss, and the gradients are computed beside it, without a graph:

    features -> rows (B, D) -> logits (K, B, C) -> loss, and its gradients by weights and rows
    backward    those gradients times the loss's own; a mean's is spread over the positions as a view

The numbers are those of the general way, up to rounding, which second derivatives still take.
Axis letters: B batch, C classes, D width, K places.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from asymtrain.branches._heads import without_autocast
from asymtrain.branches._pooling import Source
from asymtrain.objectives import OBJECTIVES, ClassReduction, Objective, kept_rows


@dataclass(frozen=True)
class Plan:
    """What stays the same from the forward to the backward."""

    axes: tuple[tuple[int, ...], ...]  # of each place
    groups: tuple[tuple[int, ...], ...]  # places that share a product
    order: tuple[int, ...]  # the places, group by group
    positions: tuple[int, ...]  # over which each group's features are averaged
    shares: tuple[float, ...] | None  # of the places in the sum, in that order; None where each is 1
    objective: Objective
    class_reduction: ClassReduction
    ignore_index: int


def fused_loss(
    sources: Sequence[Source],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    targets: Tensor,
    objective: Objective,
    class_reduction: ClassReduction,
    ignore_index: int,
    shares: Sequence[float],
) -> Tensor:
    """The weighted sum over places of their losses; `biases` is empty, or has one for each place."""
    kinds = tuple([(source.feature.shape, source.feature.dtype, source.axes) for source in sources])
    plan = _plan(kinds, tuple(shares), objective, class_reduction, ignore_index)
    features = [source.feature for source in sources]
    loss: Tensor = _FusedLoss.apply(plan, targets, *features, *weights, *biases)  # type: ignore[no-untyped-call]
    return loss


@lru_cache
def _plan(
    kinds: tuple[tuple[torch.Size, torch.dtype, tuple[int, ...]], ...],
    shares: tuple[float, ...],
    objective: Objective,
    class_reduction: ClassReduction,
    ignore_index: int,
) -> Plan:
    groups: dict[tuple[torch.Size, torch.dtype, tuple[int, ...]], list[int]] = {}
    for place, kind in enumerate(kinds):
        groups.setdefault(kind, []).append(place)
    order = [place for group in groups.values() for place in group]
    positions = [math.prod(shape[axis] for axis in axes) for shape, _, axes in groups]
    return Plan(
        tuple(axes for _, _, axes in kinds), tuple(map(tuple, groups.values())), tuple(order), tuple(positions),
        None if set(shares) == {1.0} else tuple(shares[place] for place in order), objective, class_reduction,
        ignore_index,
    )  # fmt: skip


def _general_loss(plan: Plan, targets: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """The same loss as operations that autograd knows, for derivatives of its gradient."""
    count = len(plan.axes)
    total = torch.zeros((), device=targets.device)
    for place, (feature, weight) in enumerate(zip(tensors[:count], tensors[count : 2 * count], strict=True)):
        rows = (feature.mean(plan.axes[place]) if plan.axes[place] else feature).to(weight.dtype)
        logits = F.linear(rows, weight, tensors[2 * count + place] if len(tensors) > 2 * count else None)
        options = {"class_reduction": plan.class_reduction, "ignore_index": plan.ignore_index}
        loss = plan.objective.loss(logits, targets, **options)  # type: ignore[arg-type]
        total = total + loss * (1.0 if plan.shares is None else plan.shares[plan.order.index(place)])
    return total


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, targets: Tensor, *tensors: Tensor) -> Tensor:
        count = len(plan.axes)
        features, weights, biases = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
        with without_autocast(weights[0]):
            rows = [
                _rows([features[place] for place in group], plan.axes[group[0]], weights[0]) for group in plan.groups
            ]
            stacks = [_stacked([weights[place] for place in group]) for group in plan.groups]
            sizes = [len(group) for group in plan.groups]
            logits = weights[0].new_empty(count, rows[0].shape[1], weights[0].shape[0])
            for row, stack, part in zip(rows, stacks, logits.split(sizes), strict=True):
                torch.bmm(row, stack.mT, out=part)
            if biases:
                logits += torch.stack([biases[place] for place in plan.order]).unsqueeze(1)
            shares = None if plan.shares is None else logits.new_tensor(plan.shares)
            loss, gradient = _loss_and_gradient(logits, targets, plan, shares)
            saved = []
            for row, stack, part, count in zip(rows, stacks, gradient.split(sizes), plan.positions, strict=True):
                saved += [torch.bmm(part.mT, row), torch.baddbmm(row, part, stack, beta=0, alpha=1 / count)]
            if biases:
                saved.append(gradient.sum(1))
        ctx.plan, ctx.saved = plan, len(saved)
        ctx.save_for_backward(*saved, targets, *tensors)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        plan: Plan = ctx.plan
        kept = ctx.saved_tensors
        saved, targets, tensors = kept[: ctx.saved], kept[ctx.saved], kept[ctx.saved + 1 :]
        count = len(plan.axes)
        if torch.is_grad_enabled():  # a second derivative is wanted
            # By views: of two places one may feed the other, and each must have its own part alone.
            views = [tensor.view_as(tensor) for tensor in tensors]
            wanted = [view for view in views if view.requires_grad]
            loss = _general_loss(plan, targets, views)
            given = iter(torch.autograd.grad(loss, wanted, gradients[0], create_graph=True, allow_unused=True))
            return None, None, *(next(given) if tensor.requires_grad else None for tensor in tensors)
        scaled = list(torch._foreach_mul(list(saved), gradients[0]))
        by_feature: list[Tensor | None] = [None] * count
        by_weight: list[Tensor | None] = [None] * count
        by_bias: list[Tensor | None] = [None] * (len(tensors) - 2 * count)
        for index, group in enumerate(plan.groups):
            feature = tensors[group[0]]
            spread = scaled[2 * index + 1].to(feature.dtype)
            axes = plan.axes[group[0]]
            for axis in axes:
                spread = spread.unsqueeze(axis + 1)
            spread = spread.expand(len(group), *feature.shape) if axes else spread
            for place, of_weight, of_rows in zip(group, scaled[2 * index].unbind(), spread.unbind(), strict=True):
                by_weight[place], by_feature[place] = of_weight, of_rows
        if by_bias:
            for place, of_bias in zip(plan.order, scaled[-1].unbind(), strict=True):
                by_bias[place] = of_bias
        return None, None, *by_feature, *by_weight, *by_bias


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0][None] if len(tensors) == 1 else torch.stack(list(tensors))


def _rows(features: Sequence[Tensor], axes: tuple[int, ...], weight: Tensor) -> Tensor:
    """Rows (k, B, D) in the weights' type, of features of one shape."""
    if not axes:
        return _stacked(features).to(weight.dtype)
    if len(features) == 1:
        return features[0].mean(axes, dtype=weight.dtype)[None]
    first = features[0]
    kept = [size for axis, size in enumerate(first.shape) if axis not in axes]
    rows = weight.new_empty(len(features), *kept)
    for row, feature in zip(rows, features, strict=True):
        torch.mean(feature, axes, dtype=weight.dtype, out=row)
    return rows


def _loss_and_gradient(logits: Tensor, targets: Tensor, plan: Plan, shares: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sum over places of the objective, and its gradient by logits (K, B, C)."""
    if plan.objective is OBJECTIVES["sigmoid"] and targets.ndim == 1:
        return _sigmoid_and_gradient(logits, targets, plan, shares)
    leaf = logits.requires_grad_()
    with torch.enable_grad():
        goals, keep = kept_rows(targets, leaf[0], plan.ignore_index, None)
        losses = plan.objective.losses(leaf, goals[None], keep, plan.class_reduction)
        loss = losses.sum() if shares is None else losses @ shares
        (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


def _sigmoid_and_gradient(logits: Tensor, targets: Tensor, plan: Plan, shares: Tensor | None) -> tuple[Tensor, Tensor]:
    """Closed form: softplus(x) - x [is the class], and sigmoid(x) - [is the class], each over the rows that count."""
    keep = targets != plan.ignore_index
    scale = keep / keep.sum().clamp_(min=1).to(logits.dtype)
    if plan.class_reduction == "mean":
        scale = scale / logits.shape[-1]
    index = targets.where(keep, 0).view(1, -1, 1).expand(logits.shape[0], -1, 1)
    # A threshold at which float64 is exact too; torch's own is 20.
    right = logits.gather(2, index)
    losses = F.softplus(logits, threshold=40).sum(-1) - right.squeeze(2)
    # Not an addition in place of the index, which is not deterministic on a GPU.
    gradient = logits.sigmoid_().scatter_(2, index, right.sigmoid_().sub_(1))
    by_place = losses @ scale
    if shares is None:
        return by_place.sum(), gradient.mul_(scale.unsqueeze(1))
    return by_place @ shares, gradient.mul_(scale.unsqueeze(1) * shares.view(-1, 1, 1))
