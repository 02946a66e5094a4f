"""The default layers: the model's repeated blocks, found by a dry run."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from torch import Tensor, nn

from asymtrain.branches._forwards import call_model, preserve_state
from asymtrain.branches._nested import first_feature
from asymtrain.errors import UsageError

LEAST_SIBLINGS = 3  # of one kind make repeated blocks
LARGEST_SHARE = 0.6  # of the layers, that makes a child the one to go down into
MOST_LAYERS = 6


def find_blocks(model: nn.Module, sample: object) -> list[str]:
    """The default layers: the model's repeated blocks, at most six; a `UsageError` if there are none.

    The search goes down from the model into the child that holds most of the layers, until it finds at least three
    siblings of one kind: `blocks.*` of a transformer, `layer1` to `layer4` of a ResNet, `stages.*` of a ConvNeXt.
    """
    points = getattr(model, "points", None)
    if isinstance(points, tuple) and points and all(isinstance(name, str) for name in points):
        return list(points)
    ran = _modules_with_features(model, sample)
    modules = dict(model.named_modules(remove_duplicate=False))
    prefix, module = "", model
    while True:
        children = module.named_children()
        sizes = {f"{prefix}{name}": layers for name, child in children if (layers := _count_layers(child))}
        kinds: dict[type, list[str]] = {}
        for name in filter(ran.__contains__, sizes):
            kinds.setdefault(type(modules[name]), []).append(name)
        siblings = max(kinds.values(), key=len, default=[])
        if len(siblings) >= LEAST_SIBLINGS:
            return _evenly(siblings)
        largest = max(sizes, key=sizes.__getitem__, default="")
        module = modules[largest]
        if not sizes or sizes[largest] < LARGEST_SHARE * sum(sizes.values()) or not list(module.children()):
            others = [name for name in sizes if name in ran]
            if others:
                return _evenly(others)
            raise UsageError(
                "no repeated blocks were found in the model: name layers with at=, for example at='layers.*'"
            )
        prefix = f"{largest}."


def _count_layers(module: nn.Module) -> int:
    """Those that hold weights themselves."""
    return sum(bool(list(part.parameters(recurse=False))) for part in module.modules())


def _modules_with_features(model: nn.Module, sample: object) -> set[str]:
    """Modules that ran and gave a feature that is not the model's own output."""
    features: dict[str, Tensor] = {}

    def keep(name: str, _: nn.Module, __: object, output: object) -> None:
        feature = first_feature(output)
        if feature is not None and feature.ndim >= 2:
            features[name] = feature

    with ExitStack() as hooks, preserve_state(model):
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_hook(partial(keep, name)).remove)
        output = first_feature(call_model(model, sample))
    return {name for name, feature in features.items() if name and feature is not output}


def _evenly(names: Sequence[str]) -> list[str]:
    """At most `MOST_LAYERS` of them, the last among them, at even distances."""
    if len(names) <= MOST_LAYERS:
        return list(names)
    return [names[round((i + 1) * len(names) / MOST_LAYERS) - 1] for i in range(MOST_LAYERS)]
