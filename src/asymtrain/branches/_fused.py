"""The loss of linear branches on rows, means or class tokens in one node of autograd.

A step of a small model is bound by the calls that it makes, not by their arithmetic. Here many places of one width
share products, all places share one loss, and its gradient by the logits is computed beside it, without a graph:

    features -> rows (B, D) -> logits (K, B, C) -> loss, and its gradient by the logits
    backward    that gradient times the loss's own; from it those of weights and rows; a mean's is spread as a view

What follows from shapes and settings alone is a `Plan`, made once and kept by the caller. Where it has `launches`, the
kernels of `_kernels.py` do all of this. The numbers are those of the general way, up to rounding, which second
derivatives still take.
Axis letters: B batch, C classes, D width, K places.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from asymtrain.branches._pooling import Pooled, place_of
from asymtrain.objectives import OBJECTIVES, ClassReduction, Objective, kept_rows

if TYPE_CHECKING:
    from asymtrain.branches._kernels import Launches

# Two products cost as many calls as what brings their operands together.
_SHARED_FROM = 3
# Gradients of class tokens are zeros but for one position. Up to so many bytes all are made at once, which saves calls;
# beyond that by autograd, place by place, so that the backward pass frees each before it makes the next.
_MOST_ZEROS = 1 << 26
# Of shares that are kept from step to step; they save one call.
_MOST_ELEMENTS = 1 << 20
# Of a feature, up to which to copy it beside others of its shape and average all at once beats a call for each.
_MOST_COPIED = 1 << 14
# The arguments of a launch are 4 kB.
_MOST_LAUNCHED = 64
# Classes of a softmax, beyond which the few programs that go along whole rows keep the GPU waiting. On an H200, 128
# rows at four places: loss and gradients took our kernels 0.22 ms and torch's 0.18 at 1,000 classes, 0.86 and 0.34 at
# 4,096. By the clock ours were ahead up to 8,192, since a step so small is bound by its launches; that of a larger
# model is not.
_MOST_CLASSES = 1 << 11
# Multiplications of a product up to which a step is bound by its calls, not by them: cuBLAS is quicker at large ones.
_MOST_MULTIPLIED = 1 << 30


class Group(NamedTuple):
    """Places whose features have one shape: one product, or that of a single place."""

    places: tuple[int, ...]
    shape: tuple[int, ...]  # of a feature
    dtype: torch.dtype
    pooled: Pooled
    positions: int  # over which the features are averaged
    spread: tuple[int, ...]  # the shape of rows that broadcast to features, of all places together
    together: Pooled | None = None  # how features (k, ...) of all places are pooled; None where each is, for itself


@dataclass(frozen=True)
class Plan:
    """What stays the same from step to step, and from the forward to the backward."""

    shape: tuple[int, int, int]  # of the logits: K, B, C
    groups: tuple[Group, ...]
    sizes: list[int]  # of the groups
    order: tuple[int, ...]  # the places, group by group: the order of the logits
    shares: Tensor | None  # of the places in the sum, in that order; None where each is 1
    ready: bool  # whether targets have the type and the device that they need
    closed_form: bool  # whether the objective is the sigmoid of class indices
    elements: Tensor | None  # for it (B, C), the share of each element in a mean; None where each step makes its own
    views: tuple[int | None, ...]  # by place, the axis along which autograd takes the class token; empty where none
    objective: Objective
    class_reduction: ClassReduction
    ignore_index: int
    launches: "Launches | None"  # kernels of our own, where there are some for such features


def make_plan(
    features: Sequence[Tensor],
    pooled: Sequence[Pooled],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    objective: Objective,
    class_reduction: ClassReduction,
    ignore_index: int,
    shares: Sequence[float],
    targets: Tensor,
    kept: bool,
) -> Plan:
    """The plan for features of these shapes and types, rows of which have the type and device of the weights (C, D).

    Of targets only the kind counts: (B,) are indices of classes, (B, C) values. `kept` says that the plan serves later
    steps.
    """
    weight, by_index = weights[0], targets.ndim == 1
    zeros = sum(feature.nbytes for feature, kind in zip(features, pooled, strict=True) if kind.token is not None)
    views = tuple(kind.token for kind in pooled) if zeros > _MOST_ZEROS else ()
    alike: dict[tuple[tuple[int, ...], torch.dtype, Pooled], list[int]] = {}
    for place, (feature, kind) in enumerate(zip(features, pooled, strict=True)):
        shape = tuple(feature.shape)
        if views and kind.token is not None:
            shape, kind = shape[: kind.token] + shape[kind.token + 1 :], Pooled()
        alike.setdefault((shape, feature.dtype, kind), []).append(place)
    groups = []
    for (shape, dtype, kind), places in alike.items():
        spread = tuple(1 if axis in kind.axes else size for axis, size in enumerate(shape))
        positions = math.prod(shape[axis] for axis in kind.axes)
        if len(places) >= _SHARED_FROM:
            together = kind.behind_an_axis() if math.prod(shape) <= _MOST_COPIED else None
            groups.append(Group(tuple(places), shape, dtype, kind, positions, (len(places), *spread), together))
        else:
            groups += [Group((place,), shape, dtype, kind, positions, spread) for place in places]
    order = tuple(place for group in groups for place in group.places)
    batch, classes = features[0].shape[pooled[0].batch], weight.shape[0]
    closed_form = objective is OBJECTIVES["sigmoid"] and by_index and batch > 0
    elements = None
    if closed_form and kept and batch * classes <= _MOST_ELEMENTS:
        elements = weight.new_full((batch, classes), 1 / (batch * (classes if class_reduction == "mean" else 1)))
    launches = None
    softmax = objective is OBJECTIVES["softmax"] and by_index and batch > 0 and classes <= _MOST_CLASSES
    if (closed_form or softmax) and kept and has_kernels(weight.device):
        per_row = 1 / classes if closed_form and class_reduction == "mean" else 1.0
        launches = _launches(features, pooled, views, weights, biases, shares, per_row, ignore_index, softmax)
    return Plan(
        shape=(len(features), batch, classes),
        groups=tuple(groups),
        sizes=[len(group.places) for group in groups],
        order=order,
        # A tensor from the beginning: a copy from the host has no place in a step that is captured as a CUDA graph.
        shares=None if set(shares) == {1.0} else weight.new_tensor([shares[place] for place in order]),
        ready=targets.device == features[0].device and (targets.dtype == torch.int64 or not by_index),
        closed_form=closed_form,
        elements=elements,
        views=views,
        objective=objective,
        class_reduction=class_reduction,
        ignore_index=ignore_index,
        launches=launches,
    )


def has_kernels(device: torch.device) -> bool:
    """Whether kernels of our own can be compiled for a device, now: not inside of a CUDA graph's capture."""
    if device.type != "cuda" or torch.version.hip is not None or find_spec("triton") is None:
        return False
    return not torch.cuda.is_current_stream_capturing()


