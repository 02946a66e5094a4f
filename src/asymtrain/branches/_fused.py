"""The loss of linear branches on rows, means or class tokens in one autograd node.

Call overhead dominates the step of a small model, not arithmetic. Here many layers of one width share matrix products,
all layers share one loss, and the loss's gradient by the logits is computed with it, without a graph:

    features -> rows (B, D) -> logits (K, B, C) -> loss, and its gradient by the logits
    backward    scale that gradient; from it the gradients of weights and rows; a mean's gradient is an expanded view

A `Fuser` makes and keeps a `FusionPlan` for each kind of batch: what follows from shapes and settings alone. If a plan
has `launches`, the kernels of `_kernels.py` do all of this. The numbers equal those of the general path up to
rounding. Second derivatives still take the general path.
Axis letters: B batch, C classes, D width, K layers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain.branches._heads import Head, LinearHead
from asymtrain.branches._losses import Settings
from asymtrain.branches._pooling import Pooled, Reader, memory_layout
from asymtrain.objectives import Objective, kept_rows

if TYPE_CHECKING:
    from asymtrain.branches._kernels import Launches

# Two separate products cost no more calls than stacking their operands.
_SHARED_FROM = 3
# Kinds of batches in one training; usual are two or three. More take the general path: an old plan is never dropped,
# since captured CUDA graphs read its tensors.
_MOST_PLANS = 64
# The arguments of a launch are 4 kB.
_MOST_LAUNCHED = 64
# Above so many classes of a softmax, too few programs (each takes whole rows) leave the GPU idle. On an H200, with 128
# rows at four layers, loss and gradients took our kernels 0.22 ms and torch's 0.18 ms at 1,000 classes, 0.86 and 0.34
# at 4,096. In wall time ours were faster up to 8,192, since launches bound such a small step; they do not bound that
# of a larger model.
_MOST_CLASSES = 1 << 11
# Up to so many multiplications a step is bound by its calls; cuBLAS is faster at larger products.
_MOST_MULTIPLIED = 1 << 30
_UNKNOWN: Any = object()


class LayerGroup(NamedTuple):
    """Layers that share one product because their features have one shape; or a single layer."""

    layers: tuple[int, ...]
    shape: tuple[int, ...]  # of a feature
    dtype: torch.dtype
    axes: tuple[int, ...]  # the features are averaged over these
    positions: int  # the number of positions on these axes
    spread: tuple[int, ...]  # the shape in which rows broadcast to the features of all layers together


@dataclass(frozen=True)
class FusionPlan:
    """What stays the same from step to step, and from the forward to the backward."""

    shape: tuple[int, int, int]  # of the logits: K, B, C
    groups: tuple[LayerGroup, ...]
    sizes: list[int]  # of the groups
    order: tuple[int, ...]  # the layers, group by group: the order of the logits
    shares: Tensor  # the weight of each layer in the sum, in that order
    even: float | None  # the weight of each layer, if all are equal
    closed_form: bool  # whether the objective is the sigmoid loss of class indices
    objective: Objective
    launches: "Launches | None"  # our own kernels, if they support such features


def fuser_of(heads: Mapping[str, Head], readers: Mapping[str, Reader], settings: Settings) -> "Fuser | None":
    """The fuser of these branches; None unless all map rows linearly to several classes, one live branch per layer."""
    linear = {name: head for name, head in heads.items() if isinstance(head, LinearHead)}
    if len(linear) < len(heads) or settings.activation != "last" or not isinstance(settings.objective, Objective):
        return None
    if any(head.positions or len(head.live) == 1 or readers[name].detach for name, head in linear.items()):
        return None
    if len({head.bias is None for head in linear.values()}) > 1 or settings.needs_model:
        return None
    return Fuser(linear, {name: readers[name].pooled or Pooled() for name in linear}, settings)


class Fuser:
    """Makes the fused loss of a set of branches, and keeps a plan for each combination of shapes and types."""

    def __init__(self, heads: Mapping[str, LinearHead], pooled: Mapping[str, Pooled], settings: Settings) -> None:
        self.heads, self.pooled, self.settings = heads, pooled, settings
        self.plans: dict[object, FusionPlan | None] = {}

    def loss(self, sources: Mapping[str, Tensor], targets: Tensor) -> Tensor | None:
        """The weighted sum of the losses of layers with these features; None if it needs the general path.

        A feature of two axes is already rows. The targets get no gradient.
        """
        # From the modules' dictionaries: a module's attribute costs a call, and calls dominate for small models.
        own = [self.heads[name]._parameters for name in sources]
        weights = [parameters.get("live") for parameters in own]
        biases = [bias for parameters in own if (bias := parameters.get("bias")) is not None]
        # Autograd selects class tokens layer by layer: its backward frees each gradient before it makes the next.
        features = [
            feature if (token := self.pooled[name].token) is None or feature.ndim == 2 else feature.select(token, 0)
            for name, feature in sources.items()
        ]
        # Everything that checks and products depend on, except the values of targets
        signature = (
            tuple(sources),
            (len(biases), product_precision(features)),
            (targets.shape, targets.dtype, targets.device, targets.layout),
            *[(type(feature), feature.shape, feature.stride(), feature.dtype, feature.device) for feature in features],
            *[None if w is None else (type(w), w.is_contiguous(), w.dtype, w.device) for w in (*weights, *biases)],
        )
        plan = self.plans.get(signature, _UNKNOWN)
        if plan is _UNKNOWN:
            if len(self.plans) >= _MOST_PLANS:
                return None
            plan = self.plans[signature] = self._plan(list(sources), features, weights, biases, targets)
        if plan is None:
            return None
        # Targets on a GPU are not checked: that would stall every step. The kernels make the loss NaN instead.
        whole = targets.is_cpu and _all_classes(targets, plan.shape[2], plan.objective.ignore_index)
        if targets.is_cpu and not whole:
            plan.objective.check(torch.empty(plan.shape[1:], device="meta"), targets)
        targets = targets.to(features[0].device, torch.int64 if targets.ndim == 1 else targets.dtype).contiguous()
        stream = None if plan.launches is None else plan.launches.stream()
        if stream is None:
            return _apply_fused(plan, whole, targets, *features, *weights, *biases)
        return _apply_launched(plan, stream, targets, *features, *weights, *biases)

    def _plan(
        self,
        names: Sequence[str],
        features: Sequence[Tensor],
        all_weights: Sequence[Tensor | None],
        biases: Sequence[Tensor],
        targets: Tensor,
    ) -> FusionPlan | None:
        """The plan for features like these; None if one node cannot do it, or if the general path will refuse them."""
        settings, heads = self.settings, [self.heads[name] for name in names]
        weights = [weight for weight in all_weights if weight is not None]
        # Features that are already rows need no pooling.
        pooled = [
            self.pooled[name] if feature.ndim > 2 and self.pooled[name].token is None else Pooled()
            for name, feature in zip(names, features, strict=True)
        ]
        for name, head, feature, kind in zip(names, heads, features, pooled, strict=True):
            head.check_feature(name, feature, feature.shape[kind.width])
        batches = {feature.shape[kind.batch] for feature, kind in zip(features, pooled, strict=True)}
        # Weights that are not parameters are computed from others (torch.nn.utils.parametrize).
        own_alone = len(weights) == len(heads) and len(biases) == sum(head.bias is not None for head in heads)
        if len(batches) != 1 or not own_alone or not _plain(features, weights, biases):
            return None
        objective, batch, classes = settings.objective, batches.pop(), weights[0].shape[0]
        assert isinstance(objective, Objective)  # see `fuser_of`
        by_index, valueless = targets.ndim == 1, targets.is_meta and not features[0].is_meta
        wrong = by_index and settings.quantities and not objective.shares
        if wrong or valueless or targets.layout is not torch.strided or targets.ndim not in (1, 2):
            return None
        if not by_index and targets.shape[1] != classes:
            return None
        objective.check(torch.empty(batch, classes, device="meta"), targets)
        groups = tuple(_groups(features, pooled))
        order = tuple(layer for group in groups for layer in group.layers)
        shares = [settings.weights[name] for name in names]
        formula = objective.formula if by_index and len(targets) else None
        closed_form, softmax = formula == "sigmoid", formula == "softmax" and classes <= _MOST_CLASSES
        launches = None
        if (closed_form or softmax) and has_kernels(weights[0].device):
            per_row = 1 / classes if closed_form and _mean_over_classes(objective) else 1.0
            launches = _launches(features, pooled, weights, biases, shares, per_row, objective.ignore_index, softmax)
        return FusionPlan(
            shape=(len(features), batch, classes),
            groups=groups,
            sizes=[len(group.layers) for group in groups],
            order=order,
            # A tensor made in advance: a captured CUDA graph allows no copy from the host.
            shares=weights[0].new_tensor([shares[layer] for layer in order]),
            even=shares[0] if len(set(shares)) == 1 else None,
            closed_form=closed_form,
            objective=objective,
            launches=launches,
        )


def _mean_over_classes(objective: Objective) -> bool:
    return getattr(objective, "class_reduction", "mean") == "mean"


def _plain(features: Sequence[Tensor], weights: Sequence[Tensor], biases: Sequence[Tensor]) -> bool:
    """Whether these are ordinary tensors, with types that one product can take."""
    # Subclasses of Tensor (sharded, quantised) support torch's operations, but not access to their memory.
    ordinary = all(type(feature) is Tensor for feature in features)
    ordinary &= all(type(each) is nn.Parameter for each in (*weights, *biases))
    alike = len({(each.dtype, each.device) for each in (*weights, *biases)}) == 1
    wide = {torch.promote_types(feature.dtype, torch.float32) for feature in features}
    return ordinary and alike and wide == {weights[0].dtype}


def _groups(features: Sequence[Tensor], pooled: Sequence[Pooled]) -> list[LayerGroup]:
    alike: dict[tuple[tuple[int, ...], torch.dtype, tuple[int, ...]], list[int]] = {}
    for layer, (feature, kind) in enumerate(zip(features, pooled, strict=True)):
        alike.setdefault((tuple(feature.shape), feature.dtype, kind.axes), []).append(layer)
    groups = []
    for (shape, dtype, axes), layers in alike.items():
        spread = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
        positions = math.prod(shape[axis] for axis in axes)
        if len(layers) >= _SHARED_FROM:
            groups.append(LayerGroup(tuple(layers), shape, dtype, axes, positions, (len(layers), *spread)))
        else:
            groups += [LayerGroup((layer,), shape, dtype, axes, positions, spread) for layer in layers]
    return groups


def has_kernels(device: torch.device) -> bool:
    """Whether our own kernels can be compiled for a device now, which is not the case inside a CUDA graph capture."""
    if device.type != "cuda" or torch.version.hip is not None or find_spec("triton") is None:
        return False
    return not torch.cuda.is_current_stream_capturing()


def product_precision(features: Sequence[Tensor]) -> str | None:
    """torch's current float32 matmul precision on the GPU, which a user may change at any time."""
    return torch._C._get_fp32_precision_getter("cuda", "matmul") if features and features[0].is_cuda else None


