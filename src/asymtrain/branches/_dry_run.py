"""The dry run: calls the model on the sample and on variations of it, and records what the layers give.

The first forward is on the sample itself. If a layer's layout is not given, two more show the meaning of its axes: on
other rows, and on half of the sample's length or of its height and width. If a layer gives several tensors and no
`output` was chosen, one forward with gradients shows whether the first of them has a gradient. A call that fails shows
nothing: a model may take inputs of one size only. No call has side effects (`_forwards.py`).
"""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from itertools import combinations

import torch
from torch import Tensor, nn

from asymtrain.branches._axes import (
    NORMS,
    Axis,
    BatchEvidence,
    LayerEvidence,
    NeighbourEvidence,
    batch_evidence,
    feature_axis_in,
    feature_axis_of,
    lets_through,
)
from asymtrain.branches._capture import forget_forwards
from asymtrain.branches._forwards import (
    call_model,
    checked_inputs,
    plain_errors,
    preserve_attributes,
    preserve_state,
)
from asymtrain.branches._nested import Selector, first_feature, named_parts, select, tensors_in
from asymtrain.branches._pooling import Reader


class Recorder:
    """Records in one forward what layers give, and what torch's layers show about the axes of their tensors."""

    def __init__(self, selectors: Mapping[str, Selector | None]) -> None:
        self.selectors = selectors
        self.layers: dict[str, LayerEvidence] = {}
        self.neighbours = NeighbourEvidence()
        self.latest: dict[int, tuple[Axis, Tensor]] = {}  # number of axes -> the last tensor with a known feature axis

    @contextmanager
    def hooked(self, model: nn.Module, layers: Mapping[str, nn.Module]) -> Iterator[None]:
        """Hooks on the model, for the duration of the `with` block."""
        with ExitStack() as hooks:
            for module in model.modules():
                if feature_axis_of(module) is not None or isinstance(module, NORMS):
                    hooks.callback(module.register_forward_pre_hook(self._before_module).remove)
                    hooks.callback(module.register_forward_hook(self._after_module).remove)
                elif lets_through(module):
                    hooks.callback(module.register_forward_hook(self._after_elements).remove)
            # After the hooks above: if a layer of torch is itself a layer with branches, they must run first.
            for name, module in layers.items():
                hooks.callback(module.register_forward_hook(partial(self._after_layer, name)).remove)
            yield

    def _before_module(self, module: nn.Module, args: object) -> None:
        for tensor in tensors_in(args):
            axis = self._note(module, tensor)
            for layer in self.layers.values():
                if layer.feature is tensor and axis is not None:
                    (layer.by_identity if isinstance(module, NORMS) else layer.by_taking).add(axis)

    def _after_module(self, module: nn.Module, args: object, output: object) -> None:
        feature = first_feature(output)
        # A table (B, C) is usually the model's output, and classes are not features.
        axis = None if feature is None or feature.ndim < 3 else self._note(module, feature)
        if feature is not None and axis is not None:
            self.latest[feature.ndim] = (axis, feature)

    def _note(self, module: nn.Module, tensor: Tensor) -> Axis | None:
        """The feature axis of a tensor that a layer takes or gives; None if unknown, or if the tensor holds indices."""
        fits = tensor.ndim > 1 and tensor.is_floating_point() and not tensor.is_nested
        axis = feature_axis_in(module, tensor) if fits else None
        if axis is not None:
            self.neighbours.note(tensor, axis)
        return axis

    def _after_elements(self, module: nn.Module, args: object, output: object) -> None:
        source, result = next(tensors_in(args), None), first_feature(output)
        if source is not None and result is not None and source.ndim in self.latest:
            axis, latest = self.latest[source.ndim]
            if latest is source:
                self.latest[result.ndim] = (axis, result)

    def _after_layer(self, name: str, layer: nn.Module, args: object, output: object) -> None:
        feature = select(output, self.selectors[name])
        earlier = self.layers[name].calls if name in self.layers else 0
        evidence = self.layers[name] = LayerEvidence(output, feature, earlier + 1, neighbours=self.neighbours)
        if feature is not None and feature.ndim in self.latest:
            axis, source = self.latest[feature.ndim]
            if source is feature:
                evidence.by_identity.add(axis)


