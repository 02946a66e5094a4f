"""The layers of a flat gradient (R, P): sums over each layer's entries, and noise as large as a layer's gradient.

A layer is a module that owns parameters. Every parameter begins at a multiple of `layout.ALIGNMENT` entries, so a row
of so many entries belongs to one layer: sums over rows, then one small product, give all layers at once.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from asymtrain import streams
from asymtrain.lab.engine.layout import ALIGNMENT, Layout


class Layers(NamedTuple):
    """Which rows belong to which of L layers; `names` says which those are."""

    members: Tensor  # (P / ALIGNMENT, L), float64: 1 where a row belongs to a layer
    inside: Tensor  # (1, P): 1 at the entries of parameters, 0 in the gaps between them
    names: tuple[str, ...]


def layers_of(layout: Layout, shared: Iterable[str], device: torch.device) -> Layers:
    """The layers of the shared parameters; rows of other parameters belong to none."""
    wanted = set(shared)
    names = tuple(dict.fromkeys(layer_name(name) for name in layout.names if name in wanted))
    members = torch.zeros(layout.size // ALIGNMENT, len(names), dtype=torch.float64)
    ends = (*layout.offsets[1:], layout.size)
    for name, start, end in zip(layout.names, layout.offsets, ends, strict=True):
        if name in wanted:
            members[start // ALIGNMENT : end // ALIGNMENT, names.index(layer_name(name))] = 1
    inside = torch.zeros(1, layout.size)
    for view in layout.views(inside).values():
        view.fill_(1)
    return Layers(members.to(device), inside.to(device), names)


def layer_name(parameter: str) -> str:
    """The module that owns a parameter; the parameter itself where the model owns it."""
    return parameter.rpartition(".")[0] or parameter


def layer_sums(flat: Tensor, members: Tensor) -> Tensor:
    """Sums over the entries of each layer: (R, P) -> (R, L), in float64."""
    return flat.view(len(flat), -1, ALIGNMENT).sum(2).double() @ members


def dialogue_sums(total: Tensor, auxiliary: Tensor, applied: Tensor, members: Tensor) -> Tensor:
    """Products of main and auxiliary gradient in each layer, (3, R, L): with each other, main's square, auxiliary's.

    The main gradient is what the applied part (R, 1) of the auxiliary one leaves of the total, so that the update
    stays as it was.
    """
    main = total - applied * auxiliary
    return torch.stack(
        [layer_sums(product, members) for product in (main * auxiliary, main * main, auxiliary.square())]
    )


def noise_like(auxiliary: Tensor, keys: Tensor, step: Tensor | int, members: Tensor, inside: Tensor) -> Tensor:
    """Gaussian noise (R, P) whose norm in each layer is that of the auxiliary gradient, keyed by run and step."""
    position = torch.arange(auxiliary.shape[1], device=auxiliary.device)
    drawn = streams.normal(keys[:, None], step, position) * inside
    wanted, there = layer_sums(auxiliary.square(), members), layer_sums(drawn.square(), members)
    scale = ((wanted / there).sqrt() @ members.T).float()  # (R, P / ALIGNMENT)
    return (drawn.view(*scale.shape, ALIGNMENT) * scale[:, :, None]).view_as(drawn)


def with_noise(
    total: Tensor,
    auxiliary: Tensor,
    alpha: Tensor,
    keys: Tensor,
    step: Tensor | int,
    members: Tensor,
    inside: Tensor,
) -> Tensor:
    """The total gradient with noise in the place of the auxiliary part. alpha: (R, 1)."""
    return total + alpha * (noise_like(auxiliary, keys, step, members, inside) - auxiliary)


def gated(total: Tensor, auxiliary: Tensor, alpha: Tensor, members: Tensor) -> Tensor:
    """The total gradient with the auxiliary part weighed by its positive cosine with the main one. alpha: (R, 1)."""
    return total + alpha * (gate(total, auxiliary, alpha, members) - 1) * auxiliary


def gate(total: Tensor, auxiliary: Tensor, alpha: Tensor, members: Tensor) -> Tensor:
    """The positive cosine between main and auxiliary gradient, 0 where it is undefined: (R, 1)."""
    product, main, other = dialogue_sums(total, auxiliary, alpha, members).sum(2)
    return (product / (main * other).sqrt()).nan_to_num(0.0).clamp(0, 1).float()[:, None]
