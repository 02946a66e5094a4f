"""Calls of a model that leave no trace: what they change in it is put back."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from asymtrain.streams import random_state_kept


def call_model(model: nn.Module, sample: object) -> object:
    """The model's output: a tuple is positional arguments, a dict keyword arguments, all else one argument."""
    if type(sample) is tuple:
        return model(*sample)
    if isinstance(sample, Mapping):
        return model(**sample)
    return model(sample)


@contextmanager
def preserve_state(model: nn.Module) -> Iterator[None]:
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
def preserve_attributes(model: nn.Module) -> Iterator[None]:
    """Put back what modules assign to themselves: a varied input must not stay behind in a cache."""
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
