"""Tensors inside what modules take and give: tensors, tuples, lists, mappings and dataclasses."""

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
    """The first tensor of the kind that is wanted, depth first."""
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
    """What a container holds; nothing of all else."""
    if isinstance(value, tuple | list):
        return value
    if isinstance(value, Mapping):
        return list(value.values())
    # Asked of the type: the class of a dataclass has the fields too, and no values.
    fields: Iterable[str] = getattr(type(value), "__dataclass_fields__", ())
    return [getattr(value, name, None) for name in fields]


def named_parts(value: object) -> dict[int | str, object]:
    """What a container holds, each part by the selector that picks it."""
    if isinstance(value, tuple | list):
        return dict(enumerate(value))
    if isinstance(value, Mapping):
        return {name: part for name, part in value.items() if isinstance(name, str)}
    fields: Iterable[str] = getattr(type(value), "__dataclass_fields__", ())
    return {name: getattr(value, name, None) for name in fields}


def select(value: object, selector: Selector | None) -> Tensor | None:
    """The feature in a module's output; None where there is none."""
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
    """A classifier's: the output itself, its `logits`, or of several outputs the first; None where there are none.

    That is the custom; what follows are auxiliary heads of the model's own.
    """
    if isinstance(output, Tensor):
        return first_feature(output)
    return select(output, 0 if isinstance(output, tuple | list) else "logits")
