"""The default layers: the model's repeated blocks, found by a dry run."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

from torch import Tensor, nn

from asymtrain.branches._forwards import call_model, checked_inputs, plain_errors, preserve_state
from asymtrain.branches._nested import first_feature
from asymtrain.errors import UsageError

LEAST_SIBLINGS = 3  # of one type count as repeated blocks
LARGEST_SHARE = 0.6  # the search goes down into a child that holds this share of the layers
MOST_LAYERS = 6


def find_blocks(model: nn.Module, sample: object) -> list[str]:
    """The default layers: the model's repeated blocks, at most six; a `UsageError` if there are none.

    The search goes down from the model into the child that holds most of the layers, until it finds at least three
    siblings of one type: `blocks.*` of a transformer, `layer1` to `layer4` of a ResNet, `stages.*` of a ConvNeXt. Among
    several types, the one that holds most layers wins. Siblings that take the same tensor, such as the projections of
    an attention, count as one. Without such siblings the result is the children that the search reached last, members
    of lists first, but never parts of a member of a list.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    points = getattr(model, "points", None)
    if isinstance(points, tuple) and points and all(isinstance(name, str) and name in modules for name in points):
        return list(points)
    features = _modules_with_features(model, sample)
    name, module, others, inside = "", model, list[str](), False
    while True:
        members = dict(_members(module, name))
        sizes = {child: layers for child in members if (layers := _count_layers(modules[child]))}
        ran = [child for child in sizes if child in features]
        kinds: dict[type, dict[object, str]] = {}
        for child in ran:
            kinds.setdefault(type(modules[child]), {}).setdefault(features[child], child)
        repeated = [list(kind.values()) for kind in kinds.values() if len(kind) >= LEAST_SIBLINGS]
        if repeated:
            return _evenly(max(repeated, key=lambda kind: sum(map(sizes.__getitem__, kind))))
        if not inside:
            others = [child for child in ran if members[child]] or ran or others
        name = max(sizes, key=sizes.__getitem__, default="")
        if not sizes or sizes[name] < LARGEST_SHARE * sum(sizes.values()):
            break
        module, inside = modules[name], inside or members[name]
    if not others:
        raise UsageError("no repeated blocks were found in the model: name layers with at=, for example at='layers.*'")
    return _evenly(others)


def _members(module: nn.Module, path: str, listed: bool = False) -> Iterator[tuple[str, bool]]:
    """The paths of its children, and whether each is in a list. A list is never called: its members replace it."""
    for name, child in module.named_children():
        own = f"{path}.{name}" if path else name
        if type(child) in (nn.ModuleList, nn.ModuleDict):  # derived classes may be called
            yield from _members(child, own, isinstance(child, nn.ModuleList))
        else:
            yield own, listed


def _count_layers(module: nn.Module) -> int:
    """The number of submodules that hold weights themselves."""
    return sum(bool(list(part.parameters(recurse=False))) for part in module.modules())


def _modules_with_features(model: nn.Module, sample: object) -> dict[str, object]:
    """For each module that ran and gave a feature other than the model's output: a key of the tensor it took."""
    inputs: dict[str, tuple[Tensor, int]] = {}
    outputs: dict[str, Tensor] = {}

    def before(name: str, _: nn.Module, *call: object) -> None:
        tensor = first_feature(call)
        if tensor is not None and not tensor.is_inference():
            inputs[name] = tensor, tensor._version  # the version tells apart blocks that change one tensor in place

    def after(name: str, _: nn.Module, __: object, output: object) -> None:
        feature = first_feature(output)
        if feature is not None and feature.ndim >= 2:
            outputs[name] = feature

    checked_inputs(sample)
    with ExitStack() as hooks, preserve_state(model), plain_errors(sample):
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_pre_hook(partial(before, name), with_kwargs=True).remove)
            hooks.callback(module.register_forward_hook(partial(after, name)).remove)
        output = first_feature(call_model(model, sample))
    # An id is unique while `inputs` keeps all the tensors alive.
    sources = {name: (id(tensor), version) for name, (tensor, version) in inputs.items()}
    return {name: sources.get(name, name) for name, feature in outputs.items() if name and feature is not output}


def _evenly(names: Sequence[str]) -> list[str]:
    """At most `MOST_LAYERS` names, evenly spaced, always with the last."""
    if len(names) <= MOST_LAYERS:
        return list(names)
    return [names[round((i + 1) * len(names) / MOST_LAYERS) - 1] for i in range(MOST_LAYERS)]
