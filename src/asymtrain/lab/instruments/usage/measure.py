"""How much of a network's answer is at a point already, and how much of the point's variance that answer reads.

For features (images, units) and the logits of the main head: the best affine readout of the logits from the features.
What it explains of the logits says how far the answer has been formed there. The directions that it reads span a
subspace of the features, and the rest of their variance is free: a branch can change it without changing what a linear
reader of the answer sees.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from asymtrain.errors import UsageError
from asymtrain.lab.data import Dataset
from asymtrain.lab.data.normalise import normalise
from asymtrain.lab.engine.setup import build_backbone, run_data
from asymtrain.lab.engine.states import State

_RANK = 1e-10  # singular values below this share of the largest are rounding


@dataclass(frozen=True)
class Usage:
    """The features of one point, beside the logits."""

    units: int  # how many features there are
    readable: float | None  # share of the logits' variance that the best affine readout explains; None if constant
    used: float | None  # share of the features' variance in the directions that it reads; None if constant
    directions: int  # how many of them there are, at most the number of classes


def head_usage(features: Tensor, logits: Tensor) -> Usage:
    """Of features (images, units) and logits (images, classes) of the same images, more of them than units."""
    if features.ndim != 2 or logits.ndim != 2 or len(features) != len(logits):
        raise UsageError(
            "features must be (images, units) and logits (images, classes) of the same images, got "
            f"{tuple(features.shape)} and {tuple(logits.shape)}"
        )
    images, units = features.shape
    check_images(images, units)
    if not (features.isfinite().all() and logits.isfinite().all()):
        raise UsageError("features or logits hold NaN or inf: the network has diverged")
    x, z = (values.detach().double().cpu() for values in (features, logits))
    x, z = x - x.mean(0), z - z.mean(0)
    left, strengths, right = torch.linalg.svd(x, full_matrices=False)
    kept = strengths > _RANK * strengths[0].clamp_min(1e-300)
    left, strengths, right = left[:, kept], strengths[kept], right[kept]
    shared = left.T @ z  # the logits in the features' own directions
    readout = right.T @ (shared / strengths[:, None])  # (units, classes), the least of all that are best
    basis, sizes, _ = torch.linalg.svd(readout, full_matrices=False)
    basis = basis[:, sizes > _RANK * sizes[0].clamp_min(1e-300)] if len(strengths) else basis[:, :0]
    return Usage(units, _share(shared, z), _share(x @ basis, x), basis.shape[1])


def check_images(images: int, units: int) -> None:
    if images <= units + 1:
        raise UsageError(f"{images} images say nothing of {units} units: give more images than units, at least twice")


def measure_usage(
    state: State, dataset: Dataset, *, images: int = 1000, device: torch.device | str = "cpu"
) -> tuple[Usage, ...]:
    """The usage of a state's points on the first test images, from the input to the output. Changes nothing."""
    data, model = run_data(state.spec, dataset), build_backbone(state.spec, dataset).to(device)
    pixels = torch.from_numpy(dataset.test.images[:images]).to(device)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(state.parameters[name])
        logits, points = model.features(normalise(pixels, data.mean.to(device), data.std.to(device)))
    return tuple(head_usage(point, logits) for point in points)


def _share(part: Tensor, whole: Tensor) -> float | None:
    total = whole.square().sum().item()
    return min(1.0, part.square().sum().item() / total) if total else None
