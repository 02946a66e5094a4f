"""From logits and targets to losses and accuracies.

    logits by layer    (B, C), tokens (B, T, C), maps (B, C, H, W); with a leading axis N if all branches are live
    align              match the positions of logits and targets: shift, resize, mask
    rows               (K N, R, C): layers of one shape are one call of the objective

Axis letters: B batch, N branches at a layer, C classes, K layers of one shape, R samples or positions.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from asymtrain.branches._pooling import Resize
from asymtrain.errors import UsageError
from asymtrain.objectives import Mse, Objective, Sigmoid, kept_rows, without_masked

Activation = Literal["last", "all"]
Reduction = Literal["sum", "mean"]
LossFn = Callable[[Tensor, Tensor], Tensor]

_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


@dataclass(frozen=True)
class Settings:
    """The options that say how logits become losses."""

    objective: Objective | LossFn
    activation: Activation
    reduction: Reduction  # over the live branches of a layer
    resize: Mapping[str, Resize]  # for layers whose number of positions may differ from the targets'
    shift: int
    strength: float  # 1 if a schedule sets the strength
    weights: Mapping[str, float]  # each layer's weight in the loss: its share times the strength

    @property
    def ignore_index(self) -> int:
        """The class index that does not count; with a user's own function torch's default."""
        return getattr(self.objective, "ignore_index", -100)

    @property
    def needs_model(self) -> bool:
        """Whether the objective also learns from the model's own logits."""
        return getattr(self.objective, "needs_model", False)

    @property
    def quantities(self) -> bool:
        """Whether branches predict quantities, not classes."""
        return getattr(self.objective, "outputs", None) is not None


@dataclass(frozen=True)
class Product:
    """Logits of layers that share one matrix product: the whole tensor, and the views of it that users get."""

    names: tuple[str, ...]
    whole: Tensor  # (K, B, C), or (K, N, B, C)
    parts: tuple[Tensor, ...]

    def is_source_of(self, names: list[str], logits: Mapping[str, Tensor]) -> bool:
        """Whether the logits of these layers are exactly its parts."""
        if tuple(names) != self.names:
            return False
        return all(logits[name] is part for name, part in zip(self.names, self.parts, strict=True))


@dataclass(frozen=True)
class Aligned:
    """The logits of layers of one shape, and targets with the same positions."""

    names: tuple[str, ...]
    positions: int  # the number of axes
    logits: Tensor  # (K N, B, positions, C)
    targets: Tensor  # (B, positions), or (B, positions, C) with a value for each class
    mask: Tensor | None  # (B, positions)


def losses_of(group: Aligned, settings: Settings, model_logits: Tensor | None) -> Tensor:
    """The losses (K,) of layers; with several live branches the sum or mean of their losses.

    `model_logits` (B, C) are the model's own, if the objective needs them.
    """
    if isinstance(settings.objective, Objective):
        own = () if model_logits is None else (model_logits.to(group.logits.device),)
        losses = settings.objective.losses(*_rows(group, settings.objective), *own)
    else:
        losses = _called(settings.objective, group, settings.ignore_index)
    losses = losses.view(len(group.names), -1)
    return losses.sum(1) if settings.reduction == "sum" else losses.mean(1)


def accuracies_of(group: Aligned, settings: Settings) -> Tensor:
    """The accuracies (K,) of layers; with several live branches the mean of their accuracies."""
    objective = settings.objective
    if not isinstance(objective, Objective):  # a user's own function defines no accuracy
        objective = Mse() if group.targets.is_floating_point() else Sigmoid()
        group = replace(group, targets=_by_output(group.targets, group.logits, group.positions))
    return objective.accuracy(*_rows(group, objective)).view(len(group.names), -1).mean(1)


def align(
    logits: Mapping[str, Tensor],
    positions: Mapping[str, int],
    targets: Tensor,
    mask: Tensor | None,
    settings: Settings,
    products: tuple[Product, ...],
    padding: Mapping[str, Tensor],
) -> Iterator[Aligned]:
    """Group layers of one shape, each group with its targets.

    `mask` is the caller's, for these targets. `padding` is the model's own mask by layer; it is not needed again where
    pooling has applied it.
    """
    if not isinstance(targets, Tensor):
        raise UsageError(f"targets must be a tensor, got a {type(targets).__name__}: call torch.as_tensor(targets)")
    if not (mask is None or isinstance(mask, Tensor)):
        raise UsageError(f"the mask must be a tensor, got a {type(mask).__name__}: call torch.as_tensor(mask)")
    groups: dict[object, list[str]] = {}
    for name, values in logits.items():
        # Maps and tokens are not grouped: they are large, and copying them costs more than a call.
        alike = (values.shape, values.dtype, values.device) if not positions[name] else name
        groups.setdefault(alike, []).append(name)
    for names in groups.values():
        parts, count = [logits[name] for name in names], positions[names[0]]
        # Parts of one product need no stacking: a compiler would make a kernel for each copy.
        whole = [product.whole for product in products if product.is_source_of(names, logits)]
        values = whole[0] if whole else parts[0][None] if len(parts) == 1 else torch.stack(parts)
        if settings.activation == "all":
            values = values.flatten(0, 1)
        if count > 1:
            values = values.movedim(2, -1)
        if targets.is_meta and not values.is_meta:
            raise UsageError(f"targets are on the meta device, where there are no values: make them on {values.device}")
        own = padding.get(names[0])
        layer_mask = own if mask is None and own is not None and (count or own.ndim == 1) else mask
        yield _aligned(tuple(names), values, count, targets.to(values.device), layer_mask, settings)


