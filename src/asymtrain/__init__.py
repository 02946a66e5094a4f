"""Temporary auxiliary objectives for any PyTorch model.

Attach branches to a model, train it in your own loop, strip them: the model is what it was, only trained.

>>> import torch
>>> import torch.nn.functional as F
>>> from asymtrain import alignment, attach, models
>>> model = models.build("mlp", classes=10, seed=0)
>>> x, y = torch.rand(32, 3, 32, 32), torch.arange(32) % 10
>>> branches = attach(model, at="blocks.[0-3]", sample=x, classes=10, redundancy=20)
>>> optimizer = torch.optim.AdamW([*model.parameters(), *branches.parameters()])

Before a step, ask whether the two objectives pull the same way:

>>> main, auxiliary = F.cross_entropy(model(x), y), branches.loss(y)
>>> -1 <= alignment(main, auxiliary, model).cosine <= 1
True

Then train as ever, and take the branches off:

>>> for _ in range(3):
...     loss = F.cross_entropy(model(x), y) + 0.5 * branches.loss(y)
...     optimizer.zero_grad()
...     loss.backward()
...     optimizer.step()
>>> branches.strip(optimizer)
>>> sum(p.numel() for p in model.parameters()), len(optimizer.state)
(279818, 12)

The losses are plain functions: `softmax_loss`, `sigmoid_loss` and `dialogue`. For DistributedDataParallel, or one
compiled graph, wrap both in `WithBranches`. `AlignmentLog` gathers alignments through training, `measured_backward`
makes the update from the two passes that an alignment needs, and `probe` advises before you train. Experiments are on
the command line: `asymtrain run`.

A name is loaded, and torch with it, when it is first used: `asymtrain --help` does not wait for torch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from asymtrain.errors import UsageError
from asymtrain.version import VERSION

if TYPE_CHECKING:
    from asymtrain import models
    from asymtrain.alignment import Alignment, AlignmentLog, alignment, measured_backward
    from asymtrain.branches import Branches, WithBranches, attach
    from asymtrain.objectives import dialogue, sigmoid_loss, softmax_loss
    from asymtrain.resonance import probe

__version__ = VERSION

__all__ = [
    "Alignment",
    "AlignmentLog",
    "Branches",
    "UsageError",
    "WithBranches",
    "alignment",
    "attach",
    "dialogue",
    "measured_backward",
    "models",
    "probe",
    "sigmoid_loss",
    "softmax_loss",
]

_ROOMS = {
    "alignment": ("Alignment", "AlignmentLog", "alignment", "measured_backward"),
    "branches": ("Branches", "WithBranches", "attach"),
    "models": (),
    "objectives": ("dialogue", "sigmoid_loss", "softmax_loss"),
    "resonance": ("probe",),
    "streams": (),
}


def __getattr__(name: str) -> Any:
    """A public name, or a room of the library, when it is first asked for."""
    for room, names in _ROOMS.items():
        if name in names:
            globals()[name] = getattr(import_module(f"{__name__}.{room}"), name)
            return globals()[name]
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS, *(name for name in globals() if name.startswith("__"))})


class _Package(ModuleType):
    """`alignment` is a function and the room where it lives: of the two, the package shows the function.

    Python binds a room to its package as soon as anything imports it, so the function takes its place then.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "alignment" and isinstance(value, ModuleType):
            value = value.alignment
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:  # functions that use the package travel to other processes
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package