def _launches(
    features: Sequence[Tensor],
    pooled: Sequence[Pooled],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    shares: Sequence[float],
    per_row: float,
    ignore_index: int,
    softmax: bool,
) -> "Launches | None":
    """The kernels for features, weights and biases like these; None if unsupported or if they cannot be compiled."""
    layers = [memory_layout(feature, kind) for feature, kind in zip(features, pooled, strict=True)]
    present = [layer for layer in layers if layer is not None]
    dtypes, device = [feature.dtype for feature in features], weights[0].device
    here = all(feature.device == device for feature in features)
    typed = len(set(dtypes)) <= 2 and set(dtypes) <= {torch.float32, torch.bfloat16, torch.float16}
    plain = all(each.dtype == torch.float32 and each.is_contiguous() for each in (*weights, *biases))
    batch, classes = features[0].shape[pooled[0].batch], weights[0].shape[0]
    multiplied = batch * classes * sum(layer.width for layer in present)
    few = len(present) == len(features) <= _MOST_LAUNCHED and multiplied <= _MOST_MULTIPLIED
    if not (here and typed and plain and few):
        return None
    precision = "tf32" if product_precision(features) == "tf32" else "ieee"
    try:
        kernels = import_module("asymtrain.branches._kernels")
        launches: Launches = kernels.Launches(
            present, dtypes, batch, classes, device, shares, per_row, ignore_index, precision, softmax, bool(biases)
        )
    except Exception:  # no C compiler, an old GPU, no space for the cache: torch's operations do it
        return None
    return launches