@dataclass(frozen=True)
class Observation:
    """One call of the model: the sample, what the layers that ran gave, and the output."""

    sample: object
    layers: dict[str, LayerEvidence]
    output: object

    def feature(self, layer: str) -> Tensor | None:
        """The layer's feature; None if the layer did not run or gave no dense tensor."""
        feature = self.layers[layer].feature if layer in self.layers else None
        return feature if _is_dense(feature) else None


@dataclass(frozen=True)
class DryRun:
    """The model, its layers, and which part of each layer's output to record, in calls on the sample or variations."""

    model: nn.Module
    layers: Mapping[str, nn.Module]
    selectors: Mapping[str, Selector | None]

    def observe(self, sample: object) -> Observation:
        """Call the model; the caller preserves its state."""
        recorder = Recorder(self.selectors)
        with recorder.hooked(self.model, self.layers):
            output = call_model(self.model, sample)
        return Observation(sample, recorder.layers, output)

    def vary(self, sample: object, change: Callable[[Tensor], Tensor], size: int, less: int) -> Observation | None:
        """Call the model on a changed sample, in which an axis of `size` has `less` indices; None if that fails."""
        try:
            changed = _mapped(sample, change)
            for old, new in zip(tensors_in(sample), tensors_in(changed), strict=True):
                # An index out of range raises an error on a CPU; on a GPU it makes CUDA unusable for the process.
                numbers = old is new and not old.is_floating_point() and old.device.type != "cpu"
                if numbers and less <= int(old.max()) < size:
                    return None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self.observe(changed)
        except Exception:  # models fail in many ways on inputs of another size
            return None


def dry_run(
    run: DryRun, sample: object, settled: Collection[str], *, detach: bool = False
) -> tuple[dict[str, LayerEvidence], BatchEvidence, object]:
    """Call the model on the sample; returns evidence of the layers that ran and of the batch, and the model's output.

    If the layout of a layer is not `settled`, the model is also called on small variations of the sample. With
    `detach` no gradient will go into the model.
    """
    inputs = checked_inputs(sample)
    model, layers, selectors = run.model, run.layers, run.selectors
    with preserve_state(model):
        with plain_errors(sample):
            full = run.observe(sample)
        evidence, batch = full.layers, batch_evidence(model, inputs, list(tensors_in(full.output)))
        several = {
            name: layers[name]
            for name, layer in evidence.items()
            if selectors[name] is None and sum(map(torch.is_floating_point, tensors_in(layer.output))) > 1
        }
        if several and not detach and any(parameter.requires_grad for parameter in model.parameters()):
            with preserve_attributes(model):
                _note_gradients(model, several, sample, evidence)
        open_layers = {
            name: layers[name] for name in evidence if name not in settled and _is_dense(evidence[name].feature)
        }
        if open_layers and inputs:
            with preserve_attributes(model):
                batch = _observe_variations(DryRun(model, open_layers, selectors), full, batch)
    return evidence, batch, full.output


def _observe_variations(run: DryRun, full: Observation, batch: BatchEvidence) -> BatchEvidence:
    """Note which axes follow the sample's rows and which its size; returns the evidence of the batch, updated."""
    inputs = [tensor for tensor in tensors_in(full.sample) if tensor.ndim > 0]
    if not inputs:
        return batch
    size = inputs[0].size(0)
    # Fewer rows (of a sample with at most two: more) in another order; never one row, which some models squeeze away.
    rows = {1: [0, 0], 2: [1, 0, 1]}.get(size, [size - 1, 0])
    fewer = run.vary(full.sample, partial(_pick, 0, size, rows), size, len(rows))
    base = fewer or full
    smaller, positions = _observe_smaller(run, base)
    rows_follow = fewer is not None and _outputs_follow(full.output, fewer.output, size, rows)
    # In a model that treats every token alone two axes look like a batch.
    tokens_follow = (
        smaller is not None and bool(positions) and _outputs_follow(base.output, smaller.output, None, positions)
    )
    for name in run.layers:
        layer = full.layers[name]
        feature, part = layer.feature, base.feature(name)
        half = None if smaller is None else smaller.feature(name)
        row_axis = _following(feature, part, size, rows) if rows_follow else None
        half_axis = _following(part, half, None, positions) if tokens_follow else None
        layer.resized = _changed(part, half)
        if row_axis is not None and half_axis is None:
            layer.batch_axis = row_axis
        elif row_axis is None and half_axis is not None and batch.batch_first == {False}:
            # The sample is (T, B, ...), the default of sequence layers: the first variation changed the time axis.
            layer.batch_axis, layer.resized = half_axis, _changed(feature, part)
        layer.resized -= {layer.batch_axis}
        if rows_follow and not tokens_follow and part is not None:
            whole = all(tensor.size(0) == size for tensor in inputs)
            layer.has_rows = row_axis is not None if whole or row_axis is not None else None
    return replace(batch, rows=size) if rows_follow and not tokens_follow else batch


