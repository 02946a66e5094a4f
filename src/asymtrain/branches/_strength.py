"""The strength of the auxiliary losses beside the main one: a number, or a rule that changes it during training.

0.5                 the weighted mean over layers counts half as much as the main loss
Falling(0.5)        a function of the progress of training, from 0 to 1, which `branches.step(progress)` evaluates
GradientRatio(0.1)  the strength at which the branches' gradient in the model has a tenth of the main gradient's norm
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import Conv1d, Conv2d, Conv3d

from asymtrain.branches._capture import is_sharded, ranks
from asymtrain.errors import UsageError
from asymtrain.objectives import is_number, whole_number


@dataclass(frozen=True)
class Falling:
    """A strength that falls to 0 along half a cosine, over this share of training.

    >>> from asymtrain.branches import Falling
    >>> [round(Falling(0.5, over=0.8)(progress), 3) for progress in (0, 0.4, 0.8, 1)]
    [0.5, 0.25, 0.0, 0.0]
    """

    strength: float
    over: float = 1.0

    def __post_init__(self) -> None:
        checked(self.strength, "the strength of Falling")
        if not is_number(self.over) or not 0 < self.over <= 1:
            raise UsageError(f"over is the share of training after which the strength is 0, got {self.over!r}")

    def __call__(self, progress: float) -> float:
        """The strength at a progress from 0 to 1."""
        return self.strength * (1 + math.cos(math.pi * min(progress / self.over, 1.0))) / 2


@dataclass(frozen=True)
class GradientRatio:
    """A strength that follows the gradients: |branches' gradient| = ratio |main gradient|.

    One optimizer step of `every` measures both, by two further backward passes through the model, over the model's
    parameters that both losses reach. Gradients are summed over the batches that a step accumulates, and over ranks,
    before the norm. The new strength holds from the next step on; the first step only measures.
    Needs `branches.loss(y, main=main)`, and an optimizer of torch.
    """

    ratio: float
    every: int = 16

    def __post_init__(self) -> None:
        checked(self.ratio, "the ratio of GradientRatio")
        object.__setattr__(self, "every", whole_number("every", self.every))


StrengthRule = float | Callable[[float], float] | GradientRatio


class Scheduled(nn.Module):
    """A strength that depends on training progress. It is a tensor, so compiled steps and CUDA graphs see it change."""

    STAYED = (
        "the strength is a function of the progress of training, and branches.step(progress) was never called, so it "
        "stayed what it is at 0: call branches.step(step / total_steps) after each step"
    )
    strength: Tensor

    def __init__(self, rule: Any, device: torch.device) -> None:
        super().__init__()
        self.rule = rule
        self.moved = False  # whether `step` was ever called
        self.register_buffer("strength", torch.tensor(self.at(0.0), dtype=torch.float32, device=device))

    def at(self, progress: float) -> float:
        """The rule's strength at a progress from 0 to 1."""
        return checked(self.rule(progress), f"the strength at progress {progress:g}")

    def step(self, progress: float) -> None:
        """Evaluate it at a progress from 0 to 1."""
        self.strength.fill_(self.at(progress))
        self.moved = True

    def of(self, loss: Tensor) -> Tensor:
        """The loss times the strength, which may change before the backward."""
        return loss * self.strength.to(loss.device, loss.dtype, copy=True)


