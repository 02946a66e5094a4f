"""All parameters of a stack in one flat matrix (R, P), and the named views into it.

One matrix makes the optimiser a single elementwise pass, a cast to bfloat16 one kernel, and a checkpoint one
tensor. Gradients are taken with respect to the views, which are leaves of their own: autograd never sees the
matrix (a slice of one flat leaf would have a backward that fills the whole of it).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

ALIGNMENT = 64  # elements; keeps every view at an address that the fast matrix kernels accept


@dataclass(frozen=True)
class Layout:
    """Names, shapes and offsets of one run's parameters."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    size: int

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Named views (R, *shape) into flat (R, P)."""
        return {
            name: flat[:, start : start + prod(shape)].view(-1, *shape)
            for name, shape, start in zip(self.names, self.shapes, self.offsets, strict=True)
        }

    def pack(self, runs: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """A flat float32 matrix (R, P) from one mapping for each run; the gaps between parameters are zero."""
        flat = torch.zeros(len(runs), self.size)
        for name, view in self.views(flat).items():
            for row, run in zip(view, runs, strict=True):
                row.copy_(run[name])
        return flat

    def gather(self, tensors: Mapping[str, Tensor], runs: int) -> Tensor:
        """One float32 matrix (R, P) from named gradients (R, *shape); a missing one is zero."""
        device = next(iter(tensors.values())).device
        pieces, at = [], 0
        for name, shape, start in zip(self.names, self.shapes, self.offsets, strict=True):
            found = tensors.get(name)
            if found is not None:
                if start > at:
                    pieces.append(torch.zeros(runs, start - at, device=device))
                pieces.append(found.reshape(runs, -1).float())
                at = start + prod(shape)
        if at < self.size:
            pieces.append(torch.zeros(runs, self.size - at, device=device))
        return torch.cat(pieces, 1)


def layout_of(parameters: Mapping[str, Tensor]) -> Layout:
    """The layout of one run's parameters, in their order."""
    offsets, at = [], 0
    for value in parameters.values():
        offsets.append(at)
        at += -(-value.numel() // ALIGNMENT) * ALIGNMENT
    shapes = tuple(tuple(value.shape) for value in parameters.values())
    return Layout(tuple(parameters), shapes, tuple(offsets), at)
