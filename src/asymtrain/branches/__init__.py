"""Temporary auxiliary branches on any PyTorch model.

_attaching.py   attach(): check, dry run, draw, connect
_places.py      names and globs -> modules            _dry_run.py   forwards that leave no trace
_axes.py        evidence for which axis is what       _nested.py    tensors in outputs
_pooling.py     outputs -> (B, D)                     _capture.py   hooks, and what they caught
_heads.py       one place's weights, logits, loss     _core.py      Branches, and WithBranches
"""

from asymtrain.branches._attaching import attach
from asymtrain.branches._core import Branches, WithBranches
from asymtrain.branches._heads import draw_branches

__all__ = ["Branches", "WithBranches", "attach", "draw_branches"]
