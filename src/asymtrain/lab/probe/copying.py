"""The user's model stays as it is: the probe works on copies, and puts every random state back."""

import copy
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from asymtrain.branches._attaching import refuse_wrapped
from asymtrain.errors import UsageError, error_line

Source = nn.Module | Callable[[], nn.Module]


def fresh_model(source: Source, seed: int) -> nn.Module:
    """A model to work on, in float32 and in training mode: a copy of the module, or what the function builds.

    A function is called with torch's random state set by `seed`, so each seed has initial weights of its own; a
    module's copies all start from its weights.
    """
    model = _copied(source) if isinstance(source, nn.Module) else _built(source, seed)
    refuse_wrapped(model)
    devices = {parameter.device for parameter in model.parameters()}
    if not devices:
        raise UsageError("the model has no parameters: there is nothing to train")
    if any(device.type == "meta" for device in devices):
        raise UsageError(
            "the model has no weights yet (its parameters are on the meta device): load or build them first"
        )
    if len(devices) > 1:
        listed = " and ".join(sorted(map(str, devices)))
        raise UsageError(
            f"the model lies on {listed}: move it to one device to probe it, model.to({str(devices.pop())!r})"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError("no parameter of the model is trained (requires_grad is False everywhere): unfreeze some")
    # Weights in half precision cannot be trained by an ordinary optimizer.
    if any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in model.parameters()):
        model = model.float()
    return model.train()


def _copied(model: nn.Module) -> nn.Module:
    refuse_wrapped(model)
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise UsageError(
            f"the model cannot be copied ({error_line(error)}): give a function that builds it, "
            "probe(lambda: build_model(), ...)"
        ) from error


def _built(source: Callable[[], nn.Module], seed: int) -> nn.Module:
    if not callable(source):
        raise UsageError(f"probe takes an nn.Module or a function that builds one, got a {type(source).__name__}")
    torch.manual_seed(seed)
    model = source()
    if not isinstance(model, nn.Module):
        raise UsageError(f"the function gave a {type(model).__name__}, not an nn.Module")
    return model


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Whatever is drawn inside, torch's, Python's and numpy's random states are afterwards what they were."""
    # Looked up, not imported: the library needs torch alone.
    numpy = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
    with ExitStack() as stack:
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
        stack.enter_context(torch.random.fork_rng(devices=devices))
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy:
                numpy.random.set_state(numpy_state)
