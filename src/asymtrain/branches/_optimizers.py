"""Taking parameters out of an optimizer that has already made steps with them."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from asymtrain.errors import UsageError


def drop_parameters(optimizers: Optimizer | Sequence[Optimizer], parameters: Sequence[nn.Parameter]) -> None:
    """Remove parameters from the groups and the state.

    A group that ends empty stays: learning-rate schedulers count the groups.
    """
    # `Any`: wrappers (accelerate, mixed precision) look like an optimizer without being one.
    every: list[Any] = list(optimizers) if isinstance(optimizers, tuple | list) else [optimizers]
    if not all(hasattr(optimizer, "param_groups") and hasattr(optimizer, "state") for optimizer in every):
        raise UsageError("strip takes the optimizer, or a list of optimizers, that was given branches.parameters()")
    gone = {id(parameter) for parameter in parameters}
    for optimizer in every:
        for group in optimizer.param_groups:
            kept = [index for index, parameter in enumerate(group["params"]) if id(parameter) not in gone]
            # With named parameters a group has a second list beside the first.
            for column in {"params", "param_names"} & group.keys():
                group[column] = [group[column][index] for index in kept]
        for parameter in parameters:
            optimizer.state.pop(parameter, None)
