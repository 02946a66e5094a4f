"""One forward of the model on the sample that leaves no trace, and what was seen in it.

Eval mode, no gradients; afterwards the random state, every buffer and every training flag are as before.
"""

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from asymtrain.branches._axes import Axis, BatchEvidence, Sight, batch_evidence, feature_axis_of, lets_through
from asymtrain.branches._nested import Selector, first_feature, select, tensors_in
from asymtrain.errors import UsageError, error_line


class Watcher:
    """Watches places, and the layers that know which axis holds their features."""

    def __init__(self, selectors: Mapping[str, Selector | None]) -> None:
        self.selectors = selectors
        self.sights: dict[str, Sight] = {}
        self.latest: dict[int, tuple[Axis, Tensor]] = {}  # number of axes -> the last telling layer's tensor

    @contextmanager
    def hooked(self, model: nn.Module, places: Mapping[str, nn.Module]) -> Iterator[None]:
        """Hooks on for the time of the block."""
        with ExitStack() as hooks:
            for module in model.modules():
                axis = feature_axis_of(module)
                if axis is not None:
                    hooks.callback(module.register_forward_pre_hook(partial(self._before_layer, axis)).remove)
                    hooks.callback(module.register_forward_hook(partial(self._after_layer, axis)).remove)
                elif lets_through(module):
                    hooks.callback(module.register_forward_hook(self._after_elements).remove)
            # After the layers' own, so that a place which is a layer is told by itself.
            for name, module in places.items():
                hooks.callback(module.register_forward_hook(partial(self._after_place, name)).remove)
            yield

    def _before_layer(self, axis: Axis, layer: nn.Module, args: object) -> None:
        for tensor in tensors_in(args):
            for sight in self.sights.values():
                if sight.feature is tensor:
                    sight.by_identity.add(axis)

    def _after_layer(self, axis: Axis, layer: nn.Module, args: object, output: object) -> None:
        made = first_feature(output)
        if made is not None and made.ndim >= 2 and not made.is_nested:
            self.latest[made.ndim] = (axis, made)

    def _after_elements(self, layer: nn.Module, args: object, output: object) -> None:
        taken, made = next(tensors_in(args), None), first_feature(output)
        if taken is not None and made is not None and taken.ndim in self.latest:
            axis, told = self.latest[taken.ndim]
            if told is taken:
                self.latest[made.ndim] = (axis, made)

    def _after_place(self, name: str, place: nn.Module, args: object, output: object) -> None:
        feature = select(output, self.selectors[name])
        sight = self.sights[name] = Sight(output, feature)
        if feature is not None and feature.ndim in self.latest:
            axis, made = self.latest[feature.ndim]
            if made is feature:
                sight.by_identity.add(axis)
            sight.by_width = (axis, made.shape[axis])


def dry_run(
    model: nn.Module, places: dict[str, nn.Module], sample: object, selectors: Mapping[str, Selector | None]
) -> tuple[dict[str, Sight], BatchEvidence]:
    """Call the model on the sample; what was seen of the places that ran, and of the batch."""
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
    with watcher.hooked(model, places), undisturbed(model):
        try:
            output = call(model, sample)
        except Exception as error:
            raise UsageError(
                f"the model cannot be called on `sample` ({error_line(error)}): give what the training loop gives, as "
                "a tensor, a tuple of positional arguments or a dict of keyword arguments"
            ) from error
    return watcher.sights, batch_evidence(model, inputs, list(tensors_in(output)))


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
    python_state = random.getstate()
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for device in {tensor.device for tensor in (*model.parameters(), *model.buffers())}:
            if device.type not in ("cpu", "meta"):
                stack.enter_context(torch.random.fork_rng([device.index or 0], device_type=device.type))
        stack.enter_context(torch.no_grad())
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and loading it takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        model.eval()
        try:
            yield
        finally:
            for module, was in training:
                module.training = was
            for module, name, buffer, content in buffers:
                module._buffers[name] = buffer
                if not _equal(buffer, content):
                    buffer.copy_(content)
            random.setstate(python_state)


def _equal(first: Tensor, second: Tensor) -> bool:
    try:
        return torch.equal(first, second)
    except (RuntimeError, AttributeError):  # nested and some sparse tensors cannot be compared
        return False
