"""Temporary auxiliary branches on any PyTorch model.

_attaching.py   attach(): check, dry run, draw, connect
_layers.py      names and globs -> modules            _dry_run.py   what calls on the sample show
_blocks.py      the default layers                    _forwards.py  calls without side effects
_axes.py        evidence for which axis is what       _nested.py    tensors in outputs
_pooling.py     outputs -> rows, tokens or maps       _capture.py   hooks, and what they caught
_heads.py       one layer's weights and logits        _tied.py      the model's own output layer
_losses.py      logits and targets -> losses          _masks.py     which argument marks padding
_fused.py       rows -> the loss, in one node         _kernels.py   the same as Triton kernels
_core.py        Branches                              _optimizers.py  branch weights in optimizers
_strength.py    how strong the losses are     _with_branches.py  WithBranches, WithLoss
_criterion.py   main and auxiliary loss as one

For users: `attach`, `Branches`, `WithBranches`, `clean`, `PRESETS`, and the values that `attach` takes: `Linear`,
`prior`, `Parallel`, `Dense`, `Falling` and `GradientRatio`. For tools on top of branches: the other names, which call a
model without side effects, find the feature or the logits in its output, and make single heads.
"""

from asymtrain.branches._attaching import PRESETS, attach
from asymtrain.branches._blocks import find_blocks
from asymtrain.branches._capture import clean
from asymtrain.branches._core import Branches
from asymtrain.branches._criterion import Criterion
from asymtrain.branches._forwards import call_model, preserve_attributes, preserve_state
from asymtrain.branches._heads import (
    MAP_HEADS,
    Linear,
    Parallel,
    check_weight_count,
    draw_branches,
    module_heads,
    prior,
)
from asymtrain.branches._layers import module_at
from asymtrain.branches._nested import first_feature, logits_in
from asymtrain.branches._pooling import Dense, PoolName, Reader
from asymtrain.branches._strength import Falling, GradientRatio, convolutional
from asymtrain.branches._with_branches import LABELS, WithBranches, WithLoss

__all__ = [
    "LABELS",
    "MAP_HEADS",
    "PRESETS",
    "Branches",
    "Criterion",
    "Dense",
    "Falling",
    "GradientRatio",
    "Linear",
    "Parallel",
    "PoolName",
    "Reader",
    "WithBranches",
    "WithLoss",
    "attach",
    "call_model",
    "check_weight_count",
    "clean",
    "convolutional",
    "draw_branches",
    "find_blocks",
    "first_feature",
    "logits_in",
    "module_at",
    "module_heads",
    "preserve_attributes",
    "preserve_state",
    "prior",
]