class _LaunchedLoss(torch.autograd.Function):
    """The fused loss by our own kernels."""

    @staticmethod
    def forward(ctx: Any, plan: FusionPlan, stream: int, targets: Tensor, *tensors: Tensor) -> Tensor:
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
    """The fused loss by torch's operations."""

    @staticmethod
    def forward(ctx: Any, plan: FusionPlan, whole: bool, targets: Tensor, *tensors: Tensor) -> Tensor:
        count = plan.shape[0]
        ctx.plan = plan
        features, weights, biases = _kinds(tensors, count)
        # In the weights' own precision, so that the loss is the same inside and outside autocast.
        with torch._C._DisableAutocast():
            logits = weights[0].new_empty(plan.shape)
            rows: list[Tensor] = []
            stacks: list[Tensor | None] = []  # None for a single layer, whose weight is an input
            for group, part in zip(plan.groups, _parts(logits, plan.sizes), strict=True):
                of_layers = [_row(features[layer], group.axes, logits.dtype) for layer in group.layers]
                stack = None
                if len(of_layers) == 1:
                    ((layer,), (row,)) = group.layers, of_layers
                    bias = biases[layer] if biases else None
                    F.linear(row, weights[layer], bias, out=part)  # type: ignore[call-arg]
                else:
                    row, stack = torch.stack(of_layers), torch.stack([weights[layer] for layer in group.layers])
                    torch.bmm(row, stack.mT, out=part)
                    if biases:
                        part += torch.stack([biases[layer] for layer in group.layers]).unsqueeze(1)
                rows.append(row)
                stacks.append(stack)
            loss, gradient = _loss_and_gradient(logits, targets, plan, whole)
        ctx.save_for_backward(gradient, *rows, *stacks, targets, *tensors)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        plan, saved = ctx.plan, ctx.saved_tensors
        count, parts = plan.shape[0], len(plan.groups)
        rows, stacks = saved[1 : 1 + parts], saved[1 + parts : 1 + 2 * parts]
        targets, *tensors = saved[1 + 2 * parts :]
        if torch.is_grad_enabled():  # a second derivative is wanted
            return None, None, None, *_general_gradients(plan, targets, tensors, gradients[0])
        answer: list[Tensor | None] = [None] * len(tensors)
        with torch._C._DisableAutocast():
            gradient = saved[0] * gradients[0]
            turned = _parts(gradient.mT, plan.sizes)
            for group, row, stack, part, across in zip(
                plan.groups, rows, stacks, _parts(gradient, plan.sizes), turned, strict=True
            ):
                if stack is None:
                    (layer,) = group.layers
                    answer[count + layer] = torch.mm(across, row)
                    if tensors[layer].requires_grad:
                        weight = tensors[count + layer]
                        if group.positions == 1:
                            of_row = torch.mm(part, weight)
                        else:
                            of_row = torch.addmm(row, part, weight, beta=0, alpha=1 / group.positions)
                        answer[layer] = _spread(of_row, group)
                    continue
                of_rows = torch.baddbmm(row, part, stack, beta=0, alpha=1 / group.positions)
                of_features = _spread(of_rows, group).unbind()
                for layer, of_weight, of_feature in zip(
                    group.layers, torch.bmm(across, row).unbind(), of_features, strict=True
                ):
                    answer[count + layer], answer[layer] = of_weight, of_feature
            if len(tensors) > 2 * count:
                for layer, of_bias in zip(plan.order, gradient.sum(1).unbind(), strict=True):
                    answer[2 * count + layer] = of_bias
        return None, None, None, *answer


