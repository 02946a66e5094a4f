"""Temporary auxiliary branches on any PyTorch model.

attaching.py      attach(): check, dry run, draw, connect
places.py         names and globs -> modules          refusals.py   what is turned down
dry_run.py        one forward that leaves no trace    axes.py       evidence for which axis is what
nested.py         tensors in outputs                  pooling.py    outputs -> (B, D)
drawing.py        initial weights, the live branch    heads.py      one place's weights and logits
capture.py        hooks, and what they caught         scores.py     logits -> loss, accuracy
core.py           Branches                            optimizers.py taking parameters out of one
with_branches.py  WithBranches
"""

from asymtrain.branches._attaching import attach
from asymtrain.branches._core import Branches
from asymtrain.branches._drawing import draw_branches
from asymtrain.branches._with_branches import WithBranches

__all__ = ["Branches", "WithBranches", "attach", "draw_branches"]
