"""Where the paper contradicts itself; and the possible effect of single activation.

The contradictions follow from the paper's printed numbers alone. Their sentences are in `texts.toml`, in the order of
the paper's sections; a test recomputes every number in them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from asymtrain.lab.studies.paper.evidence import Quantity
from asymtrain.lab.studies.paper.numbers import texts
from asymtrain.models import display_name


@dataclass(frozen=True)
class Contradiction:
    """What the paper says, and what its numbers say."""

    name: str
    where: str
    sentence: str
    holds: bool = True  # False if our runs contradict it


def contradictions() -> tuple[Contradiction, ...]:
    return tuple(Contradiction(name, **text) for name, text in texts()["contradictions"].items())


def single_activation(identity: Mapping[str, Quantity]) -> tuple[str, bool | None]:
    """What single activation can do: a sentence, and whether runs confirm it (None: no run yet).

    Args:
        identity: for each backbone and seed, the largest difference between the trained backbones of N = 1 and N = 20
            with the same live branch and settings (label identity/ARCH).
    """
    text = texts()["single_activation"]
    measured = {arch: quantity.values for arch, quantity in identity.items() if quantity.values}
    differences = [abs(value) for values in measured.values() for value in values]
    names = ", ".join(display_name(arch) for arch in measured)
    pairs = f"{len(differences)} pairs of runs at N = 1 and N = 20 ({names})"
    numbers = {"theory": text["theory"], "pairs": pairs, "largest": max(differences, default=0.0)}
    finding, holds = ("differs", False) if any(differences) else ("equal", True) if measured else ("no_runs", None)
    return text[finding].format(**numbers), holds
