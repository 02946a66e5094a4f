"""Forwards of the model on the sample that leave no trace, and what was seen in them.

Eval mode, no gradients; afterwards the random state, every buffer and every training flag are as before. The first
forward is on the sample itself. The others are on two of its rows, on half of its length or of its height and width,
and with features of single layers disturbed: experiments that tell which axis of a place's output is what. Where a
place gives several tensors and nobody said which one to read, one more forward, with gradients, tells whether the first
of them has any.
"""

import sys
import warnings
from collections import Counter
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
    LayerCall,
    Sight,
    batch_evidence,
    feature_axis_in,
    feature_axis_of,
    lets_through,
)
from asymtrain.branches._capture import forget_forwards
from asymtrain.branches._nested import Selector, first_feature, named_parts, select, tensors_in
from asymtrain.errors import UsageError, error_line
from asymtrain.streams import random_state_kept


class Watcher:
    """Watches places, and the layers that know which axis holds their features."""

    def __init__(self, selectors: Mapping[str, Selector | None]) -> None:
        self.selectors = selectors
        self.sights: dict[str, Sight] = {}
        self.latest: dict[int, tuple[Axis, Tensor]] = {}  # number of axes -> the last telling layer's tensor
        self.calls: list[LayerCall] = []
        self.counts: Counter[nn.Module] = Counter()

    @contextmanager
    def hooked(self, model: nn.Module, places: Mapping[str, nn.Module]) -> Iterator[None]:
        """Hooks on for the time of the block."""
        with ExitStack() as hooks:
            for module in model.modules():
                if feature_axis_of(module) is not None or isinstance(module, NORMS):
                    hooks.callback(module.register_forward_pre_hook(self._before_layer).remove)
                    hooks.callback(module.register_forward_hook(self._after_layer).remove)
                elif lets_through(module):
                    hooks.callback(module.register_forward_hook(self._after_elements).remove)
            # After the layers' own, so that a place which is a layer is told by itself.
            for name, module in places.items():
                hooks.callback(module.register_forward_hook(partial(self._after_place, name)).remove)
            yield

    def _before_layer(self, layer: nn.Module, args: object) -> None:
        for tensor in tensors_in(args):
            for sight in self.sights.values():
                if sight.feature is tensor:
                    axis = feature_axis_in(layer, tensor)
                    if axis is not None:
                        (sight.by_identity if isinstance(layer, NORMS) else sight.by_taking).add(axis)

    def _after_layer(self, layer: nn.Module, args: object, output: object) -> None:
        self.counts[layer] += 1
        made = first_feature(output)
        axis = None if made is None or made.ndim < 2 else feature_axis_in(layer, made)
        if made is not None and axis is not None:
            self.latest[made.ndim] = (axis, made)
            taken = next(tensors_in(args), None)
            own = None if taken is None or taken.ndim < 2 else feature_axis_in(layer, taken)
            width = None if taken is None or own is None else taken.shape[own]
            self.calls.append(LayerCall(layer, self.counts[layer], axis, made.shape[axis], width))

    def _after_elements(self, layer: nn.Module, args: object, output: object) -> None:
        taken, made = next(tensors_in(args), None), first_feature(output)
        if taken is not None and made is not None and taken.ndim in self.latest:
            axis, told = self.latest[taken.ndim]
            if told is taken:
                self.latest[made.ndim] = (axis, made)

    def _after_place(self, name: str, place: nn.Module, args: object, output: object) -> None:
        feature = select(output, self.selectors[name])
        earlier = self.sights[name].calls if name in self.sights else 0
        sight = self.sights[name] = Sight(output, feature, earlier + 1, before=tuple(self.calls))
        if feature is not None and feature.ndim in self.latest:
            axis, made = self.latest[feature.ndim]
            if made is feature:
                sight.by_identity.add(axis)


