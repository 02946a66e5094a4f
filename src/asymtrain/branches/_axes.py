"""The meaning of each axis of a layer's output: from evidence, never from a guess.

A shape alone does not distinguish (B, C, H, W) from (B, H, W, C), nor (B, T, D) from (T, B, D). The layers and two
more calls of the model do.

The batch axis: the model is called again on other rows of the sample. If a layer's output, and the model's, then have
those rows along an axis, that axis is the batch; unless the same holds for the sample's second axis, as in a model
that treats every token alone. If no such call succeeds, the first call decides: the batch comes first in images (four
axes or more) and in an output (B, classes); for three axes with the features last it comes first if that axis has the
batch's size and the next one has not, or if every sequence layer says `batch_first=True`.

The feature axis, strongest first:

1. the layer that made the output tensor (activations and dropout keep their input's layout), or a norm that takes it:
   a convolution has its channels on axis 1, a linear layer its features on the last axis;
2. the only axis that keeps its size when the input is shorter or smaller;
3. the layers that take or make tensors of the same shape, if they agree and no other axis has the size of a layer's
   features.

Contradicting evidence decides nothing. What the evidence does not settle must be given as `layout=`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn
from torch.nn.modules import batchnorm, conv, dropout, instancenorm, pooling

from asymtrain.errors import UsageError

Axis = Literal[1, -1]
Shape = tuple[int, ...]

_POOLS = (pooling._MaxPoolNd, pooling._AvgPoolNd, pooling._AdaptiveMaxPoolNd, pooling._AdaptiveAvgPoolNd)
_CHANNEL_NORMS = (batchnorm._BatchNorm, instancenorm._InstanceNorm, nn.GroupNorm)
NORMS = (*_CHANNEL_NORMS, nn.LayerNorm, nn.RMSNorm)  # their input has features on their axis, whatever layer made it
_FEATURES_FIRST = (conv._ConvNd, *_CHANNEL_NORMS, *_POOLS, nn.PixelShuffle, nn.Upsample)
_FEATURES_LAST = (nn.Linear, nn.Embedding, nn.MultiheadAttention, nn.RNNBase)
_POSITIONS = {2: "", 3: "T", 4: "HW", 5: "THW"}  # by the number of axes


def feature_axis_of(layer: nn.Module) -> Axis | None:
    """The axis on which a layer of torch has its features; None if its type does not say."""
    if isinstance(layer, _FEATURES_FIRST):
        return 1
    if isinstance(layer, _FEATURES_LAST):
        return -1
    # Exact types: libraries derive channels-first norms (LayerNorm2d) from these.
    if type(layer) is nn.LayerNorm or type(layer) is nn.RMSNorm:
        return -1 if len(layer.normalized_shape) == 1 else None
    return None


def feature_axis_in(layer: nn.Module, tensor: Tensor) -> Axis | None:
    """The feature axis of a tensor that a layer takes or gives; None if the layer's type does not say."""
    name, axes = type(layer).__name__, tensor.ndim
    if tensor.is_nested:  # some of its axes have no size
        return None
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm) and feature_axis_of(layer) is None:
        # A derived norm may be channels-first: it counts if its width occurs on one axis only.
        widths = tuple(layer.normalized_shape)
        fitting = [axis for axis in range(1, axes) if (tensor.shape[axis],) == widths]
        if fitting == [axes - 1]:
            return -1
        return 1 if fitting == [1] else None
    # Convolutions and pools also take one sample without a batch axis.
    if isinstance(layer, conv._ConvNd) and axes != len(layer.kernel_size) + 2:
        return None
    if isinstance(layer, _POOLS) and name.endswith(("1d", "2d", "3d")) and axes != int(name[-2]) + 2:
        return None
    if isinstance(layer, nn.PixelShuffle) and axes != 4:
        return None
    return feature_axis_of(layer)


def lets_through(layer: nn.Module) -> bool:
    """Whether a layer of torch is elementwise, so that its output has its input's layout."""
    if isinstance(layer, nn.MultiheadAttention | nn.GLU):
        return False
    return type(layer).__module__ == nn.ReLU.__module__ or isinstance(layer, dropout._DropoutNd | nn.Identity)


@dataclass
class NeighbourEvidence:
    """What torch's layers show in one forward: the feature axes by shape, and the numbers of features."""

    axes: dict[Shape, set[int]] = field(default_factory=dict)
    widths: set[int] = field(default_factory=set)

    def note(self, tensor: Tensor, axis: Axis) -> None:
        """A layer took or made this tensor, with its features on this axis."""
        shape = tuple(tensor.shape)
        self.axes.setdefault(shape, set()).add(axis % len(shape))
        self.widths.add(shape[axis])

    def feature_axes(self, shape: Shape, batch: int | None) -> set[int]:
        """The feature axes of tensors of this shape; none if another axis would fit too."""
        axes = self.axes.get(shape, set())
        rivals = {axis for axis in range(len(shape)) if axis != batch and shape[axis] in self.widths}
        return axes if rivals == axes else set()


