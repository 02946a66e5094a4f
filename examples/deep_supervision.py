"""Deep supervision of a U-Net: every level of the decoder learns the masks, and only during training.

    python examples/deep_supervision.py     five seeds, Plain against Asymmetric, about two minutes on a CPU

Two shapes of any colour, rotated and sometimes overlapping, lie on a textured background; each pixel belongs to a
circle, a square, a triangle or the background. `preset="deep_supervision"` keeps the positions of the decoder's
features and resizes the masks to each level's resolution.
"""

from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain import attach
from paired import Measure, fit, main

TRAIN_SIZE, SIZE, CLASSES, WIDTHS = 1000, 24, 4, (8, 8, 16, 16)


@cache
def drawings(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images (count, 3, SIZE, SIZE), and the class of each pixel (count, SIZE, SIZE): 0 is the background."""
    drawn = torch.Generator().manual_seed(seed)

    def texture() -> Tensor:
        """A colour for each image, with stains."""
        colour, stains = (torch.rand(count, 3, side, side, generator=drawn) for side in (1, 5))
        return colour + 0.6 * F.interpolate(stains, (SIZE, SIZE), mode="bilinear")

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, 1, 1, generator=drawn)

    images, masks = texture(), torch.zeros(count, SIZE, SIZE, dtype=torch.int64)
    y, x = torch.meshgrid(*[torch.linspace(-1, 1, SIZE)] * 2, indexing="ij")
    for _ in range(2):
        size, angle = uniform(0.4, 0.7), uniform(-0.3, 0.3)
        across, down = (x - uniform(-0.8, 0.8)) / size, (y - uniform(-0.8, 0.8)) / size
        u, v = angle.cos() * across + angle.sin() * down, angle.cos() * down - angle.sin() * across
        sides = torch.stack([v, 0.866 * u - 0.5 * v, -0.866 * u - 0.5 * v])
        insides = torch.stack([u**2 + v**2 < 0.8, torch.maximum(u.abs(), v.abs()) < 0.8, sides.amax(0) < 0.6])
        kind = torch.randint(1, CLASSES, (count,), generator=drawn)
        inside = insides[kind - 1, torch.arange(count)]
        images = (0.8 + texture()).where(inside[:, None], images)
        masks = kind[:, None, None].where(inside, masks)
    return images + 0.1 * torch.randn(images.shape, generator=drawn) - 1, masks


def stage(inputs: int, outputs: int) -> nn.Module:
    """A convolution at one resolution."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class UNet(nn.Module):
    """Down to 3 by 3 positions and up again; features of the way down are concatenated on the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(stage(above, width) for above, width in pairwise((3, *WIDTHS)))
        self.decoder = nn.ModuleList(stage(below + width, width) for below, width in pairwise(WIDTHS[::-1]))
        self.head = nn.Conv2d(WIDTHS[0], CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, CLASSES, H, W)."""
        levels = [self.encoder[0](images)]
        for down in self.encoder[1:]:
            levels.append(down(F.max_pool2d(levels[-1], 2)))
        x = levels.pop()
        for up in self.decoder:
            x = up(torch.cat([F.interpolate(x, scale_factor=2.0), levels.pop()], 1))
        return self.head(x)


def mean_iou(predicted: Tensor, masks: Tensor) -> float:
    """Intersection over union of predicted and true pixels, mean over the classes that occur in either."""
    pairs = torch.bincount((CLASSES * masks + predicted).flatten(), minlength=CLASSES**2).view(CLASSES, CLASSES)
    both = pairs.diag()
    either = pairs.sum(0) + pairs.sum(1) - both
    return (both / either)[either > 0].mean().item()


def train(seed: int, strength: float, epochs: int) -> tuple[float, float | None]:
    """Mean IoU on unseen images and mean gradient cosine of one run; strength 0 is Plain."""
    torch.manual_seed(seed)
    model = UNet()
    images, masks = drawings(TRAIN_SIZE, seed)
    branches = None
    if strength:
        options = {"preset": "deep_supervision", "strength": strength, "seed": seed}
        branches = attach(model, at="decoder.*", sample=images[:2], classes=CLASSES, **options)
    order = torch.Generator().manual_seed(seed)

    def batches() -> Iterator[tuple[tuple[Tensor], Tensor]]:
        for chosen in torch.randperm(len(images), generator=order).split(10):
            yield (images[chosen],), masks[chosen]

    cosine = fit(model, branches, epochs, batches, lr=8e-3, last_lr=8e-4)
    unseen, wanted = drawings(300, seed=1)
    with torch.no_grad():
        return mean_iou(model.eval()(unseen).argmax(1), wanted), cosine


if __name__ == "__main__":
    main("U-Net", train, strength=1.5, epochs=3, description=__doc__.splitlines()[0], measure=Measure("IoU"))