def dry_run(
    model: nn.Module,
    places: dict[str, nn.Module],
    sample: object,
    selectors: Mapping[str, Selector | None],
    told: Collection[str],
    *,
    detach: bool = False,
) -> tuple[dict[str, Sight], BatchEvidence]:
    """Call the model on the sample; what was seen of the places that ran, and of the batch.

    Where the layout of a place is not told, the model is also called on small variations of the sample. `detach` says
    that no gradient is to go into the model.
    """
    try:
        inputs = list(tensors_in(sample))
    except RecursionError:
        raise UsageError("`sample` holds itself: give what the training loop gives") from None
    if any(tensor.is_meta for tensor in inputs):
        raise UsageError("`sample` is on the meta device, where tensors have no values: give a batch with values")
    if any(tensor.is_floating_point() and _has_nan(tensor) for tensor in inputs):
        raise UsageError("`sample` contains NaN: give a batch of clean inputs")
    if any(tensor.numel() == 0 for tensor in inputs):
        raise UsageError("`sample` holds an empty tensor: give a batch of at least one input")
    watcher = Watcher(selectors)
    with undisturbed(model):
        try:
            with watcher.hooked(model, places):
                output = call(model, sample)
        except Exception as error:
            with_labels = isinstance(error, TypeError) and isinstance(sample, tuple) and len(sample) == 2
            of_loader = with_labels or isinstance(sample, list | Iterator | torch.utils.data.DataLoader)
            raise UsageError(
                f"the model cannot be called on `sample` ({error_line(error)}): give what the training loop gives, as "
                "a tensor, a tuple of positional arguments or a dict of keyword arguments"
                + ("; of a data loader, the inputs of one batch: x, _ = next(iter(loader))" if of_loader else "")
            ) from error
        sights, batch = watcher.sights, batch_evidence(model, inputs, list(tensors_in(output)))
        several = {
            name: places[name] for name, sight in sights.items() if selectors[name] is None and _many(sight.output)
        }
        if several and not detach and any(parameter.requires_grad for parameter in model.parameters()):
            with attributes_kept(model):
                _note_gradients(model, several, sample, sights)
        asked = {name: places[name] for name, sight in sights.items() if name not in told and _is_dense(sight.feature)}
        if asked and inputs:
            with attributes_kept(model):
                batch = Experiments(model, asked, selectors, Seen(sample, sights, output, watcher.calls)).run(batch)
    return sights, batch


def masked_places(
    model: nn.Module,
    places: Mapping[str, nn.Module],
    selectors: Mapping[str, Selector | None],
    sights: dict[str, Sight],
    sample: Mapping[str, object],
    mask: str,
) -> dict[str, bool | None]:
    """Of each place, whether its positions are those that the argument `mask` is about; None where nothing shows it.

    The mask gets another length, and so do the inputs that must be as long as it. A place has these positions if its
    own length changes with theirs.
    """
    experiments = Experiments(model, places, selectors, Seen(sample, sights, None, ()))
    with undisturbed(model), attributes_kept(model):
        seen = experiments.resize_masked(sample.get(mask))
    followed = {
        name: {
            None if (part := each.feature(name)) is None else bool(_changed(sights[name].feature, part))
            for each in seen
        }
        for name in places
    }
    return {name: told.pop() if len(told) == 1 else None for name, told in followed.items()}


def blind_tokens(
    model: nn.Module,
    places: Mapping[str, nn.Module],
    selectors: Mapping[str, Selector | None],
    sights: dict[str, Sight],
    sample: object,
    axes: Mapping[str, int],
) -> list[str]:
    """The places whose first position sees no other, while the last sees the first: those of causal models.

    `axes` are those of their positions.
    """
    if not axes:
        return []
    full = Seen(sample, sights, None, ())
    experiments = Experiments(model, places, selectors, full)
    with undisturbed(model), attributes_kept(model):
        later = experiments._call(full, partial(_overwritten, slice(1, None), 0), 0, 0)
        first = experiments._call(full, partial(_overwritten, slice(0, 1), 1), 0, 0)

    def same(name: str, seen: Seen | None, position: int) -> bool | None:
        one, other = full.feature(name), None if seen is None else seen.feature(name)
        if one is None or other is None or one.shape != other.shape or torch.equal(one, other):
            return None
        return torch.equal(one.select(axes[name], position), other.select(axes[name], position))

    return [name for name in axes if same(name, later, 0) is True and same(name, first, -1) is False]