def product_precision(features: Sequence[Tensor]) -> str | None:
    """What torch may make of products in float32 on the GPU, which a user may change at any time."""
    return torch._C._get_fp32_precision_getter("cuda", "matmul") if features and features[0].is_cuda else None


def _launches(
    features: Sequence[Tensor],
    pooled: Sequence[Pooled],
    views: tuple[int | None, ...],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    shares: Sequence[float],
    per_row: float,
    ignore_index: int,
    softmax: bool,
) -> "Launches | None":
    """The kernels for features, weights and biases like these; None where there are none or they cannot be compiled."""
    features = [feature if axis is None else feature.select(axis, 0) for feature, axis in _pairs(features, views)]
    pooled = [kind if axis is None else Pooled() for kind, axis in _pairs(pooled, views)]
    places = [place_of(feature, kind) for feature, kind in zip(features, pooled, strict=True)]
    known = [place for place in places if place is not None]
    dtypes, device = [feature.dtype for feature in features], weights[0].device
    here = all(feature.device == device for feature in features)
    typed = len(set(dtypes)) <= 2 and set(dtypes) <= {torch.float32, torch.bfloat16, torch.float16}
    plain = all(each.dtype == torch.float32 and each.is_contiguous() for each in (*weights, *biases))
    batch, classes = features[0].shape[pooled[0].batch], weights[0].shape[0]
    multiplied = batch * classes * sum(place.width for place in known)
    few = len(known) == len(features) <= _MOST_LAUNCHED and multiplied <= _MOST_MULTIPLIED
    if not (here and typed and plain and few):
        return None
    precision = "tf32" if product_precision(features) == "tf32" else "ieee"
    try:
        kernels = import_module("asymtrain.branches._kernels")
        launches: Launches = kernels.Launches(
            known, dtypes, batch, classes, device, shares, per_row, ignore_index, precision, softmax, bool(biases)
        )
    except Exception:  # no C compiler, a GPU that is too old, no room for the cache: torch's own operations do it
        return None
    return launches


