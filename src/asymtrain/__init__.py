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
"""

from asymtrain import models
from asymtrain.alignment import Alignment, AlignmentLog, alignment, measured_backward
from asymtrain.branches import Branches, WithBranches, attach
from asymtrain.errors import UsageError
from asymtrain.objectives import dialogue, sigmoid_loss, softmax_loss
from asymtrain.resonance import probe
from asymtrain.version import VERSION

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
