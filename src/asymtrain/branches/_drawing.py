"""How branches begin and which one is live: pure functions of a seed.

Axis letters: K places, N branches at a place, C classes, D width of a place.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from asymtrain.streams import bits, generator, key

Draw = Literal["independent", "sequence"]
Activation = Literal["last", "all", "random", "cycle"]


def draw_branches(seed: int, widths: Sequence[int], classes: int, redundancy: int, draw: Draw) -> list[Tensor]:
    """Initial weights: for each width D a float32 CPU tensor (N, C, D), each branch orthogonal.

    - "independent": a branch is keyed by its place and its distance from the last branch, so the last one is
      the same for every redundancy.
    - "sequence": one generator draws branch 0 to N-1 of the first place, then of the next, as a plain loop
      over `nn.Linear` layers would. The last branch then depends on the redundancy.

    The global random state is not touched, and the draw is on the CPU whatever device the model is on.
    """
    stream = generator(seed, "branches in sequence")
    drawn = []
    for place, width in enumerate(widths):
        # Named, since torch's default device and type are the user's to change.
        weights_NCD = torch.empty(redundancy, classes, width, device="cpu", dtype=torch.float32)
        for index, weight_CD in enumerate(weights_NCD):
            if draw == "independent":
                stream = generator(seed, f"branch {redundancy - 1 - index} from last at place {place}")
            nn.init.orthogonal_(weight_CD, generator=stream)
        drawn.append(weights_NCD)
    return drawn


def choice_key(seed: int, place: int) -> int:
    """The key under which a place draws its live branch."""
    return key(seed, f"live branch at place {place}")


def choose_branch(activation: Activation, place_key: int | Tensor, step: Tensor, redundancy: int) -> Tensor:
    """Index of the live branch in training forward number `step` (from 0), as an integer tensor like `step`.

    "cycle" takes the branches in turn, the same one at every place; "random" draws one for each place and step.
    A function of its arguments alone: ranks with the same step agree without talking.
    """
    if activation == "cycle":
        return step % redundancy
    # The sign bit is dropped: the remainder must not be negative.
    keys = place_key if isinstance(place_key, Tensor) else torch.full_like(step, place_key)
    return (bits(keys, step) & (2**63 - 1)) % redundancy