def _pairs(parts: Sequence[Any], views: tuple[int | None, ...]) -> list[tuple[Any, int | None]]:
    return list(zip(parts, views or (None,) * len(parts), strict=True))


def fused_loss(
    plan: Plan, targets: Tensor, features: Sequence[Tensor], weights: Sequence[Tensor], biases: Sequence[Tensor]
) -> Tensor:
    """The weighted sum over places of their losses; `biases` is empty, or has one for each place."""
    if plan.views:
        pairs = _pairs(features, plan.views)
        features = [feature if axis is None else feature.select(axis, 0) for feature, axis in pairs]
    stream = None if plan.launches is None else plan.launches.stream()
    if stream is None:
        return _apply_fused(plan, targets, *features, *weights, *biases)
    return _apply_launched(plan, stream, targets, *features, *weights, *biases)


class _LaunchedLoss(torch.autograd.Function):
    """By kernels of our own."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, stream: int, targets: Tensor, *tensors: Tensor) -> Tensor:
        launches, count = plan.launches, plan.shape[0]
        assert launches is not None
        ctx.plan = plan
        features, weights, biases = _kinds(tensors, count)
        loss, gradient, means = launches.forward(stream, features, weights, biases, targets)
        ctx.save_for_backward(gradient, means, targets, *tensors)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        plan, count = ctx.plan, ctx.plan.shape[0]
        gradient, means, targets, *tensors = ctx.saved_tensors
        if torch.is_grad_enabled() or _is_batched(gradients[0]):
            return None, None, None, *_general_gradients(plan, targets, tensors, gradients[0])
        answer = plan.launches.backward(*_kinds(tensors, count), gradient, means, gradients[0])
        return None, None, None, *answer


class _FusedLoss(torch.autograd.Function):
    """By torch's operations."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, targets: Tensor, *tensors: Tensor) -> Tensor:
        count = plan.shape[0]
        ctx.plan = plan
        features, weights, biases = _kinds(tensors, count)
        # In the weights' own precision, so that the loss is the same inside and outside autocast.
        with torch._C._DisableAutocast():
            logits = weights[0].new_empty(plan.shape)
            rows: list[Tensor] = []
            stacks: list[Tensor | None] = []  # None where the weight is among the inputs
            for group, part in zip(plan.groups, _parts(logits, plan.sizes), strict=True):
                of_places, stack = [features[place] for place in group.places], None
                if group.together is None:
                    of_places = [_row(feature, group.pooled, logits.dtype) for feature in of_places]
                if len(of_places) == 1:
                    ((place,), (row,)) = group.places, of_places
                    bias = biases[place] if biases else None
                    F.linear(row, weights[place], bias, out=part)  # type: ignore[call-arg]
                else:
                    row, stack = torch.stack(of_places), torch.stack([weights[place] for place in group.places])
                    if group.together is not None:
                        row = _row(row, group.together, logits.dtype)
                    torch.bmm(row, stack.mT, out=part)
                    if biases:
                        part += torch.stack([biases[place] for place in group.places]).unsqueeze(1)
                rows.append(row)
                stacks.append(stack)
            loss, gradient = _loss_and_gradient(logits, targets, plan)
        ctx.save_for_backward(gradient, *rows, *stacks, targets, *tensors)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        plan, saved = ctx.plan, ctx.saved_tensors
        count, parts = plan.shape[0], len(plan.groups)
        rows, stacks = saved[1 : 1 + parts], saved[1 + parts : 1 + 2 * parts]
        targets, *tensors = saved[1 + 2 * parts :]
        if torch.is_grad_enabled():  # a second derivative is wanted
            return None, None, *_general_gradients(plan, targets, tensors, gradients[0])
        answer: list[Tensor | None] = [None] * len(tensors)
        with torch._C._DisableAutocast():
            gradient = saved[0] * gradients[0]
            turned = _parts(gradient.mT, plan.sizes)
            for group, row, stack, part, across in zip(
                plan.groups, rows, stacks, _parts(gradient, plan.sizes), turned, strict=True
            ):
                if stack is None:
                    (place,) = group.places
                    answer[count + place] = torch.mm(across, row)
                    if tensors[place].requires_grad:
                        weight = tensors[count + place]
                        if group.positions == 1:
                            of_row = torch.mm(part, weight)
                        else:
                            of_row = torch.addmm(row, part, weight, beta=0, alpha=1 / group.positions)
                        answer[place] = _spread(of_row, group)
                    continue
                of_rows = torch.baddbmm(row, part, stack, beta=0, alpha=1 / group.positions)
                of_features = _spread(of_rows, group).unbind()
                for place, of_weight, of_feature in zip(
                    group.places, torch.bmm(across, row).unbind(), of_features, strict=True
                ):
                    answer[count + place], answer[place] = of_weight, of_feature
            if len(tensors) > 2 * count:
                for place, of_bias in zip(plan.order, gradient.sum(1).unbind(), strict=True):
                    answer[2 * count + place] = of_bias
        return None, None, *answer


