"""What the user gives, as the probe uses it: copies of the model, the logits in its outputs, batches, places.

The user's model stays as it is: the probe works on copies, and puts every random state back.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from asymtrain import streams
from asymtrain.branches._attaching import refuse_wrapped
from asymtrain.branches._nested import tensors_in
from asymtrain.errors import UsageError, error_line

Source = nn.Module | Callable[[], nn.Module]

HOLD_OUT = 5  # every fifth batch
MOST_HELD_OUT = 32  # batches: runs are compared twice on them, which takes time from training
MOST_BYTES = 2**30  # of batches that are kept, where they come from an iterator
LOOKED_AT = 16  # batches that are searched for a second class, and for targets that no logit stands for


def fresh_model(source: Source, seed: int) -> nn.Module:
    """A model to work on, in float32 and in training mode: a copy of the module, or what the function builds.

    A function is called with torch's random state set by `seed`, so each seed has initial weights of its own; a
    module's copies all start from its weights.
    """
    if isinstance(source, nn.Module):
        refuse_wrapped(source)
        try:
            model = copy.deepcopy(source)
        except Exception as error:
            raise UsageError(
                f"the model cannot be copied ({error_line(error)}): give a function that builds it, "
                "probe(lambda: build_model(), ...)"
            ) from error
    elif callable(source):
        torch.manual_seed(seed)
        model = checked_module(source())
        refuse_wrapped(model)
    else:
        raise UsageError(f"probe takes an nn.Module or a function that builds one, got a {type(source).__name__}")
    devices = {parameter.device for parameter in model.parameters()}
    if not devices:
        raise UsageError("the model has no parameters: there is nothing to train")
    if any(device.type == "meta" for device in devices):
        raise UsageError(
            "the model has no weights yet (its parameters are on the meta device): load or build them first"
        )
    if len(devices) > 1:
        listed = sorted(map(str, devices))
        raise UsageError(
            f"the model lies on {' and '.join(listed)}: move it to one device to probe it, model.to({listed[-1]!r})"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError("no parameter of the model is trained (requires_grad is False everywhere): unfreeze some")
    # Weights in half precision cannot be trained by an ordinary optimizer.
    if any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in model.parameters()):
        model = model.float()
    return model.train()


def checked_module(value: Any) -> nn.Module:
    if not isinstance(value, nn.Module):
        raise UsageError(f"the function must return an nn.Module, and returned {type(value).__name__}")
    return value


class Batch(NamedTuple):
    """What the model is called with, and class indices (B,)."""

    inputs: Any
    targets: Tensor


@dataclass(frozen=True)
class Batches:
    """Batches by number, split into those to train on and those held out: the same ones for every run of a probe."""

    items: Sequence[Any]
    train_numbers: Sequence[int]
    held_out_numbers: Sequence[int]

    def order(self, seed: int, steps: int) -> list[int]:
        """Which batch is trained on at each step: every batch once in an order of the seed's own, then again."""
        key, count = torch.tensor([streams.key(seed, "probe order")]), len(self.train_numbers)
        epochs = (streams.permutations(key, epoch, count)[0].tolist() for epoch in range(-(-steps // count)))
        return [self.train_numbers[i] for epoch in epochs for i in epoch][:steps]

    def batch(self, number: int, device: torch.device) -> Batch:
        inputs, targets = read_batch(self.items[number])
        return Batch(_moved(inputs, device), targets.to(device))

    def sample(self, device: torch.device) -> Any:
        """Inputs that the model can be called with once, to see what it does."""
        return self.batch(self.train_numbers[0], device).inputs

    def held_out_size(self) -> int:
        return sum(len(read_batch(self.items[number]).targets) for number in self.held_out_numbers)

    def classes_seen(self) -> list[int]:
        """Targets in the first batches to train on, each once."""
        return sorted(_targets_in(self.items, self.train_numbers[:LOOKED_AT]))


def gather(source: Any, most: int) -> Batches:
    """Split what the user gave: anything with a length and numbers is read by number, the rest is kept in memory.

    At most `most` batches are kept, or a gigabyte. Batches of a single sample are left out.
    """
    by_number = isinstance(source, Sized) and hasattr(source, "__getitem__") and not isinstance(source, Mapping)
    items = source if by_number else _keep(source, most)
    count = min(len(items), most)
    if count < 1:
        raise UsageError("there is no batch: give a list or a DataLoader of (inputs, targets)")
    # Of a dataset that makes its batches when they are asked for, the last alone may be short.
    looked_at = range(count) if isinstance(items, list) else (0, count - 1)
    sizes = {i: len(read_batch(items[i]).targets) for i in looked_at}
    numbers = [i for i in range(count) if sizes.get(i, 2) > 1]
    if sizes[0] < 2 or not numbers:
        raise UsageError("the batches hold one sample each: a gradient of one sample says little; give 16 or more")
    if len(numbers) < 2:
        raise UsageError("one batch is too few, since some are held out: give at least 2, better 50")
    targets = _targets_in(items, numbers[:LOOKED_AT])
    if len(targets) == 1:
        raise UsageError(
            f"the first {min(len(numbers), LOOKED_AT)} batches hold one class only ({targets.pop()}): there is nothing "
            "to tell apart; shuffle the data, or add classes"
        )
    held_out = numbers[HOLD_OUT - 1 :: HOLD_OUT][:MOST_HELD_OUT] if len(numbers) >= HOLD_OUT else numbers[-1:]
    return Batches(items, [i for i in numbers if i not in set(held_out)], held_out)


def read_batch(item: Any) -> Batch:
    """Inputs and targets of one item: a pair, or a mapping with `labels`."""
    inputs: Any
    if isinstance(item, Mapping):
        if "labels" not in item:
            names = ", ".join(map(str, item))
            raise UsageError(f"a batch is a mapping without 'labels' (it has {names}): name them so")
        inputs, targets = {name: value for name, value in item.items() if name != "labels"}, item["labels"]
    elif isinstance(item, tuple | list) and len(item) == 2:
        inputs, targets = tuple(item[0]) if isinstance(item[0], list) else item[0], item[1]
    else:
        raise UsageError(f"a batch must be (inputs, targets) or a mapping with 'labels', got a {type(item).__name__}")
    is_tensor = isinstance(targets, Tensor)
    if not is_tensor or targets.ndim != 1 or targets.is_floating_point() or targets.dtype == torch.bool:
        raise UsageError(
            "targets must be a tensor of class indices, one for each sample, got "
            f"{tuple(targets.shape) if is_tensor else type(targets).__name__}: give batches as a DataLoader makes them"
        )
    return Batch(inputs, targets.long())


def _targets_in(items: Sequence[Any], numbers: Iterable[int]) -> set[int]:
    return {int(target) for number in numbers for target in read_batch(items[number]).targets.unique()}


def _keep(source: Any, most: int) -> list[Any]:
    if not isinstance(source, Iterable):
        raise UsageError(f"batches must be a list, a DataLoader or another iterable, got a {type(source).__name__}")
    kept: list[Any] = []
    size = 0
    for item in islice(source, most):
        kept.append(item)
        size += sum(tensor.nbytes for tensor in tensors_in(item))
        if size > MOST_BYTES:
            break
    return kept


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, torch.float32 if value.dtype in (torch.float16, torch.bfloat16) else value.dtype)
    if isinstance(value, Mapping):
        return {name: _moved(part, device) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_moved(part, device) for part in value)
    return value
