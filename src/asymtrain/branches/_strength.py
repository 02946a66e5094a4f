"""How strong the auxiliary losses are beside the main one: a number, or a value that changes while the model trains.

0.5                 the weighted mean over layers counts half as much as the main loss
Falling(0.5)        a function of the progress, 0 to 1, of training: `branches.step(progress)` evaluates it
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import Conv1d, Conv2d, Conv3d

from asymtrain.errors import UsageError


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
        if not isinstance(self.over, Real) or isinstance(self.over, bool) or not 0 < self.over <= 1:
            raise UsageError(f"over is the share of training after which the strength is 0, got {self.over!r}")

    def __call__(self, progress: float) -> float:
        """The strength at a progress from 0 to 1."""
        return self.strength * (1 + math.cos(math.pi * min(progress / self.over, 1.0))) / 2


StrengthRule = float | Callable[[float], float]


class Scheduled(nn.Module):
    """A strength by the progress of training. It is a tensor, so that compiled steps and CUDA graphs see it change."""

    strength: Tensor

    def __init__(self, rule: Callable[[float], float], device: torch.device) -> None:
        super().__init__()
        self.rule = rule
        self.moved = False  # whether anyone has said how far the training is
        self.register_buffer("strength", torch.tensor(_at(rule, 0.0), dtype=torch.float32, device=device))

    def step(self, progress: float) -> None:
        """Evaluate it at a progress from 0 to 1."""
        self.strength.fill_(_at(self.rule, progress))
        self.moved = True

    def of(self, loss: Tensor) -> Tensor:
        """The loss times the strength, which may change before the backward."""
        return loss * self.strength.to(loss.device, loss.dtype, copy=True)


def checked(strength: object, what: str = "strength") -> float:
    """A strength as a float; a `UsageError` where it is no finite number of 0 or more."""
    number = isinstance(strength, Real) and not isinstance(strength, bool)
    if isinstance(strength, Tensor) and strength.numel() == 1 and not strength.is_complex():
        number, strength = True, strength.item()
    if not number or not 0 <= float(strength) < math.inf:  # type: ignore[arg-type]
        raise UsageError(f"{what} must be a finite number of 0 or more, got {strength!r}")
    return float(strength)  # type: ignore[arg-type]


def checked_rule(strength: object) -> StrengthRule:
    """What `attach` was given as a strength, or a `UsageError`."""
    if isinstance(strength, type):
        raise UsageError(f"strength is a class: give an instance of it, such as {strength.__name__}(0.5)")
    if callable(strength):
        return strength
    return checked(strength, "strength (a number, or a function of the progress of training)")


def check_progress(progress: object) -> float:
    """The progress of training as a float from 0 to 1."""
    if not isinstance(progress, Real) or isinstance(progress, bool) or not 0 <= progress <= 1:
        raise UsageError(
            f"progress is the share of training that is over, from 0 to 1, such as step / total_steps: got {progress!r}"
        )
    return float(progress)


def _at(rule: Callable[[float], float], progress: float) -> float:
    return checked(rule(progress), f"the strength at progress {progress:g}")


def convolutional(layers: Mapping[str, nn.Module]) -> str | None:
    """The first layer that holds a convolution over more than one position; None where none does."""
    for name, layer in layers.items():
        kernels = (part.kernel_size for part in layer.modules() if isinstance(part, Conv1d | Conv2d | Conv3d))
        if any(max(size) > 1 for size in kernels):
            return name
    return None
