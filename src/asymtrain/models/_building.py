"""The table of backbones, and `build`, which builds one by name."""

import inspect
from typing import TypeGuard

import torch
from torch import nn

from asymtrain.errors import UsageError, unknown_name
from asymtrain.models._backbone import Backbone, trunc_normal_
from asymtrain.models._cnn import CNN
from asymtrain.models._mlp import MLP
from asymtrain.models._vit import ViT

BACKBONES: dict[str, type[Backbone]] = {"mlp": MLP, "cnn": CNN, "vit": ViT}


def build(
    name: str, *, classes: int, seed: int | None = None, initialisation: str = "framework", **options: object
) -> Backbone:
    """Build a backbone by name, e.g. `build("vit", classes=100, depth=2, width=64)`.

    With `seed` the initial weights depend only on the seed and the sizes, and torch's global random state does not
    change; without it they come from the global state, as in torch modules.
    `initialisation="framework"` (torch's defaults) or `"trunc_normal"` (deviation 0.02, zero biases).
    """
    check_options(name, options)
    if not _whole(classes) or classes < 2:
        raise UsageError(f"classes must be a whole number of 2 or more, got {classes!r}")
    if initialisation not in ("framework", "trunc_normal"):
        raise UsageError(f"initialisation must be 'framework' or 'trunc_normal', got {initialisation!r}")
    _check_sizes(name, options)
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            # Not torch.manual_seed, which also seeds every GPU: only the CPU's state is restored.
            torch.default_generator.manual_seed(seed)
        model = BACKBONES[name](classes, **options)
        if initialisation == "trunc_normal":
            for module in model.modules():
                if isinstance(module, nn.Linear | nn.Conv2d):
                    trunc_normal_(module.weight, std=0.02)
                    if module.bias is not None:
                        nn.init.zeros_(module.bias)
    return model


def check_options(name: str, options: dict[str, object]) -> None:
    """Raise a `UsageError` for an unknown backbone, or an option that it does not have."""
    if name not in BACKBONES:
        raise unknown_name("backbone", name, BACKBONES)
    valid_options = options_of(BACKBONES[name])
    for option in options:
        if option not in valid_options:
            raise unknown_name(f"option of {name}", option, valid_options)


def options_of(backbone: type[Backbone]) -> set[str]:
    """The options that `build` takes for a backbone."""
    return {*inspect.signature(backbone).parameters, "initialisation"} - {"classes"}


def _check_sizes(name: str, options: dict[str, object]) -> None:
    """Check that sizes are whole numbers, or lists of them; the constructor checks options that are texts or floats."""
    parameters = inspect.signature(BACKBONES[name]).parameters
    for option, value in options.items():
        default = parameters[option].default
        if isinstance(default, str | float) or (value is None and default is None):
            continue
        least = 0 if option in ("points", "pool_after") else 1
        if isinstance(default, int):
            sizes, kind = [value], "a whole number"
        else:
            sizes, kind = list(value) if isinstance(value, list | tuple | range) else [None], "a list of whole numbers"
        if not all(_whole(size) and size >= least for size in sizes):
            raise UsageError(f"{option} must be {kind} of {least} or more, got {value!r}")


def _whole(value: object) -> TypeGuard[int]:
    return hasattr(value, "__index__") and not isinstance(value, bool)
