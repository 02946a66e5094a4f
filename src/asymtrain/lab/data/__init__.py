"""Datasets as arrays, and pure functions on them that depend on a seed.

`load` returns a `Dataset` of images, vectors or sequences of tokens. Import the rest from its own module: splits,
few-shot subsets and label noise from `subsets`, statistics from `normalise`, random flips and shifts from `augment`.
"""

from asymtrain.lab.data.arrays import Dataset, Examples
from asymtrain.lab.data.registry import class_count, data_root, load, source_names

__all__ = ["Dataset", "Examples", "class_count", "data_root", "load", "source_names"]