class Following(Scheduled):
    """A strength from the norms of two gradients. Its state has the number of steps, so that training can resume."""

    STAYED = (
        "the strength follows gradients, and no step of an optimizer of torch.optim was seen, so it stayed 0: give a "
        "number or a function as strength="
    )

    rule: GradientRatio

    def __init__(self, rule: GradientRatio, device: torch.device) -> None:
        super().__init__(rule, device)
        self.steps = 0  # of optimizers
        self.has_loss = False  # whether a loss was taken since the last step
        self.sums: list[_Sum] = []  # of the gradients since the last step: of the main loss, and of the branches

    def at(self, progress: float) -> float:
        """0 at first: the first step only measures."""
        return 0.0

    def step(self, progress: float) -> None:
        """Do nothing: this strength does not depend on progress."""

    def measure(self, main: object, auxiliary: Tensor, model: nn.Module | None) -> None:
        """In a measuring step, add the gradients of both losses of a batch."""
        if not isinstance(main, Tensor) or main.numel() != 1 or not main.requires_grad:
            raise UsageError(
                "strength=GradientRatio(...) follows the main loss, with its graph: call branches.loss(y, main=main)"
            )
        if torch.compiler.is_compiling() or (main.is_cuda and torch.cuda.is_current_stream_capturing()):
            raise UsageError(
                "strength=GradientRatio(...) measures gradients, which a compiled or captured step cannot: compile the "
                "model alone, or give a number or a function as strength="
            )
        self.has_loss = True
        if self.steps % self.rule.every or model is None:
            return
        if any(map(is_sharded, model.modules())):
            raise UsageError("strength=GradientRatio(...) cannot measure a model that FSDP shards: give a number")
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.sums = self.sums or [_Sum(weights), _Sum(weights)]
        mains, others = self.sums
        mains.add(_gradients(main, weights))
        if not auxiliary.requires_grad:
            return  # every layer was skipped here, perhaps not on another rank
        others.add(_gradients(auxiliary, weights))
        if not any(one and other for one, other in zip(mains.reached, others.reached, strict=True)):
            raise UsageError(
                "strength=GradientRatio(...) compares gradients, and no trained parameter of the model gets one from "
                "both losses: give a number as strength="
            )

    @torch.no_grad()
    def after_step(self) -> None:
        """After an optimizer's step: set the strength from what was measured for it."""
        if not self.has_loss:
            return  # the second optimizer of a step, or a step without a loss
        self.steps, self.has_loss, self.moved = self.steps + 1, False, True
        sums, self.sums = self.sums, []
        if not sums:
            return
        mains, others = (part.norms(self.strength.device) for part in sums)
        both = (mains > 0) & (others > 0)  # a compiled model gives zeros for parameters that a loss does not reach
        strength = self.rule.ratio * (mains * both).norm() / (others * both).norm()
        # A gradient of 0 or inf changes nothing. `where`, since reading the value here would stall the step.
        self.strength.copy_(torch.where(strength.isfinite(), strength, self.strength))

    def get_extra_state(self) -> Tensor:
        """The number of steps, as a tensor, which every checkpoint format supports."""
        return torch.tensor(self.steps)

    def set_extra_state(self, state: Tensor) -> None:
        """Continue from a number of steps."""
        self.steps = int(state)


class _Sum:
    """The sum of a loss's gradients over batches, and which parameters they reached."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        # At least float32: a long sum in half precision loses the small terms.
        self.values = [torch.zeros_like(w, dtype=torch.promote_types(w.dtype, torch.float32)) for w in weights]
        self.reached = [False] * len(weights)

    def add(self, gradients: Sequence[Tensor | None]) -> None:
        """Add the gradients of a batch."""
        for index, gradient in enumerate(gradients):
            if gradient is not None:
                self.values[index] += gradient
                self.reached[index] = True

    def norms(self, device: torch.device) -> Tensor:
        """The norm for each parameter (P,), of the sum over all ranks."""
        for value in self.values if ranks() > 1 else ():
            torch.distributed.all_reduce(value)
        return torch.stack([value.norm().to(device, torch.float32) for value in self.values])


def _gradients(loss: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """The gradients by weight; None for weights that the loss does not reach."""
    try:
        return torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        if "donated buffers" not in str(error):
            raise
        raise UsageError(
            "strength=GradientRatio(...) goes backward twice, for which a compiled model has to keep its buffers: set "
            "torch._functorch.config.donated_buffer = False before the first step"
        ) from None


def checked(strength: object, what: str = "strength") -> float:
    """A strength as a float; raises a `UsageError` unless it is a finite number of 0 or more."""
    number = is_number(strength)
    if isinstance(strength, Tensor) and strength.numel() == 1 and not strength.is_complex():
        number, strength = True, strength.item()
    if not number or not 0 <= float(strength) < math.inf:  # type: ignore[arg-type]
        raise UsageError(f"{what} must be a finite number of 0 or more, got {strength!r}")
    return float(strength)  # type: ignore[arg-type]


def checked_rule(strength: object) -> StrengthRule:
    """The `strength` argument of `attach`, validated."""
    if isinstance(strength, type):
        raise UsageError(f"strength is a class: give an instance of it, such as {strength.__name__}(0.5)")
    if isinstance(strength, GradientRatio) or callable(strength):
        return strength
    return checked(strength, "strength (a number, or a function of the progress of training)")


def convolutional(layers: Mapping[str, nn.Module]) -> str | None:
    """The first layer that holds a convolution over more than one position, or None."""
    for name, layer in layers.items():
        kernels = (part.kernel_size for part in layer.modules() if isinstance(part, Conv1d | Conv2d | Conv3d))
        if any(max(size) > 1 for size in kernels):
            return name
    return None