# Torch's own without its look at functorch, which costs as much as the rest of the call.
_apply_launched: Callable[..., Tensor] = super(torch.autograd.Function, _LaunchedLoss).apply
_apply_fused: Callable[..., Tensor] = super(torch.autograd.Function, _FusedLoss).apply


def _general_gradients(plan: Plan, targets: Tensor, tensors: Sequence[Tensor], given: Tensor) -> list[Tensor | None]:
    """Gradients by operations that autograd knows, where theirs are wanted or `given` stands for several."""
    again = torch.is_grad_enabled()
    with torch.enable_grad(), torch._C._DisableAutocast():
        # By views: of two places one may feed the other, and each must have its own part alone.
        views = [tensor.view_as(tensor) for tensor in tensors]
        wanted = [view for view in views if view.requires_grad]
        loss = _general_loss(plan, targets, views)
    found = iter(torch.autograd.grad(loss, wanted, given, create_graph=again, allow_unused=True))
    return [next(found) if tensor.requires_grad else None for tensor in tensors]


def _kinds(tensors: Sequence[Tensor], count: int) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
    """Features, weights and biases of so many places."""
    return tensors[:count], tensors[count : 2 * count], tensors[2 * count :]


def _is_batched(gradient: Tensor) -> bool:
    """Whether it stands for several, which no kernel can read (`torch.vmap`, `is_grads_batched`, and so TorchJD)."""
    functorch = torch._C._functorch
    return functorch.is_legacy_batchedtensor(gradient) or functorch.is_batchedtensor(gradient)


