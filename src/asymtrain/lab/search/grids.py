"""The values that a search tries, as data.

The paper gives the grids of the learning rate, the weight decay and alpha. It leaves open at which weight decay the
learning rate is searched (the exponent is unreadable), how many points the linear alphas have, and how many seeds a
search takes. This file fixes these values.
"""

import inspect
from collections.abc import Mapping

from asymtrain.lab.runs import RunSpec

LEARNING_RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
WEIGHT_DECAYS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
LOG_ALPHAS = (0.1, 0.215, 0.464, 1.0, 2.154, 4.642, 10.0, 21.544, 46.416, 100.0)
LINEAR_ALPHAS = tuple(map(float, range(0, 51, 5)))

FIXED_WEIGHT_DECAY = 1e-3  # of the search for the learning rate: the middle of the grid that follows
FINAL_SEEDS = frozenset(range(42, 52))  # the paper's; a search must not see them
SEARCH_SEEDS = (1000,)

LARGEST_DROPOUT = 0.75
LARGEST_SMOOTHING = 0.5


def search_epochs(epochs: int) -> int:
    """Epochs of a search run if final runs have `epochs`: the paper's 150 for 200."""
    return max(1, epochs * 3 // 4)


def plain_extras(base: RunSpec, count: int) -> tuple[Mapping[str, float], ...]:
    """Regularisers for Plain: its settings as they are, then `count` others.

    Half of them change the dropout rate where the backbone has one, the rest the label smoothing, one at a time. They
    lie evenly between 0 and the largest that is tried.
    """
    smoothing, dropout = base.label_smoothing, option_value(base, "dropout")
    now = {"label_smoothing": smoothing} if dropout is None else {"dropout": dropout, "label_smoothing": smoothing}
    rates = 0 if dropout is None else count // 2
    changed = [{"dropout": rate} for rate in _others(LARGEST_DROPOUT, rates, dropout or 0.0)]
    changed += [{"label_smoothing": share} for share in _others(LARGEST_SMOOTHING, count - rates, smoothing)]
    return (now, *({**now, **change} for change in changed))


def option_value(spec: RunSpec, name: str) -> float | None:
    """A number among the options of the spec's backbone, or its default; None if unknown."""
    from asymtrain.models import BACKBONES  # loads torch, which other grids do not need

    if spec.arch not in BACKBONES:  # for a model by name, only the spec's own values are known
        value = dict(spec.arch_options).get(name)
        return float(value) if isinstance(value, int | float) else None
    option = inspect.signature(BACKBONES[spec.arch]).parameters.get(name)
    return None if option is None else float(dict(spec.arch_options).get(name, option.default))


def _others(end: float, count: int, excluded: float) -> list[float]:
    """So many evenly spaced values without the excluded one: one more is made, and the nearest to it is left out."""
    if count == 0:
        return []
    values = [round(end * i / count, 4) for i in range(count + 1)]  # rounded so that they can be typed
    nearest = min(values, key=lambda value: abs(value - excluded))
    return [value for value in values if value != nearest]
