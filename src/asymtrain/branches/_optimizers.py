"""The branches' weights in optimizers: warnings if a training loop forgets them, and their removal."""

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from asymtrain.errors import UsageError, UsageWarning

_SOON = 100  # after so many steps the branches' weights should have changed
_REMEDY = "give it [*model.parameters(), *branches.parameters()]"
_UNCHANGED = f"the branches' weights have gradients and no optimizer changes them: {_REMEDY}"


class StepHook:
    """Notes which optimizers step while branches are on the model: torch calls it after a step of any optimizer.

    After `_SOON` steps it warns if none changes the branches. It keeps neither optimizers nor model alive.
    """

    def __init__(
        self, model: nn.Module, weights: Sequence[nn.Parameter], after_step: Callable[[], None] | None
    ) -> None:
        self.model = weakref.ref(model)
        self.after_step = after_step  # called after each step of an optimizer with weights of the model
        self.optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.of_model: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # those with weights of the model
        self.weights = [weakref.ref(weight) for weight in weights]
        self.versions = _versions(weights), _versions(model.parameters())  # how often each weight was changed so far
        self.steps = 0  # of optimizers with weights of the model
        self.handle = register_optimizer_step_post_hook(self)

    def __call__(self, optimizer: Optimizer, *_: object) -> None:
        if torch.compiler.is_compiling():
            return
        if optimizer not in self.optimizers:
            self.optimizers.add(optimizer)
            model = self.model()
            own = {id(weight) for weight in (() if model is None else model.parameters())}
            if not own.isdisjoint(_ids_in(optimizer)):
                self.of_model.add(optimizer)
        if optimizer not in self.of_model:
            return
        self.steps += 1
        if self.steps == _SOON:
            weights = [weight for reference in self.weights if (weight := reference()) is not None]
            if self._model_alone_changed(weights) and _have_gradients(weights):
                warnings.warn(f"after {_SOON} steps {_UNCHANGED}", UsageWarning, stacklevel=3)
        if self.after_step is not None:
            self.after_step()

    def left_out(self, weights: Sequence[nn.Parameter], *, missing: bool, used: bool) -> Iterator[str]:
        """What the training loop forgot.

        `missing`: the optimizer given to strip never had the weights. `used`: a loss of the branches was taken.
        """
        model_alone = self._model_alone_changed(weights)
        if missing:
            yield f"the optimizer given to strip never had the branches' weights: {_REMEDY}"
        elif model_alone and _have_gradients(weights):
            yield _UNCHANGED
        stripped_ids = {id(weight) for weight in weights}
        ids_of_optimizers = [_ids_in(optimizer) for optimizer in self.optimizers]
        if any(ids & stripped_ids and ids - stripped_ids for ids in ids_of_optimizers):
            yield "an optimizer has the weights of the stripped branches still: call branches.strip(optimizer) with it"
        if model_alone and self.of_model and not used:
            yield (
                "the model was trained and branches.loss never called, so the branches had no effect: add "
                "branches.loss(targets) to the loss of each step"
            )

    def _model_alone_changed(self, weights: Sequence[nn.Parameter]) -> bool:
        """Whether steps changed the model's weights but none of the branches'."""
        of_branches, of_model = self.versions
        model = self.model()
        return model is not None and of_branches == _versions(weights) and of_model != _versions(model.parameters())


def drop_parameters(optimizers: Optimizer | Sequence[Optimizer], parameters: Sequence[nn.Parameter]) -> bool:
    """Remove parameters from the groups and the state of optimizers that may have made steps with them.

    An empty group stays: learning-rate schedulers count the groups. Returns whether any parameter was found.
    """
    # `Any`: wrappers (accelerate, mixed precision) look like an optimizer without being one.
    all_optimizers: list[Any] = list(optimizers) if isinstance(optimizers, tuple | list) else [optimizers]
    if not all(hasattr(optimizer, "param_groups") and hasattr(optimizer, "state") for optimizer in all_optimizers):
        raise UsageError("strip takes the optimizer, or a list of optimizers, that was given branches.parameters()")
    ids = {id(parameter) for parameter in parameters}
    had = any(not ids.isdisjoint(_ids_in(optimizer)) for optimizer in all_optimizers)
    for optimizer in all_optimizers:
        for group in optimizer.param_groups:
            remaining = [index for index, parameter in enumerate(group["params"]) if id(parameter) not in ids]
            # With named parameters a group also has a list of their names.
            for column in {"params", "param_names"} & group.keys():
                group[column] = [group[column][index] for index in remaining]
        for parameter in parameters:
            optimizer.state.pop(parameter, None)
        inner = getattr(optimizer, "optimizer", optimizer)  # in accelerate's wrapper
        if had and isinstance(inner, torch.optim.LBFGS):
            # LBFGS also keeps a list of parameters, their count, and a curvature memory: flat vectors over all
            # parameters, for the old objective. It starts anew.
            inner._params, inner._numel_cache = inner.param_groups[0]["params"], None
            inner.state.clear()
    return had


def _have_gradients(weights: Iterable[nn.Parameter]) -> bool:
    return any(weight.grad is not None for weight in weights)


def _ids_in(optimizer: Optimizer) -> set[int]:
    return {id(weight) for group in optimizer.param_groups for weight in group["params"]}


def _versions(weights: Iterable[nn.Parameter]) -> list[int]:
    return [-1 if weight.is_inference() else weight._version for weight in weights]
