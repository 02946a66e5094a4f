"""Random numbers that a module draws in its forward, keyed by the run: dropout, stochastic depth, noise.

Whatever a module calls to draw ends in a few operations of torch. Inside of `Draws` these give numbers that depend on
the run's key, the step, and how many were drawn before in the same forward: not on torch's random state, on the other
runs of a stack, or on the device.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from asymtrain import streams
from asymtrain.errors import UsageError

aten = torch.ops.aten


class FusedDropoutError(Exception):
    """Fused attention draws inside of its kernel; spelled out (`SDPBackend.MATH`), its dropout can be keyed."""


class Draws(TorchDispatchMode):
    """`with Draws(key, step): module(x)`; `count` says how many tensors were drawn."""

    def __init__(self, key: Tensor, step: Tensor | int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.key, self.step, self.count = key, step, 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        draw = _DRAWN.get(func)
        if draw is not None:
            return draw(self, *args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags and "scaled_dot_product" in func.__name__:
            names = [argument.name for argument in func._schema.arguments]
            given = dict(zip(names, args, strict=False)) | (kwargs or {})
            if given.get("dropout_p"):
                raise FusedDropoutError
        elif torch.Tag.nondeterministic_seeded in func.tags:
            raise UsageError(
                f"the model draws random numbers by {func}, which cannot be keyed by a run's seed: use dropout, "
                "bernoulli, rand or randn in its place"
            )
        return func(*args, **(kwargs or {}))

    def uniform(self, like: Tensor) -> Tensor:
        """Floats in [0, 1) in the shape of `like`."""
        return self._next(streams.uniform, like).to(like.dtype)

    def normal(self, like: Tensor) -> Tensor:
        return self._next(streams.normal, like).to(like.dtype)

    def _next(self, draw: Callable[..., Tensor], like: Tensor) -> Tensor:
        position = torch.arange(like.numel(), device=like.device)
        drawn = draw(self.key.to(like.device), self.step, self.count, position).view(like.shape)
        self.count += 1
        return drawn


def _ones(draws: Draws, input: Tensor, p: float | Tensor = 0.5, *, generator: object = None) -> Tensor:
    """In the shape of the input, ones with probability p."""
    return (draws.uniform(input.float()) < p).to(input.dtype)


def _bernoulli(draws: Draws, input: Tensor, *, generator: object = None) -> Tensor:
    """Ones with the probabilities that the input holds."""
    return _ones(draws, input, input)


def _dropout(draws: Draws, input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if not train or p == 0:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    keep = draws.uniform(input.float()) < 1 - p  # as where a CPU takes dropout apart: ones with that probability
    return input * keep / (1 - p) if p < 1 else torch.zeros_like(input), keep


def _in_place(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda draws, input, *args, **kwargs: input.copy_(make(draws, input, *args, **kwargs))


def _between(draws: Draws, input: Tensor, low: float = 0.0, high: float = 1.0, *, generator: object = None) -> Tensor:
    return low + (high - low) * draws.uniform(input)


def _around(draws: Draws, input: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: object = None) -> Tensor:
    return mean + std * draws.normal(input)


def _new(make: Callable[[Draws, Tensor], Tensor]) -> Callable[..., Tensor]:
    def made(draws: Draws, size: Sequence[int], *, generator: object = None, **options: Any) -> Tensor:
        return make(draws, torch.empty(size, **options))

    return made


def _like(make: Callable[[Draws, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda draws, input, *, generator=None, **options: make(draws, torch.empty_like(input, **options))


_DRAWN: dict[object, Callable[..., Any]] = {
    aten.native_dropout.default: _dropout,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.p: _ones,
    aten.bernoulli_.float: _in_place(_ones),
    aten.bernoulli_.Tensor: _in_place(_ones),
    aten.uniform_.default: _in_place(_between),
    aten.normal_.default: _in_place(_around),
    aten.rand.default: _new(Draws.uniform),
    aten.rand.generator: _new(Draws.uniform),
    aten.randn.default: _new(Draws.normal),
    aten.randn.generator: _new(Draws.normal),
    aten.rand_like.default: _like(Draws.uniform),
    aten.randn_like.default: _like(Draws.normal),
}
