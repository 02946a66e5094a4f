"""From a place's output to one row for each sample: the layout says which axis is what, the pool how to reduce.

A layout is a word with one letter for each axis: B is the batch, C or D the features, every other letter a
position that is pooled away. "BD", "BCHW", "BTD", "TBD" and "BHWC" are the usual ones; "BCT" (1-d convolutions)
or "BCTHW" (video) follow the same rule.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from asymtrain.branches._nested import Selector, select
from asymtrain.errors import UsageError, unknown_name

PoolName = Literal["mean", "class_token"]
Pool = PoolName | Callable[[Tensor], Tensor]


def pool_features(feature: Tensor, layout: str, pool: PoolName) -> Tensor:
    """Reduce a feature of the given layout to (B, D).

    The result never shares memory with the input: a later in-place operation of the model (ReLU) must not
    change what the branches see. Means are accumulated in float32 at least.
    """
    positions = [axis for axis, letter in enumerate(layout) if letter not in "BCD"]
    if not positions:
        rows = feature.clone()
    elif pool == "mean":
        rows = feature.mean(positions, dtype=torch.promote_types(feature.dtype, torch.float32))
    else:
        rows = feature.select(positions[0], 0).clone()
    kept = [letter for letter in layout if letter in "BCD"]
    return rows if kept[0] == "B" else rows.t()


@dataclass(frozen=True)
class Reader:
    """Reads (B, D) from whatever a place gives."""

    layout: str | None  # None where it is not known yet, or not asked for: a user's own pool takes the feature as it is
    pool: Pool
    output: Selector | None = None

    def check(self) -> None:
        """Raise a `UsageError` where the layout or the pooling rule is none."""
        letters = list(self.layout) if isinstance(self.layout, str) else []
        once = len(set(letters)) == len(letters) and "B" in letters and len({"C", "D"} & set(letters)) == 1
        if self.layout is not None and not once:
            raise UsageError(
                f"layout {self.layout!r} is not one letter an axis with one B (batch) and one C or D (features): "
                "write for example 'BD', 'BCHW', 'BTD', 'TBD' or 'BHWC'"
            )
        if isinstance(self.pool, nn.Module):
            raise UsageError(
                f"pool is a module ({type(self.pool).__name__}), whose weights would never be trained: give a function "
                "from the feature to (B, D)"
            )
        if not callable(self.pool) and self.pool not in get_args(PoolName):
            raise unknown_name("pool", str(self.pool), get_args(PoolName))

    def read(self, output: object) -> Tensor | str:
        """The rows, or what is wrong with the output.

        Does not raise: a hook must not break a forward whose branches nobody asks for.
        """
        feature = select(output, self.output)
        if feature is None:
            return f"gives no floating-point tensor (its output is a {type(output).__name__})"
        if feature.is_nested:
            return "gives a nested tensor (build the encoder with enable_nested_tensor=False)"
        if feature.layout is not torch.strided:
            return f"gives a tensor of layout {feature.layout}: choose a module whose output is dense"
        if callable(self.pool):
            rows = self.pool(feature)
            dense = isinstance(rows, Tensor) and rows.layout is torch.strided and not rows.is_nested
            if not dense or rows.ndim != 2 or rows.is_complex():
                return "has a `pool` function that does not return a tensor of shape (rows, features)"
            # The user's function may return a view.
            return rows.clone()
        assert self.layout is not None
        if feature.ndim != len(self.layout):
            return f"gives shape {tuple(feature.shape)}, which does not have the axes of layout {self.layout!r}"
        return pool_features(feature, self.layout, self.pool)
