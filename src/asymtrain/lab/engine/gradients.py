"""How the gradients of a stack are computed: the engine's paths.

- `batched`: one program over all runs; every product has a run axis.
- `side_by_side`: each run by itself, one after the other; on a GPU on several streams.

Both give the same numbers up to rounding. Which is faster depends on the backbone and the device (`plan.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from asymtrain.lab.engine.layout import Layout
from asymtrain.lab.engine.losses import Batch, Losses

Strategy = Literal["batched", "side_by_side"]
LossFunction = Callable[[Mapping[str, Tensor], Batch, Tensor], Losses]
Gather = Callable[[Mapping[str, Tensor], int], Tensor]  # named gradients -> one matrix (R, P)
STREAMS = 8


@dataclass(frozen=True)
class StackGradients:
    """Flat gradients (R, P) of the total loss, and of the auxiliary loss where it was asked for."""

    total: Tensor
    auxiliary: Tensor | None
    main_loss: Tensor  # (R,)
    auxiliary_loss: Tensor  # (R,)
    correct: Tensor  # (R,)


def gradients(
    losses: LossFunction,
    layout: Layout,
    weights: Tensor,
    batch: Batch,
    alpha: Tensor,
    *,
    path: Strategy,
    gather: Gather,
    shared: Sequence[str] | None = None,
) -> StackGradients:
    """Gradients at `weights` (R, P). `shared` names the parameters whose auxiliary gradient is wanted too."""
    if path == "batched":
        return _one(losses, layout, weights, batch, alpha, gather, shared)
    runs = range(len(weights))
    parts = [_slice(batch, r) for r in runs]

    def one(r: int) -> StackGradients:
        return _one(losses, layout, weights[r : r + 1], parts[r], alpha[r : r + 1], gather, shared)

    return _join(_on_streams(one, len(weights)) if weights.is_cuda else [one(r) for r in runs])


def _one(
    losses: LossFunction,
    layout: Layout,
    weights: Tensor,
    batch: Batch,
    alpha: Tensor,
    gather: Gather,
    shared: Sequence[str] | None,
) -> StackGradients:
    leaves = {name: view.detach().requires_grad_() for name, view in layout.views(weights).items()}
    found = losses(leaves, batch, alpha)
    auxiliary = None
    if shared is not None:
        chosen = {name: leaves[name] for name in shared}
        auxiliary = _flat(found.auxiliary.sum(), chosen, gather, len(weights), keep_graph=True)
    total = _flat(found.total, leaves, gather, len(weights))
    return StackGradients(total, auxiliary, found.main.detach(), found.auxiliary.detach(), found.correct.detach())


def _flat(loss: Tensor, leaves: dict[str, Tensor], gather: Gather, runs: int, keep_graph: bool = False) -> Tensor:
    found = torch.autograd.grad(loss, list(leaves.values()), retain_graph=keep_graph, allow_unused=True)
    named = {name: g for name, g in zip(leaves, found, strict=True) if g is not None}
    return gather(named, runs)


def _on_streams(one: Callable[[int], StackGradients], runs: int) -> list[StackGradients]:
    """Run r on stream r modulo STREAMS: the small layers of one run fill the gaps of another."""
    current = torch.cuda.current_stream()
    streams = [torch.cuda.Stream() for _ in range(min(STREAMS, runs))]
    done = []
    for stream in streams:
        stream.wait_stream(current)
    for r in range(runs):
        with torch.cuda.stream(streams[r % len(streams)]):
            done.append(one(r))
    for stream in streams:
        current.wait_stream(stream)
    return done


def _join(parts: list[StackGradients]) -> StackGradients:
    auxiliaries = [part.auxiliary for part in parts if part.auxiliary is not None]
    return StackGradients(
        torch.cat([part.total for part in parts]),
        torch.cat(auxiliaries) if auxiliaries else None,
        torch.cat([part.main_loss for part in parts]),
        torch.cat([part.auxiliary_loss for part in parts]),
        torch.cat([part.correct for part in parts]),
    )


def _slice(batch: Batch, run: int) -> Batch:
    part = slice(run, run + 1)
    own = {name: value[part] for name, value in batch._asdict().items() if value is not None and name != "weight"}
    return batch._replace(**own)
