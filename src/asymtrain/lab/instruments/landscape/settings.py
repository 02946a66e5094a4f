"""How a landscape is looked at, as a value."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal, get_args

from asymtrain.errors import UsageError, unknown_name

Directions = Literal["all", "live", "filter"]
Scaling = Literal["variance", "norm", "filter"]


@dataclass(frozen=True)
class LandscapeSettings:
    """Which loss, on how many images, on which grid, along which directions.

    Attributes:
        grid: points along each of the two directions.
        sample: training images on which the loss is the mean.
        draws: pairs of directions.
        step: between neighbouring grid points, along directions of unit variance: how far each weight moves, in
            standard deviations. By default the grid reaches 0.01 to each side.
        norm_step: the same along directions of unit norm, and `filter_step` along filter-normalised ones. By default
            the grid reaches 1 to each side.
        loss: "main": the network's own loss; "total": main + alpha * auxiliary, where the weights of the live branches
            move as well. Both as in training, but without dropout and augmentation.
        directions: "all": one Gaussian over all parameters, idle branches included; "live": over those that are
            trained, which the backbone and the live branches are; "filter": normalised by filter. The first two are
            measured with both scalings. A live branch does not enter the main loss either: with directions of unit
            norm its weights alone make the surface of N >= 1 a little flatter than Plain's.
        precision: "fp32", or "tf32" for faster products on a GPU. Those of a CNN then act on differences from the
            center, so rounding is a small part of what the surface varies by (`landscape_differences`; a test
            allows a hundredth of the deviation in a tiny network, where few units average it out). For the others it
            moves a weight by about 5e-6, which is of the order of the step along directions of unit norm in a large
            network: take it for `step` alone.
    """

    grid: int = 51
    sample: int = 500
    draws: int = 10
    step: float = 4e-4
    norm_step: float = 0.04
    filter_step: float = 0.04
    loss: Literal["main", "total"] = "main"
    directions: tuple[Directions, ...] = ("all", "live")
    precision: Literal["fp32", "tf32"] = "fp32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "directions", tuple(dict.fromkeys(self.directions)))
        if self.grid < 3:
            raise UsageError(
                f"the grid needs 3 or more points a side, got {self.grid}: a slope is taken across the middle"
            )
        for name in ("sample", "draws"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("step", "norm_step", "filter_step"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise UsageError(f"{name} must be above 0, got {value}")
        for name, kind in (("loss", ("main", "total")), ("precision", ("fp32", "tf32"))):
            if getattr(self, name) not in kind:
                raise unknown_name(name, str(getattr(self, name)), kind)
        for direction in self.directions:
            if direction not in get_args(Directions):
                raise unknown_name("kind of direction", str(direction), get_args(Directions))
        if not self.directions:
            raise UsageError(f"name at least one kind of direction: {', '.join(get_args(Directions))}")

    @property
    def key(self) -> str:
        """A short name of these settings: "landscape" and what differs from the defaults."""
        parts = ["landscape"]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                shown = "+".join(value) if isinstance(value, tuple) else f"{value:g}" if field.type is float else value
                parts.append(f"{field.name}={shown}")
        return " ".join(map(str, parts))

    def views(self) -> list[tuple[Directions, Scaling]]:
        """Each kind of direction with each of its scalings."""
        scalings: dict[Directions, tuple[Scaling, ...]] = {
            "all": ("variance", "norm"),
            "live": ("variance", "norm"),
            "filter": ("filter",),
        }
        return [(direction, scaling) for direction in self.directions for scaling in scalings[direction]]

    def step_of(self, scaling: Scaling) -> float:
        """Between neighbouring grid points of a scaling."""
        return {"variance": self.step, "norm": self.norm_step, "filter": self.filter_step}[scaling]
