"""Layers where nobody names any: the model's repeated blocks, as a dry run shows them."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from torch import Tensor, nn

from asymtrain.branches._forwards import call_model, checked_inputs, plain_errors, preserve_state
from asymtrain.branches._nested import first_feature
from asymtrain.errors import UsageError

LEAST_SIBLINGS = 3  # of one kind make repeated blocks
LARGEST_SHARE = 0.6  # of the layers, that makes a child the one to go down into
MOST_LAYERS = 6


def find_blocks(model: nn.Module, sample: object) -> list[str]:
    """Layers where the user names none: the model's repeated blocks, at most six; `UsageError` where there are none.

    The search goes down from the model into the child that holds most of the layers, until it finds at least three
    siblings of one kind: `blocks.*` of a transformer, `layer1` to `layer4` of a ResNet, `stages.*` of a ConvNeXt.
    Of siblings that take one tensor, such as the products of an attention, one counts. Without such siblings the layers
    are what the search came to last, but not the parts of a member of a list.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    points = getattr(model, "points", None)
    if isinstance(points, tuple) and points and all(isinstance(name, str) and name in modules for name in points):
        return list(points)
    taken = _modules_with_features(model, sample)
    prefix, module, others, listed = "", model, list[str](), False
    while True:
        counts = {f"{prefix}{name}": _count_layers(child) for name, child in module.named_children()}
        sizes = {name: layers for name, layers in counts.items() if layers}
        ran = [name for name in sizes if name in taken]
        kinds: dict[type, dict[object, str]] = {}
        for name in ran:
            kinds.setdefault(type(modules[name]), {}).setdefault(taken[name], name)
        siblings = max(kinds.values(), key=len, default={})
        if len(siblings) >= LEAST_SIBLINGS:
            return _evenly(list(siblings.values()))
        if not listed or isinstance(module, nn.ModuleList):
            others, listed = ran or others, listed or isinstance(module, nn.ModuleList)
        largest = max(sizes, key=sizes.__getitem__, default="")
        if not sizes or sizes[largest] < LARGEST_SHARE * sum(sizes.values()) or not list(modules[largest].children()):
            break
        prefix, module = f"{largest}.", modules[largest]
    if not others:
        raise UsageError("no repeated blocks were found in the model: name layers with at=, for example at='layers.*'")
    return _evenly(others)


def _count_layers(module: nn.Module) -> int:
    """Those that hold weights themselves."""
    return sum(bool(list(part.parameters(recurse=False))) for part in module.modules())


def _modules_with_features(model: nn.Module, sample: object) -> dict[str, object]:
    """Modules that ran and gave a feature that is not the model's own output; of each, which tensor it took."""
    taken: dict[str, tuple[Tensor, int]] = {}
    given: dict[str, Tensor] = {}

    def before(name: str, _: nn.Module, *call: object) -> None:
        tensor = first_feature(call)
        if tensor is not None and not tensor.is_inference():
            taken[name] = tensor, tensor._version  # blocks that change it in place take it one after the other

    def after(name: str, _: nn.Module, __: object, output: object) -> None:
        feature = first_feature(output)
        if feature is not None and feature.ndim >= 2:
            given[name] = feature

    checked_inputs(sample)
    with ExitStack() as hooks, preserve_state(model), plain_errors(sample):
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_pre_hook(partial(before, name), with_kwargs=True).remove)
            hooks.callback(module.register_forward_hook(partial(after, name)).remove)
        output = first_feature(call_model(model, sample))
    # Tensors are told by their address, and none has gone yet.
    sources = {name: (id(tensor), version) for name, (tensor, version) in taken.items()}
    return {name: sources.get(name, name) for name, feature in given.items() if name and feature is not output}


def _evenly(names: Sequence[str]) -> list[str]:
    """At most `MOST_LAYERS` of them, the last among them, at even distances."""
    if len(names) <= MOST_LAYERS:
        return list(names)
    return [names[round((i + 1) * len(names) / MOST_LAYERS) - 1] for i in range(MOST_LAYERS)]
