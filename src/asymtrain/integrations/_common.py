"""What the adapters share: the labels of a batch, parameters into an optimizer, gradients between ranks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from asymtrain.branches import Branches
from asymtrain.errors import UsageError

LABELS = ("labels", "label", "targets", "target", "y")


def labels_of(batch: Any) -> Tensor:
    """The labels of a batch: its entry of that name, or the second of a pair.

    Integer labels with a position axis (B, T) become one row for each token, as branches with a token-wise `pool` want
    them; a floating-point value for each class (B, C) stays.
    """
    labels: Any = None
    if isinstance(batch, Mapping):
        labels = next((batch[name] for name in LABELS if name in batch), None)
    elif isinstance(batch, Sequence) and len(batch) == 2:
        labels = batch[1]
    else:
        labels = next((getattr(batch, name) for name in LABELS if hasattr(batch, name)), None)
    if not isinstance(labels, Tensor):
        raise UsageError(
            f"no labels were found in a batch that is a {type(batch).__name__}: give targets=, a function from the "
            "batch to class indices"
        )
    return labels if labels.ndim < 2 or labels.is_floating_point() else labels.flatten()


def losses_in_training(branches: Branches, targets: Tensor, main: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The sum of the branches' losses in the model's latest forward; and that sum and each place's loss, to be logged.

    Handed over as logits, which the branches do not check for drift between ranks: see `average_gradients`.
    """
    losses = branches.losses(targets, logits=branches.take())
    auxiliary = sum(losses.values(), torch.zeros_like(main))
    named = {"branch_loss": auxiliary, **{f"branch_loss/{place}": loss for place, loss in losses.items()}}
    return auxiliary, {name: loss.detach() for name, loss in named.items()}


def device_of(module: nn.Module) -> torch.device:
    """Where the module's first parameter is; the CPU for a module without any."""
    return next((value.device for value in module.parameters()), torch.device("cpu"))


def add_parameters(optimizer: Any, named: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Put parameters that an optimizer does not have into its first group.

    Not into a group of their own: learning-rate schedulers that exist already count the groups.
    """
    known = {id(value) for group in optimizer.param_groups for value in group["params"]}
    first = optimizer.param_groups[0]
    for name, value in named:
        if value.requires_grad and id(value) not in known:
            first["params"].append(value)
            if "param_names" in first:
                first["param_names"].append(f"branches.{name}")


def average_gradients(branches: nn.Module) -> None:
    """Make the branches' gradients equal on all ranks, as DDP does for the model that it wraps.

    After every backward: the mean of what was averaged before stays what it was, so accumulation needs no care.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    ranks = torch.distributed.get_world_size()
    for value in branches.parameters() if ranks > 1 else ():
        if value.grad is not None:
            torch.distributed.all_reduce(value.grad)
            value.grad.div_(ranks)
