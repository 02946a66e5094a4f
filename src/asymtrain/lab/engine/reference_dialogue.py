"""The two gradients of the reference loop, parameter by parameter: what is measured of them, and what replaces one.

The plain counterpart of `layers.py` and `tally.py`, in float64 and Python numbers.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asymtrain import streams
from asymtrain.gradients import cosine
from asymtrain.lab.engine.layers import layer_name
from asymtrain.lab.engine.layout import Layout
from asymtrain.lab.engine.tally import Totals

Pairs = Mapping[str, tuple[Tensor, Tensor]]  # main and auxiliary gradient of each shared parameter


@dataclass(frozen=True)
class Measured:
    """One measured step."""

    cosine: float | None
    main_norm: float
    auxiliary_norm: float
    layers: Mapping[str, float | None]


def measure(pairs: Pairs) -> Measured:
    """Cosines, whole and by layer, and norms."""
    mains, auxiliaries = zip(*pairs.values(), strict=True)
    by_layer = {}
    for layer, names in by_layers(pairs).items():
        by_layer[layer] = cosine([pairs[name][0] for name in names], [pairs[name][1] for name in names])
    return Measured(cosine(mains, auxiliaries), size(mains), size(auxiliaries), by_layer)


def totals(losses: tuple[float, float, float], steps: Sequence[Measured], layers: Iterable[str]) -> Totals:
    """An epoch's means, from mean losses and accuracy and its measured steps."""
    cosines = [step.cosine for step in steps if step.cosine is not None]
    seen = {name: [v for step in steps if (v := step.layers[name]) is not None] for name in layers}
    return Totals(
        *losses,
        cosine=statistics.fmean(cosines) if cosines else None,
        cosine_min=min(cosines, default=None),
        cosine_max=max(cosines, default=None),
        cosine_std=statistics.stdev(cosines) if len(cosines) > 1 else None,
        conflict=sum(value < 0 for value in cosines) / len(cosines) if cosines else None,
        main_norm=statistics.fmean(step.main_norm for step in steps) if steps else None,
        auxiliary_norm=statistics.fmean(step.auxiliary_norm for step in steps) if steps else None,
        layer_cosines=tuple(statistics.fmean(values) if values else None for values in seen.values()),
    )


def gated_signal(pairs: Pairs) -> dict[str, Tensor]:
    """The auxiliary gradient, weighed by its positive cosine with the main one."""
    mains, auxiliaries = zip(*pairs.values(), strict=True)
    weight = max(0.0, cosine(mains, auxiliaries) or 0.0)
    return {name: weight * auxiliary for name, (_, auxiliary) in pairs.items()}


def noise_signal(pairs: Pairs, layout: Layout, key: Tensor, step: int) -> dict[str, Tensor]:
    """Gaussian noise whose norm in each layer is the auxiliary gradient's."""
    position = torch.arange(layout.size, device=key.device)
    drawn = {name: value[0] for name, value in layout.views(streams.normal(key, step, position)[None]).items()}
    replaced: dict[str, Tensor] = {}
    for names in by_layers(pairs).values():
        scale = size([pairs[name][1] for name in names]) / size([drawn[name] for name in names])
        replaced |= {name: drawn[name] * scale for name in names}
    return replaced


def by_layers(names: Iterable[str]) -> dict[str, list[str]]:
    """Parameters under the layers that own them."""
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(layer_name(name), []).append(name)
    return layers


def size(gradient: Iterable[Tensor]) -> float:
    """Euclidean norm of a gradient given in parts."""
    return math.sqrt(math.fsum(part.double().square().sum().item() for part in gradient))
