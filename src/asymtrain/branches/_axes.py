"""Which axis of a place's output is what: from evidence, never from a guess.

A shape alone does not tell (B, C, H, W) from (B, H, W, C), nor (B, T, D) from (T, B, D). Layers do: a
convolution has its channels on axis 1, a linear layer its features on the last axis. The evidence for the feature
axis, strongest first:

1. the layer that made the very tensor a place gives (activations and dropout let through what they take), or that
   takes this tensor as input;
2. the last layer that ran before the output was made, where the output has that layer's width on that layer's
   axis and not also on the other one.

The batch comes first in images (four axes or more) and in an output (B, classes). For three axes with the
features last it is known to come first where that axis has the batch's size and the next one has not, or where
every sequence layer of the model says `batch_first=True`. Everything else must be given as `layout=`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn
from torch.nn.modules import batchnorm, conv, dropout, instancenorm, pooling

from asymtrain.errors import UsageError

Axis = Literal[1, -1]
Shape = tuple[int, ...]

_FEATURES_FIRST = (
    conv._ConvNd,
    batchnorm._BatchNorm,
    instancenorm._InstanceNorm,
    nn.GroupNorm,
    pooling._MaxPoolNd,
    pooling._AvgPoolNd,
    pooling._AdaptiveMaxPoolNd,
    pooling._AdaptiveAvgPoolNd,
    nn.PixelShuffle,
    nn.Upsample,
)
_FEATURES_LAST = (nn.Linear, nn.Embedding, nn.MultiheadAttention, nn.RNNBase)
_LAYOUTS: dict[Axis, dict[int, str]] = {  # by the axis of the features and the number of axes
    1: {3: "BCT", 4: "BCHW", 5: "BCTHW"},
    -1: {3: "BTD", 4: "BHWC", 5: "BTHWC"},
}


def feature_axis_of(layer: nn.Module) -> Axis | None:
    """The axis on which a layer of torch has its features; None for a layer that does not tell."""
    if isinstance(layer, _FEATURES_FIRST):
        return 1
    if isinstance(layer, _FEATURES_LAST):
        return -1
    # Exact types: libraries derive channels-first norms (LayerNorm2d) from these.
    if type(layer) is nn.LayerNorm or type(layer) is nn.RMSNorm:
        return -1 if len(layer.normalized_shape) == 1 else None
    return None


def lets_through(layer: nn.Module) -> bool:
    """Whether a layer of torch works element by element, so that its output has its input's layout."""
    if isinstance(layer, nn.MultiheadAttention | nn.GLU):
        return False
    return type(layer).__module__ == nn.ReLU.__module__ or isinstance(layer, dropout._DropoutNd | nn.Identity)


@dataclass
class Sight:
    """What was seen of one place in its last call, and what layers say about its feature's axes."""

    output: object = None
    feature: Tensor | None = None
    by_identity: set[Axis] = field(default_factory=set)  # said by the layers that made or take the tensor
    by_width: tuple[Axis, int] | None = None  # axis and width of the last layer with as many axes

    def axis(self, shape: Shape) -> Axis | None:
        """The feature axis, where the evidence settles it."""
        if self.by_identity:
            return next(iter(self.by_identity)) if len(self.by_identity) == 1 else None
        if self.by_width is None:
            return None
        axis, width = self.by_width
        other = -1 if axis == 1 else 1
        return axis if shape[axis] == width and shape[other] != width else None


@dataclass(frozen=True)
class BatchEvidence:
    """What the model's inputs and outputs say about the batch."""

    images: frozenset[int]  # first sizes of the inputs with four axes or more
    tables: frozenset[Shape]  # shapes of the outputs with two axes
    batch_first: frozenset[bool]  # what the model's sequence layers say

    @property
    def size(self) -> int | None:
        """The batch size, where all evidence agrees on one."""
        sizes = self.images | {shape[0] for shape in self.tables}
        return next(iter(sizes)) if len(sizes) == 1 else None

    def comes_first(self, shape: Shape) -> bool:
        """Whether axis 0, not axis 1, of a (?, ?, D) feature is the batch."""
        if self.size is not None:
            # A table of the feature's own first two sizes may be (T, B) as well.
            told = bool(self.images) or shape[:2] not in self.tables
            if told and shape[0] == self.size and shape[1] != self.size:
                return True
        return self.batch_first == {True}


def batch_evidence(model: nn.Module, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> BatchEvidence:
    """Collect it after a dry run."""
    flags = (getattr(module, "batch_first", None) for module in model.modules())
    return BatchEvidence(
        images=frozenset(tensor.size(0) for tensor in inputs if tensor.ndim >= 4),
        tables=frozenset(tuple(tensor.shape) for tensor in outputs if tensor.ndim == 2 and not tensor.is_nested),
        batch_first=frozenset(flag for flag in flags if isinstance(flag, bool)),
    )


def infer_layout(place: str, shape: Shape, sight: Sight, batch: BatchEvidence) -> str:
    """The layout of a place's output, or a `UsageError` that asks for it."""
    if len(shape) == 2:
        if batch.size not in (None, shape[0]):
            raise UsageError(
                f"place {place!r} gives {shape[0]} rows for a batch of {batch.size}: pass layout='BD' if there is one "
                "target a row, or a `pool` function that returns one row a sample"
            )
        return "BD"
    axis = sight.axis(shape) if len(shape) > 2 else None
    layout = None if axis is None else _LAYOUTS[axis].get(len(shape))
    wrong_batch = axis == -1 and batch.size not in (None, shape[0])
    if layout is None or wrong_batch or (layout == "BTD" and not batch.comes_first(shape)):
        raise UsageError(f"place {place!r} gives shape {shape}, and {_QUESTIONS.get(len(shape), _OTHER_QUESTION)}")
    return layout


_QUESTIONS = {
    3: "which axis is the batch and which the features cannot be told: pass layout='BTD' (batch, tokens, width), "
    "'TBD' (nn.Transformer's default) or 'BCT' (1-d convolutions)",
    4: "whether its channels come first or last cannot be told: pass layout='BCHW' (convolutions) or 'BHWC' (Swin)",
}
_OTHER_QUESTION = (
    "no rule reads it: pass layout= with a letter for each axis (B batch, C or D features, any other letter a position "
    "to pool over), or a `pool` function from it to (batch, features)"
)
