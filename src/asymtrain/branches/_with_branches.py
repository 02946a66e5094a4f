"""`WithBranches`: model and branches as one module, for DDP and for one compiled graph."""

from typing import Any

from torch import Tensor, nn

from asymtrain.branches._core import Branches
from asymtrain.errors import UsageError


class WithBranches(nn.Module):
    """A model and its branches; calling it gives the model's output and the branches' logits.

        net = DistributedDataParallel(WithBranches(model, branches))
        output, logits = net(x)
        loss = F.cross_entropy(output, y) + alpha * branches.loss(y, logits=logits)

    Branch weights are parameters of this module, so DDP averages their gradients. Its copies and pickles are
    whole: the copy's branches are on the copy's model.
    """

    def __init__(self, model: nn.Module, branches: Branches) -> None:
        super().__init__()
        if not isinstance(branches, Branches) or not branches.connected_to(model):
            raise UsageError("these branches are not on this model: WithBranches(model, attach(model, ...))")
        self.model = model
        self.branches = branches
        # Idle branches are equal on all ranks from the seed and never change; DDP would broadcast them at every step.
        ignored = [f"model.{name}" for name in getattr(model, "_ddp_params_and_buffers_to_ignore", ())]
        ignored += [f"branches.{name}" for name, _ in branches.named_buffers() if name.endswith(".idle")]
        self._ddp_params_and_buffers_to_ignore = ignored

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Tensor]]:
        """The model's output, and the logits of its branches by place."""
        if self.branches.stripped:
            raise UsageError("the branches are stripped: call (and wrap) the model itself from here on")
        output = self.model(*args, **kwargs)
        return output, self.branches.take()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if not self.branches.stripped:
            self.branches.connect(self.model)
