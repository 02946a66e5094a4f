"""Combine the two objectives with an aggregator of TorchJD, in your own loop.

`combine_backward` replaces `(main + alpha * auxiliary).backward()`. The optimizer and the rest of the loop stay as they
are. Runs of the lab train on the sum.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from asymtrain.errors import UsageError, how_to_install, unknown_name
from asymtrain.gradients import Alignment
from asymtrain.gradients._alignment import accumulate, gradients_of_both

try:
    from torchjd import aggregation
except ImportError as error:
    raise UsageError(f"TorchJD does not import ({error}): {how_to_install('torchjd')}") from error

Aggregator = Callable[[Tensor], Tensor]

AGGREGATORS = {
    "sum": "Sum",
    "pcgrad": "PCGrad",
    "upgrad": "UPGrad",
    "mgda": "MGDA",
    "imtl_g": "IMTLG",
    "aligned_mtl": "AlignedMTL",
}
"""Names of classes of `torchjd.aggregation`, with their defaults."""


def combine_backward(
    main: Tensor,
    auxiliary: Tensor,
    alpha: float,
    model: nn.Module,
    branches: nn.Module | None = None,
    *,
    aggregator: Aggregator | str = "pcgrad",
) -> Alignment:
    """A backward pass in which an aggregator makes the gradient of shared parameters.

    The gradients of `main` and of `alpha * auxiliary` are computed separately. Over the parameters of `model` that both
    reach they are the two rows of the matrix that the aggregator turns into one gradient; the other parameters of
    `model` and `branches` get their only gradient. All are added to `.grad`. For a parameter with a zero gradient there
    is nothing to combine, and the sum is used. Returns the alignment of the two, before alpha.

    Args:
        main: the model's own loss.
        auxiliary: `branches.loss(y)`.
        alpha: its weight.
        model: the model, whose parameters are shared.
        branches: the branches, whose parameters only the auxiliary loss reaches.
        aggregator: a name in `AGGREGATORS`, an aggregator of TorchJD, or any function from (2, P) to (P,). One with a
            state must be the same object in every step.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise UsageError(
            "DistributedDataParallel averages gradients inside backward, which is not called here: give the model "
            "inside it (model.module), and average .grad over the ranks before the optimizer's step"
        )
    combine = build_aggregator(aggregator) if isinstance(aggregator, str) else aggregator
    measured, gradients = gradients_of_both(main, auxiliary, model, branches)
    weighted = [(parameter, g, None if h is None else alpha * h) for parameter, g, h in gradients]
    shared = {}
    for index, (_, g, h) in enumerate(weighted):
        # A gradient of zeros counts as none: a compiled model cannot tell the two apart.
        if g is not None and h is not None and g.any() and h.any():
            shared[index] = (g, h)
    joined = dict(zip(shared, _joined(list(shared.values()), combine), strict=True))
    for index, (parameter, g, h) in enumerate(weighted):
        if index in joined:
            g, h = joined[index], None
        accumulate(parameter, g, h)
    return measured


def build_aggregator(name: str) -> Aggregator:
    """The aggregator of TorchJD with a name in `AGGREGATORS`."""
    if name not in AGGREGATORS:
        raise unknown_name("aggregator", name, AGGREGATORS)
    try:
        built: Aggregator = getattr(aggregation, AGGREGATORS[name])()
    except ImportError:
        raise UsageError(f"{name} needs a solver: pip install 'torchjd[quadprog-projector]'") from None
    return built


def _joined(pairs: Sequence[tuple[Tensor, Tensor]], combine: Aggregator) -> list[Tensor]:
    """One gradient for each shared parameter, combined from its two; empty if nothing is shared."""
    if not pairs:
        return []
    rows = torch.stack([torch.cat([pair[side].flatten() for pair in pairs]) for side in (0, 1)])
    vector = combine(rows)
    if vector.shape != rows.shape[1:]:
        raise UsageError(f"an aggregator takes a matrix (2, P) to (P,), this one gave shape {tuple(vector.shape)}")
    pieces = vector.split([first.numel() for first, _ in pairs])
    return [piece.view_as(first).to(first.dtype) for piece, (first, _) in zip(pieces, pairs, strict=True)]
