"""Losses of many grid points at once, for the backbones of this package.

Grid points are runs: `Backbone.stacked` computes R of them from stacked parameters, on one sample that they share.
What is linear in the grid's coordinates is computed once for the whole plane and only combined at each point: the
parameters themselves, and the first layer of the MLP, which holds most of its arithmetic.

Axis letters: R grid points, B images of the sample, C classes, D width, N branches, P parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from asymtrain.lab.devices import float32_products
from asymtrain.lab.instruments.landscape.differences import CNNDifferences
from asymtrain.lab.instruments.landscape.directions import Parameters, check_alike
from asymtrain.models import CNN, MLP, Backbone

Score = Callable[[Tensor, Sequence[Tensor], Parameters], Tensor]
"""Logits (R, B, C), features [(R, B, D)] and parameters of R points -> losses (R,)."""

_CPU_BYTES = 2**22  # of activations at a time: what stays in a core's caches beats long batches
_GPU_SHARE = 0.5  # of the free memory
_MOST = 4096  # grid points in a chunk; a default grid is one chunk where the memory allows it
_MOST_IMAGES = 2**16 - 1  # of all points of a chunk, where there is attention: its kernels number them on a short axis
_SAMPLE = 2  # images on which activations are counted


def main_score(targets: Tensor, smoothing: float = 0.0) -> Score:
    """Mean cross-entropy with the classes (B,).

    Added in float64: the surface's variation is small against the loss, and float32 sums would roughen it.
    """

    def score(logits: Tensor, features: Sequence[Tensor], parameters: Parameters) -> Tensor:
        runs = len(logits)
        losses = F.cross_entropy(
            logits.double().flatten(0, 1), targets.repeat(runs), reduction="none", label_smoothing=smoothing
        )
        return losses.view(runs, -1).mean(1)

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
    hidden: Tensor | None  # (3, B, D): what the first layer makes of the basis, where it is computed once
    tf32: bool = False  # products inside the network; points are always placed in full float32
    differences: CNNDifferences | None = None  # where the network is followed by differences from the center

    def __call__(self, coordinates: Tensor) -> Tensor:
        """Losses (R,) in float64."""
        weights = F.pad(coordinates, (1, 0), value=1.0).to(self.basis)  # (R, 3)
        with float32_products(tf32=False):
            parameters = self._parameters(weights)
            inputs = self._inputs(weights, parameters)
        with float32_products(self.tf32):
            if self.differences is not None:
                return self.score(*self.differences(weights[:, 1:], parameters), parameters)
            return self.score(*self.backbone.stacked(parameters, inputs), parameters)

    def _parameters(self, weights: Tensor) -> dict[str, Tensor]:
        """Parameters of each point, as views of one matrix (R, P)."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = (weights @ self.basis).split(sizes, 1)
        return {n: p.view(-1, *shape) for (n, shape), p in zip(self.shapes.items(), parts, strict=True)}

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

    `tf32`: products inside the network are rounded; those of a CNN act on differences from the center, so that its
    surface is not.
    """
    for direction in directions:
        check_alike(direction, center)
    three = {n: torch.stack([v, *(d[n].to(v) for d in directions)]).to(images) for n, v in center.items()}
    hidden = None
    if isinstance(backbone, MLP):
        weight, bias = three.pop("blocks.0.0.weight"), three.pop("blocks.0.0.bias")
        with float32_products(tf32=False):
            hidden = images.flatten(1) @ weight.mT + bias[:, None]
    if backbone.channels_last:  # on a CPU too: three times as fast where nothing is trained
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
    point = _bytes_of_image(plane.backbone, tuple(plane.images.shape[1:])) * images + 4 * plane.basis.shape[1]
    room = _CPU_BYTES
    if plane.images.is_cuda:
        device = plane.images.device
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        room = int(_GPU_SHARE * (torch.cuda.mem_get_info(device)[0] + cached))
    most = _MOST_IMAGES // images if plane.backbone.layout == "BTD" else _MOST
    return max(1, min(_MOST, most, room // point))


def _bytes_of_image(backbone: Backbone, shape: tuple[int, ...]) -> int:
    """Bytes of the activations of one image: what a backward pass would keep, so more than a forward pass holds."""
    weights = {name: torch.zeros(1, *v.shape, requires_grad=True) for name, v in backbone.named_parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    keeping = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with torch.inference_mode(False), torch.enable_grad(), keeping:
        backbone.stacked(weights, torch.zeros(1, _SAMPLE, *shape))
    for value in weights.values():
        kept.pop(value.untyped_storage().data_ptr(), None)
    return sum(kept.values()) // _SAMPLE
