"""`WithBranches`: a model and its branches as one module, for DDP, FSDP2 and one compiled graph."""

from typing import Any

import torch
from torch import Tensor, nn

from asymtrain.branches._capture import is_exporting
from asymtrain.branches._core import Branches
from asymtrain.errors import UsageError


class WithBranches(nn.Module):
    """A model and its branches; calling it gives the model's output and the branches' logits.

    >>> import torch
    >>> from asymtrain import WithBranches, attach, models
    >>> model, x, y = models.build("mlp", classes=10, seed=0), torch.rand(8, 3, 32, 32), torch.arange(8)
    >>> branches = attach(model, sample=x, classes=10)
    >>> net = WithBranches(model, branches)  # in DistributedDataParallel(net), where there are several processes
    >>> output, logits = net(x)
    >>> loss = torch.nn.functional.cross_entropy(output, y) + branches.loss(y, logits=logits)

    A second set of branches on the model goes around the first: `WithBranches(WithBranches(model, one), two)` gives
    `(output, logits of one), logits of two`.

    Branch weights are parameters of this module, so DDP averages their gradients, and `fully_shard` (FSDP2) shards
    them. Its copies and pickles are whole: the copy's branches are on the copy's model.
    """

    model: nn.Module
    _inner = False  # whether another set is around this one

    def __init__(self, model: nn.Module, branches: Branches) -> None:
        super().__init__()
        bare = model
        while not (isinstance(branches, Branches) and branches.connected_to(bare)):
            if not isinstance(bare, WithBranches):
                raise UsageError("these branches are not on this model: WithBranches(model, attach(model, ...))")
            bare = bare.model
        self.model = model
        self.branches = branches
        self._on = [bare]  # what the branches are on; in a list, since it is no second part of this module
        if isinstance(model, WithBranches):
            model._inner = True
        # Idle branches are equal on all ranks from the seed and never change; DDP would broadcast them at every step.
        ignored = [f"model.{name}" for name in getattr(model, "_ddp_params_and_buffers_to_ignore", ())]
        ignored += [f"branches.{name}" for name, _ in branches.named_buffers() if ".idle" in name]
        self._ddp_params_and_buffers_to_ignore = ignored

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Tensor]]:
        """The model's output, and the logits of its branches by layer."""
        # A sharded model can only be called through the module that was sharded, and an inner set by the outer one;
        # after strip it has no logits.
        if self.branches.stripped and not (is_sharded(self) or self._inner):
            raise UsageError("the branches are stripped: call (and wrap) the model itself from here on")
        if torch.compiler.is_compiling() and is_exporting():
            raise UsageError("export the model itself, not WithBranches; its heads as modules are branches.exits()")
        output = self.model(*args, **kwargs)
        logits = {} if self.branches.stripped else self.branches.take()
        if is_sharded(self):
            # Layers of one width share a product, and FSDP2 warns of outputs that are views of another tensor.
            output, logits = self._apart((output, logits))
        return output, logits

    def _apart(self, output: tuple[Any, dict[str, Tensor]]) -> tuple[Any, dict[str, Tensor]]:
        """This pair's output, in which no logits of it, or of a set inside of it, are views."""
        inner, logits = output
        if isinstance(self.model, WithBranches):
            inner = self.model._apart(inner)
        return inner, {name: values.clone() for name, values in logits.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if not self.branches.stripped:
            self.branches.connect(self._on[0])


def is_sharded(module: nn.Module) -> bool:
    """Whether FSDP has sharded this module. By name: importing FSDP would cost every user its import time."""
    return not {"FullyShardedDataParallel", "FSDPModule"}.isdisjoint(kind.__name__ for kind in type(module).__mro__)
