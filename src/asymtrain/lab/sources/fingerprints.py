"""A model's identity in a few digits, and the difference between two models."""

import hashlib
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from asymtrain.lab.sources.builders import Inputs

if TYPE_CHECKING:
    from torch import Tensor, nn

# Relative to the norm of all values: other random draws change a sum by about the norm, rounding by a millionth.
TOLERANCES = {
    "its initial values": 1e-5,
    "what it computes from its parameters": 1e-3,
    "settings of its parts, such as the rate of a dropout": 1e-5,
}
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2  # its multiples modulo 1 are spread evenly over [0, 1)


def fingerprint(model: "nn.Module", inputs: Inputs | None = None) -> str:
    """A model's identity: a hash of names, shapes and types of its parameters and buffers, and sums of their values.

    With `inputs` also sums of its logits for two inputs, which show what it computes from the same parameters, and of
    the settings of its submodules, such as a dropout rate, which evaluation does not show. Whole numbers are hashed.
    Another CPU or version of torch may draw floats that differ in their last digits, so `difference` compares sums.
    """
    import torch

    from asymtrain.branches import logits_in

    digest, values = hashlib.sha256(), []
    for name, tensor in named_tensors(model):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        if tensor.is_floating_point() or tensor.is_complex():
            values.append(tensor)
        else:
            digest.update(bytes_of(tensor))
    parts = [_sums(values)]
    if inputs is not None:
        with undisturbed_call(model):
            torch.default_generator.manual_seed(0)  # for models that draw in evaluation too
            logits = logits_in(model(inputs.sample(filled=True)))
        parts.append(_sums([] if logits is None else [logits]))
        parts.append(_sums([torch.tensor(list(_settings(model)), dtype=torch.float64)]))
    return ":".join([digest.hexdigest()[:16], *(f"{number:.9g}" for part in parts for number in part)])


def difference(first: str, second: str) -> str | None:
    """What differs between the models of two fingerprints, in words; None if they are the same."""
    one, *sums = first.split(":")
    other, *other_sums = second.split(":")
    if one != other:
        return "names, shapes or types of its parameters and buffers"
    try:
        numbers, others = list(map(float, sums)), list(map(float, other_sums))
    except ValueError:  # an imported fingerprint may hold anything
        return "its fingerprint"
    for index, (what, tolerance) in enumerate(TOLERANCES.items()):
        part, other_part = numbers[2 * index : 2 * index + 2], others[2 * index : 2 * index + 2]
        if part and other_part:
            allowed = tolerance * max(part[0], other_part[0])
            if any(abs(a - b) > allowed for a, b in zip(part, other_part, strict=True)):
                return what
    return None


def _settings(model: "nn.Module") -> Iterator[float]:
    """The settings of its submodules: attributes that are floats."""
    for module in model.modules():
        own = vars(module)
        yield from (own[name] for name in sorted(own) if isinstance(own[name], float) and math.isfinite(own[name]))


def _sums(tensors: "Iterable[Tensor]") -> tuple[float, float]:
    """The norm of all values, and their sum weighted by position, which changes if values change positions."""
    import torch

    squares, projection, count = 0.0, 0.0, 0
    for tensor in tensors:
        values = tensor.detach().cpu()
        values = torch.view_as_real(values) if values.is_complex() else values
        values = values.to(torch.float64).reshape(-1).nan_to_num(posinf=0.0, neginf=0.0)  # masks hold -inf
        positions = torch.arange(count, count + len(values), dtype=torch.float64)
        squares += float(values @ values)
        projection += float(values @ (positions * GOLDEN_RATIO % 1 - 0.5))
        count += len(values)
    return math.sqrt(squares), projection


def named_tensors(model: "nn.Module") -> "list[tuple[str, Tensor]]":
    """Parameters and buffers by name, including those that a state dict leaves out."""
    both = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return sorted(both, key=lambda item: item[0])


def bytes_of(tensor: "Tensor") -> bytes:
    import torch

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def rounded(text: str) -> str:
    """A fingerprint as hexadecimal digits, which rounding on another machine seldom changes."""
    digest, *numbers = text.split(":")
    norms, projections = [float(number) for number in numbers[::2]], [float(number) for number in numbers[1::2]]
    shares = [f"{norm:.4g} {part / (norm or 1.0):.4f}" for norm, part in zip(norms, projections, strict=True)]
    return hashlib.sha256(" ".join([digest, *shares]).encode()).hexdigest()[:16]


@contextmanager
def undisturbed_call(model: "nn.Module") -> Iterator[None]:
    from asymtrain.branches import preserve_attributes, preserve_state

    with preserve_state(model), preserve_attributes(model):
        yield
