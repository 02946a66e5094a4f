"""The attention maps of any model, seen by hooks: the model computes what it always does, and the maps lie beside it.

    output, maps = attention_maps(model, images)            # {"blocks.0.attention": (B, heads, T, T), ...}

Each map is softmax(scale q k^T) from the module's own input and its own layers. In evaluation mode it is checked: mixed
with the values by that map, the module's output must come out. So a module with a mask, a position bias or rotary
positions is refused, and never read wrongly; give a `read` function for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from asymtrain.errors import UsageError, unknown_name
from asymtrain.lab.instruments.attention.readers import Read, Reading, reading, recognised

# How far the output may be from the one that the map explains, as a share of its norm.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3}
_COARSE = 3e-2  # half precision


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The model's attention modules whose queries and keys can be reached, by name, in the order of the modules."""
    return {name: module for name, module in model.named_modules() if recognised(module)}


def attention_maps(
    model: nn.Module,
    *inputs: Any,
    layers: Sequence[str] | None = None,
    read: Read | None = None,
    check: bool = True,
    **keywords: Any,
) -> tuple[Any, dict[str, Tensor]]:
    """The output of `model(*inputs, **keywords)`, bit-equal, and the attention (B, heads, T, T) of its layers by name.

    `layers` are module names; all recognised ones where it is None. `read` (see `attention_readers`) finds queries and
    keys in modules that are not recognised, and needs `layers`. The maps carry no gradient; the model's mode, its
    parameters and the random numbers stay as they are. A layer that runs several times appears as name, name#2, ...
    """
    with recorded_attention(model, layers, read=read, check=check) as seen:
        output = getattr(model, "_orig_mod", model)(*inputs, **keywords)  # hooks do not reach into compiled code
    maps = {f"{name}#{i + 1}" if i else name: one for name, found in seen.items() for i, one in enumerate(found)}
    if not maps:
        raise UsageError("no attention layer ran in this forward pass: call the module that holds them")
    return output, maps


@contextmanager
def recorded_attention(
    model: nn.Module, layers: Sequence[str] | None = None, *, read: Read | None = None, check: bool = True
) -> Iterator[Mapping[str, list[Tensor]]]:
    """Inside the block, each forward pass adds the maps of its layers to the yielded lists; see `attention_maps`."""
    chosen = _choose(getattr(model, "_orig_mod", model), layers, read)
    seen: dict[str, list[Tensor]] = {}
    handles = [
        # After the forward pass: under autocast a first use without gradient would leave casts without gradient behind.
        module.register_forward_hook(_hook(name, read, check, seen), with_kwargs=True)
        for name, module in chosen.items()
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _choose(model: nn.Module, layers: Sequence[str] | None, read: Read | None) -> dict[str, nn.Module]:
    modules, known = dict(model.named_modules()), attention_layers(model)
    if layers is None:
        if read is not None:
            raise UsageError("read= needs layers=: the names of the modules that it reads")
        if not known:
            raise UsageError(
                f"{type(model).__name__} has no attention whose queries and keys are known: measure a vision "
                "transformer, or give layers= and read="
            )
        return known
    for name in layers:
        if name not in modules:
            raise unknown_name("attention layer", name, known or modules)
        if read is None and name not in known:
            raise UsageError(f"{name} is no attention layer whose queries and keys are known: give read=")
    return {name: modules[name] for name in layers}


def _hook(name: str, read: Read | None, check: bool, seen: dict[str, list[Tensor]]) -> Any:
    def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        device = next((x.device for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), torch.device("cpu"))
        gpus = [device] if device.type == "cuda" else []
        # A query layer may hold dropout: looking must not move the random numbers of training.
        with torch.no_grad(), torch.random.fork_rng(gpus, enabled=module.training):
            found = reading(module, args, kwargs) if read is None else _read_by(read, module, args, kwargs)
            maps = found.maps()
            if check and not module.training and found.output is not None:
                _check(name, found.output(maps), output)
        seen.setdefault(name, []).append(maps)

    return look


def _read_by(read: Read, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reading:
    query, key, *scale = read(module, *args, **kwargs)
    if query.ndim != 4:
        raise UsageError(
            f"read= gave queries {tuple(query.shape)}: they must be (batch, heads, tokens, width of a head)"
        )
    return Reading(query, key, scale[0] if scale else query.shape[-1] ** -0.5)


def _check(name: str, explained: Tensor, output: Any) -> None:
    given = output[0] if isinstance(output, tuple | list) else output
    same = explained.shape == given.shape
    if same:
        error = (explained.double() - given.double()).norm() / given.double().norm().clamp_min(1e-30)
        same = not bool(error > _TOLERANCE.get(explained.dtype, _COARSE))  # NaN passes: a diverged net has NaN maps
    if not same:
        raise UsageError(
            f"the output of {name} does not follow from its queries and keys alone (a mask, a position bias, rotary "
            "positions?): give read= for it, or check=False"
        )
