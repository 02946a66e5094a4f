"""Temporary auxiliary branches on any PyTorch model.

_attaching.py   attach(): check, dry run, draw, connect
_places.py      names and globs -> modules            _dry_run.py   forwards that leave no trace
_axes.py        evidence for which axis is what       _nested.py    tensors in outputs
_pooling.py     outputs -> rows, tokens or maps       _capture.py   hooks, and what they caught
_heads.py       one place's weights and logits        _tied.py      the model's own output layer
_losses.py      logits and targets -> losses          _masks.py     which argument tells padding
_fused.py       rows -> the loss, in one node         _kernels.py   the same as Triton kernels
_core.py        Branches, and WithBranches
"""

from asymtrain.branches._attaching import PRESETS, attach
from asymtrain.branches._capture import clean
from asymtrain.branches._core import Branches, WithBranches
from asymtrain.branches._heads import draw_branches

__all__ = ["PRESETS", "Branches", "WithBranches", "attach", "clean", "draw_branches"]
