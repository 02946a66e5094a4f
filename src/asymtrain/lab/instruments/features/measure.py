"""The units that branches see: how many are silent, how large they are, in how many directions they vary.

A bias-free sigmoid branch begins at 1/2 for every class, and soon should give 1 / classes for all of them. It can make
that constant only from the features, so its gradient asks them to change; the first steps of training show the effect.
`feature_statistics` takes the features of any model; `follow_features` follows the first steps of a run.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from asymtrain.branches import check_weight_count
from asymtrain.errors import UsageError
from asymtrain.lab.data import Dataset
from asymtrain.lab.data.normalise import normalise
from asymtrain.lab.engine.reference import train_reference
from asymtrain.lab.engine.schedule import steps_of
from asymtrain.lab.engine.setup import build_backbone, run_data
from asymtrain.lab.instruments.curves import in_variants
from asymtrain.lab.runs import RunSpec
from asymtrain.models import Backbone

PLAIN = "plain"
VARIANTS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "trained": {},
    "prior": {"bias": "prior"},
    "softmax": {"objective": "softmax"},
    "random": {"branch_labels": "random"},
    "frozen": {"branch_weights": "frozen"},
}
"""No branches; branches that train with the run; with a bias that begins at the classes' shares; with a softmax loss;
with random labels; frozen at initialisation."""


@dataclass(frozen=True)
class FeatureStatistics:
    """The features of one point over many images.

    `directions` says in how many directions features vary about their mean: the exponential of the entropy of the
    principal components' shares of the variance. It is 1 for a line, and None if nothing varies.
    """

    units: int  # how many features there are
    silent: float  # share of the units that have the same value for every image; after a ReLU that value is 0
    scale: float  # root mean square over units and images
    directions: float | None

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def feature_statistics(features: Tensor) -> FeatureStatistics:
    """Statistics of features (images, units). Average the positions of a map or a sequence first, as branches do."""
    if features.ndim != 2 or len(features) < 2 or not features.shape[1]:
        raise UsageError(f"features must be (images, units) of two images or more, got {tuple(features.shape)}")
    if not features.isfinite().all():
        raise UsageError("features hold NaN or inf: the network has diverged")
    values = features.detach().double().cpu()
    varies = (values != values[:1]).any(0)
    centred = values - values.mean(0)
    strengths = torch.linalg.svdvals(centred[:, varies]) ** 2 if varies.any() else values.new_zeros(1)
    directions = None
    if (total := strengths.sum().item()) > 0:
        shares = strengths[strengths > 0] / total
        directions = math.exp(-(shares * shares.log()).sum().item())
    return FeatureStatistics(
        units=values.shape[1],
        silent=1 - varies.double().mean().item(),
        scale=values.square().mean().sqrt().item(),
        directions=directions,
    )


def feature_variants(spec: RunSpec, names: Iterable[str]) -> list[RunSpec]:
    """The Asymmetric spec in each named variant of `VARIANTS`, Plain first."""
    variants = in_variants(spec, (name for name in names if name != PLAIN), VARIANTS)
    return list(dict.fromkeys([spec.plain(), *variants]))


def variant_of(spec: RunSpec) -> str:
    if spec.redundancy == 0:
        return PLAIN
    for name, fields in VARIANTS.items():
        if fields and all(getattr(spec, field) == value for field, value in fields.items()):
            return name
    return "trained"


def follow_features(
    spec: RunSpec,
    dataset: Dataset,
    steps: Sequence[int],
    *,
    images: int = 500,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> dict[int, tuple[FeatureStatistics, ...]]:
    """Train the first steps of a run, and measure the features of its points after each of `steps` (0: before).

    The features are of the first test images, without dropout. Measuring does not change the run's steps.
    """
    steps_to_take = check_steps(spec, dataset, steps)
    if not 2 <= images <= len(dataset.test.images):
        raise UsageError(f"images must lie in 2..{len(dataset.test.images)}, got {images}")
    data = run_data(spec, dataset)
    inputs = torch.from_numpy(dataset.test.images[:images]).to(device)
    inputs = normalise(inputs, data.mean.to(device), data.std.to(device))
    followed: dict[int, tuple[FeatureStatistics, ...]] = {}

    def look(step: int, model: nn.Module) -> None:
        assert isinstance(model, Backbone)  # `build_backbone` gives nothing else
        with torch.no_grad():
            followed[step] = tuple(map(feature_statistics, model.features(inputs)[1]))

    def after(step: int, model: nn.Module) -> None:
        done = step + 1
        if done in steps_to_take:
            look(done, model)
        if progress is not None:
            progress(done, steps_to_take[-1])
        if done == steps_to_take[-1]:
            raise _Enough

    start = build_backbone(spec, dataset).to(device)
    if steps_to_take[0] == 0:
        look(0, start)
    if steps_to_take[-1]:
        with suppress(_Enough):
            train_reference(spec, dataset, device=device, on_step=after)
    return followed


def check_steps(spec: RunSpec, dataset: Dataset, steps: Sequence[int]) -> list[int]:
    """The steps in order, without repetition; refuses steps that the run does not have."""
    sorted_steps = sorted(set(steps))
    most = spec.epochs * steps_of(spec, len(run_data(spec, dataset).train))[0]
    if not sorted_steps or sorted_steps[0] < 0 or sorted_steps[-1] > most:
        raise UsageError(f"steps must lie in 0..{most}, the steps of this run, got {list(steps)}")
    return sorted_steps


def check_branches(specs: Iterable[RunSpec], dataset: Dataset) -> None:
    """Refuse branches that one of the runs could not have, before any of them is trained."""
    for spec in {(spec.arch, spec.redundancy): spec for spec in specs}.values():
        check_weight_count(build_backbone(spec, dataset).widths, dataset.classes, spec.redundancy)


class _Enough(Exception):
    """Raised after the last step, to end the training."""
