"""A model and its branches as one module, for DDP, FSDP2 and one compiled graph: `WithBranches` and `WithLoss`."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from asymtrain.branches._capture import is_exporting, is_sharded
from asymtrain.branches._core import Branches
from asymtrain.branches._criterion import Criterion
from asymtrain.errors import UsageError

LABELS = ("labels", "label", "targets", "target", "y")  # their usual names in models and batches


class WithBranches(nn.Module):
    """A model and its branches; calling it gives the model's output and the branches' logits.

    >>> import torch
    >>> from asymtrain import WithBranches, attach, models
    >>> model, x, y = models.build("mlp", classes=10, seed=0), torch.rand(8, 3, 32, 32), torch.arange(8)
    >>> branches = attach(model, sample=x, classes=10)
    >>> net = WithBranches(model, branches)  # in DistributedDataParallel(net), where there are several processes
    >>> output, logits = net(x)
    >>> loss = torch.nn.functional.cross_entropy(output, y) + branches.loss(y, logits=logits)

    A second set of branches on the model wraps the first: `WithBranches(WithBranches(model, one), two)` gives
    `(output, logits of one), logits of two`.

    Branch weights are parameters of this module, so DDP averages their gradients, and `fully_shard` (FSDP2) shards
    them. A copy or pickle is complete: the copy's branches are on the copy's model.
    """

    model: nn.Module
    _inner = False  # whether another WithBranches wraps this one

    def __init__(self, model: nn.Module, branches: Branches) -> None:
        super().__init__()
        bare = model
        while not (isinstance(branches, Branches) and branches.connected_to(bare)):
            if not isinstance(bare, WithBranches):
                raise UsageError("these branches are not on this model: WithBranches(model, attach(model, ...))")
            bare = bare.model
        self.model = model
        self.branches = branches
        self._on = [bare]  # the model with the hooks; in a list, so that it is not registered as a second submodule
        if isinstance(model, WithBranches):
            model._inner = True
        # DDP would broadcast these buffers at every step. Idle branches are equal on all ranks by their seed and never
        # change, and a strength changes equally on all ranks.
        ignored = [f"model.{name}" for name in getattr(model, "_ddp_params_and_buffers_to_ignore", ())]
        of_branches = [name for name, _ in branches.named_buffers() if ".idle" in name or name == "schedule.strength"]
        ignored += [f"branches.{name}" for name in of_branches]
        self._ddp_params_and_buffers_to_ignore = ignored

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Tensor]]:
        """The model's output, and the logits of its branches by layer."""
        # After strip these two must still be callable, without logits: a sharded model only runs through the module
        # that was sharded, and the outer WithBranches calls an inner one.
        if self.branches.stripped and not (is_sharded(self) or self._inner):
            raise UsageError("the branches are stripped: call (and wrap) the model itself from here on")
        if torch.compiler.is_compiling() and is_exporting():
            raise UsageError("export the model itself, not WithBranches; its heads as modules are branches.exits()")
        output = self.model(*args, **kwargs)
        logits = {} if self.branches.stripped else self.branches.take()
        if is_sharded(self):
            # Layers of one width share a product, and FSDP2 warns about outputs that are views of another tensor.
            output, logits = self._apart((output, logits))
        return output, logits

    def _apart(self, output: tuple[Any, dict[str, Tensor]]) -> tuple[Any, dict[str, Tensor]]:
        """The output with all logits, also those of inner WithBranches, copied so that none is a view."""
        inner, logits = output
        if isinstance(self.model, WithBranches):
            inner = self.model._apart(inner)
        return inner, {name: values.clone() for name, values in logits.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if not self.branches.stripped:
            self.branches.connect(self._on[0])


class WithLoss(WithBranches):
    """A model that returns its own loss, and its branches; calling it adds the auxiliary loss to that loss.

    >>> import torch
    >>> from asymtrain import attach
    >>> from asymtrain.branches import WithLoss
    >>> class Net(torch.nn.Sequential):
    ...     def forward(self, x, targets=None):
    ...         logits = super().forward(x)
    ...         return logits, None if targets is None else torch.nn.functional.cross_entropy(logits, targets)
    >>> model = Net(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> x, y = torch.randn(4, 8), torch.tensor([0, 1, 2, 0])
    >>> branches = attach(model, sample=(x, y), classes=3, at="1")
    >>> net = WithLoss(model, branches)
    >>> (_, own), (_, loss) = model(x, y), net(x, y)
    >>> bool(loss > own)
    True

    The model's output must be a tuple that holds the loss as a scalar tensor, or a mapping with an entry `loss`. The
    targets are the model's argument `labels`, `label`, `targets`, `target` or `y`. Without targets, without gradients
    and after `strip` it only calls the model. It works in DistributedDataParallel and `torch.compile`.
    """

    def __init__(self, model: nn.Module, branches: Branches) -> None:
        super().__init__(model, branches)
        parameters = inspect.signature(model.forward).parameters
        names, target = list(parameters), next((name for name in LABELS if name in parameters), None)
        if target is None and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            raise UsageError(
                f"the model's forward has no argument {', '.join(LABELS[:-1])} or {LABELS[-1]}, so WithLoss would not "
                "find its targets: rename its argument, or add the losses with criterion = branches.criterion(loss_fn)"
            )
        self._target = target or LABELS[0]
        self._index = names.index(target) if target else len(names)
        self._criterion = [Criterion(branches)]  # in a list, since the branches are already a submodule

    @property
    def criterion(self) -> Criterion:
        """The criterion; its `parts` are the losses of the latest call by name, for a log."""
        return self._criterion[0]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output; in training its loss includes the auxiliary loss."""
        target = args[self._index] if self._index < len(args) else kwargs.get(self._target)
        if target is None or not torch.is_grad_enabled() or self.branches.stripped:
            return self.model(*args, **kwargs)
        output, logits = super().forward(*args, **kwargs)
        if isinstance(output, Mapping):
            key: Any = "loss" if isinstance(output.get("loss"), Tensor) else None
        else:
            parts = output if isinstance(output, tuple) else ()
            key = next((i for i, part in enumerate(parts) if isinstance(part, Tensor) and part.ndim == 0), None)
        if key is None:
            raise UsageError(
                f"the model returned a {type(output).__name__} without a loss: compute it from its output, with "
                "criterion = branches.criterion(loss_fn)"
            )
        loss, _ = self.criterion.add(output[key], target, logits)
        if isinstance(output, tuple):
            return (*output[:key], loss, *output[key + 1 :])
        output["loss"] = loss
        return output