def _overwritten(where: slice, by: int, tensor: Tensor) -> Tensor:
    """Sequences with positions overwritten by one of them."""
    if tensor.ndim not in (2, 3) or tensor.size(1) < 3:
        return tensor
    other = tensor.clone()
    other[:, where] = tensor[:, by : by + 1]
    return other


def _many(output: object) -> bool:
    return sum(tensor.is_floating_point() for tensor in tensors_in(output)) > 1


def _note_gradients(
    model: nn.Module, places: Mapping[str, nn.Module], sample: object, sights: Mapping[str, Sight]
) -> None:
    """Note in the sights where the first of several tensors has no gradient, and others have; a failure tells nothing.

    Where all are frozen, none has any.
    """

    def look(name: str, place: nn.Module, args: object, output: object) -> None:
        first, sight = first_feature(output), sights[name]
        sight.passed_by = None  # of several calls the last counts
        floats = [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]
        if first is not None and not first.requires_grad and any(tensor.requires_grad for tensor in floats):
            by_name = {part: first_feature(value) for part, value in named_parts(output).items()}
            own = next((part for part, feature in by_name.items() if feature is first), None)
            others = [part for part, feature in by_name.items() if feature is not None and feature.requires_grad]
            sight.passed_by = own, tuple(others)

    try:
        with ExitStack() as hooks, warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            for name, module in places.items():
                hooks.callback(module.register_forward_hook(partial(look, name)).remove)
            # What a backward would need is not kept: there is none.
            hooks.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda _: None, lambda _: torch.empty(0)))
            call(model, sample)
    except Exception:  # as where a model changes a weight in its forward
        pass
    forget_forwards(model)  # those of branches that are there already, which must not take this one for the loop's


def _is_dense(feature: Tensor | None) -> bool:
    return feature is not None and not feature.is_nested and feature.layout is torch.strided and not feature.is_meta


@dataclass(frozen=True)
class Seen:
    """A call of the model: what it was called on, and what came of it."""

    sample: object
    sights: dict[str, Sight]
    output: object
    calls: Sequence[LayerCall]

    def feature(self, place: str) -> Tensor | None:
        """What the place gave, where it ran and gave a tensor whose axes have sizes."""
        feature = self.sights[place].feature if place in self.sights else None
        return feature if _is_dense(feature) else None


class _EnoughError(Exception):
    """Ends a forward whose rest nobody needs."""