def _observe_smaller(run: DryRun, base: Observation) -> tuple[Observation | None, list[int]]:
    """A call on a quarter of every image, else on half of the second axis, else of the third.

    Also returns the positions kept on the second axis. They are reversed, to show whether a token's neighbours matter.
    """
    inputs = [tensor for tensor in tensors_in(base.sample) if not tensor.is_nested]
    images = [tensor for tensor in inputs if tensor.ndim >= 4]
    if images:
        height, width = images[0].shape[-2:]

        def crop(tensor: Tensor) -> Tensor:
            fits = tensor.ndim > 2 and tensor.shape[-2:] == (height, width)
            return tensor[..., : height // 2, : width // 2].contiguous() if fits else tensor  # some models call view

        return run.vary(base.sample, crop, height, height // 2) if min(height, width) > 1 else None, []
    for axis in (1, 2):
        length = next((tensor.size(axis) for tensor in inputs if tensor.ndim > axis), 1)
        half = list(range(length - 1, length // 2 - 1, -1))
        evidence = run.vary(base.sample, partial(_pick, axis, length, half), length, len(half)) if length > 1 else None
        if evidence is not None:
            return evidence, half if axis == 1 else []
    return None, []


def masked_layers(
    run: DryRun, shapes: Mapping[str, torch.Size], sample: Mapping[str, object], name: str
) -> dict[str, bool | None]:
    """For each layer, whether its positions are those that the argument `name` masks; None if no call shows it.

    The mask is shortened by one position, and so are as few inputs of its shape as the model then accepts. A layer has
    these positions if its own shape changes.
    """
    mask = sample.get(name)
    if not isinstance(mask, Tensor) or mask.is_nested or mask.ndim != 2:
        return dict.fromkeys(shapes)
    tensors = {id(tensor): tensor for tensor in tensors_in(sample) if not tensor.is_nested}.values()
    inputs = [tensor for tensor in tensors if tensor is not mask and tensor.shape[:2] == mask.shape]
    length = mask.shape[1]
    # A single position would broadcast to any length. Many inputs would need many calls, one for each subset.
    if length < 3 or len(inputs) > 5:
        return dict.fromkeys(shapes)
    shorter = mask[:, 1:].clone()
    shorter[:, -1] = 0  # some models ignore a mask of ones, whatever its length

    def shorten(tensors: Sequence[Tensor], tensor: Tensor) -> Tensor:
        if any(tensor is each for each in tensors):
            return tensor[:, 1:].contiguous()
        return shorter if tensor is mask else tensor

    calls: list[Observation] = []
    with preserve_state(run.model), preserve_attributes(run.model):
        for count in range(1, len(inputs) + 1):
            varied = [
                run.vary(sample, partial(shorten, some), length, length - 1) for some in combinations(inputs, count)
            ]
            if calls := [each for each in varied if each is not None]:
                break
    answers: dict[str, bool | None] = {}
    for layer, shape in shapes.items():
        changed = {None if (part := each.feature(layer)) is None else part.shape != shape for each in calls}
        answers[layer] = changed.pop() if len(changed) == 1 else None
    return answers


def blind_layer(
    run: DryRun, evidence: Mapping[str, LayerEvidence], sample: object, readers: Mapping[str, Reader]
) -> str | None:
    """The first layer whose class token sees no other token while the last token sees it, as in a causal model."""
    axes = {
        name: next(axis for axis, letter in enumerate(reader.layout) if letter not in "BCD")
        for name, reader in readers.items()
        if reader.pool == "class_token" and reader.layout is not None
    }
    if not axes:
        return None

    def overwrite(where: slice, by: int, tensor: Tensor) -> Tensor:
        if tensor.ndim not in (2, 3) or tensor.size(1) < 3:
            return tensor
        other = tensor.clone()
        other[:, where] = tensor[:, by : by + 1]
        return other

    def stays(name: str, position: int, changed: Observation | None) -> bool | None:
        one, other = evidence[name].feature, None if changed is None else changed.feature(name)
        if one is None or other is None or one.shape != other.shape or torch.equal(one, other):
            return None
        return torch.equal(one.select(axes[name], position), other.select(axes[name], position))

    with preserve_state(run.model), preserve_attributes(run.model):
        later = run.vary(sample, partial(overwrite, slice(1, None), 0), 0, 0)
        first = run.vary(sample, partial(overwrite, slice(0, 1), 1), 0, 0)
    return next((name for name in axes if stays(name, 0, later) is True and stays(name, -1, first) is False), None)


def _note_gradients(
    model: nn.Module, layers: Mapping[str, nn.Module], sample: object, evidence_by_layer: Mapping[str, LayerEvidence]
) -> None:
    """Note layers whose first tensor has no gradient while others have one; a failed call shows nothing.

    In a frozen model no tensor has one.
    """

    def look(name: str, layer: nn.Module, args: object, output: object) -> None:
        first, evidence = first_feature(output), evidence_by_layer[name]
        evidence.passed_by = None  # the last of several calls counts
        floats = [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]
        if first is not None and not first.requires_grad and any(tensor.requires_grad for tensor in floats):
            by_name = {part: first_feature(value) for part, value in named_parts(output).items()}
            own = next((part for part, feature in by_name.items() if feature is first), None)
            others = [part for part, feature in by_name.items() if feature is not None and feature.requires_grad]
            evidence.passed_by = own, tuple(others)

    try:
        with ExitStack() as hooks, warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            for name, module in layers.items():
                hooks.callback(module.register_forward_hook(partial(look, name)).remove)
            # There will be no backward, so nothing is saved for it.
            hooks.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda _: None, lambda _: torch.empty(0)))
            call_model(model, sample)
    except Exception:  # for example a model that changes a weight in its forward
        pass
    forget_forwards(model)  # branches that are already attached must not take this forward for the loop's


def _is_dense(feature: Tensor | None) -> bool:
    return feature is not None and not feature.is_nested and feature.layout is torch.strided and not feature.is_meta


def _mapped(value: object, change: Callable[[Tensor], Tensor]) -> object:
    """A copy of nested containers with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(part, change) for key, part in value.items()}
    if isinstance(value, tuple | list):
        parts = [_mapped(part, change) for part in value]
        kind: Callable[..., object] = type(value)
        return kind(*parts) if hasattr(value, "_fields") else kind(parts)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: _mapped(getattr(value, each.name), change) for each in fields(value)})
    return value


def _pick(axis: int, size: int, indices: list[int], tensor: Tensor) -> Tensor:
    """These indices of an axis, in a tensor that has this size there."""
    if tensor.ndim <= axis or tensor.size(axis) != size:
        return tensor
    return tensor.index_select(axis, torch.tensor(indices, device=tensor.device))


def _changed(first: Tensor | None, second: Tensor | None) -> frozenset[int]:
    """The axes whose sizes differ."""
    if first is None or second is None or first.ndim != second.ndim:
        return frozenset()
    return frozenset(axis for axis in range(first.ndim) if first.shape[axis] != second.shape[axis])


def _following(full: Tensor | None, part: Tensor | None, size: int | None, indices: list[int]) -> int | None:
    """The axis along which `part` is `full` at the kept indices."""
    changed = _changed(full, part)
    if len(changed) != 1 or full is None or part is None:
        return None
    (axis,) = changed
    if part.shape[axis] != len(indices) or full.shape[axis] != (size or max(indices) + 1):
        return None
    return axis if _close(_pick(axis, full.shape[axis], indices, full), part) else None


def _outputs_follow(full: object, part: object, size: int | None, indices: list[int]) -> bool:
    """Whether the first output tensor whose shape changes is the full one at the kept indices of an axis."""
    pairs = zip(filter(_is_dense, tensors_in(full)), filter(_is_dense, tensors_in(part)), strict=False)
    first = next(((one, other) for one, other in pairs if one.shape != other.shape), None)
    return first is not None and _following(*first, size, indices) is not None


def _close(first: Tensor, second: Tensor) -> bool:
    """Equal up to rounding, which depends on the batch size and is coarse in half precision and in TF32."""
    if not first.is_floating_point():
        return torch.equal(first, second)
    tolerance = max(torch.finfo(first.dtype).eps, 1e-5) ** 0.5
    kind = torch.promote_types(first.dtype, torch.float32)
    size = float(first.to(kind).nan_to_num(0, 0, 0).abs().amax())
    return torch.allclose(first.to(kind), second.to(kind), rtol=0, atol=tolerance * size, equal_nan=True)
