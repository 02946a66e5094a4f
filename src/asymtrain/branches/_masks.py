"""Which of the model's arguments marks padding.

A model with an encoder and a decoder has two masks, which may have the same shape: each layer gets the mask of its own
side, never the other's. The same holds for a model of text and images: the usual argument masks only the layers that
have its positions (`_dry_run.masked_layers`).
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from asymtrain.branches._nested import tensors_in
from asymtrain.errors import UsageError, unknown_name

MaskRule = Callable[..., Tensor | None]  # of the model's arguments
Mask = str | MaskRule  # the name of an argument, or a function of all arguments
USUAL_MASK = "attention_mask"


def mask_of(model: nn.Module, mask: Mask | None, layers: Iterable[nn.Module]) -> MaskRule | None:
    """The rule by which these layers get their mask; None if the model has no mask.

    Refuses an argument that the model does not take, except the usual one, which may be missing.
    """
    if not isinstance(mask, str):
        if mask is None or callable(mask):
            return mask
        raise UsageError("`mask` is the name of the model's argument, or a function of its arguments: mask='padding'")
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
        if mask == USUAL_MASK:
            return None
        raise unknown_name("argument of the model in `mask`", mask, list(arguments))
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = tuple(name for name, argument in arguments.items() if argument.kind in by_position)
    find_encoder = getattr(model, "get_encoder", None)  # a method of Hugging Face's models
    if mask == USUAL_MASK and "decoder_attention_mask" in arguments and find_encoder is not None:
        encoder = set(find_encoder().modules())
        sides = {layer in encoder for layer in layers}
        if sides != {True}:
            return partial(_decoders, names, "decoder_attention_mask", len(sides) == 2)
    return partial(_argument, names, mask)


def is_usual(rule: MaskRule | None) -> bool:
    """Whether this rule reads the default argument."""
    return isinstance(rule, partial) and rule.func is _argument and rule.args[1] == USUAL_MASK


def masked_sample(rule: MaskRule, sample: object) -> dict[str, Any]:
    """The sample as keyword arguments of the model, with the usual mask; empty if that is impossible.

    A sample without a mask gets a mask of ones, if all its sequences have the same length.
    """
    assert isinstance(rule, partial)
    args: tuple[Any, ...] = sample if type(sample) is tuple else (sample,)
    arguments = dict(sample) if isinstance(sample, Mapping) else _named(rule.args[0], args, {})
    if not isinstance(sample, Mapping) and len(arguments) < len(args):
        return {}
    if not isinstance(arguments.get(USUAL_MASK), Tensor):
        sequences = [tensor for tensor in tensors_in(arguments) if not tensor.is_nested and tensor.ndim in (2, 3)]
        if len({tensor.shape[:2] for tensor in sequences}) != 1:
            return {}
        arguments[USUAL_MASK] = torch.ones(sequences[0].shape[:2], dtype=torch.int64, device=sequences[0].device)
    return arguments


def check_mask(rule: MaskRule | None, mask: Tensor) -> None:
    """Refuse the model's own mask if a positive value does not mean that a position counts.

    A mask that is added to attention scores is 0 for positions that count and negative at padding; for them torch's
    `key_padding_mask` is False. Floats other than 0 and 1 may be weights, which are not supported.
    """
    wrong = (mask != 0) & (mask != 1) if mask.is_floating_point() else mask < 0
    if wrong.any() or not mask.any():
        raise UsageError(
            "the model's mask is not 1 where a position counts and 0 at padding: attach with mask=, a function of the "
            "model's arguments that returns such a mask, or with mask=None"
        )
    # Detect a mask that is 1 at padding. If rows are padded to the longest one, that row is then all 0, no row is all
    # 1, and the ones of every row are at its end, or of every row at its beginning. A user who really has such rows
    # gives a function.
    if not isinstance(rule, partial) or rule.func not in (_argument, _decoders) or mask.ndim != 2:
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


# `partial` of these, not local functions: branches are copied and pickled with their rule.
def _argument(names: tuple[str, ...], mask: str, /, *args: Any, **kwargs: Any) -> Any:
    return _named(names, args, kwargs).get(mask)


def _decoders(names: tuple[str, ...], own: str, both: bool, /, *args: Any, **kwargs: Any) -> Tensor | None:
    """The mask of the decoder's positions; with layers on `both` sides the mask that both share."""
    arguments = _named(names, args, kwargs)
    encoders, mask = arguments.get(USUAL_MASK), arguments.get(own)
    if mask is None and not _has_inputs(arguments):
        mask = encoders
    if both and mask is not encoders:
        raise UsageError(
            "layers in the encoder and in the decoder have different padding: attach to each side by itself, or "
            "with mask=None if nothing is padded"
        )
    return mask


def _named(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _has_inputs(arguments: dict[str, Any]) -> bool:
    """Whether the decoder has inputs of its own; in classifiers it reads the encoder's."""
    labels = arguments.get("labels")
    own = arguments.get("decoder_input_ids") is not None or arguments.get("decoder_inputs_embeds") is not None
    return own or (isinstance(labels, Tensor) and labels.ndim > 1 and not labels.is_floating_point())