class Experiments:
    """What calls on variations of the sample tell about the axes at the places whose layout is asked for.

    A call that fails tells nothing: a model may take inputs of one size only. The results are noted in the sights of
    the first call, `full`.
    """

    def __init__(
        self, model: nn.Module, places: Mapping[str, nn.Module], selectors: Mapping[str, Selector | None], full: Seen
    ) -> None:
        self.model, self.places, self.selectors, self.full = model, places, selectors, full
        self.clean: dict[str, tuple[Tensor, object]] = {}  # of places, before anything is disturbed

    def run(self, batch: BatchEvidence) -> BatchEvidence:
        """All of them; the batch's evidence with what they tell of it."""
        inputs = [tensor for tensor in tensors_in(self.full.sample) if tensor.ndim > 0]
        if not inputs:
            return batch
        size = inputs[0].size(0)
        rows = _other_rows(size)
        fewer = self._call(self.full, partial(_pick, 0, size, rows), size, len(rows))
        base = fewer or self.full
        images = [tensor for tensor in tensors_in(base.sample) if tensor.ndim >= 4 and not tensor.is_nested]
        kept: list[int] = []
        if images:
            smaller = self._halved(base, images[0].shape[-2:])
        else:
            smaller, kept = self._shorter(base)

        rows_follow = fewer is not None and _outputs_follow(self.full.output, fewer.output, size, rows)
        # A model that treats every token alone has two axes that look like a batch.
        tokens_follow = smaller is not None and bool(kept) and _outputs_follow(base.output, smaller.output, None, kept)
        for name in self.places:
            sight = self.full.sights[name]
            feature, part = sight.feature, base.feature(name)
            half = None if smaller is None else smaller.feature(name)
            row_axis = _following(feature, part, size, rows) if rows_follow else None
            half_axis = _following(part, half, None, kept) if tokens_follow else None
            sight.resized = _changed(part, half)
            if row_axis is not None and half_axis is None:
                sight.batch_axis = row_axis
            elif row_axis is None and half_axis is not None and batch.batch_first == {False}:
                # The sample is (T, B, ...), as sequence layers are by default; what was varied first is the time.
                sight.batch_axis, sight.resized = half_axis, _changed(feature, part)
            sight.resized -= {sight.batch_axis}
            if rows_follow and not tokens_follow and part is not None:
                whole = all(tensor.size(0) == size for tensor in inputs)
                sight.rows = row_axis is not None if whole or row_axis is not None else None
        self._trace(base)
        self._ask_siblings()
        return replace(batch, rows=size) if rows_follow and not tokens_follow else batch

    def _shorter(self, base: Seen) -> tuple[Seen | None, list[int]]:
        """A call on half of the sample's second axis, else of its third, and what is kept of the second.

        Kept in reverse: so it shows whether a token's place or its neighbours matter.
        """
        inputs = [tensor for tensor in tensors_in(base.sample) if not tensor.is_nested]
        for axis in (1, 2):
            length = next((tensor.size(axis) for tensor in inputs if tensor.ndim > axis), 1)
            half = list(range(length - 1, length // 2 - 1, -1))
            if length > 1:
                seen = self._call(base, partial(_pick, axis, length, half), length, len(half))
                if seen is not None:
                    return seen, half if axis == 1 else []
        return None, []

    def _halved(self, base: Seen, size: Sequence[int]) -> Seen | None:
        """A call on a quarter of every image."""
        height, width = size
        if min(height, width) < 2:
            return None

        def crop(tensor: Tensor) -> Tensor:
            fits = tensor.ndim > 2 and tensor.shape[-2:] == (height, width)
            return tensor[..., : height // 2, : width // 2] if fits else tensor

        return self._call(base, crop, height, height // 2)

    def _call(self, base: Seen, change: Callable[[Tensor], Tensor], size: int, less: int) -> Seen | None:
        watcher = Watcher(self.selectors)
        try:
            sample = _mapped(base.sample, change)
            for old, new in zip(tensors_in(base.sample), tensors_in(sample), strict=True):
                # An index beyond the end is an error on a CPU, and on a GPU the end of the process's work there.
                numbers = old is new and not old.is_floating_point() and old.device.type != "cpu"
                if numbers and less <= int(old.max()) < size:
                    return None
            with warnings.catch_warnings(), watcher.hooked(self.model, self.places):
                warnings.simplefilter("ignore")
                output = call(self.model, sample)
        except Exception:  # whatever a model says of inputs that are not its own
            return None
        return Seen(sample, watcher.sights, output, watcher.calls)

    def resize_masked(self, mask: object) -> list[Seen]:
        """Calls with a mask of another length, and as few inputs of that length as the model can be called with."""
        if not isinstance(mask, Tensor) or mask.is_nested or mask.ndim != 2:
            return []
        parts = {id(tensor): tensor for tensor in tensors_in(self.full.sample) if not tensor.is_nested}.values()
        inputs = [tensor for tensor in parts if tensor is not mask and tensor.shape[:2] == mask.shape]
        if len(inputs) > 5:  # there is a call for each set of them
            return []
        every = list(range(mask.shape[1]))

        def resize(kept: list[int], chosen: Collection[Tensor]) -> Seen | None:
            def change(tensor: Tensor) -> Tensor:
                if tensor is not mask and not any(tensor is each for each in chosen):
                    return tensor
                resized = _pick(1, len(every), kept, tensor)
                if tensor is mask:
                    resized[:, -1] = 0  # some models ignore a mask of ones, whatever its length
                return resized

            return self._call(self.full, change, len(every), len(kept))

        # Of two positions one would be left, which is broadcast to any other length.
        shorter = [every[:-1], every[1:]] if len(every) > 2 else []
        lengths = (*shorter, [*every, every[-1]]) if inputs else ()
        kept = next((kept for kept in lengths if resize(kept, inputs)), [])
        for size in range(1, len(inputs) + 1) if kept else ():
            calls = [resize(kept, chosen) for chosen in combinations(inputs, size)]
            if any(calls):
                return [seen for seen in calls if seen]
        return []

    def _trace(self, base: Seen) -> None:
        """Note on which axes the features of the last layers lie, at the places where nothing else tells."""
        shapes, before = {}, {}
        for name in base.sights.keys() & self.places.keys():
            sight = self.full.sights[name]
            assert sight.feature is not None
            shape = tuple(sight.feature.shape)
            known = sight.batch_axis is not None or len(shape) > 3
            if known and len(shape) in (3, 4, 5) and sight.rows is not False and sight.axis(shape) is None:
                shapes[name], before[name] = shape, base.sights[name].before
        if not shapes:
            return
        for positions in (False, True):
            # First by single features; where they are mixed afterwards, as by a norm, by single positions.
            told: dict[str, set[int]] = {name: set() for name in shapes}
            for rank in range(1, 4):
                layers = {name: before[name][-rank] for name in shapes if len(before[name]) >= rank}
                if positions:  # all axes but one are told, so the batch must be known
                    layers = {
                        name: call for name, call in layers.items() if self.full.sights[name].batch_axis is not None
                    }
                for name, moved in self._moved(base, layers, positions).items():
                    others = self._others(name)
                    axes = others - moved if positions else moved
                    fits = not positions or [a for a in others if shapes[name][a] == layers[name].width] == list(axes)
                    if len(axes) == 1 and axes <= others and fits:
                        told[name] |= axes
            for name, axes in told.items():
                if axes:
                    shape = shapes.pop(name)
                    agreed = len(axes) == 1 and self._unrivalled(base, name, axes, shape)
                    self.full.sights[name].traced = axes.pop() if agreed else None

    def _ask_siblings(self) -> None:
        """Let a place about which nothing tells be read as others of its class and shape, which agree.

        A last block has nothing behind it that takes its output, as earlier ones have. Sizes that differ from axis to
        axis make sure that it does not give the same with axes exchanged; containers of torch may hold anything.
        """
        alike: dict[tuple[type, torch.Size, int], list[Sight]] = {}
        for name, place in self.places.items():
            sight = self.full.sights[name]
            assert sight.feature is not None
            others = [size for axis, size in enumerate(sight.feature.shape) if axis != sight.batch_axis]
            if sight.batch_axis is not None and len(set(others)) == len(others) and not _is_of_torch(place):
                alike.setdefault((type(place), sight.feature.shape, sight.batch_axis), []).append(sight)
        for (_, shape, _), sights in alike.items():
            told = {sight.axis(shape) for sight in sights} - {None}
            for sight in sights:
                if (
                    len(told) == 1
                    and sight.axis(shape) is None
                    and {axis % len(shape) for axis in sight.by_taking} <= told
                ):
                    sight.traced = next(iter(told))

    def _others(self, name: str) -> set[int]:
        """The axes that are not the batch."""
        sight = self.full.sights[name]
        assert sight.feature is not None
        return set(range(sight.feature.ndim)) - {sight.batch_axis or 0}

    def _unrivalled(self, base: Seen, name: str, axes: set[int], shape: tuple[int, ...]) -> bool:
        """Whether no layer has its features on another axis: tokens that a layer mixes are its features too."""
        sizes = {shape[axis] for axis in self._others(name) - axes}
        before = base.sights[name].before
        if any(call.taken in sizes for call in base.calls[len(before) :]):
            return False
        rivals = [call for call in before if call.width in sizes]
        return len(rivals) <= 8 and all(self._moved(base, {name: call})[name] <= axes for call in rivals)

    def _moved(self, base: Seen, layers: Mapping[str, LayerCall], positions: bool = False) -> dict[str, set[int]]:
        """For each place, the axes on which its output changes in one index where one of a layer is disturbed."""
        if not layers:
            return {}
        if not self.clean.keys() >= layers.keys():
            self.clean = self._disturbed(base, layers, {}, positions, 0)
        clean = {name: self.clean[name] for name in layers if name in self.clean}
        first, last = (self._disturbed(base, layers, clean, positions, end) for end in (0, -1))
        return {
            name: _moved_axes([outputs[name][0] for outputs in (clean, first, last) if name in outputs])
            for name in layers
        }

    def _disturbed(
        self,
        base: Seen,
        layers: Mapping[str, LayerCall],
        clean: Mapping[str, tuple[Tensor, object]],
        positions: bool,
        end: int,
    ) -> dict[str, tuple[Tensor, object]]:
        """The places' features and outputs where the layer of each is disturbed in its first or last index.

        Without clean outputs, nothing is. With them, each place gives its clean output to the rest of the model, so
        that one forward serves all places.
        """
        counts: Counter[object] = Counter()
        outputs: dict[str, tuple[Tensor, object]] = {}
        wanted = set(layers.values())

        def disturb(layer: nn.Module, args: object, output: object) -> object:
            counts[layer] += 1
            made = output[0] if type(output) is tuple else output
            call = next((call for call in wanted if call.layer is layer and call.number == counts[layer]), None)
            if call is None or not isinstance(made, Tensor):
                return output
            own = call.axis % made.ndim
            index: list[int | slice] = [slice(None)] * made.ndim
            for axis in range(1, made.ndim):
                if (axis != own) == positions:
                    index[axis] = end
            made = made.clone()
            made[tuple(index)] += 1e3 * (1 + made.abs().amax())  # seen behind a layer scale of 1e-6 too
            return (made, *output[1:]) if type(output) is tuple else made

        def keep(name: str, place: nn.Module, args: object, output: object) -> object:
            counts[name] += 1
            feature = select(output, self.selectors[name])
            if counts[name] != base.sights[name].calls or feature is None:
                return output
            outputs[name] = feature.clone(), _mapped(output, Tensor.clone)
            if len(outputs) == len(clean or layers):
                raise _EnoughError
            nested = any(other not in outputs and layers[other] == layers[name] for other in layers)
            whole = isinstance(output, Tensor) or type(output) in (tuple, list)
            return _mapped(clean[name][1], Tensor.clone) if name in clean and whole and not nested else output

        try:
            with ExitStack() as hooks, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for layer in {call.layer for call in wanted} if clean else ():
                    hooks.callback(layer.register_forward_hook(disturb).remove)
                for name in layers:
                    hooks.callback(self.places[name].register_forward_hook(partial(keep, name)).remove)
                call(self.model, base.sample)
        except Exception:  # the end that was asked for, or whatever a model says of such values
            pass
        return outputs


def _is_of_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.")


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


def _pick(axis: int, size: int, kept: list[int], tensor: Tensor) -> Tensor:
    """These indices of an axis, in a tensor that has this size there."""
    if tensor.ndim <= axis or tensor.size(axis) != size:
        return tensor
    return tensor.index_select(axis, torch.tensor(kept, device=tensor.device))


def _other_rows(size: int) -> list[int]:
    """Another number of rows in another order, cheap to compute; never one, which some models squeeze away."""
    return {1: [0, 0], 2: [1, 0, 1]}.get(size, [size - 1, 0])


def _changed(first: Tensor | None, second: Tensor | None) -> frozenset[int]:
    """The axes of which the sizes differ."""
    if first is None or second is None or first.ndim != second.ndim:
        return frozenset()
    return frozenset(axis for axis in range(first.ndim) if first.shape[axis] != second.shape[axis])


def _following(full: Tensor | None, part: Tensor | None, size: int | None, kept: list[int]) -> int | None:
    """The axis of which `part` has the kept indices, and all else of `full`."""
    changed = _changed(full, part)
    if len(changed) != 1 or full is None or part is None:
        return None
    (axis,) = changed
    if part.shape[axis] != len(kept) or full.shape[axis] != (size or max(kept) + 1):
        return None
    return axis if _close(_pick(axis, full.shape[axis], kept, full), part) else None


def _outputs_follow(full: object, part: object, size: int | None, kept: list[int]) -> bool:
    """Whether the first tensor of the model's output that changes its shape has the kept indices on an axis."""
    pairs = zip(filter(_is_dense, tensors_in(full)), filter(_is_dense, tensors_in(part)), strict=False)
    first = next(((one, other) for one, other in pairs if one.shape != other.shape), None)
    return first is not None and _following(*first, size, kept) is not None


def _close(first: Tensor, second: Tensor) -> bool:
    """Equal but for rounding, which differs between sizes of a batch and is coarse in half precision and in TF32."""
    if not first.is_floating_point():
        return torch.equal(first, second)
    tolerance = max(torch.finfo(first.dtype).eps, 1e-5) ** 0.5
    kind = torch.promote_types(first.dtype, torch.float32)
    finite = first.isfinite() & second.isfinite()
    if not torch.equal(finite, first.isfinite() | second.isfinite()):
        return False
    first, second = (torch.where(finite, tensor, 0).to(kind) for tensor in (first, second))
    return bool((first - second).abs().amax() <= tolerance * first.abs().amax())


def _moved_axes(features: Sequence[Tensor]) -> set[int]:
    """The axes on which two disturbances of the first feature are each confined to one index, and not to the same."""
    if len(features) != 3 or len({feature.shape for feature in features}) != 1:
        return set()
    clean = features[0]
    masks = [~((clean == other) | (clean.isnan() & other.isnan())) for other in features[1:]]
    axes = set()
    for axis in range(clean.ndim):
        indices = [mask.movedim(axis, 0).flatten(1).any(1).nonzero().flatten().tolist() for mask in masks]
        if all(len(changed) == 1 for changed in indices) and indices[0] != indices[1]:
            axes.add(axis)
    return axes


def _has_nan(tensor: Tensor) -> bool:
    try:
        return bool((tensor.values() if tensor.is_nested else tensor).isnan().any())
    except RuntimeError:  # of a layout or type in which torch cannot ask; the model may take it
        return False


def call(model: nn.Module, sample: object) -> object:
    """The model's output: a tuple is positional arguments, a dict keyword arguments, all else one argument."""
    if type(sample) is tuple:
        return model(*sample)
    if isinstance(sample, Mapping):
        return model(**sample)
    return model(sample)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; flags, buffers and random states are put back."""
    training = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    with ExitStack() as stack:
        stack.enter_context(random_state_kept())
        for device in {tensor.device for tensor in (*model.parameters(), *model.buffers())}:
            if device.type not in ("cpu", "cuda", "meta"):
                stack.enter_context(torch.random.fork_rng([device.index or 0], device_type=device.type))
        stack.enter_context(torch.no_grad())
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and loading it takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        model.eval()
        for _, name, buffer, _ in buffers:
            # Quantisation-aware modules measure their ranges in eval mode too, and round by them: two calls differ.
            if name in ("observer_enabled", "fake_quant_enabled"):
                buffer.zero_()
        try:
            yield
        finally:
            for module, was in training:
                module.training = was
            for module, name, buffer, content in buffers:
                module._buffers[name] = buffer
                if buffer.requires_grad and not content.requires_grad:
                    buffer.detach_()  # a forward with gradients wrote into it
                if _equal(buffer, content):
                    continue
                if not buffer.is_nested and buffer.shape != content.shape:
                    buffer.data = content  # observers resize theirs
                else:
                    buffer.copy_(content)


@contextmanager
def attributes_kept(model: nn.Module) -> Iterator[None]:
    """Put back what modules assign to themselves: an experiment's input must not stay behind in a cache."""
    before = [(vars(module), dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for attributes, earlier in before:
            attributes.clear()
            attributes.update(earlier)


def _equal(first: Tensor, second: Tensor) -> bool:
    try:
        return torch.equal(first, second)
    except (RuntimeError, AttributeError):  # nested and some sparse tensors cannot be compared
        return False
