"""Tensors inside what modules take and give: tensors, tuples, lists, dicts and Hugging Face's ModelOutput."""

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

from asymtrain.errors import UsageError

# Which part of a place's output is the feature: an index, a key or attribute, or a function.
Selector = int | str | Callable[[object], object]


def tensors_in(value: object) -> Iterator[Tensor]:
    """Every tensor, depth first."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)


def first_feature(value: object) -> Tensor | None:
    """The first floating-point tensor, depth first.

    Runs inside hooks, hence plain loops and concrete types: torch.compile traces them without a break.
    """
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    parts: object = list(value.values()) if isinstance(value, dict) else value
    if isinstance(parts, tuple | list):
        for part in parts:
            feature = first_feature(part)
            if feature is not None:
                return feature
    return None


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
    if isinstance(value, dict):
        return first_feature(value.get(selector))
    return first_feature(getattr(value, selector, None))


def read_logits(output: object) -> Tensor:
    """Logits (B, C): the output itself, its `logits`, or of several outputs the first.

    That is the custom; what follows are auxiliary heads of the model's own.
    """
    selector = 0 if isinstance(output, tuple | list) else "logits"
    logits = output if isinstance(output, Tensor) else select(output, selector)
    if logits is None:
        raise UsageError(f"the model returns a {type(output).__name__} without `logits`: build one that returns them")
    if logits.ndim != 2:
        raise UsageError(
            f"the model's logits have shape {tuple(logits.shape)}, not (batch, classes): only classifiers can be "
            "trained here"
        )
    return logits
