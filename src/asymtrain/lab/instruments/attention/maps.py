"""From attention matrices (..., T, T), rows are queries that sum to one, to maps over patches (..., T - prefix).

`prefix` is how many tokens stand before the patches: 1 for a class token, more with registers or a distillation token.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from asymtrain.errors import UsageError


def from_class_token(attention: Tensor, *, prefix: int = 1, renormalise: bool = True) -> Tensor:
    """What the first token attends to among the patches.

    Renormalised, a map is divided by its sum, so that it is a distribution over patches; else the weight that goes to
    the tokens before the patches is simply missing. Not a number where nothing at all goes to the patches.
    """
    if prefix < 1:
        raise UsageError('there is no class token: use query="mean", the average over all queries')
    return _over_patches(attention[..., 0, :], prefix, renormalise)


def over_queries(attention: Tensor, *, prefix: int = 1, renormalise: bool = True) -> Tensor:
    """What all tokens (those before the patches included) attend to among the patches, averaged."""
    return _over_patches(attention.mean(-2), prefix, renormalise)


def rollout(attention: Sequence[Tensor], residual: float = 0.5) -> Tensor:
    """Attention rollout (Abnar and Zuidema 2020): layers of (B, heads, T, T), first to last -> (B, T, T).

    The heads of a layer are averaged, the residual connection enters as `residual` times the identity beside
    (1 - residual) times the attention, and the layers are multiplied. Rows sum to one. Row 0 says how much of each
    input token reaches the class token.
    """
    if not attention:
        raise UsageError("a rollout needs the attention of one layer or more")
    if not 0 <= residual <= 1:
        raise UsageError(f"residual is a share between 0 and 1, got {residual:g}")
    flow: Tensor | None = None
    for layer in attention:
        heads = layer.mean(-3)
        step = (1 - residual) * heads + residual * torch.eye(heads.shape[-1], device=heads.device, dtype=heads.dtype)
        flow = step if flow is None else step @ flow
    assert flow is not None  # there is a layer
    return flow


def _over_patches(rows: Tensor, prefix: int, renormalise: bool) -> Tensor:
    if prefix >= rows.shape[-1]:
        raise UsageError(f"{prefix} of {rows.shape[-1]} tokens stand before the patches: no patch is left")
    patches = rows[..., prefix:]
    return patches / patches.sum(-1, keepdim=True) if renormalise else patches
