"""What a measurement of attention leaves: a value for each metric, part of the network and image."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from asymtrain.errors import unknown_name
from asymtrain.gradients._intervals import ANYTHING, Bounds
from asymtrain.lab.instruments.attention.metrics import bounds
from asymtrain.lab.instruments.attention.settings import AttentionSettings
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.statistics.estimates import Estimate, estimate

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AttentionResult:
    """Attention of one network on a sample of images.

    Attributes:
        scopes: parts of the network. A layer's name: the map of its attention averaged over heads; "LAYER:HEAD": the
            map of one head (from 0); "mean": the mean of the layers' values; "rollout": the map of the rollout.
        values: for each metric one value for each scope and image, (scopes, images); NaN where it is undefined.
        shares: of the image: the object's ("mask") and the salient region's ("saliency"), averaged over the sample:
            what the coverage of a uniform map would be.
        images: their indices in the test set.
        maps: of the first few images, by layer and "rollout": (images, patches), the average of the heads.
    """

    settings: AttentionSettings
    layers: tuple[str, ...]
    patches: int
    scopes: tuple[str, ...]
    values: Mapping[str, Floats]
    shares: Mapping[str, float]
    images: tuple[int, ...] = ()
    maps: Mapping[str, Floats] = field(default_factory=dict)
    spec: RunSpec | None = None
    epoch: int | None = None

    def of(self, metric: str, scope: str = "mean") -> Floats:
        """The values of the images, (images,)."""
        if metric not in self.values:
            raise unknown_name("metric of attention", metric, self.values)
        if scope not in self.scopes:
            raise unknown_name("part of the network", scope, self.scopes)
        return self.values[metric][self.scopes.index(scope)]

    def estimate(self, metric: str, scope: str = "mean") -> Estimate:
        """Mean and interval over the images for which the metric is defined; cut at the values that there can be."""
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


def as_list(found: Estimate) -> list[float | int | None]:
    """[mean, low, high, n], as the store and the JSON files hold it."""
    return [found.mean, found.low, found.high, found.n]
