"""All parameters of a stack in one flat matrix (R, P): the named views into it, and sums over its layers.

One matrix makes the optimiser a single elementwise pass, a cast to bfloat16 one kernel, and a checkpoint one
tensor. Gradients are taken with respect to the views, which are leaves of their own: autograd never sees the
matrix (a slice of one flat leaf would have a backward that fills the whole of it).

A layer is a module that owns parameters. Every parameter begins at a multiple of `ALIGNMENT` entries, so a row
of so many entries belongs to one layer: sums over rows, then one small product, give all layers at once.
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
        """Those of the model itself: branches come after them, and differ from stack to stack."""
        count = next((k for k, name in enumerate(self.names) if is_branch(name)), len(self.names))
        size = (*self.offsets, self.size)[count]
        return FlatParameters(self.names[:count], self.shapes[:count], self.offsets[:count], size)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Named views (R, *shape) into flat (R, P)."""
        if len(flat) == 1:
            # From the row itself: strides with P in them would be compiled for this P, which depends on the branches.
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
        """A flat float32 matrix (R, P) from one mapping for each run; gaps, and what a run does not have, are zero."""
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
            # Rows are whole pieces of memory here: a few launches copy all, and nothing has to be compiled. Joining
            # the hundreds of gradients of a deep module takes the compiler half a minute. A CPU joins them in one pass.
            flat = torch.zeros(runs, self.size, device=device) if into is None else into.zero_()
            views = self.views(flat)
            # One gradient with another memory layout would cost a launch for each of them.
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
    """Is it of a branch, and not of the model?"""
    return parameter.startswith("branch.")


def stack_aligned(values: Sequence[Tensor]) -> Tensor:
    """Tensors of R runs as one, (R, ...), of which each run's begins at an address that fast kernels accept.

    A compiled program copies what begins elsewhere, at every call: the counters of batch normalisations, for example.
    """
    size, step = values[0].numel(), max(1, _ALIGNED_BYTES // values[0].itemsize)
    flat = values[0].new_zeros(len(values), -(-size // step) * step)
    rows = flat[:, :size].view(len(values), *values[0].shape)
    return rows.copy_(torch.stack(list(values)))


class Layers(NamedTuple):
    """Which rows belong to which of L layers."""

    members: Tensor  # (P / ALIGNMENT, L), float64: 1 where a row belongs to a layer
    inside: Tensor  # (1, P): 1 at the entries of parameters, 0 in the gaps between them


def layers_of(layout: FlatParameters, shared: Iterable[str], device: torch.device) -> Layers:
    """The layers of the shared parameters; rows of other parameters belong to none."""
    shared_names = set(shared)
    names = tuple(dict.fromkeys(layer_name(name) for name in layout.names if name in shared_names))
    members = torch.zeros(layout.size // ALIGNMENT, len(names), dtype=torch.float64)
    ends = (*layout.offsets[1:], layout.size)
    for name, start, end in zip(layout.names, layout.offsets, ends, strict=True):
        if name in shared_names:
            members[start // ALIGNMENT : end // ALIGNMENT, names.index(layer_name(name))] = 1
    return Layers(members.to(device), layout.mask(layout.names).to(device))


def layer_name(parameter: str) -> str:
    """The module that owns a parameter; the parameter itself where the model owns it."""
    return parameter.rpartition(".")[0] or parameter


def layer_sums(flat: Tensor, members: Tensor) -> Tensor:
    """Sums over the entries of each layer: (R, P) -> (R, L), in float64."""
    rows = flat.view(len(flat), -1, ALIGNMENT).sum(2).double()
    # Rows of no layer, such as those of branches, are left out by hand: an inf there, times 0, would be NaN.
    return rows.where(members.any(1), 0.0) @ members


def alignment_sums(total: Tensor, auxiliary: Tensor, applied: Tensor, members: Tensor) -> Tensor:
    """Products of main and auxiliary gradient in each layer, (3, R, L): with each other, main's square, auxiliary's.

    The main gradient is the total minus the applied part (R, 1) of the auxiliary one, so that the update does not
    change.
    """
    main = total - applied * auxiliary
    return torch.stack(
        [layer_sums(product, members) for product in (main * auxiliary, main * main, auxiliary.square())]
    )