def _aligned(
    names: tuple[str, ...], logits: Tensor, count: int, targets: Tensor, mask: Tensor | None, settings: Settings
) -> Aligned:
    """One group; targets with one value for each class have the classes last."""
    layer, shift, resize = names[0], settings.shift if count == 1 else 0, settings.resize.get(names[0])
    targets = _fitting(layer, logits, count, targets, settings)
    sizes, wanted_sizes = logits.shape[2 : 2 + count], targets.shape[1 : 1 + count]
    if sizes != wanted_sizes and (shift or resize is None):
        remedy = "attach with pool=Dense(resize='targets') (nearest) or pool=Dense(resize='logits')"
        if shift:  # resizing cannot align targets of other tokens
            remedy = f"give the labels of all tokens that the model was called on, which shift={shift} moves"
        elif count == 1 and sizes[0] - wanted_sizes[0] == 1:
            remedy = (
                "to learn the next token, give the labels of all and attach with shift=1; a class token that has none "
                "is left out by output=lambda tokens: tokens[:, 1:]"
            )
        raise UsageError(
            f"layer {layer!r} has {' x '.join(map(str, sizes))} positions, and the targets have "
            f"{' x '.join(map(str, wanted_sizes))}: {remedy}"
        )
    if mask is not None:
        mask, expected = mask.to(logits.device), tuple(targets.shape[: 1 + count])
        if mask.shape != expected:
            raise UsageError(
                f"the mask has shape {tuple(mask.shape)}, and the targets need {expected}: give one value for each, 0 "
                "where it is padding, or attach with mask=None if the model's own means another thing"
            )
    if sizes != wanted_sizes and resize == "targets":
        targets = _nearest(targets, sizes)
        mask = None if mask is None else _nearest(mask, sizes)
    elif sizes != wanted_sizes:
        maps = logits.flatten(0, 1).movedim(-1, 1)
        maps = F.interpolate(maps, list(wanted_sizes), mode=_LINEAR[count], align_corners=False)
        logits = maps.movedim(1, -1).unflatten(0, logits.shape[:2])
    if shift:
        if shift >= logits.shape[2]:
            raise UsageError(
                f"shift={shift} leaves none of the {logits.shape[2]} tokens of layer {layer!r} a target: call the "
                "model on longer sequences, or attach with a smaller shift="
            )
        logits, targets = logits[:, :, :-shift], targets[:, shift:]
        mask = None if mask is None else mask[:, shift:]
    return Aligned(names, count, logits, targets, mask)


def _fitting(layer: str, logits: Tensor, count: int, targets: Tensor, settings: Settings) -> Tensor:
    """Targets, with the classes last; a `UsageError` if their axes do not fit the logits (K, B, positions, C).

    A user's own objective takes targets of any shape that has the positions.
    """
    batch, classes, sizes = logits.shape[1], logits.shape[-1], tuple(logits.shape[2:-1])
    shape, by_class = tuple(targets.shape), targets.ndim == 2 + count
    quantities = settings.quantities and not getattr(settings.objective, "shares", True)
    by_name = isinstance(settings.objective, Objective)
    wrong = len(shape) not in (1 + count, 2 + count) if by_name else 0 < count >= len(shape)
    remedy = "for one a position attach with pool='none' to a layer that has positions" if not count else ""
    if by_class and count < 2 and not targets.is_floating_point():
        # Several positions, or maps for a layer that gives tokens
        wrong |= shape[-1] != classes and (count == 1 or shape[-1] != 1)
        remedy = remedy or "if they are maps, make maps of the tokens with output=, a function, and layout='BCHW'"
    elif by_class and count > 1 and by_name and shape[1] != classes:
        wrong = True
        remedy = "call targets.movedim(-1, 1)" if shape[-1] == classes else ""
        remedy = "call targets.squeeze(1)" if shape[1] == 1 else remedy
    elif by_name and not by_class and quantities and classes > 1:
        wrong, remedy = True, "if they are class indices, attach with classes= and an objective without outputs="
    if not wrong and by_name and count and shape[0] != batch:
        wrong, remedy = True, "give one for each sample that the model was called on"
    if wrong:
        values = (batch, *sizes, classes) if count < 2 else (batch, classes, *sizes)
        expected = f"{(batch, *sizes)} for class indices or {values} for one value a class"
        expected = f"{values}, one value an output" if quantities else expected
        raise UsageError(
            f"layer {layer!r}: targets must have shape {expected}, got {shape}" + (remedy and f": {remedy}")
        )
    if by_class:
        return targets.movedim(1, -1) if count > 1 else targets
    return _by_output(targets, logits, count) if by_name else targets


