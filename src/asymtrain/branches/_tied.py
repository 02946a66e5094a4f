"""The model's own output layer and the norm before it, for heads that are tied to them: found in one forward.

The output layer is the linear layer whose result is in the model's output. The final norm is the one whose result it
reads, or a part of that result (a class token, the last positions). If the norm's result reaches the output layer by
another way, such as a mean over tokens, calling the two in sequence on an inner layer is not what the model does, and
the layers must be given.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from asymtrain.branches._forwards import call_model, preserve_state
from asymtrain.branches._layers import ROOT, repeated_blocks
from asymtrain.branches._nested import first_feature, tensors_in
from asymtrain.errors import UsageError


class OutputLayers(NamedTuple):
    """The layers that make the model's output."""

    modules: list[nn.Module]  # the final norm, if there is one, and the output layer
    reads: str  # the layer that they read, so its tied head would give the model's logits; "" if not among the layers


def output_layers(model: nn.Module, sample: object, layers: Mapping[str, nn.Module]) -> OutputLayers:
    """The model's output layers, and which of `layers` they read; raises a `UsageError` if none are found."""
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []
    features: dict[str, Tensor] = {}

    def after(module: nn.Module, args: object, output: object) -> None:
        source, result = next(tensors_in(args), None), first_feature(output)
        if source is not None and result is not None:
            calls.append((module, source, result))

    def after_layer(name: str, _: nn.Module, __: object, output: object) -> None:
        if (feature := first_feature(output)) is not None:
            features[name] = feature

    norms = [module for module in model.modules() if "norm" in type(module).__name__.lower()]
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    with ExitStack() as hooks, preserve_state(model):
        for module in (*norms, *linear):
            hooks.callback(module.register_forward_hook(after).remove)
        for name, module in layers.items():
            hooks.callback(module.register_forward_hook(partial(after_layer, name)).remove)
        results = [_memory(tensor) for tensor in tensors_in(call_model(model, sample))]
        candidates = [
            (layer, source) for layer, source, result in calls if layer in linear and _memory(result) in results
        ]
        if not candidates:
            raise UsageError(
                "head='tied' needs a model whose output is that of a linear layer, and none was found: give the "
                "layers as a module, head=nn.Sequential(model.norm, model.head)"
            )
        layer, source = candidates[-1]
        before = [call for call in calls if call[0] in norms and _memory(call[2]) == _memory(source)]
        if before:
            source = before[-1][1]
        read = [name for name, feature in features.items() if _memory(feature) == _memory(source)]
    last = [module for module, _, _ in calls if module in norms][-1:]
    # If the last norm is part of one of the layers, or of a block, their outputs are normed already.
    modules = {name or ROOT: module for name, module in model.named_modules()}
    blocks = [*layers.values(), *(modules[path] for series in repeated_blocks(modules) for path in series)]
    if not before and last and not any(last[0] in block.modules() for block in blocks):
        raise UsageError(
            "head='tied' cannot infer how the model's final norm and its output layer belong together: give the layers "
            "as a module, head=nn.Sequential(model.norm, model.head)"
        )
    return OutputLayers([*(norm for norm, _, _ in before[-1:]), layer], read[-1] if read else "")


def _memory(tensor: Tensor) -> int:
    jagged = tensor.is_nested and tensor.layout == torch.jagged  # it has no memory of its own, only its values have
    return (tensor.values() if jagged else tensor).untyped_storage().data_ptr()
