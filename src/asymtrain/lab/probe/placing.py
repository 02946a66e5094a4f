"""Places to attach at where the user names none: the model's repeated blocks.

The search goes down from the model into the child that holds most of the layers, until it finds at least three siblings
of one kind: `blocks.*` of a transformer, `layer1` to `layer4` of a ResNet, `stages.*` of a ConvNeXt.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from asymtrain.branches._dry_run import call, undisturbed
from asymtrain.branches._nested import first_feature
from asymtrain.errors import UsageError

SIBLINGS = 3
SHARE = 0.6  # of the layers, that makes a child the one to go down into
MOST = 6  # places


def find_blocks(model: nn.Module, sample: object) -> list[str]:
    """Names of the repeated blocks, at most six, evenly chosen; `UsageError` where there are none."""
    points = getattr(model, "points", None)
    if isinstance(points, tuple) and points and all(isinstance(name, str) for name in points):
        return list(points)
    ran = _features(model, sample)
    prefix, module = "", model
    while True:
        children = {f"{prefix}{name}": child for name, child in module.named_children() if _layers(child)}
        siblings = _siblings(children, ran)
        if len(siblings) >= SIBLINGS:
            return _evenly(siblings)
        sizes = {name: _layers(child) for name, child in children.items()}
        largest = max(sizes, key=sizes.__getitem__, default=None)
        if largest is None or sizes[largest] < SHARE * sum(sizes.values()) or not list(children[largest].children()):
            others = [name for name in children if name in ran]
            if len(others) > 1:
                return _evenly(others)
            raise UsageError(
                "no repeated blocks were found in the model: name places with at=, for example at='layers.*'"
            )
        prefix, module = f"{largest}.", children[largest]


def _layers(module: nn.Module) -> int:
    """How many modules hold weights themselves."""
    return sum(bool(list(part.parameters(recurse=False))) for part in module.modules())


def _siblings(children: dict[str, nn.Module], ran: set[str]) -> list[str]:
    kinds: dict[type, list[str]] = {}
    for name, child in children.items():
        if name in ran:
            kinds.setdefault(type(child), []).append(name)
    return max(kinds.values(), key=len, default=[])


def _features(model: nn.Module, sample: object) -> set[str]:
    """Modules that ran and gave a feature that is not the model's own output."""
    seen: dict[str, Tensor] = {}
    hooks = []
    for name, module in model.named_modules():

        def keep(_: nn.Module, __: object, output: object, name: str = name) -> None:
            feature = first_feature(output)
            if feature is not None and feature.ndim >= 2:
                seen[name] = feature

        hooks.append(module.register_forward_hook(keep))
    try:
        with undisturbed(model):
            output = first_feature(call(model, sample))
    finally:
        for hook in hooks:
            hook.remove()
    return {name for name, feature in seen.items() if name and feature is not output}


def _evenly(names: Sequence[str]) -> list[str]:
    """At most `MOST` of them, the last among them, at even distances."""
    if len(names) <= MOST:
        return list(names)
    return [names[round((i + 1) * len(names) / MOST) - 1] for i in range(MOST)]
