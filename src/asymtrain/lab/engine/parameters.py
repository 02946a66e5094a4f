"""All parameters of a stack in one flat matrix (R, P): the named views into it, and sums over its layers.

With one matrix the optimiser is a single elementwise pass, a cast to bfloat16 one kernel, and a checkpoint one
tensor. Gradients are taken with respect to the views, which are separate leaves: autograd never sees the matrix (the
backward of a slice of it would fill a whole matrix).

A layer is a module that owns parameters. Every parameter starts at a multiple of `ALIGNMENT` entries, so each piece
of that length belongs to one layer: sums over pieces, then one small matrix product, give all layers at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

ALIGNMENT = 64  # elements; keeps every view at an address that the fast matrix kernels accept
_ALIGNED_BYTES = 16


@dataclass(frozen=True)
class FlatParameters:
    """Names, shapes and offsets of one run's parameters in a row of the matrix."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, parameters: Mapping[str, Tensor]) -> "FlatParameters":
        offsets, at = [], 0
        for value in parameters.values():
            offsets.append(at)
            at += -(-value.numel() // ALIGNMENT) * ALIGNMENT
        return cls(tuple(parameters), tuple(tuple(v.shape) for v in parameters.values()), tuple(offsets), at)

    @cached_property
    def of_model(self) -> "FlatParameters":
        """The layout of the model's own parameters. Branches come after them, and differ from stack to stack."""
        count = next((k for k, name in enumerate(self.names) if is_branch(name)), len(self.names))
        size = (*self.offsets, self.size)[count]
        return FlatParameters(self.names[:count], self.shapes[:count], self.offsets[:count], size)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Named views (R, *shape) into flat (R, P)."""
        if len(flat) == 1:
            # From the row itself: code compiled for strides that contain P would depend on the branches.
            row = flat[0]
            return {
                name: row[start : start + prod(shape)].view(1, *shape)
                for name, shape, start in zip(self.names, self.shapes, self.offsets, strict=True)
            }
        return {
            name: flat[:, start : start + prod(shape)].view(-1, *shape)
            for name, shape, start in zip(self.names, self.shapes, self.offsets, strict=True)
        }

    def pack(self, runs: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """A flat float32 matrix (R, P) from one mapping for each run; gaps and missing parameters are zero."""
        flat = torch.zeros(len(runs), self.size)
        for name, view in self.views(flat).items():
            for row, run in zip(view, runs, strict=True):
                if name in run:
                    row.copy_(run[name])
        return flat

    def gather(self, tensors: Mapping[str, Tensor], runs: int, into: Tensor | None = None) -> Tensor:
        """One float32 matrix (R, P) from named gradients (R, *shape), `into` if given; a missing one is zero."""
        device = next(iter(tensors.values())).device
        if runs == 1 and device.type != "cpu":
            # Each parameter's row is contiguous here: a few launches copy all, and nothing has to be compiled. The
            # compiler needs half a minute to join the hundreds of gradients of a deep module. A CPU needs one pass.
            flat = torch.zeros(runs, self.size, device=device) if into is None else into.zero_()
            views = self.views(flat)
            # A single gradient with another memory layout would cost `_foreach_copy_` a launch for each gradient.
            rows = {name: value.view(-1) for name, value in tensors.items() if value.is_contiguous()}
            if rows:
                torch._foreach_copy_([views[name].view(-1) for name in rows], list(rows.values()))
            for name, value in tensors.items():
                if name not in rows:
                    views[name].copy_(value)
            return flat
        pieces, at = [], 0
        for name, shape, start in zip(self.names, self.shapes, self.offsets, strict=True):
            if name in tensors:
                if start > at:
                    pieces.append(torch.zeros(runs, start - at, device=device))
                pieces.append(tensors[name].reshape(runs, -1).float())
                at = start + prod(shape)
        if at < self.size:
            pieces.append(torch.zeros(runs, self.size - at, device=device))
        return torch.cat(pieces, 1, out=into)

    def mask(self, names: Iterable[str]) -> Tensor:
        """1 at the entries of the named parameters, 0 elsewhere: (1, P)."""
        chosen, mask = set(names), torch.zeros(1, self.size)
        for name, view in self.views(mask).items():
            view.fill_(float(name in chosen))
        return mask


def parameter_count(parameters: Mapping[str, Tensor]) -> int:
    return sum(value.numel() for value in parameters.values())


def is_branch(parameter: str) -> bool:
    """Whether it belongs to a branch, not to the model."""
    return parameter.startswith("branch.")


def stack_aligned(values: Sequence[Tensor]) -> Tensor:
    """Tensors of R runs as one, (R, ...), in which each run's part starts at an address that fast kernels accept.

    At every call a compiled program copies unaligned inputs, for example the counters of batch normalisations.
    """
    size, step = values[0].numel(), max(1, _ALIGNED_BYTES // values[0].itemsize)
    flat = values[0].new_zeros(len(values), -(-size // step) * step)
    rows = flat[:, :size].view(len(values), *values[0].shape)
    return rows.copy_(torch.stack(list(values)))


class Layers(NamedTuple):
    """Which pieces of the matrix belong to which of L layers."""

    members: Tensor  # (P / ALIGNMENT, L), float64: 1 where a piece belongs to a layer
    inside: Tensor  # (1, P): 1 at the entries of parameters, 0 in the gaps between them


def layers_of(layout: FlatParameters, shared: Iterable[str], device: torch.device) -> Layers:
    """The layers of the shared parameters; other parameters belong to none."""
    shared_names = set(shared)
    names = tuple(dict.fromkeys(layer_name(name) for name in layout.names if name in shared_names))
    members = torch.zeros(layout.size // ALIGNMENT, len(names), dtype=torch.float64)
    ends = (*layout.offsets[1:], layout.size)
    for name, start, end in zip(layout.names, layout.offsets, ends, strict=True):
        if name in shared_names:
            members[start // ALIGNMENT : end // ALIGNMENT, names.index(layer_name(name))] = 1
    return Layers(members.to(device), layout.mask(layout.names).to(device))


def layer_name(parameter: str) -> str:
    """The name of the module that owns a parameter; the parameter's own name if the model owns it."""
    return parameter.rpartition(".")[0] or parameter


def layer_sums(flat: Tensor, members: Tensor) -> Tensor:
    """Sums over the entries of each layer: (R, P) -> (R, L), in float64."""
    rows = flat.view(len(flat), -1, ALIGNMENT).sum(2).double()
    # Pieces of no layer, such as those of branches, are set to 0: inf times a 0 in `members` would be NaN.
    return rows.where(members.any(1), 0.0) @ members


def alignment_sums(total: Tensor, auxiliary: Tensor, applied: Tensor, members: Tensor) -> Tensor:
    """Dot products in each layer, (3, R, L): main with auxiliary gradient, main with itself, auxiliary with itself.

    The main gradient is the total minus `applied` (R, 1) times the auxiliary one, so measuring does not change the
    update.
    """
    main = total - applied * auxiliary
    return torch.stack(
        [layer_sums(product, members) for product in (main * auxiliary, main * main, auxiliary.square())]
    )