# torch's `apply` without its check for functorch, which costs as much as the rest of the call.
_apply_launched: Callable[..., Tensor] = super(torch.autograd.Function, _LaunchedLoss).apply
_apply_fused: Callable[..., Tensor] = super(torch.autograd.Function, _FusedLoss).apply


def _general_gradients(
    plan: FusionPlan, targets: Tensor, tensors: Sequence[Tensor], upstream: Tensor
) -> list[Tensor | None]:
    """Gradients by autograd's operations, for second derivatives or if `upstream` is a batch of gradients."""
    again = torch.is_grad_enabled()
    with torch.enable_grad(), torch._C._DisableAutocast():
        # Views: one layer may feed another, and each must get only its own part of the gradient.
        views = [tensor.view_as(tensor) for tensor in tensors]
        trainable = [view for view in views if view.requires_grad]
        loss = _general_loss(plan, targets, views)
    gradients = iter(torch.autograd.grad(loss, trainable, upstream, create_graph=again, allow_unused=True))
    return [next(gradients) if tensor.requires_grad else None for tensor in tensors]


def _kinds(tensors: Sequence[Tensor], count: int) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
    """Features, weights and biases of `count` layers."""
    return tensors[:count], tensors[count : 2 * count], tensors[2 * count :]


def _is_batched(gradient: Tensor) -> bool:
    """Whether it is a batch of gradients (`torch.vmap`, `is_grads_batched`, so TorchJD too): no kernel can read it."""
    functorch = torch._C._functorch
    return functorch.is_legacy_batchedtensor(gradient) or functorch.is_batchedtensor(gradient)


