"""Calls of a model without side effects: whatever they change in it is restored."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from asymtrain.branches._nested import tensors_in
from asymtrain.errors import UsageError, error_line
from asymtrain.streams import random_state_kept


def call_model(model: Callable[..., object], sample: object) -> object:
    """The output of a model, or of a function of its arguments.

    A tuple is unpacked as positional arguments, a dict as keyword arguments; anything else is one argument.
    """
    if type(sample) is tuple:
        return model(*sample)
    if isinstance(sample, Mapping):
        return model(**sample)
    return model(sample)


def checked_inputs(sample: object) -> list[Tensor]:
    """The tensors of a sample; raises a `UsageError` if no model can be called on it."""
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
    return inputs


@contextmanager
def plain_errors(sample: object) -> Iterator[None]:
    """Raise a `UsageError` if the model cannot be called on the sample."""
    try:
        yield
    except Exception as error:
        with_labels = isinstance(error, TypeError) and isinstance(sample, tuple) and len(sample) == 2
        of_loader = with_labels or isinstance(sample, list | Iterator | torch.utils.data.DataLoader)
        raise UsageError(
            f"the model cannot be called on `sample` ({error_line(error)}): give what the training loop gives, as "
            "a tensor, a tuple of positional arguments or a dict of keyword arguments"
            + ("; of a data loader, the inputs of one batch: x, _ = next(iter(loader))" if of_loader else "")
        ) from error


@contextmanager
def preserve_state(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; flags, buffers and random states are restored afterwards."""
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
        if "torch._dynamo" in sys.modules:  # else nothing is compiled; loading it takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        model.eval()
        for _, name, buffer, _ in buffers:
            # Quantisation-aware modules also measure ranges in eval mode and round by them, so two calls would differ.
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
                    buffer.data = content  # quantisation observers resize their buffers
                else:
                    buffer.copy_(content)


@contextmanager
def preserve_attributes(model: nn.Module) -> Iterator[None]:
    """Restore the attributes of modules: a varied input must not stay in a cache."""
    before = [(vars(module), dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for attributes, earlier in before:
            attributes.clear()
            attributes.update(earlier)


def _has_nan(tensor: Tensor) -> bool:
    try:
        return bool((tensor.values() if tensor.is_nested else tensor).isnan().any())
    except RuntimeError:  # torch cannot test this layout or type for NaN, but the model may take it
        return False


def _equal(first: Tensor, second: Tensor) -> bool:
    try:
        return torch.equal(first, second)
    except (RuntimeError, AttributeError):  # nested and some sparse tensors cannot be compared
        return False
