"""Which of the model's arguments says where its padding is.

A model with an encoder and a decoder has padding of two kinds, which may have the same shape: each place gets that of
its own side, and never the other's.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import Tensor, nn

from asymtrain.errors import UsageError, unknown_name

MaskRule = Callable[..., Tensor | None]  # of the model's arguments
Mask = str | MaskRule  # a name among them, or a function of them all
_USUAL = "attention_mask"


def mask_of(model: nn.Module, mask: Mask | None, places: Iterable[nn.Module]) -> MaskRule | None:
    """How these places get their mask; None where the model has none, and an argument that it does not take is refused.

    The usual argument need not be there.
    """
    if not isinstance(mask, str):
        return mask
    if mask.endswith("key_padding_mask"):
        raise UsageError(
            f"what torch calls {mask} is True at padding, where a mask of branches is 0: attach with mask=, a function "
            "of the model's arguments that returns the opposite"
        )
    try:
        arguments = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return partial(_argument, (), mask)
    takes_any = any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values())
    if mask not in arguments and not takes_any:
        if mask == _USUAL:
            return None
        raise unknown_name("argument of the model in `mask`", mask, list(arguments))
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = tuple(name for name, argument in arguments.items() if argument.kind in by_position)
    find_encoder = getattr(model, "get_encoder", None)  # of Hugging Face's models
    if mask == _USUAL and "decoder_attention_mask" in arguments and find_encoder is not None:
        encoder = set(find_encoder().modules())
        sides = {place in encoder for place in places}
        if sides != {True}:
            return partial(_decoders, names, len(sides) == 2)
    return partial(_argument, names, mask)


def refuse_inverted(rule: MaskRule | None, mask: Tensor) -> None:
    """Refuse an argument that a user named and that is 1 at padding, where a batch shows it.

    Of rows that are padded to the longest, that one then counts nothing, no row counts as a whole, and all count at
    their ends or all at their beginnings. Whoever has such rows gives a function.
    """
    if not isinstance(rule, partial) or rule.func is not _argument or rule.args[1] == _USUAL or mask.ndim != 2:
        return
    counts = mask.bool()
    steps = counts.int().diff(dim=1)
    at_one_side = (steps >= 0).all() | (steps <= 0).all()
    if at_one_side & ~counts.any(1).all() & ~counts.all(1).any():
        raise UsageError(
            f"the model's {rule.args[1]} looks like 1 at padding, where a mask of branches is 0: a row counts nothing, "
            "and none counts as a whole. Attach with mask=, a function of the model's arguments that returns 1 where a "
            "position counts"
        )


# Partial, and not local functions: branches are copied and pickled with their rule.
def _argument(names: tuple[str, ...], mask: str, /, *args: Any, **kwargs: Any) -> Any:
    return _named(names, args, kwargs).get(mask)


def _decoders(names: tuple[str, ...], both: bool, /, *args: Any, **kwargs: Any) -> Tensor | None:
    """The mask of a decoder's positions, or of those of `both` sides where they have the same one."""
    given = _named(names, args, kwargs)
    encoders, mask = given.get(_USUAL), given.get("decoder_attention_mask")
    if mask is None and not _has_inputs(given):
        mask = encoders
    if both and mask is not encoders:
        raise UsageError(
            "places in the encoder and in the decoder have different padding: attach to each side by itself, or "
            "with mask=None if nothing is padded"
        )
    return mask


def _named(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _has_inputs(given: dict[str, Any]) -> bool:
    """Whether the decoder has inputs of its own, and does not read the encoder's, as classifiers do."""
    labels = given.get("labels")
    own = given.get("decoder_input_ids") is not None or given.get("decoder_inputs_embeds") is not None
    return own or (isinstance(labels, Tensor) and labels.ndim > 1 and not labels.is_floating_point())
