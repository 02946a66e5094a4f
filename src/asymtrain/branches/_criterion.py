"""`branches.criterion(loss_fn)`: the main and the auxiliary loss as one, for loops that have a criterion."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from asymtrain.branches._capture import ranks


class Criterion(nn.Module):
    """The main loss of an output, plus the auxiliary loss of the model's latest forward. See `Branches.criterion`."""

    # `Any`: `Branches` imports this file. Without `loss_fn` the caller passes the main loss to `add`.
    def __init__(self, branches: Any, loss_fn: Callable[..., Tensor] | None = None) -> None:
        super().__init__()
        self.branches, self.loss_fn = branches, loss_fn
        self._latest: tuple[dict[str, Tensor], Tensor, Mapping[str, Tensor] | None] | None = None

    def forward(self, output: Any, target: Tensor) -> Tensor:
        """The loss of an output of the model, or of what `WithBranches` returned."""
        logits = None
        if isinstance(output, tuple) and len(output) == 2 and isinstance(output[1], dict):
            output, logits = output
        assert self.loss_fn is not None
        main: Tensor = self.loss_fn(output, target)
        self._latest = None
        if not torch.is_grad_enabled() or self.branches.stripped:
            return main
        return self.add(main, target, logits)[0]

    @property
    def parts(self) -> dict[str, Tensor]:
        """The losses of the latest call by name, for a log. Losses by layer are computed on reading.

        Read it before the optimizer's step. Empty if the call had no auxiliary loss.
        """
        if self._latest is None or self.branches.stripped:
            return {}
        losses, target, logits = self._latest
        with torch.no_grad():
            by_layer = self.branches.losses(target, logits=logits)
        return losses | {f"auxiliary_loss/{layer}": loss for layer, loss in by_layer.items()}

    def add(
        self, main: Tensor, target: Tensor, logits: Mapping[str, Tensor] | None = None, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The sum of a main loss and its auxiliary loss, and the auxiliary loss alone.

        If `main` is this batch's part of a mean over several batches, `weight` is the batch's share in that mean.
        """
        apart = logits is None and ranks() > 1  # each rank has gradients of its own for the branches
        if apart:
            logits = self.branches.all_logits()
        mean = main if weight is None else main / weight
        auxiliary: Tensor = self.branches.loss(target, logits=logits, main=mean)
        detached_logits = None if logits is None else {layer: values.detach() for layer, values in logits.items()}
        self._latest = {"main_loss": mean.detach(), "auxiliary_loss": auxiliary.detach()}, target, detached_logits
        if self.branches.schedule is None and self.branches.strength == 0:
            # Adding 0 would give the branches gradients of zeros: decay would act, and clipping would round otherwise.
            return main, auxiliary
        total = main + (auxiliary if weight is None else weight.to(auxiliary.dtype) * auxiliary)
        if apart and total.requires_grad:
            # At the end of the backward that reaches it, after DDP has averaged the model's gradients.
            engine = torch.autograd.Variable._execution_engine
            total.register_hook(lambda _: engine.queue_callback(self._average_gradients))
        return total, auxiliary

    def _average_gradients(self) -> None:
        """Make the branches' gradients equal on all ranks.

        Runs after every backward. Gradients averaged before are equal on all ranks, so accumulation stays correct.
        """
        for value in self.branches.parameters():
            if value.requires_grad:
                # A rank may have skipped the layer, but all ranks must take part in the reduction.
                value.grad = torch.zeros_like(value) if value.grad is None else value.grad
                torch.distributed.all_reduce(value.grad)
                value.grad.div_(ranks())
