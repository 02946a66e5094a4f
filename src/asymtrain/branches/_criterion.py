"""`branches.criterion(loss_fn)`: the main and the auxiliary loss as one, for loops that have a criterion."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Criterion(nn.Module):
    """The main loss of an output, plus the auxiliary loss of the model's latest forward. See `Branches.criterion`."""

    def __init__(self, branches: Any, loss_fn: Callable[..., Tensor]) -> None:  # `Branches` itself makes criteria
        super().__init__()
        self.branches, self.loss_fn = branches, loss_fn
        self._latest: tuple[dict[str, Tensor], Tensor, Mapping[str, Tensor] | None] | None = None
        self._apart = False  # whether each rank has gradients of its own for the branches

    def forward(self, output: Any, target: Tensor) -> Tensor:
        """The loss; of what `WithBranches` returned, too."""
        logits = None
        if isinstance(output, tuple) and len(output) == 2 and isinstance(output[1], dict):
            output, logits = output
        main: Tensor = self.loss_fn(output, target)
        self._latest = None
        if not torch.is_grad_enabled() or self.branches.stripped:
            return main
        return self.total(main, self.auxiliary(main, target, logits))

    @property
    def parts(self) -> dict[str, Tensor]:
        """The losses of the latest call by name, for a log. Those by layer are computed when this is read.

        Read it before the optimizer's step. Empty where there was no auxiliary loss.
        """
        if self._latest is None or self.branches.stripped:
            return {}
        named, target, logits = self._latest
        with torch.no_grad():
            by_layer = self.branches.losses(target, logits=logits)
        return named | {f"auxiliary_loss/{layer}": loss for layer, loss in by_layer.items()}

    def auxiliary(self, main: Tensor, target: Tensor, logits: Mapping[str, Tensor] | None = None) -> Tensor:
        """The auxiliary loss that belongs to a main loss."""
        self._apart = logits is None and _ranks() > 1
        if self._apart:
            logits = self.branches.all_logits()
        auxiliary: Tensor = self.branches.loss(target, logits=logits, main=main)
        held = None if logits is None else {layer: values.detach() for layer, values in logits.items()}
        self._latest = {"main_loss": main.detach(), "auxiliary_loss": auxiliary.detach()}, target, held
        return auxiliary

    def total(self, main: Tensor, auxiliary: Tensor) -> Tensor:
        """Their sum. At strength 0 nothing is added: a gradient of zeros would count where gradients are clipped."""
        if self.branches.schedule is None and self.branches.strength == 0:
            return main
        total = main + auxiliary
        if self._apart and total.requires_grad:
            # At the end of the backward that reaches it, when DDP has the model's gradients.
            engine = torch.autograd.Variable._execution_engine
            total.register_hook(lambda _: engine.queue_callback(self._average_gradients))
        return total

    def _average_gradients(self) -> None:
        """Make the branches' gradients equal on all ranks.

        After every backward: the mean of what was averaged before stays what it was, so accumulation needs no care.
        """
        for value in self.branches.parameters():
            if value.requires_grad:
                # A rank may have skipped the layer, and all ranks must take part.
                value.grad = torch.zeros_like(value) if value.grad is None else value.grad
                torch.distributed.all_reduce(value.grad)
                value.grad.div_(_ranks())


def _ranks() -> int:
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if distributed else 1
