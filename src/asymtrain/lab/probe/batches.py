"""The user's batches: some to train on, some held out, the same ones for every run of a probe."""

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from asymtrain import streams
from asymtrain.branches._nested import tensors_in
from asymtrain.errors import UsageError

HOLD_OUT = 5  # every fifth batch
MOST_HELD_OUT = 32  # batches: runs are compared twice on them, which takes time from training
MOST_BYTES = 2**30  # of batches that are kept, where they come from an iterator
LOOKED_AT = 16  # batches that are searched for a second class, and for targets that no logit stands for


@dataclass(frozen=True)
class Batch:
    """What the model is called with, and class indices (B,)."""

    inputs: Any
    targets: Tensor


class Batches:
    """Batches by number, split into those to train on and those held out."""

    def __init__(self, items: Sequence[Any], train: Sequence[int], held_out: Sequence[int]) -> None:
        self.items, self.train_numbers, self.held_out_numbers = items, train, held_out

    def order(self, seed: int, steps: int) -> list[int]:
        """Which batch is trained on at each step: every batch once in an order of the seed's own, then again."""
        key = torch.tensor([streams.key(seed, "probe order")])
        found: list[int] = []
        for epoch in range(-(-steps // len(self.train_numbers))):
            found += [
                self.train_numbers[i] for i in streams.permutations(key, epoch, len(self.train_numbers))[0].tolist()
            ]
        return found[:steps]

    def batch(self, number: int, device: torch.device) -> Batch:
        """One batch on the device."""
        return _moved(read_batch(self.items[number]), device)

    def held_out(self, device: torch.device) -> Iterable[Batch]:
        """The batches that are never trained on."""
        return (self.batch(number, device) for number in self.held_out_numbers)

    def classes_seen(self) -> list[int]:
        """Targets in the first batches to train on, each once."""
        seen = (read_batch(self.items[number]).targets for number in self.train_numbers[:LOOKED_AT])
        return sorted({int(target) for targets in seen for target in targets.unique()})

    def held_out_size(self) -> int:
        """How many samples are held out."""
        return sum(len(read_batch(self.items[number]).targets) for number in self.held_out_numbers)


def gather(source: Any, most: int) -> Batches:
    """Split what the user gave: anything with a length and numbers is read by number, the rest is kept in memory.

    At most `most` batches are kept, or a gigabyte. Batches of a single sample are left out.
    """
    items = source if _by_number(source) else _kept(source, most)
    count = min(len(items), most)
    if count < 1:
        raise UsageError("there is no batch: give a list or a DataLoader of (inputs, targets)")
    first = read_batch(items[0])
    sizes = {0: len(first.targets), count - 1: len(read_batch(items[count - 1]).targets)}
    if isinstance(items, list):
        sizes = {i: len(read_batch(item).targets) for i, item in enumerate(items[:count])}
    numbers = [i for i in range(count) if sizes.get(i, 2) > 1]
    if sizes[0] < 2 or not numbers:
        raise UsageError("the batches hold one sample each: a gradient of one sample says little; give 16 or more")
    if len(numbers) < 2:
        raise UsageError("one batch is too few, since some are held out: give at least 2, better 50")
    held = numbers[HOLD_OUT - 1 :: HOLD_OUT][:MOST_HELD_OUT] if len(numbers) >= HOLD_OUT else numbers[-1:]
    found = Batches(items, [i for i in numbers if i not in set(held)], held)
    _check_classes(found, numbers)
    return found


def read_batch(item: Any) -> Batch:
    """Inputs and targets of one item: a pair, or a mapping with `labels`."""
    if isinstance(item, Mapping):
        if "labels" not in item:
            raise UsageError(
                f"a batch is a mapping without 'labels' (it has {', '.join(map(str, item))}): name them so"
            )
        inputs: Any = {name: value for name, value in item.items() if name != "labels"}
        targets = item["labels"]
    elif isinstance(item, tuple | list) and len(item) == 2:
        inputs, targets = item
        inputs = tuple(inputs) if isinstance(inputs, list) else inputs
    else:
        raise UsageError(f"a batch must be (inputs, targets) or a mapping with 'labels', got a {type(item).__name__}")
    if (
        not isinstance(targets, Tensor)
        or targets.ndim != 1
        or targets.is_floating_point()
        or targets.dtype == torch.bool
    ):
        shown = tuple(targets.shape) if isinstance(targets, Tensor) else type(targets).__name__
        raise UsageError(
            f"targets must be a tensor of class indices, one for each sample, got {shown}: give batches as a "
            "DataLoader makes them"
        )
    return Batch(inputs, targets.long())


def _by_number(source: Any) -> bool:
    return isinstance(source, Sized) and hasattr(source, "__getitem__") and not isinstance(source, Mapping)


def _kept(source: Any, most: int) -> list[Any]:
    if not isinstance(source, Iterable):
        raise UsageError(f"batches must be a list, a DataLoader or another iterable, got a {type(source).__name__}")
    kept: list[Any] = []
    used = 0
    for item in islice(source, most):
        kept.append(item)
        used += sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(item))
        if used > MOST_BYTES:
            break
    return kept


def _check_classes(found: Batches, numbers: Sequence[int]) -> None:
    seen: set[int] = set()
    for number in numbers[:LOOKED_AT]:
        seen |= set(read_batch(found.items[number]).targets.unique().tolist())
        if len(seen) > 1:
            return
    raise UsageError(
        f"the first {min(len(numbers), LOOKED_AT)} batches hold one class only ({seen.pop()}): there is nothing to "
        "tell apart; shuffle the data, or add classes"
    )


def _moved(batch: Batch, device: torch.device) -> Batch:
    return Batch(_to(batch.inputs, device), batch.targets.to(device))


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, torch.float32 if value.dtype in (torch.float16, torch.bfloat16) else value.dtype)
    if isinstance(value, Mapping):
        return {name: _to(part, device) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_to(part, device) for part in value)
    return value
