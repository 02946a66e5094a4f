"""The branches of one place: how they begin, which of them is live, their logits, and the logits' loss and accuracy.

Axis letters: B batch, N branches at a place, C classes, D width of a place.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain._moved import renamed_arguments
from asymtrain.errors import UsageError
from asymtrain.objectives import ClassReduction, check_targets, sigmoid_loss
from asymtrain.streams import bits, generator, key

Initialization = Literal["independent", "sequence"]
Activation = Literal["last", "all", "random", "cycle"]
BranchReduction = Literal["sum", "mean"]
LossFn = Callable[[Tensor, Tensor], Tensor]


@renamed_arguments(draw="initialization")
def draw_branches(
    seed: int, widths: Sequence[int], classes: int, redundancy: int, initialization: Initialization
) -> list[Tensor]:
    """Initial weights: for each width D a float32 CPU tensor (N, C, D), each branch orthogonal.

    - "independent": a branch is keyed by its place and its distance from the last branch, so the last one is
      the same for every redundancy.
    - "sequence": one generator draws branch 0 to N-1 of the first place, then of the next, as a plain loop
      over `nn.Linear` layers would. The last branch then depends on the redundancy.

    The global random state is not touched, and the draw is on the CPU whatever device the model is on.
    """
    stream = generator(seed, "branches in sequence")
    drawn = []
    for place, width in enumerate(widths):
        # Named, since torch's default device and type are the user's to change.
        weights_NCD = torch.empty(redundancy, classes, width, device="cpu", dtype=torch.float32)
        for index, weight_CD in enumerate(weights_NCD):
            if initialization == "independent":
                stream = generator(seed, f"branch {redundancy - 1 - index} from last at place {place}")
            nn.init.orthogonal_(weight_CD, generator=stream)
        drawn.append(weights_NCD)
    return drawn


def choice_key(seed: int, place: int) -> int:
    """The key under which a place draws its live branch."""
    return key(seed, f"live branch at place {place}")


def choose_branch(activation: Activation, place_key: int | Tensor, step: Tensor, redundancy: int) -> Tensor:
    """Index of the live branch in training forward number `step` (from 0), as an integer tensor like `step`.

    "cycle" takes the branches in turn, the same one at every place; "random" draws one for each place and step.
    A function of its arguments alone: ranks with the same step agree without talking.
    """
    if activation == "cycle":
        return step % redundancy
    # The sign bit is dropped: the remainder must not be negative.
    keys = place_key if isinstance(place_key, Tensor) else torch.full_like(step, place_key)
    return (bits(keys, step) & (2**63 - 1)) % redundancy


class Head(nn.Module):
    """N linear maps from D features to C classes, without bias unless one is given.

    What can be live is a parameter, the rest a buffer: an optimizer, DDP's reducer and autograd meet live
    weights only.

    | activation | `live` | `idle` |
    |---|---|---|
    | last | (C, D), the last branch | (N-1, C, D) |
    | all, random, cycle | (N, C, D) | none |

    `bias` is (C,) or (N, C), like the live weights; idle branches have none.
    """

    live: nn.Parameter
    idle: Tensor | None
    bias: nn.Parameter | None

    def __init__(
        self, weights_NCD: Tensor, activation: Activation, bias_C: Tensor | None, seed: int, place: int
    ) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.redundancy = len(weights_NCD)
        self.place_key = choice_key(seed, place)
        last = activation == "last"
        self.live = nn.Parameter(weights_NCD[-1].clone() if last else weights_NCD.clone())
        self.register_buffer("idle", weights_NCD[:-1].clone() if last and self.redundancy > 1 else None)
        shape = self.live.shape[:-1]
        self.bias = None if bias_C is None else nn.Parameter(bias_C.to(self.live.dtype).expand(shape).clone())

    @property
    def weights(self) -> Tensor:
        """All branches (N, C, D), live and idle."""
        live = self.live.detach()
        if self.activation != "last":
            return live
        return live[None] if self.idle is None else torch.cat([self.idle, live[None]])

    @property
    def width(self) -> int:
        """The number of features, D."""
        return self.live.shape[-1]

    def extra_repr(self) -> str:
        """Features, classes and number of branches."""
        return f"{self.width} features to {self.live.shape[-2]} classes, {self.redundancy} branches"

    def forward(self, feature_BD: Tensor, step: Tensor | None) -> Tensor:
        """Logits (B, C) of the live branch; (N, B, C) where all are live."""
        weight: Tensor = self.live
        bias: Tensor | None = self.bias
        if self.activation in ("random", "cycle"):
            assert step is not None
            # An index tensor, not a Python number: a compiled graph must not be rebuilt for every choice.
            index = choose_branch(self.activation, self.place_key, step, self.redundancy).reshape(1)
            weight = weight.index_select(0, index).squeeze(0)
            bias = None if bias is None else bias.index_select(0, index).squeeze(0)
        device = weight.device.type
        # torch 2.11 cannot trace the question; what is compiled is on a device that has autocast.
        has_autocast = torch.compiler.is_compiling() or torch.amp.is_autocast_available(device)
        # In the weights' own precision, so that the loss is the same inside and outside autocast.
        with torch.autocast(device, enabled=False) if has_autocast else nullcontext():
            # One product for all branches that are live.
            rows = F.linear(
                feature_BD.to(weight.dtype), weight.flatten(0, -2), None if bias is None else bias.flatten()
            )
        return rows.unflatten(-1, weight.shape[:2]).transpose(0, 1) if weight.ndim == 3 else rows


@dataclass(frozen=True)
class Settings:
    """How logits become losses, and what to do about places that did not run."""

    branch_reduction: BranchReduction = "sum"
    class_reduction: ClassReduction = "mean"
    loss_fn: LossFn | None = None
    allow_skipped: bool = False


def place_loss(logits: Tensor, targets: Tensor, settings: Settings, ignore_index: int) -> Tensor:
    """The auxiliary loss of one place; over several live branches the sum or mean of their losses.

    Logits are (B, C), or (N, B, C) where all branches are live.
    """
    if settings.loss_fn is not None:
        branches_NBC = logits if logits.ndim == 3 else logits[None]
        losses = torch.stack([_scalar(settings.loss_fn(logits_BC, targets)) for logits_BC in branches_NBC])
        return losses.sum() if settings.branch_reduction == "sum" else losses.mean()
    targets = as_targets(targets, logits)
    loss = partial(sigmoid_loss, class_reduction=settings.class_reduction, ignore_index=ignore_index)
    if logits.ndim == 2:
        return loss(logits, targets)
    check_targets(logits[0], targets, ignore_index)
    # One call for all branches: the mean over N * B rows is the mean over branches.
    repeated = targets.repeat(len(logits), *[1] * (targets.ndim - 1))
    mean = loss(logits.flatten(0, 1), repeated)
    return mean * len(logits) if settings.branch_reduction == "sum" else mean


def place_accuracy(logits: Tensor, targets: Tensor, ignore_index: int) -> Tensor:
    """The share of right answers; over several live branches the mean of their shares.

    With class indices (B,) an answer is the largest logit. With a value for each class (B, C) it is the sign of
    every logit against the target above or below one half.
    """
    targets = as_targets(targets, logits)
    check_targets(logits if logits.ndim == 2 else logits[0], targets, ignore_index)
    if targets.ndim == 2:
        return ((logits > 0) == (targets >= 0.5)).to(torch.float32).mean()
    keep = targets != ignore_index
    right = (logits.argmax(-1) == targets) & keep
    return right.to(torch.float32).mean() * (keep.numel() / keep.sum().clamp(min=1))


def _scalar(loss: Tensor) -> Tensor:
    # One value a sample would be summed with the places, and weigh as many times too much as there are samples.
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        kind = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise UsageError(f"loss_fn must return a scalar tensor, got {kind}: take the mean over the batch in it")
    return loss.reshape(())


def as_targets(targets: Tensor, logits: Tensor) -> Tensor:
    """Targets on the logits' device, integers of any width as int64."""
    if not isinstance(targets, Tensor):
        raise UsageError(f"targets must be a tensor, got a {type(targets).__name__}: call torch.as_tensor(targets)")
    integers = not targets.is_floating_point() and targets.dtype != torch.bool and targets.ndim == 1
    return targets.to(logits.device, torch.int64 if integers else targets.dtype)
