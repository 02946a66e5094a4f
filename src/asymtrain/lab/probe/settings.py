"""How the short trainings of a probe are done, and one forward of the model with its branches."""

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from asymtrain.branches import Branches, attach
from asymtrain.branches._dry_run import call
from asymtrain.branches._nested import Selector
from asymtrain.errors import UsageError
from asymtrain.lab.probe.batches import Batch
from asymtrain.lab.probe.outputs import Loss, main_loss, read_logits

MOST_SKIPPED = 0.1  # of the steps may have a loss or gradient that is not finite


@dataclass(frozen=True)
class Settings:
    """What the user chose. `branch_options` go to `attach`."""

    classes: int
    loss_fn: Loss | None = None
    logits: Selector | None = None
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None
    learning_rate: float = 1e-3
    autocast: torch.dtype | None = None
    every: int = 5
    branch_options: Mapping[str, Any] = field(default_factory=dict)

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """The user's, or AdamW."""
        if self.optimizer is not None:
            return self.optimizer(parameters)
        return torch.optim.AdamW(parameters, lr=self.learning_rate)

    def attach(self, model: nn.Module, places: list[str], sample: object, seed: int) -> Branches:
        """Branches at the places."""
        return attach(model, places, sample, self.classes, seed=seed, **self.branch_options)

    def precision(self, device: torch.device) -> AbstractContextManager[object]:
        """Autocast where it was asked for."""
        return nullcontext() if self.autocast is None else torch.autocast(device.type, self.autocast)

    def forward(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits (B, C) in float32 and the main loss."""
        with self.precision(batch.targets.device):
            logits = read_logits(call(model, batch.inputs), self.logits)
        logits = logits.float()
        return logits, main_loss(logits, batch.targets, self.loss_fn)


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that training changes."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def refuse_overflow(skipped: int, steps: int, kind: torch.dtype | None) -> None:
    """Refuse to draw conclusions from a training that keeps leaving the finite numbers."""
    if skipped > MOST_SKIPPED * steps:
        cure = "probe in torch.bfloat16 or without autocast" if kind == torch.float16 else "lower the learning rate"
        raise UsageError(
            f"the loss or its gradient was not finite in {skipped} of {steps} steps"
            f"{'' if kind is None else f' under autocast to {kind}'}: {cure}, or check the data"
        )


def finite(loss: Tensor) -> bool:
    """Is the loss a number?"""
    return math.isfinite(float(loss.detach()))
