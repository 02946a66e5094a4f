"""Temporary auxiliary objectives for any PyTorch model.

Attach branches to a model, train it in your own loop, strip them: the model is what it was, only trained.

>>> import torch
>>> import torch.nn.functional as F
>>> from asymtrain import alignment, attach, models
>>> model = models.build("mlp", classes=10, seed=0)
>>> x, y = torch.rand(32, 3, 32, 32), torch.arange(32) % 10
>>> branches = attach(model, sample=x, classes=10)
>>> optimizer = torch.optim.AdamW([*model.parameters(), *branches.parameters()])

Before a step, ask whether the two objectives pull the same way:

>>> main, auxiliary = F.cross_entropy(model(x), y), branches.loss(y)
>>> -1 <= alignment(main, auxiliary, model).cosine <= 1
True

Then train as usual, and take the branches off:

>>> for _ in range(3):
...     loss = F.cross_entropy(model(x), y) + branches.loss(y)
...     optimizer.zero_grad()
...     loss.backward()
...     optimizer.step()
>>> branches.strip(optimizer)
>>> sum(p.numel() for p in model.parameters()), len(optimizer.state)
(279818, 12)

The losses are plain functions: `softmax_loss` and `sigmoid_loss`. For DistributedDataParallel, or one compiled graph,
wrap model and branches in `WithBranches`. `AlignmentLog` collects alignments during training;
`backward_with_alignment` also trains on the two backward passes that an alignment needs. `compare` trains a model with
and without branches, in pairs, and reports whether they helped; on the command line that is `asymtrain run`. `tune`
finds the branches for a model, or reports that none help. `search` finds learning rate, weight decay and alpha by
validation accuracy. A name is loaded, and torch with it, on first use: `asymtrain --help` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from asymtrain.errors import UsageError
from asymtrain.version import VERSION

if TYPE_CHECKING:
    from asymtrain import models
    from asymtrain.branches import Branches, WithBranches, attach, clean
    from asymtrain.gradients import Alignment, AlignmentLog, alignment, backward_with_alignment
    from asymtrain.lab.api.compare import compare
    from asymtrain.lab.api.search import search
    from asymtrain.lab.api.tune import tune
    from asymtrain.objectives import sigmoid_loss, softmax_loss

__version__ = VERSION

__all__ = [
    "Alignment",
    "AlignmentLog",
    "Branches",
    "UsageError",
    "WithBranches",
    "alignment",
    "attach",
    "backward_with_alignment",
    "clean",
    "compare",
    "models",
    "search",
    "sigmoid_loss",
    "softmax_loss",
    "tune",
]

# The module of each public name. The library never imports the lab; only this file offers names of the lab.
_HOMES = {
    "branches": ("Branches", "WithBranches", "attach", "clean"),
    "gradients": ("Alignment", "AlignmentLog", "alignment", "backward_with_alignment"),
    "lab.api.compare": ("compare",),
    "lab.api.search": ("search",),
    "lab.api.tune": ("tune",),
    "models": (),
    "objectives": ("sigmoid_loss", "softmax_loss"),
    "streams": (),
}


def __getattr__(name: str) -> Any:
    """Import a public name, or a module of the library, on first access."""
    for home, names in _HOMES.items():
        if name in names:
            globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
            return globals()[name]
    if name in _HOMES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    modules = {name for name in _HOMES if "." not in name}
    return sorted({*__all__, *modules, *(name for name in globals() if name.startswith("__"))})