def _parts(logits: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    """The logits of each group: (k, B, C) for several layers, (B, C) for one."""
    if len(sizes) == len(logits):
        return logits.unbind()
    if len(sizes) == 1:
        return (logits,)
    return [part[0] if len(part) == 1 else part for part in logits.split_with_sizes(sizes)]


def _row(feature: Tensor, axes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The rows (B, D) of a feature, in the weights' type."""
    return feature.mean(axes, dtype=dtype) if axes else feature.to(dtype)


def _spread(rows: Tensor, group: LayerGroup) -> Tensor:
    """The gradient by features from the gradient by rows: (B, D), or (k, B, D) for several layers."""
    rows = rows.to(group.dtype)
    more = group.spread[: len(group.spread) - len(group.shape)]  # the axis of several layers
    return rows.view(group.spread).expand(*more, *group.shape) if group.axes else rows


def _general_loss(plan: FusionPlan, targets: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """The same loss by autograd's operations, for derivatives of its gradient."""
    count = plan.shape[0]
    total = torch.zeros((), device=targets.device)
    all_axes = [group.axes for group in plan.groups for _ in group.layers]
    for layer, axes, share in zip(plan.order, all_axes, plan.shares, strict=True):
        weight = tensors[count + layer]
        bias = tensors[2 * count + layer] if len(tensors) > 2 * count else None
        logits = F.linear(_row(tensors[layer], axes, weight.dtype), weight, bias)
        total = total + plan.objective.loss(logits, targets) * share
    return total


def _all_classes(targets: Tensor, classes: int, ignore_index: int) -> bool:
    """Whether these are class indices, none ignored. One call, while `Objective.check`, which explains, takes many."""
    if targets.dtype != torch.int64 or targets.ndim != 1 or not len(targets) or 0 <= ignore_index < classes:
        return False
    low, high = targets.aminmax()
    return int(low) >= 0 and int(high) < classes


def _loss_and_gradient(logits: Tensor, targets: Tensor, plan: FusionPlan, whole: bool) -> tuple[Tensor, Tensor]:
    """The weighted sum of the layers' losses, and its gradient by logits (K, B, C); `whole`: see `_all_classes`."""
    if plan.closed_form:
        return _sigmoid_and_gradient(logits, targets, plan, whole)
    leaf = logits.requires_grad_()
    with torch.enable_grad():
        goals, keep = kept_rows(targets, leaf[0], plan.objective.ignore_index, None)
        losses = plan.objective.losses(leaf, goals[None], keep)
        loss = losses @ plan.shares
        (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


def _sigmoid_and_gradient(logits: Tensor, targets: Tensor, plan: FusionPlan, whole: bool) -> tuple[Tensor, Tensor]:
    """Closed form: c softplus(s x) and c s sigmoid(s x), where s is -1 at the class and 1 elsewhere.

    c is the share of an element in the mean over the rows that count; if no row counts, the loss is 0.
    """
    _, batch, classes = plan.shape
    each = classes if _mean_over_classes(plan.objective) else 1
    even = 1.0 if plan.even is None else plan.even  # folded into an existing factor
    share: Any = even / (batch * each)
    if not whole:
        keep = targets != plan.objective.ignore_index
        share = (keep.to(logits.dtype) / (keep.sum().clamp_(min=1) * (each / even if even else math.inf))).unsqueeze(1)
        targets = targets * keep
    # Not index_add_ or the like, which is not deterministic on a GPU.
    signs = logits.new_ones(batch, classes).scatter_(1, targets.unsqueeze(1), -1.0)
    signed = logits.mul_(signs)
    losses = F.softplus(signed, threshold=40)  # exact in float64 too; torch's own threshold is 20
    if not whole:
        losses.mul_(share)
    gradient = signed.sigmoid_().mul_(signs.mul_(share))
    total = losses.sum() if plan.even is not None else losses.sum((1, 2)) @ plan.shares
    if plan.even is None:
        gradient.mul_(plan.shares.view(-1, 1, 1))
    return total.mul_(share) if whole else total, gradient
