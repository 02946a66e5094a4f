"""A deep network without shortcuts, as a model of your own: `asymtrain tune examples.deep_network:build` takes it."""

import math
from collections import OrderedDict
from itertools import pairwise

from torch import nn


def build(classes: int, input_shape: tuple[int, ...], depth: int = 8, width: int = 64) -> nn.Module:
    """The network: linear layers with ReLU, one after the other, without shortcuts or normalisation. It was chosen for
    this demo because branches help it; the same command tells whether they help yours.
    """
    sizes = [math.prod(input_shape), *[width] * depth]
    layers = [nn.Sequential(nn.Linear(before, after), nn.ReLU()) for before, after in pairwise(sizes)]
    parts = OrderedDict(flat=nn.Flatten(), layers=nn.Sequential(*layers), head=nn.Linear(width, classes))
    return nn.Sequential(parts)
