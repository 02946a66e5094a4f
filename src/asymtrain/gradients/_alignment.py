"""Cosines between the gradients of two losses: pure functions, a backward pass that measures too, and a log."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from asymtrain.errors import UsageError
from asymtrain.intervals import COSINES, CosineSummary, batch_means, deviation, mean


@dataclass(frozen=True)
class LayerAlignment:
    """The cosine and norms over the parameters of one layer that both losses reach."""

    cosine: float | None
    main_norm: float
    auxiliary_norm: float


@dataclass(frozen=True)
class Alignment(LayerAlignment):
    """The comparison of an auxiliary gradient with the main gradient over shared parameters.

    A layer is a module that owns parameters: `blocks.0.attention` of `blocks.0.attention.weight`. A parameter of the
    model itself is a layer of its own.
    """

    by_parameter: Mapping[str, float | None]
    by_layer: Mapping[str, LayerAlignment] = field(default_factory=dict, compare=False)


def alignment(main: Tensor, auxiliary: Tensor, model: nn.Module) -> Alignment:
    """Cosine between the gradients of two losses over the parameters of `model` that both reach.

    A parameter whose gradient is exactly zero counts as not reached: a compiled model cannot tell the two apart.
    Call it before `backward`: it keeps the graph, and leaves `.grad` and the parameters as they are.
    Two plain backward passes, so it works under autocast and with a compiled model.

    >>> import torch
    >>> import torch.nn.functional as F
    >>> from asymtrain import alignment, attach, models
    >>> model, x, y = models.build("mlp", classes=10, seed=0), torch.rand(8, 3, 32, 32), torch.arange(8)
    >>> branches = attach(model, sample=x, classes=10)
    >>> main, auxiliary = F.cross_entropy(model(x), y), branches.loss(y)
    >>> -1 <= alignment(main, auxiliary, model).cosine <= 1
    True
    """
    return gradients_of_both(main, auxiliary, model, keep_graph=True)[0]


def backward_with_alignment(
    main: Tensor, auxiliary: Tensor, alpha: float, model: nn.Module, branches: nn.Module | None = None
) -> Alignment:
    """`(main + alpha * auxiliary).backward()` that also returns the alignment, in two backward passes instead of three.

    The gradients of the losses are computed separately, and their sum is added to `.grad` of the parameters of `model`
    and `branches`; other parameters get none. The sum equals that of the ordinary backward up to rounding.
    Hooks on gradient accumulation do not run, so a model in DistributedDataParallel is refused.

    >>> import torch
    >>> import torch.nn.functional as F
    >>> from asymtrain import attach, backward_with_alignment, models
    >>> model, x, y = models.build("mlp", classes=10, seed=0), torch.rand(8, 3, 32, 32), torch.arange(8)
    >>> branches = attach(model, sample=x, classes=10)
    >>> main, auxiliary = F.cross_entropy(model(x), y), branches.loss(y)
    >>> measured = backward_with_alignment(main, auxiliary, 0.5, model, branches)
    >>> all(parameter.grad is not None for parameter in branches.parameters())
    True
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise UsageError(
            "DistributedDataParallel averages gradients inside backward: call alignment on its .module, then backward"
        )
    measured, gradients = gradients_of_both(main, auxiliary, model, branches)
    for parameter, g, h in gradients:
        accumulate(parameter, g, None if h is None else alpha * h)
    return measured


def gradients_of_both(
    main: Tensor, auxiliary: Tensor, model: nn.Module, branches: nn.Module | None = None, *, keep_graph: bool = False
) -> tuple[Alignment, list[tuple[nn.Parameter, Tensor | None, Tensor | None]]]:
    """The alignment, and each parameter of `model` and `branches` with its two gradients."""
    of_model = {name: value for name, value in model.named_parameters() if value.requires_grad}
    if not of_model:
        raise UsageError("the model has no parameter that requires a gradient: alignment needs shared parameters")
    ids = {id(value) for value in of_model.values()}
    more = [] if branches is None else [p for p in branches.parameters() if p.requires_grad and id(p) not in ids]
    parameters = [*of_model.values(), *more]
    mains = gradients_of(main, parameters, keep_graph=True, called="the main loss")
    auxiliaries = gradients_of(auxiliary, parameters, keep_graph=keep_graph, called="the auxiliary loss")
    # Not strict: the branches' gradients come last, without names in the model.
    measured = compare_gradients(zip(of_model, mains, auxiliaries, strict=False))
    return measured, list(zip(parameters, mains, auxiliaries, strict=True))


@torch.no_grad()
def accumulate(parameter: nn.Parameter, first: Tensor | None, second: Tensor | None = None) -> None:
    """Add to `.grad` each of two gradients that is not None."""
    reached = [gradient for gradient in (first, second) if gradient is not None]
    if reached:
        # A single gradient is copied: autograd may return one tensor for two parameters.
        total = reached[0] + reached[1] if len(reached) > 1 else reached[0].clone()
        parameter.grad = total if parameter.grad is None else parameter.grad.add_(total)


def cosine(first: Sequence[Tensor], second: Sequence[Tensor]) -> float | None:
    """The cosine between two gradients, each given as a list of tensors; `None` if one is zero or not finite."""
    return _summed(_products(zip(first, second, strict=True))).cosine


