"""The settings of a measurement of attention, its result for one network, and a summary of many runs."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from asymtrain.errors import UsageError, unknown_name
from asymtrain.intervals import ANYTHING, Bounds
from asymtrain.lab.instruments.curves import differing_settings
from asymtrain.lab.instruments.instrument import differing_fields
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.statistics.estimates import Estimate, estimate

Floats = npt.NDArray[np.float64]
DEFAULT_THRESHOLD = 0.5  # see `coverage_above`
LABELS = {
    "peak_strength": "peak strength",
    "entropy": "map entropy (nats)",
    "gini": "sparsity (Gini)",
    "coverage_above": "patches above threshold",
    "coverage_of_mask": "weight on the object",
    "coverage_of_saliency": "weight on the salient region",
}
"""What tables and figures call the metrics. Here and not beside the metrics, since a page is made without torch."""


@dataclass(frozen=True)
class AttentionSettings:
    """Which images, which maps, which thresholds."""

    sample: int = 100  # how many test images: the same for every run, so that runs can be compared
    query: Literal["class_token", "mean"] = "class_token"  # whose attention: the class token's, or the mean of all
    threshold: float = DEFAULT_THRESHOLD  # of `coverage_above`, in multiples of the uniform value
    layers: tuple[str, ...] = ()  # names of the layers that are reported; empty for all

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        if self.sample < 1:
            raise UsageError(f"the sample must be 1 image or more, got {self.sample}")
        if self.query not in ("class_token", "mean"):
            raise UsageError(f"query must be 'class_token' or 'mean', got {self.query!r}")
        if not self.threshold > 0:
            raise UsageError(f"the threshold must be above 0, in multiples of the uniform value, got {self.threshold}")

    @property
    def key(self) -> str:
        """The measurement's name in a store: "attention", and the settings that differ from the default."""
        return ":".join(["attention", *differing_fields(self)])

    def indices(self, size: int) -> list[int]:
        """The sample, from a test set of `size` images; a larger sample begins with a smaller one."""
        if self.sample > size:
            raise UsageError(f"a sample of {self.sample} images is larger than the test set of {size}: give --sample")
        import torch

        from asymtrain import streams

        order = torch.randperm(size, generator=streams.generator(0, "attention-sample"))
        return [int(i) for i in order[: self.sample]]


@dataclass(frozen=True, eq=False)
class AttentionResult:
    """Attention of one network on a sample of images.

    A scope is a part of the network. "LAYER" is the map of a layer, averaged over heads; "LAYER:HEAD" the map of one
    head (from 0); "mean" the mean of the layers' values; "rollout" the map of the rollout.
    """

    settings: AttentionSettings
    layers: tuple[str, ...]
    patches: int
    scopes: tuple[str, ...]
    values: Mapping[str, Floats]  # for each metric one value for each scope and image; NaN if undefined
    # Shares of the image, averaged over the sample: the object ("mask") and the salient region ("saliency"). A uniform
    # map would have these coverages.
    shares: Mapping[str, float]
    images: tuple[int, ...] = ()  # their indices in the test set
    maps: Mapping[str, Floats] = field(default_factory=dict)  # of the first few images (images, patches), by scope
    spec: RunSpec | None = None
    epoch: int | None = None

    @property
    def state(self) -> tuple[RunSpec, int]:
        """The spec and the epoch of a run's result."""
        assert self.spec is not None and self.epoch is not None, "this result is of a model, not of a run"  # noqa: PT018
        return self.spec, self.epoch

    def of(self, metric: str, scope: str = "mean") -> Floats:
        if metric not in self.values:
            raise unknown_name("metric of attention", metric, self.values)
        if scope not in self.scopes:
            raise unknown_name("part of the network", scope, self.scopes)
        return self.values[metric][self.scopes.index(scope)]

    def estimate(self, metric: str, scope: str = "mean") -> Estimate:
        """Mean and interval over the images for which the metric is defined, clipped to its possible values."""
        return over_values(self.of(metric, scope), bounds(metric, self.patches))

    def to_dict(self) -> dict[str, Any]:
        """As JSON values: for each scope and metric [mean, low, high, n] over the images."""
        return {
            "settings": self.settings.key,
            "layers": list(self.layers),
            "patches": self.patches,
            "shares": dict(self.shares),
            "scopes": {
                scope: {metric: as_list(self.estimate(metric, scope)) for metric in self.values}
                for scope in self.scopes
            },
        }