def _parts(logits: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    """Logits of each group, (k, B, C) of several places and (B, C) of one."""
    if len(sizes) == len(logits):
        return logits.unbind()
    if len(sizes) == 1:
        return (logits,)
    return [part[0] if len(part) == 1 else part for part in logits.split_with_sizes(sizes)]


def _row(feature: Tensor, pooled: Pooled, dtype: torch.dtype) -> Tensor:
    """Rows (B, D) in the weights' type."""
    if pooled.axes:
        return feature.mean(pooled.axes, dtype=dtype)
    row = feature if pooled.token is None else feature.select(pooled.token, 0)
    return row if row.dtype == dtype else row.to(dtype)


def _spread(rows: Tensor, group: Group) -> Tensor:
    """The gradient by features, of that by their rows: (B, D), or (k, B, D) of several places."""
    if rows.dtype != group.dtype:
        rows = rows.to(group.dtype)
    more = len(group.spread) - len(group.shape)  # the axis of several places
    if group.pooled.token is not None:
        whole = rows.new_zeros((*group.spread[:more], *group.shape))
        whole.select(more + group.pooled.token, 0).copy_(rows)
        return whole
    return rows.view(group.spread).expand(*group.spread[:more], *group.shape) if group.pooled.axes else rows


def _general_loss(plan: Plan, targets: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """The same loss as operations that autograd knows, for derivatives of its gradient."""
    count = plan.shape[0]
    total = torch.zeros((), device=targets.device)
    shares = torch.ones(count, device=targets.device) if plan.shares is None else plan.shares
    pooled = [group.pooled for group in plan.groups for _ in group.places]
    for place, kind, share in zip(plan.order, pooled, shares, strict=True):
        weight = tensors[count + place]
        bias = tensors[2 * count + place] if len(tensors) > 2 * count else None
        logits = F.linear(_row(tensors[place], kind, weight.dtype), weight, bias)
        options = {"class_reduction": plan.class_reduction, "ignore_index": plan.ignore_index}
        total = total + plan.objective.loss(logits, targets, **options) * share  # type: ignore[arg-type]
    return total


def _loss_and_gradient(logits: Tensor, targets: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """The sum over places of the objective, and its gradient by logits (K, B, C)."""
    if plan.closed_form:
        return _sigmoid_and_gradient(logits, targets, plan)
    leaf = logits.requires_grad_()
    with torch.enable_grad():
        goals, keep = kept_rows(targets, leaf[0], plan.ignore_index, None)
        losses = plan.objective.losses(leaf, goals[None], keep, plan.class_reduction)
        loss = losses.sum() if plan.shares is None else losses @ plan.shares
        (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


def _sigmoid_and_gradient(logits: Tensor, targets: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """Closed form: c softplus(s x) and c s sigmoid(s x), where s is -1 at the class and 1 elsewhere.

    c is the share of an element in the mean over all rows. Works in place of the logits.
    """
    beta = plan.shape[1] * (plan.shape[2] if plan.class_reduction == "mean" else 1)  # 1 / c
    weights, scale = _weights_and_scale(targets, plan, beta, logits)
    signed = logits.mul_(weights)
    # A threshold at which float64 is exact too; torch's own is 20.
    losses = F.softplus(signed, beta, 40)
    if scale is not None:
        weights.mul_(scale.unsqueeze(1))
    gradient = torch.ops.aten.softplus_backward.default(weights, signed, beta, 40)
    if plan.shares is not None:
        gradient *= plan.shares.view(-1, 1, 1)
        by_place = losses.sum((1, 2)) if scale is None else losses.sum(2) @ scale
        return by_place @ plan.shares, gradient
    return losses.sum() if scale is None else losses.sum((0, 2)) @ scale, gradient


def _weights_and_scale(targets: Tensor, plan: Plan, beta: float, logits: Tensor) -> tuple[Tensor, Tensor | None]:
    """c s of each element (B, C), and by what a row counts more or less (B,); None where all count once."""
    # Not an addition in place of the index, which is not deterministic on a GPU.
    elements = logits.new_full(plan.shape[1:], 1 / beta) if plan.elements is None else plan.elements
    if targets.is_cpu:
        if not 0 <= plan.ignore_index < plan.shape[2]:
            try:
                return elements.scatter(1, targets.unsqueeze(1), -1 / beta), None
            except RuntimeError:  # an index is no class: a CPU looks at each, so that nobody else has to
                pass
        plan.objective.check(logits[0], targets, plan.ignore_index)
    keep = targets != plan.ignore_index
    # By what the mean is over fewer rows; if none counts, the loss is 0. Their index is 0, and their scale as well.
    scale = keep / keep.mean(dtype=logits.dtype).clamp_(min=1 / plan.shape[1])
    return elements.scatter(1, (targets * keep).unsqueeze(1), -1 / beta), scale