def gradients_of(
    loss: Tensor, parameters: Sequence[Tensor], *, keep_graph: bool, called: str
) -> tuple[Tensor | None, ...]:
    """Gradients of a loss; None for a parameter that it does not reach. `called` is its name in errors."""
    # The loss's value is not read: that would wait for the device.
    if not isinstance(loss, Tensor):
        raise UsageError(
            f"{called} must be a tensor, got {type(loss).__name__}: give the loss itself, not its .item() or a number"
        )
    if loss.numel() != 1:
        raise UsageError(f"{called} has shape {tuple(loss.shape)}: reduce it to one number, such as by .mean()")
    if not loss.requires_grad:
        raise UsageError(
            f"{called} is a constant and does not depend on the model: compute it from the model's output, "
            "without detach() or no_grad()"
        )
    try:
        return torch.autograd.grad(loss, parameters, retain_graph=keep_graph, allow_unused=True)
    except RuntimeError as error:
        # No property of a loss shows whether its graph still exists; only the call does.
        if "through the graph a second time" not in str(error):
            raise
        raise UsageError(
            f"an earlier backward freed the graph of {called}: measure before backward, or call that one as "
            "backward(retain_graph=True)"
        ) from error


def compare_gradients(gradients: Iterable[tuple[str, Tensor | None, Tensor | None]]) -> Alignment:
    """The alignment of two gradients, given by parameter with the parameter's name."""
    # torch.compile's prefix is not part of the name.
    by_name = {name.replace("_orig_mod.", ""): (g, h) for name, g, h in gradients if g is not None and h is not None}
    if not by_name:
        raise UsageError("no parameter is reached by both losses: are the branches attached, not detached?")
    both = dict(zip(by_name, _products(by_name.values()), strict=True))
    shared = {name: product for name, product in both.items() if product[1] != 0 and product[2] != 0} or both
    layers: dict[str, list[tuple[float, float, float]]] = {}
    for name, product in shared.items():
        layers.setdefault(name.rpartition(".")[0] or name, []).append(product)
    return Alignment(
        **vars(_summed(shared.values())),
        by_parameter={name: _summed([product]).cosine for name, product in shared.items()},
        by_layer={name: _summed(members) for name, members in layers.items()},
    )


def _products(pairs: Iterable[tuple[Tensor, Tensor]]) -> list[tuple[float, float, float]]:
    """For each pair of tensors their dot product and the square of each, in one transfer from the device."""
    sums: list[Tensor] = []
    for g, h in pairs:
        g, h = g.detach().double(), h.detach().double()
        g, h = (g.to_dense(), h.to_dense()) if g.is_sparse or h.is_sparse else (g, h)
        row = torch.stack([(g * h).sum(), g.square().sum(), h.square().sum()])
        sums.append(row.to(sums[0].device) if sums else row)
    return [(row[0], row[1], row[2]) for row in torch.stack(sums).tolist()] if sums else []


def _summed(products: Iterable[tuple[float, float, float]]) -> LayerAlignment:
    rows = list(products)
    product, main, auxiliary = (sum(row[i] for row in rows) for i in range(3))
    scale = math.sqrt(main) * math.sqrt(auxiliary)
    value = product / scale if scale > 0 else math.nan
    # only NaN differs from itself
    return LayerAlignment(max(-1.0, min(1.0, value)) if value == value else None, math.sqrt(main), math.sqrt(auxiliary))


@dataclass(frozen=True)
class AlignmentSummary(CosineSummary):
    """Means over a log of alignments, with an interval from 10 steps on."""

    steps: int  # the number of alignments added
    std: float | None  # over steps (n - 1)
    by_layer: Mapping[str, float | None]  # mean cosine of each layer


class AlignmentLog:
    """Alignments of a training run.

    >>> import torch
    >>> import torch.nn.functional as F
    >>> from asymtrain import AlignmentLog, alignment, attach, models
    >>> model, x, y = models.build("mlp", classes=10, seed=0), torch.rand(8, 3, 32, 32), torch.arange(8)
    >>> branches = attach(model, sample=x, classes=10)
    >>> main, auxiliary = F.cross_entropy(model(x), y), branches.loss(y)
    >>> log = AlignmentLog()
    >>> log.add(alignment(main, auxiliary, model))
    >>> log.summary().steps
    1
    """

    def __init__(self) -> None:
        self.alignments: list[Alignment] = []

    def add(self, measured: Alignment) -> None:
        """Append an alignment, in the order of training."""
        self.alignments.append(measured)

    def summary(self, confidence: float = 0.95) -> AlignmentSummary:
        """The summary of the alignments so far."""
        cosines = _defined(self.alignments)
        low, high, blocks, autocorrelation = batch_means(cosines, confidence, within=COSINES)
        layers = dict.fromkeys(name for step in self.alignments for name in step.by_layer)
        return AlignmentSummary(
            steps=len(self.alignments),
            undefined=len(self.alignments) - len(cosines),
            final=self.alignments[-1].cosine if self.alignments else None,
            mean=mean(cosines),
            std=deviation(cosines),
            min=min(cosines, default=None),
            max=max(cosines, default=None),
            conflict=mean([float(value < 0) for value in cosines]),
            low=low,
            high=high,
            blocks=blocks,
            autocorrelation=autocorrelation,
            main_norm=mean([step.main_norm for step in self.alignments if math.isfinite(step.main_norm)]),
            auxiliary_norm=mean(
                [step.auxiliary_norm for step in self.alignments if math.isfinite(step.auxiliary_norm)]
            ),
            by_layer={
                name: mean(_defined(step.by_layer[name] for step in self.alignments if name in step.by_layer))
                for name in layers
            },
        )


def _defined(alignments: Iterable[LayerAlignment]) -> list[float]:
    return [step.cosine for step in alignments if step.cosine is not None]
