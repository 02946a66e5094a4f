"""Random numbers that depend only on (seed, purpose) and a position.

Two kinds:

- `generator(seed, purpose)`: a CPU `torch.Generator`, for numbers drawn once (initial weights, splits, noise).
- `bits(keys, *position)`: a counter-based hash, for numbers drawn at every step (shuffles, dropout,
  augmentation). It is integer arithmetic, so the same key gives the same bits on every device, alone or
  in a stack of runs, and drawing for one run never advances another.

Nothing here may depend on alpha, redundancy or the optimiser's settings, so that Plain and Asymmetric of one seed
are a true pair.
"""

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

# Multipliers of the splitmix64 finaliser, as signed 64-bit integers.
MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
MIX_2 = 0x94D049BB133111EB - (1 << 64)


def key(seed: int, purpose: str) -> int:
    """A signed 64-bit key for (seed, purpose), the same in every process."""
    digest = hashlib.sha256(f"{purpose}:{seed}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def generator(seed: int, purpose: str) -> torch.Generator:
    """A fresh CPU generator for (seed, purpose)."""
    return torch.Generator().manual_seed(key(seed, purpose) & (2**63 - 1))


def bits(keys: Tensor, *position: Tensor | int) -> Tensor:
    """Hash keys with one or more counters, broadcast together, to uniform int64 bits."""
    state = keys
    for counter in position:
        state = _mix(state + counter)
    return state


def uniform(keys: Tensor, *position: Tensor | int) -> Tensor:
    """Floats in [0, 1) with 24 random bits, the same on every device."""
    return (bits(keys, *position) >> 40 & 0xFFFFFF).to(torch.float32) * (1.0 / (1 << 24))


def normal(keys: Tensor, *position: Tensor | int) -> Tensor:
    """Standard normal floats (Box-Muller), the same on every device up to rounding."""
    drawn = bits(keys, *position)
    first, second = ((drawn >> shift & 0xFFFFFF).to(torch.float32) * (1.0 / (1 << 24)) for shift in (40, 16))
    return (-2 * (first + 2.0**-25).log()).sqrt() * (2 * torch.pi * second).cos()


def permutations(keys: Tensor, epoch: Tensor | int, n: int) -> Tensor:
    """For keys (R,), a permutation of range(n) per key: (R, n)."""
    order = torch.arange(n, device=keys.device)
    return bits(keys[:, None], epoch, order).argsort(dim=1, stable=True)


@contextmanager
def random_state_kept() -> Iterator[None]:
    """A context after which torch's, Python's and numpy's random states are restored."""
    # Looked up, not imported: the library depends on torch only.
    numpy = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy:
                numpy.random.set_state(numpy_state)


def _mix(z: Tensor) -> Tensor:
    # torch shifts int64 arithmetically; the masks make the shifts logical, as splitmix64 needs.
    z = (z ^ (z >> 30 & 0x3FFFFFFFF)) * MIX_1
    z = (z ^ (z >> 27 & 0x1FFFFFFFFF)) * MIX_2
    return z ^ (z >> 31 & 0x1FFFFFFFF)