@dataclass
class LayerEvidence:
    """One layer's last call, and what other layers and further calls say about the axes of its feature."""

    output: object = None
    feature: Tensor | None = None
    calls: int = 1  # of the layer in one forward
    # If the feature is the first of several and has no gradient while others have one: its selector, and theirs
    passed_by: tuple[int | str | None, tuple[int | str, ...]] | None = None
    by_identity: set[Axis] = field(default_factory=set)  # from the layers that made the tensor, and from norms
    by_taking: set[Axis] = field(default_factory=set)  # from other layers that take it
    neighbours: NeighbourEvidence = field(default_factory=NeighbourEvidence)
    batch_axis: int | None = None  # from further calls
    has_rows: bool | None = None  # whether the output has one row per sample, from further calls
    resized: frozenset[int] = frozenset()  # axes whose size depends on the input's length, or height and width

    def feature_axis(self, shape: Shape) -> int | None:
        """The feature axis, if the evidence decides it."""
        axes, batch = len(shape), self.batch_axis
        if batch is None and axes > 3:
            batch = 0
        candidates = {axis % axes for axis in (self.by_identity | self.by_taking if self.by_identity else ())}
        others = set(range(axes)) - self.resized - {batch}
        if self.resized and batch is not None and len(others) == 1:
            # Layers may contradict each other, for example if a convolution mixes tokens; sizes do not.
            candidates = candidates & others if len(candidates) > 1 else candidates | others
        candidates = candidates or self.neighbours.feature_axes(shape, batch)
        settled = next(iter(candidates)) if len(candidates) == 1 else None
        return None if settled in self.resized or settled == batch else settled


@dataclass(frozen=True)
class BatchEvidence:
    """What the model's inputs and outputs say about the batch."""

    images: frozenset[int]  # first sizes of the inputs with four axes or more
    tables: frozenset[Shape]  # shapes of the outputs with two axes
    batch_first: frozenset[bool]  # the values of `batch_first` in the model's sequence layers
    rows: int | None = None  # of the sample, if a further call shows that they are the batch

    @property
    def size(self) -> int | None:
        """The batch size, if all evidence agrees on one."""
        if self.rows is not None:
            return self.rows
        sizes = self.images | {shape[0] for shape in self.tables}
        return next(iter(sizes)) if len(sizes) == 1 else None

    def comes_first(self, shape: Shape) -> bool:
        """Whether axis 0, not axis 1, of a (?, ?, D) feature is the batch."""
        if self.size is not None:
            # An output table with the feature's first two sizes may also be (T, B).
            is_unambiguous = bool(self.images) or shape[:2] not in self.tables
            if is_unambiguous and shape[0] == self.size and shape[1] != self.size:
                return True
        return self.batch_first == {True}


def batch_evidence(model: nn.Module, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> BatchEvidence:
    """Evidence about the batch from a dry run."""
    flags = (getattr(module, "batch_first", None) for module in model.modules())
    return BatchEvidence(
        images=frozenset(tensor.size(0) for tensor in inputs if tensor.ndim >= 4),
        tables=frozenset(tuple(tensor.shape) for tensor in outputs if tensor.ndim == 2 and not tensor.is_nested),
        batch_first=frozenset(flag for flag in flags if isinstance(flag, bool)),
    )


def infer_layout(layer: str, shape: Shape, evidence: LayerEvidence, batch: BatchEvidence) -> str:
    """The layout of a layer's output; raises a `UsageError` that asks for it if the evidence is not enough."""
    axes = len(shape)
    if axes == 0:
        raise UsageError(
            f"layer {layer!r} gives a single number, which has no row for each sample: choose another module"
        )
    if evidence.has_rows is False or (axes == 2 and evidence.batch_axis is None and batch.size not in (None, shape[0])):
        example = {3: "BTD", 4: "BCHW"}.get(axes, "BD")
        fault = f"for a batch of {batch.size}" if shape[0] != batch.size else "that are not those of the batch"
        raise UsageError(
            f"layer {layer!r} gives {shape[0]} rows {fault}: pass layout={example!r} if there is one target a row, or "
            "a `pool` function that returns one row a sample"
        )
    first = evidence.batch_axis
    if axes == 2:
        first = first or 0
        feature: int | None = 1 - first
    else:
        feature = evidence.feature_axis(shape) if axes > 2 else None
    if first is None and feature is not None:
        # Convolutions have the batch on axis 0. If the features come last, the axis before them may be the batch.
        has_evidence = feature == 1 or (batch.size in (None, shape[0]) and (axes > 3 or batch.comes_first(shape)))
        first = 0 if has_evidence else None
    if first == 0 and feature is None and axes == 3:
        raise UsageError(
            f"layer {layer!r} gives shape {shape}, and axis 1 or axis 2 may hold the features: pass "
            "layout='BTD' (tokens, then features) or 'BCT' (features first, as of 1-d convolutions)"
        )
    if first is None or feature is None or axes not in _POSITIONS:
        raise UsageError(f"layer {layer!r} gives shape {shape}, and {_QUESTIONS.get(axes, _OTHER_QUESTION)}")
    letters = iter(_POSITIONS[axes])
    name = "D" if axes == 2 or (axes == 3 and feature != 1) else "C"
    return "".join("B" if axis == first else name if axis == feature else next(letters) for axis in range(axes))


_QUESTIONS = {
    3: "it is ambiguous which axis is the batch and which the features: pass layout='BTD' (batch, tokens, width), "
    "'TBD' (nn.Transformer's default) or 'BCT' (1-d convolutions)",
    4: "its channels may come first or last: pass layout='BCHW' (convolutions) or 'BHWC' (Swin)",
}
_OTHER_QUESTION = (
    "no rule reads it: pass layout= with a letter for each axis (B batch, C or D features, any other letter a position "
    "to pool over), or a `pool` function from it to (batch, features)"
)
