"""Random numbers that a module draws in its forward, keyed by the run: dropout, stochastic depth, noise.

Every random draw of a module ends in one of a few operations of torch. Inside `Draws` these give numbers that depend on
the run's key, the step, and how many tensors were drawn before in the same forward: not on torch's random state, the
other runs of a stack, or the device.

On a CPU the same numbers come from numpy, in blocks that stay in its cache: torch's operations would pass over memory
a dozen times, and take longer than torch's own dropout.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from asymtrain import streams
from asymtrain.errors import UsageError

aten = torch.ops.aten
_BLOCK = 1 << 14  # numbers per block: two arrays of them fit into a core's cache, and calls are few
_POSITIONS = np.arange(_BLOCK, dtype=np.uint64)
_SHIFT_1, _SHIFT_2, _TO_24_BITS = np.uint64(30), np.uint64(27), np.uint64(40)
_MIX_1, _MIX_2 = (np.uint64(factor % 2**64) for factor in (streams.MIX_1, streams.MIX_2))


class FusedDropoutError(Exception):
    """Fused attention draws inside its kernel. As separate operations (`SDPBackend.MATH`) its dropout can be keyed."""


class Draws(TorchDispatchMode):
    """Used as `with Draws(key, step): module(x)`; `count` is the number of tensors that were drawn."""

    def __init__(self, key: Tensor, step: Tensor | int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.key, self.step, self.count = key, step, 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        draw = _DRAWN.get(func)
        if draw is not None:
            return draw(self, *args, **(kwargs or {}))
        if _draws(func):
            _refuse(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def uniform(self, like: Tensor) -> Tensor:
        """Floats in [0, 1) with the shape of `like`."""
        if not self._is_on_host(like):
            return self._next(streams.uniform, like).to(like.dtype)
        values = np.empty(like.numel(), np.float32)
        for part, words in self._words(like):
            values[part] = (words >> _TO_24_BITS) * 2.0**-24
        return torch.from_numpy(values).view(like.shape).to(like.dtype)

    def below(self, like: Tensor, p: float | Tensor, dtype: torch.dtype, *, in_place: bool = False) -> Tensor:
        """1 where the next uniform number is below p, else 0; shaped like `like`, and written into it if `in_place`."""
        if isinstance(p, Tensor) or not 0 < np.float32(p) < 1 or not self._is_on_host(like):
            return (self._next(streams.uniform, like) < p).to(dtype)
        # Written directly as floats if needed: converting bools takes a fifth of the time of drawing.
        written = torch.bool if dtype == torch.bool else torch.float32
        own = in_place and like.dtype == written and like.is_contiguous() and not like.requires_grad
        numbers = like if own else torch.empty(like.shape, dtype=written)
        values = numbers.view(-1).numpy()
        # How many of the 2^24 numbers are below p, which torch takes in float32.
        limit = np.uint64(ceil(float(np.float32(p)) * 2**24) << 40)
        for part, words in self._words(like):
            np.less(words, limit, values[part])
        return numbers.to(dtype)

    def normal(self, like: Tensor) -> Tensor:
        return self._next(streams.normal, like).to(like.dtype)

    def _next(self, draw: Callable[..., Tensor], like: Tensor) -> Tensor:
        position = torch.arange(like.numel(), device=like.device)
        values = draw(self.key.to(like.device), self.step, self.count, position).view(like.shape)
        self.count += 1
        return values

    def _is_on_host(self, like: Tensor) -> bool:
        """Whether all tensors are in host memory, and no dispatch mode records operations."""
        tensors = (like, self.key, self.step if isinstance(self.step, Tensor) else self.key)
        return all(type(value) is Tensor and value.is_cpu for value in tensors) and _get_current_dispatch_mode() is None

    def _words(self, like: Tensor) -> Iterator[tuple[slice, npt.NDArray[np.uint64]]]:
        """Blocks of words whose first 24 bits equal those of `streams.bits`."""
        state, size = int(self.key), like.numel()
        for counter in (int(self.step), self.count):
            state = _mixed(state + counter)
        self.count += 1
        words, shifted = (np.empty(min(size, _BLOCK), np.uint64) for _ in range(2))
        for begin in range(0, size, _BLOCK):
            part = slice(begin, min(begin + _BLOCK, size))
            count = part.stop - begin
            words, shifted = words[:count], shifted[:count]
            np.add(_POSITIONS[:count], np.uint64((state + begin) % 2**64), words)
            for shift, factor in ((_SHIFT_1, _MIX_1), (_SHIFT_2, _MIX_2)):
                np.right_shift(words, shift, shifted)
                np.bitwise_xor(words, shifted, words)
                np.multiply(words, factor, words)
            yield part, words  # the last step of splitmix64 changes only later bits


@cache
def _draws(func: Any) -> bool:
    """Whether an operation may draw. Cached: each operation of a forward asks, and reading tags takes microseconds."""
    return torch.Tag.nondeterministic_seeded in func.tags


def _refuse(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse draws that cannot be keyed; fused attention without dropout does not draw."""
    if "scaled_dot_product" not in func.__name__:
        raise UsageError(
            f"the model draws random numbers by {func}, which cannot be keyed by a run's seed: use dropout, "
            "bernoulli, rand or randn in its place"
        )
    names = [argument.name for argument in func._schema.arguments]
    if (dict(zip(names, args, strict=False)) | kwargs).get("dropout_p"):
        raise FusedDropoutError