def over_values(values: Iterable[float], within: Bounds = ANYTHING) -> Estimate:
    """Mean and t interval of the values that are defined (not NaN); see `estimate` for `within`."""
    return estimate((None if math.isnan(value) else float(value) for value in values), within=within)


def as_list(values: Estimate) -> list[float | int | None]:
    """[mean, low, high, n], as the store and the JSON files hold it."""
    return [values.mean, values.low, values.high, values.n]


Variant = Literal["plain", "asymmetric", "difference"]
Members = Sequence[AttentionResult]


@dataclass(frozen=True)
class GroupMetric:
    """One number of a comparison: for a group of runs that differ only in the seed, at one epoch."""

    group: str  # "Plain", "Asymmetric", or "Asymmetric - Plain"
    variant: Variant
    epoch: int
    scope: str
    metric: str
    estimate: Estimate
    over: Literal["seeds", "images"]  # what the interval is over: images if there is one seed
    of: str = ""  # for a difference: the group from which Plain was subtracted

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "estimate": as_list(self.estimate)}


def summarise(results: Sequence[AttentionResult], scopes: Sequence[str] | None = None) -> list[GroupMetric]:
    """Mean and interval of each group of runs at each epoch: over seeds, or over images if there is one seed.

    Then, for each group of Asymmetric runs with Plain partners, the difference Asymmetric - Plain, paired by seed, or
    by image if there is one seed.
    """
    groups: dict[tuple[RunSpec, int], list[AttentionResult]] = {}
    for result in results:
        spec, epoch = result.state
        groups.setdefault((dataclasses.replace(spec, seed=0), epoch), []).append(result)
    names = group_names(spec for spec, _ in groups)
    summaries: list[GroupMetric] = []

    def add(group: str, variant: Variant, epoch: int, members: Members, partners: Members = (), of: str = "") -> None:
        first = members[0]
        chosen = ["mean", "rollout", *first.layers] if scopes is None else scopes
        for scope, metric in product((scope for scope in chosen if scope in first.scopes), first.values):
            low, high = bounds(metric, first.patches)
            values = [member.of(metric, scope) for member in members]
            if partners:
                low = -high
                values = [ours - partner.of(metric, scope) for ours, partner in zip(values, partners, strict=True)]
            if len(values) == 1:
                over = over_values(values[0], (low, high))
            else:
                over = estimate((over_values(images).mean for images in values), within=(low, high))
            unit: Literal["seeds", "images"] = "images" if len(values) == 1 else "seeds"
            summaries.append(GroupMetric(group, variant, epoch, scope, metric, over, unit, of))

    for (spec, epoch), members in groups.items():
        add(names[spec], spec.variant, epoch, members)
    for (spec, epoch), members in groups.items():
        plain = {partner.state[0].seed: partner for partner in groups.get((spec.plain(), epoch), [])}
        paired = [member for member in members if member.state[0].seed in plain]
        if spec.variant != "plain" and paired:
            name = f"{names[spec]} - {names[spec.plain()]}"
            add(name, "difference", epoch, paired, [plain[member.state[0].seed] for member in paired], names[spec])
    return summaries


def group_names(specs: Iterable[RunSpec]) -> dict[RunSpec, str]:
    """Plain and Asymmetric; with the differing settings if a variant has several groups."""
    names, groups = dict[RunSpec, str](), list(dict.fromkeys(specs))
    for variant in dict.fromkeys(spec.variant for spec in groups):
        alike = [spec for spec in groups if spec.variant == variant]
        for spec, differing in zip(alike, differing_settings(alike), strict=True):
            names[spec] = ", ".join([variant.capitalize(), *differing])
    return names


def bounds(metric: str, patches: int) -> Bounds:
    """The smallest and the largest value of a metric, for maps with this many patches."""
    return 0.0, math.log(patches) if metric == "entropy" else 1.0


def patch_grid(patches: int, height: int, width: int) -> tuple[int, int] | None:
    """Rows and columns of square patches over an image; None if this number of patches forms no such grid."""
    rows = math.isqrt(patches * height // width)
    if rows and patches % rows == 0 and rows * width == patches // rows * height:
        return rows, patches // rows
    return None
