"""Which of the model's arguments says where its padding is.

A model with an encoder and a decoder has padding of two kinds, which may have the same shape: each place gets that of
its own side, and never the other's.
"""

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from asymtrain.branches._capture import Mask
from asymtrain.errors import UsageError, unknown_name

_USUAL = "attention_mask"


def mask_of(model: nn.Module, mask: Mask | None, places: Iterable[nn.Module]) -> Mask | None:
    """The mask for these places of the model; the name of an argument that the model does not take is refused."""
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
        return mask
    takes_any = any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values())
    if mask != _USUAL and mask not in arguments and not takes_any:
        raise unknown_name("argument of the model in `mask`", mask, list(arguments))
    find_encoder = getattr(model, "get_encoder", None)  # of Hugging Face's models
    if mask != _USUAL or "decoder_attention_mask" not in arguments or find_encoder is None:
        return mask
    encoder = set(find_encoder().modules())
    sides = {place in encoder for place in places}
    return mask if sides == {True} else DecoderMask(tuple(arguments), both=len(sides) == 2)


@dataclass(frozen=True)
class DecoderMask:
    """The mask of a decoder's positions, or of those of `both` sides where they have the same one."""

    names: tuple[str, ...]  # of the model's arguments
    both: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor | None:
        """The mask in a call of the model with these arguments."""
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        encoders, mask = given.get(_USUAL), given.get("decoder_attention_mask")
        if mask is None and not _has_inputs(given):
            mask = encoders
        if self.both and mask is not encoders:
            raise UsageError(
                "places in the encoder and in the decoder have different padding: attach to each side by itself, or "
                "with mask=None if nothing is padded"
            )
        return mask


def _has_inputs(given: dict[str, Any]) -> bool:
    """Whether the decoder has inputs of its own, and does not read the encoder's, as classifiers do."""
    labels = given.get("labels")
    own = given.get("decoder_input_ids") is not None or given.get("decoder_inputs_embeds") is not None
    return own or (isinstance(labels, Tensor) and labels.ndim > 1 and not labels.is_floating_point())