def _by_output(targets: Tensor, logits: Tensor, count: int) -> Tensor:
    """The targets; with a last axis of size 1 added if there is one output and they are its values without the axis."""
    values = targets.is_floating_point() or targets.dtype == torch.bool
    return targets.unsqueeze(-1) if values and logits.shape[-1] == 1 and targets.ndim == 1 + count else targets


def check_shift(tokens: Tensor, targets: Tensor, shift: int, ignore_index: int) -> bool:
    """Refuse targets that are the model's own input tokens without a shift, or that would be shifted twice.

    Returns whether the targets could be compared with the tokens.
    """
    if not isinstance(targets, Tensor) or targets.is_meta or tokens.shape != targets.shape:
        return False
    targets = targets.to(tokens.device)

    def equal(goals: Tensor, words: Tensor) -> bool:
        same = goals == words
        return bool((same | (goals == ignore_index)).all() & same.any())

    copied = equal(targets, tokens)
    if copied and not shift:
        raise UsageError(
            "the targets are the model's own inputs, which a branch would learn to copy: attach with shift=1 to "
            "learn the next token, or with shift=0 if copying is meant"
        )
    if shift and not copied and equal(targets[:, :-1], tokens[:, 1:]):
        raise UsageError(
            "the targets are the model's inputs shifted by one already, and shift=1 would shift them again: attach "
            "with shift=0, or give the unshifted tokens as targets (with shift=2 to learn the token after the next)"
        )
    return True


def _nearest(values: Tensor, sizes: torch.Size) -> Tensor:
    """Values (B, positions, ...) resized to the nearest positions, by indexing, so that class indices stay valid.

    The centre of new position i lies at (i + 1/2) / size of the axis, as in torch's `nearest-exact`.
    """
    for axis, size in enumerate(sizes, 1):
        old = values.shape[axis]
        if size != old:
            values = values.index_select(axis, (2 * torch.arange(size, device=values.device) + 1) * old // (2 * size))
    return values


def _rows(group: Aligned, objective: Objective) -> tuple[Tensor, Tensor, Tensor | None]:
    """Logits (K N, R, C), targets that broadcast to them, and which rows count; checks the targets first."""
    targets, mask, ignored = group.targets, group.mask, objective.ignore_index
    targets = targets if mask is None else without_masked(targets, mask, ignored)
    objective.check(group.logits[0], targets)
    # Tied heads of a half-precision model give its type, in which a sum over many tokens overflows.
    rows = group.logits.to(torch.promote_types(group.logits.dtype, torch.float32)).flatten(1, -2)
    goals = targets.flatten(0, group.logits.ndim - 3)
    goals, keep = kept_rows(goals, rows[0], ignored, None if mask is None else mask.flatten())
    return rows, goals[None], keep


def _called(objective: LossFn, group: Aligned, ignore_index: int) -> Tensor:
    """Losses of a user's own function, called for each branch with logits and targets in torch's usual shapes."""
    targets, count = group.targets, group.positions
    indices = not targets.is_floating_point() and targets.dtype != torch.bool and targets.ndim == 1 + count
    if group.mask is not None:
        if not indices:
            raise UsageError("a mask cannot be used with an objective of your own: leave the padding out in it")
        targets = without_masked(targets, group.mask, ignore_index)
    if indices:
        targets = targets.long()
    elif targets.ndim == group.logits.ndim - 1 and count > 1:
        targets = targets.movedim(-1, 1)
    values = group.logits.movedim(-1, 2) if count > 1 else group.logits
    return torch.stack([_scalar(objective(each, targets)) for each in values])


def _scalar(loss: Tensor) -> Tensor:
    # One value per sample would be summed like layers, which multiplies the loss by the number of samples.
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        kind = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise UsageError(f"the objective must return a scalar tensor, got {kind}: take the mean over the batch in it")
    return loss.reshape(())
