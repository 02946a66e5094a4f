"""The images a run trains on, and their labels: pure functions of a seed.

Each takes and returns sorted indices into the same label array. Random orders come from
`streams.generator(seed, purpose)`, so they are the same in every process, and independent of each other.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from asymtrain import streams
from asymtrain.errors import UsageError
from asymtrain.lab.data.arrays import Labels, whole_number

Indices = npt.NDArray[np.int64]
_HELD_OUT = 0.2  # the share for validation, and for testing if a source has no test set


def split(labels: Labels, seed: int) -> tuple[Indices, Indices]:
    """The indices for training and for validation, a random fifth regardless of labels."""
    order = torch.randperm(len(labels), generator=streams.generator(seed, "split")).numpy()
    if not (count := round(_HELD_OUT * len(labels))):
        raise UsageError(f"{len(labels)} images are too few to hold out a fifth of them")
    return np.sort(order[count:]), np.sort(order[:count])


def hold_out(counts: Sequence[int], seed: int) -> list[Indices]:
    """The test examples of each class if a source has no test set: a fifth, at least one."""
    source = streams.generator(seed, "folder-test")
    orders = [torch.randperm(count, generator=source).numpy() for count in counts]
    return [np.sort(order[: max(1, round(_HELD_OUT * len(order)))]) for order in orders]


def few_shot(labels: Labels, indices: Indices, per_class: int, seed: int) -> Indices:
    """`per_class` of the given indices for every class in `labels`; larger subsets of a seed contain smaller ones."""
    per_class = whole_number("per_class", per_class, 1)
    ordered = np.sort(indices)
    shuffled = ordered[torch.randperm(len(ordered), generator=streams.generator(seed, "few-shot")).numpy()]
    rows = []
    for label in np.unique(labels):
        members = shuffled[labels[shuffled] == label]
        if len(members) < per_class:
            raise UsageError(
                f"class {label} has {len(members)} images to train on, fewer than the {per_class} asked for; "
                "take fewer of each class or a larger dataset"
            )
        rows.append(members[:per_class])
    return np.sort(np.concatenate(rows))


def flip_labels(labels: Labels, indices: Indices, rate: float, classes: int, seed: int) -> Labels:
    """A copy of the labels in which exactly round(rate * len(indices)) of the given ones are wrong.

    A wrong label is drawn uniformly from the other classes. Labels outside `indices` stay. At a higher rate the same
    seed flips the same labels to the same wrong classes, and further ones.
    """
    classes = whole_number("classes", classes, 2)
    if not 0 <= rate <= 1:
        raise UsageError(f"the rate of label noise must be from 0 to 1, not {rate}")
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise UsageError(f"labels must be from 0 to {classes - 1}, not {labels.min()} to {labels.max()}")
    source = streams.generator(seed, "noise")
    ordered = np.sort(indices)
    order = torch.randperm(len(ordered), generator=source).numpy()
    # Drawn for every index, flipped or not, so that the wrong classes do not depend on the rate.
    steps = torch.randint(1, classes, (len(ordered),), generator=source).numpy()
    chosen = order[: round(rate * len(ordered))]
    noisy = labels.copy()
    noisy[ordered[chosen]] = (labels[ordered[chosen]] + steps[chosen]) % classes
    return noisy
