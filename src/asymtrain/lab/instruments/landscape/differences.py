"""A CNN's outputs on a plane, as differences from those at its center: products in TF32 that do not roughen a surface.

A surface varies by little around its center, by less than TF32 rounds where directions have unit norm. What is added
to the center's maps varies with it, and can be propagated by itself:

    maps at a point     x + d
    next layer          x' + d',  d' = relu(pool(z + W * d + a z1 + b z2)) - x'

W are the weights at the point (a, b). The rest is of the center, computed once for a plane in full float32: its maps x,
and what its own weights (z) and those of the directions (z1, z2) make of them, with their biases. Only `W * d` is left
for a point, and its rounding is a part of d, not of the maps.

Axis letters: R grid points, B images of the sample, C classes, D width.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from asymtrain.lab.devices import compiler_settings
from asymtrain.lab.instruments.landscape.directions import Parameters
from asymtrain.models import CNN

Three = tuple[Tensor, Tensor, Tensor]  # what the center's and both directions' weights make of the center's input
Product = Callable[..., Tensor]  # input, weight, bias or None -> output


class CNNDifferences:
    """Logits and features of a CNN at points of a plane.

    `three` holds each parameter of center, first and second direction, stacked. The caller chooses the precision of
    products at points, and has the center computed in full.
    """

    def __init__(self, backbone: CNN, images: Tensor, three: Mapping[str, Tensor]) -> None:
        self.backbone = backbone
        self.shift = _compiled_shift() if images.is_cuda else _shift
        self.layers: list[tuple[str, Product, bool, Three, Tensor]] = []
        self.features: dict[str, Tensor] = {}
        maps = images
        for i in range(len(backbone.blocks)):
            pool = i in backbone.pool_after
            maps = self._add(f"blocks.{i}.0", _convolve, maps, three, pool=pool)
            self.features[f"blocks.{i}"] = maps.mean((2, 3))
        hidden = maps.flatten(1)
        for i in range(len(backbone.classifier)):
            hidden = self._add(f"classifier.{i}.0", F.linear, hidden, three)
        self.head = _made_by(F.linear, "head", hidden, three)

    def _add(
        self, name: str, product: Product, inputs: Tensor, three: Mapping[str, Tensor], pool: bool = False
    ) -> Tensor:
        made = _made_by(product, name, inputs, three)
        after = _after(made[0], pool)
        self.layers.append((name, product, pool, made, after))
        return after

    def __call__(self, coordinates: Tensor, parameters: Parameters) -> tuple[Tensor, list[Tensor]]:
        """Logits (R, B, C) in float64 and features [(R, B, D)] at coordinates (R, 2); `parameters` are those there."""
        points = [self._at(point, {n: v[r] for n, v in parameters.items()}) for r, point in enumerate(coordinates)]
        logits = torch.stack([logits for logits, _ in points])
        features = [torch.stack([features[name] for _, features in points]) for name in self.backbone.points]
        return logits, features

    def _at(self, point: Tensor, parameters: Parameters) -> tuple[Tensor, dict[str, Tensor]]:
        a, b = point.unbind()
        change: Tensor | None = None
        features = {}
        for name, product, pool, made, after in self.layers:
            if product is F.linear and change is not None:
                change = change.flatten(1)
            sent = None if change is None else product(change, parameters[f"{name}.weight"], None)
            change = self.shift(sent, *made, after, a, b, pool)
            if (block := name.removesuffix(".0")) in self.features:
                features[block] = self.features[block] + change.mean((2, 3))
        assert change is not None
        z, first, second = (value.double() for value in self.head)
        sent = F.linear(change.flatten(1), parameters["head.weight"])
        return z + (sent.double() + a.double() * first + b.double() * second), features


def _compiled_shift() -> Callable[..., Tensor]:
    """On a GPU the elementwise rest of a layer is one kernel; it would take longer than the products otherwise."""
    compiled = torch.compile(_shift, dynamic=False)

    def shift(*arguments: Any) -> Tensor:
        with compiler_settings():  # every layer is one compilation
            return compiled(*arguments)

    return shift


def _convolve(maps: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.conv2d(maps, weight, bias, padding=1)


def _made_by(product: Product, name: str, inputs: Tensor, three: Mapping[str, Tensor]) -> Three:
    weights, biases = three[f"{name}.weight"], three[f"{name}.bias"]
    center, first, second = (product(inputs, weight, bias) for weight, bias in zip(weights, biases, strict=True))
    return center, first, second


def _after(made: Tensor, pool: bool) -> Tensor:
    return torch.relu(F.max_pool2d(made, 2) if pool else made)


def _shift(
    sent: Tensor | None, z: Tensor, first: Tensor, second: Tensor, after: Tensor, a: Tensor, b: Tensor, pool: bool
) -> Tensor:
    """How far the layer's output is from the center's, from what its product made of its input's difference."""
    moved = a * first + b * second
    if sent is not None:
        moved = moved + sent
    return _after(z + moved, pool) - after
