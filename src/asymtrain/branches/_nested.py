"""Tensors inside the inputs and outputs of modules: tensors, tuples, lists, mappings and dataclasses."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

# Which part of a layer's output is the feature: an index, a key or attribute, or a function.
Selector = int | str | Callable[[object], object]


def tensors_in(value: object) -> Iterator[Tensor]:
    """Every tensor, depth first."""
    if isinstance(value, Tensor):
        yield value
    for part in _parts(value):
        yield from tensors_in(part)


def first_tensor(value: object, condition: Callable[[Tensor], bool]) -> Tensor | None:
    """The first tensor that meets the condition, depth first."""
    # Runs inside hooks, hence a plain loop: torch.compile traces it without a break.
    if isinstance(value, Tensor):
        return value if condition(value) else None
    for part in _parts(value):
        tensor = first_tensor(part, condition)
        if tensor is not None:
            return tensor
    return None


def first_feature(value: object) -> Tensor | None:
    """The first floating-point tensor, depth first."""
    return first_tensor(value, torch.is_floating_point)


def _parts(value: object) -> Iterable[object]:
    """What a container holds; empty for anything else."""
    if isinstance(value, tuple | list):
        return value
    if isinstance(value, Mapping):
        return list(value.values())
    # From the type: a dataclass itself, instead of an instance, has the attribute but no values.
    fields: Iterable[str] = getattr(type(value), "__dataclass_fields__", ())
    return [getattr(value, name, None) for name in fields]


def named_parts(value: object) -> dict[int | str, object]:
    """What a container holds, by the selector that picks each part."""
    if isinstance(value, tuple | list):
        return dict(enumerate(value))
    if isinstance(value, Mapping):
        return {name: part for name, part in value.items() if isinstance(name, str)}
    fields: Iterable[str] = getattr(type(value), "__dataclass_fields__", ())
    return {name: getattr(value, name, None) for name in fields}


def select(value: object, selector: Selector | None) -> Tensor | None:
    """The feature in a module's output; None if it has none."""
    if selector is None:
        return first_feature(value)
    if callable(selector):
        return first_feature(selector(value))
    if isinstance(selector, int):
        if isinstance(value, tuple | list) and -len(value) <= selector < len(value):
            return first_feature(value[selector])
        return None
    if isinstance(value, Mapping):
        return first_feature(value.get(selector))
    return first_feature(getattr(value, selector, None))


def logits_in(output: object) -> Tensor | None:
    """The logits in a classifier's output: the output itself, its `logits`, or the first of several; else None.

    By convention the first output is the logits, and those of the model's own auxiliary heads follow.
    """
    if isinstance(output, Tensor):
        return first_feature(output)
    return select(output, 0 if isinstance(output, tuple | list) else "logits")
