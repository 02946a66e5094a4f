"""The paper's three backbones and the table that builds them by name.

To add a backbone: one file with a `Backbone`, one line in `BACKBONES` (`_building.py`), one in `KNOWN` below.
Commands, tables and the shared tests pick it up from there; its learning rate and small sizes at each scale are an
entry in `lab/scales.py`.

A name is loaded, and torch with it, on first use: code that only names backbones does not wait for torch.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asymtrain.models._backbone import Backbone, KeyedDropout, Outputs, Parameters
    from asymtrain.models._building import BACKBONES, build
    from asymtrain.models._cnn import CNN
    from asymtrain.models._kernels import load_kernels
    from asymtrain.models._mlp import MLP
    from asymtrain.models._vit import ViT

__all__ = [
    "BACKBONES",
    "CNN",
    "MLP",
    "Backbone",
    "KeyedDropout",
    "Outputs",
    "Parameters",
    "ViT",
    "build",
    "display_name",
    "load_kernels",
]

_COMMON = ("channels", "image_size", "initialisation", "points")
KNOWN: dict[str, tuple[str, frozenset[str]]] = {
    "mlp": ("MLP", frozenset({*_COMMON, "widths"})),
    "cnn": ("CNN", frozenset({*_COMMON, "dropout", "hidden", "pool_after", "widths"})),
    "vit": ("ViT", frozenset({*_COMMON, "branch_input", "depth", "heads", "mlp_ratio", "patch", "width"})),
}
"""The class and options of each backbone, known without importing torch; a test compares them with the classes."""

_HOMES = {
    "_backbone": ("Backbone", "KeyedDropout", "Outputs", "Parameters"),
    "_building": ("BACKBONES", "build"),
    "_cnn": ("CNN",),
    "_kernels": ("load_kernels",),
    "_mlp": ("MLP",),
    "_vit": ("ViT",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def backbone_names() -> tuple[str, ...]:
    """The names in `BACKBONES`, or in `KNOWN` while that is not loaded."""
    building = sys.modules.get(f"{__name__}._building")
    return tuple(KNOWN if building is None else building.BACKBONES)


def display_name(name: str) -> str:
    """A model's name in tables and pages: a backbone's class, such as ViT; else its own name, `timm:resnet18`."""
    if name in KNOWN:
        return KNOWN[name][0]
    building = sys.modules.get(f"{__name__}._building")
    backbones = {} if building is None else building.BACKBONES
    return backbones[name].__name__ if name in backbones else name


def check_options(name: str, options: dict[str, object]) -> None:
    """Raise a `UsageError` for an unknown backbone, or an option that it does not have."""
    if name not in KNOWN or not options.keys() <= KNOWN[name][1]:
        from asymtrain.models import _building

        _building.check_options(name, options)
