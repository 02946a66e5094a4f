"""Losses of many grid points at once, for the backbones of this package.

Grid points are runs: `Backbone.stacked` computes R of them from stacked parameters, on one sample that they share.
What is linear in the grid's coordinates is computed once for the whole plane and only combined at each point: the
parameters themselves, and the first layer of the MLP, which holds most of its arithmetic.

Axis letters: R grid points, B images of the sample, C classes, D width, N branches, P parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from asymtrain.lab.devices import compiler_settings, float32_products
from asymtrain.lab.engine.plan import bytes_kept
from asymtrain.lab.instruments.landscape.surface import Parameters
from asymtrain.models import CNN, MLP, Backbone

Score = Callable[[Tensor, Sequence[Tensor], Parameters], Tensor]
"""Logits (R, B, C), features [(R, B, D)] and parameters of R points -> losses (R,), or parts of them (R, L)."""
Three = tuple[Tensor, Tensor, Tensor]  # outputs for the center's input with the weights of center and both directions
Product = Callable[..., Tensor]  # input, weight, bias or None -> output

_CPU_BYTES = 2**22  # of activations at a time: staying in a core's caches beats long batches
_GPU_SHARE = 0.5  # of the free memory
_MOST = 4096  # grid points in a chunk; a default grid is one chunk if memory allows it
_MOST_IMAGES = 2**16 - 1  # of all points of a chunk, with attention: its kernels number images on a short axis


def main_score(targets: Tensor, smoothing: float = 0.0) -> Score:
    """Mean cross-entropy with the classes (B,).

    Added in float64: the surface varies little compared with the loss, and float32 sums would roughen it.
    """

    def score(logits: Tensor, features: Sequence[Tensor], parameters: Parameters) -> Tensor:
        flat, classes = logits.double().flatten(0, 1), targets.repeat(len(logits))
        losses = F.cross_entropy(flat, classes, reduction="none", label_smoothing=smoothing)
        return losses.view(len(logits), -1).mean(1)

    return score


@dataclass(frozen=True)
class Plane:
    """A backbone's losses as a function of coordinates (R, 2) on a plane through `center`.

    The sample, `center` and the directions are on the device that computes.
    """

    backbone: Backbone
    images: Tensor  # (B, 3, H, W), normalised
    score: Score
    basis: Tensor  # (3, P): center and both directions, in the order of `shapes`
    shapes: Mapping[str, torch.Size]
    hidden: Tensor | None  # (3, B, D): the first layer's output for each row of the basis, if computed once
    tf32: bool = False  # for products inside the network; points are always placed in full float32
    differences: "CNNDifferences | None" = None  # if the network is computed as differences from the center

    def __call__(self, coordinates: Tensor) -> Tensor:
        """The scores of the points (R, 2), in float64."""
        weights = F.pad(coordinates, (1, 0), value=1.0).to(self.basis)  # (R, 3)
        with float32_products(tf32=False):
            # Parameters of each point, as views of one matrix (R, P).
            parts = (weights @ self.basis).split([shape.numel() for shape in self.shapes.values()], 1)
            shaped = zip(self.shapes.items(), parts, strict=True)
            parameters = {name: part.view(-1, *shape) for (name, shape), part in shaped}
            inputs = self._inputs(weights, parameters)
        with float32_products(self.tf32):
            if self.differences is not None:
                outputs = self.differences(weights[:, 1:], parameters)
            else:
                outputs = self.backbone.stacked(parameters, inputs)
        with float32_products(tf32=False):  # branches do not work on differences, and are little work
            return self.score(*outputs, parameters)

    def _inputs(self, weights: Tensor, parameters: dict[str, Tensor]) -> Tensor:
        runs = len(weights)
        if self.hidden is None:
            return self.images.expand(runs, *self.images.shape)
        # The sums of the first layer take the place of the images, and its weight becomes the identity.
        width = self.hidden.shape[2]
        parameters["blocks.0.0.weight"] = torch.eye(width).to(weights).expand(runs, -1, -1)
        parameters["blocks.0.0.bias"] = weights.new_zeros(runs, width)
        return (weights @ self.hidden.flatten(1)).view(runs, -1, width, 1, 1)


def plane(
    backbone: Backbone,
    images: Tensor,
    score: Score,
    center: Parameters,
    directions: tuple[Parameters, Parameters],
    *,
    tf32: bool = False,
) -> Plane:
    """The plane through `center` (on any device) along two directions, on the device of `images`.

    `tf32`: products inside the network are rounded; a CNN's act on differences from the center, so that its surface is
    not rounded.
    """
    three = {n: torch.stack([v, *(d[n].to(v) for d in directions)]).to(images) for n, v in center.items()}
    hidden = None
    if isinstance(backbone, MLP):
        weight, bias = three.pop("blocks.0.0.weight"), three.pop("blocks.0.0.bias")
        with float32_products(tf32=False):
            hidden = images.flatten(1) @ weight.mT + bias[:, None]
    if backbone.channels_last:  # on a CPU too: three times as fast without training
        images = images.contiguous(memory_format=torch.channels_last)
    differences = None
    if tf32 and isinstance(backbone, CNN):
        with float32_products(tf32=False), torch.inference_mode():
            differences = CNNDifferences(backbone, images, three)
    shapes = {name: value.shape[1:] for name, value in three.items()}
    basis = torch.cat([value.flatten(1) for value in three.values()], 1)
    return Plane(backbone, images, score, basis, shapes, hidden, tf32, differences)


def points_that_fit(plane: Plane) -> int:
    """How many grid points to compute at once: by memory on a GPU, by caches on a CPU."""
    images = len(plane.images)
    # What a backward pass would keep, which is more than a forward pass holds.
    point = int(bytes_kept(plane.backbone, tuple(plane.images.shape[1:]))) * images + 4 * plane.basis.shape[1]
    room = _CPU_BYTES
    if plane.images.is_cuda:
        device = plane.images.device
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        room = int(_GPU_SHARE * (torch.cuda.mem_get_info(device)[0] + cached))
    most = _MOST_IMAGES // images if plane.backbone.layout == "BTD" else _MOST
    return max(1, min(_MOST, most, room // point))


class CNNDifferences:
    """A CNN's outputs on a plane, as differences from those at its center: TF32 products that do not roughen a surface.

    A surface varies little around its center: with directions of unit norm, by less than TF32 rounds. The change of the
    center's maps varies with the surface, and can be propagated by itself:

        maps at a point     x + d
        next layer          x' + d',  d' = relu(pool(z + W * d + a z1 + b z2)) - x'

    W are the weights at the point (a, b). The rest belongs to the center and is computed once for a plane in full
    float32: its maps x, and the outputs for them with its own weights (z) and those of the directions (z1, z2), with
    their biases. A point computes only `W * d`, whose rounding error is relative to d, not to the maps.

    `three` holds each parameter of center, first and second direction, stacked. The caller chooses the precision of
    products at points, and computes the center in full precision.
    """

    def __init__(self, backbone: CNN, images: Tensor, three: Mapping[str, Tensor]) -> None:
        self.backbone = backbone
        # On a GPU the elementwise rest of a layer is one kernel; otherwise it would take longer than the products.
        self.shift = torch.compile(_shift, dynamic=False) if images.is_cuda else _shift
        self.layers: list[tuple[str, Product, bool, Three, Tensor]] = []
        self.features: dict[str, Tensor] = {}
        layers: list[tuple[str, Product, bool]] = [
            *((f"blocks.{i}.0", _convolve, i in backbone.pool_after) for i in range(len(backbone.blocks))),
            *((f"classifier.{i}.0", F.linear, False) for i in range(len(backbone.classifier))),
        ]
        maps = images
        for name, product, pool in layers:
            product_at = _product_at(product, name, maps if product is _convolve else maps.flatten(1), three)
            maps = _after(product_at[0], pool)
            self.layers.append((name, product, pool, product_at, maps))
            if product is _convolve:
                self.features[name.removesuffix(".0")] = maps.mean((2, 3))
        self.head = _product_at(F.linear, "head", maps.flatten(1), three)

    def __call__(self, coordinates: Tensor, parameters: Parameters) -> tuple[Tensor, list[Tensor]]:
        """Logits (R, B, C) in float64 and features [(R, B, D)] at coordinates (R, 2); `parameters` are those there."""
        with compiler_settings() if coordinates.is_cuda else nullcontext():  # every layer is one compilation
            points = [self._at(point, {n: v[r] for n, v in parameters.items()}) for r, point in enumerate(coordinates)]
        logits = torch.stack([logits for logits, _ in points])
        features = [torch.stack([features[name] for _, features in points]) for name in self.backbone.points]
        return logits, features

    def _at(self, point: Tensor, parameters: Parameters) -> tuple[Tensor, dict[str, Tensor]]:
        a, b = point.unbind()
        change: Tensor | None = None
        features = {}
        for name, product, pool, product_at, after in self.layers:
            if product is F.linear and change is not None:
                change = change.flatten(1)
            from_input = None if change is None else product(change, parameters[f"{name}.weight"], None)
            change = self.shift(from_input, *product_at, after, a, b, pool)
            if (block := name.removesuffix(".0")) in self.features:
                features[block] = self.features[block] + change.mean((2, 3))
        assert change is not None
        z, first, second = (value.double() for value in self.head)
        from_input = F.linear(change.flatten(1), parameters["head.weight"])
        return z + (from_input.double() + a.double() * first + b.double() * second), features


def _convolve(maps: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.conv2d(maps, weight, bias, padding=1)


def _product_at(product: Product, name: str, inputs: Tensor, three: Mapping[str, Tensor]) -> Three:
    weights, biases = three[f"{name}.weight"], three[f"{name}.bias"]
    center, first, second = (product(inputs, weight, bias) for weight, bias in zip(weights, biases, strict=True))
    return center, first, second


def _after(maps: Tensor, pool: bool) -> Tensor:
    return torch.relu(F.max_pool2d(maps, 2) if pool else maps)


def _shift(
    from_input: Tensor | None, z: Tensor, first: Tensor, second: Tensor, after: Tensor, a: Tensor, b: Tensor, pool: bool
) -> Tensor:
    """The distance of the layer's output from the center's, given the product with its input's difference."""
    moved = a * first + b * second
    if from_input is not None:
        moved = moved + from_input
    return _after(z + moved, pool) - after