def _mixed(z: int) -> int:
    """Mixes a word as `streams.bits` does."""
    z %= 2**64
    z = (z ^ z >> 30) * streams.MIX_1 % 2**64
    z = (z ^ z >> 27) * streams.MIX_2 % 2**64
    return z ^ z >> 31


def _ones(
    draws: Draws, input: Tensor, p: float | Tensor = 0.5, *, generator: object = None, in_place: bool = False
) -> Tensor:
    """1 with probability p, else 0, in the shape of the input."""
    return draws.below(input, p, input.dtype, in_place=in_place)


def _bernoulli(draws: Draws, input: Tensor, *, generator: object = None) -> Tensor:
    """1 with the probabilities in the input, else 0."""
    return _ones(draws, input, input)


def _dropout(draws: Draws, input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if not train or p == 0:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    keep = draws.below(input, 1 - p, torch.bool)  # as torch's dropout on a CPU: 1 with that probability
    return input * keep / (1 - p) if p < 1 else torch.zeros_like(input), keep


def _in_place(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda draws, input, *args, **kwargs: input.copy_(make(draws, input, *args, **kwargs))


def _between(draws: Draws, input: Tensor, low: float = 0.0, high: float = 1.0, *, generator: object = None) -> Tensor:
    return low + (high - low) * draws.uniform(input)


def _around(draws: Draws, input: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: object = None) -> Tensor:
    return mean + std * draws.normal(input)


def _new(make: Callable[[Draws, Tensor], Tensor]) -> Callable[..., Tensor]:
    def new_tensor(draws: Draws, size: Sequence[int], *, generator: object = None, **options: Any) -> Tensor:
        return make(draws, torch.empty(size, **options))

    return new_tensor


def _like(make: Callable[[Draws, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda draws, input, *, generator=None, **options: make(draws, torch.empty_like(input, **options))


_DRAWN: dict[object, Callable[..., Any]] = {
    aten.native_dropout.default: _dropout,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.p: _ones,
    aten.bernoulli_.float: _in_place(partial(_ones, in_place=True)),
    aten.bernoulli_.Tensor: _in_place(partial(_ones, in_place=True)),
    aten.uniform_.default: _in_place(_between),
    aten.normal_.default: _in_place(_around),
    aten.rand.default: _new(Draws.uniform),
    aten.rand.generator: _new(Draws.uniform),
    aten.randn.default: _new(Draws.normal),
    aten.randn.generator: _new(Draws.normal),
    aten.rand_like.default: _like(Draws.uniform),
    aten.randn_like.default: _like(Draws.normal),
}
