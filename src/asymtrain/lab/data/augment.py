"""Random changes of images, from random bits that the caller gives.

There is no generator here: with bits from `streams.bits`, a run gets the same augmentation alone, in a stack, and on
every device. All images of a batch, and all runs of a stack, are changed at once: images are (..., B, C, H, W) and
their bits (..., B). Each choice uses some of an image's bits, modulo the number of choices or as a fraction.

`flip_and_shift` and `transform` work on values from 0 to 255, of any type; `erase` and `mix` on any values.
"""

import math

import torch
from torch import Tensor

from asymtrain.lab.data.arrays import whole_number

TRANSFORMS = (
    "identity", "brightness", "contrast", "saturation", "sharpness", "posterize", "solarize",
    "rotate", "shear_x", "shear_y", "translate_x", "translate_y",
)  # fmt: skip
"""The transforms that `transform` chooses from, in the order of its bits."""
STRENGTHS = 31
_HALF = 0.5 + 1 / 2048  # so that halves are rounded up on every device
QUANTILES = 4096


def flip_and_shift(images: Tensor, bits: Tensor, max_shift: int = 4) -> Tensor:
    """Mirror each image or not, then move it by up to max_shift pixels each way, filling with zeros.

    Images (..., B, 3, H, W) of any type, bits (..., B) int64. Bit 0 mirrors left and right; bits 1 to 16 choose the
    shift to the right and bits 17 to 32 the shift downwards, each modulo 2 * max_shift + 1.
    """
    max_shift = whole_number("max_shift", max_shift, 0)
    height, width = images.shape[-2:]
    choices = 2 * max_shift + 1
    right = ((bits >> 1 & 0xFFFF) % choices - max_shift)[..., None]
    down = ((bits >> 17 & 0xFFFF) % choices - max_shift)[..., None]
    column = torch.arange(width, device=images.device) - right  # (..., B, W): where each column comes from
    row = torch.arange(height, device=images.device) - down
    inside = ((row >= 0) & (row < height))[..., :, None] & ((column >= 0) & (column < width))[..., None, :]
    column = torch.where((bits & 1).bool()[..., None], width - 1 - column, column)
    # Gather with an expanded index: no copy of the index is made.
    rows = row.clamp(0, height - 1)[..., None, :, None].expand(images.shape)
    columns = column.clamp(0, width - 1)[..., None, None, :].expand(images.shape)
    moved = images.gather(-2, rows).gather(-1, columns)
    return torch.where(inside[..., None, :, :], moved, torch.zeros((), dtype=images.dtype, device=images.device))


def transform(images: Tensor, bits: Tensor) -> Tensor:
    """One of `TRANSFORMS` for each image, with a random strength: TrivialAugment, in RandAugment's ranges.

    Bits 0 to 15 choose the transform, bits 16 to 31 a strength s of 31 from 0 to 1, bit 32 the sign.

    - brightness, contrast, saturation, sharpness: the image's distance from black, from its mean grey, from its own
      greys, from its blur (all of them whole numbers, as PIL has them), times 1 + 0.9 s or 1 - 0.9 s;
    - posterize: round(4 s) of the eight bits are cleared; solarize: values from 255 (1 - s) on are inverted;
    - rotate by 30 s degrees, shear by 0.3 s, translate by s times three tenths of the side, either way: each pixel
      takes the nearest one of the source, or zero.
    """
    kind = ((bits & 0xFFFF) % len(TRANSFORMS))[..., None, None, None]
    level = ((bits >> 16 & 0xFFFF) % STRENGTHS)[..., None, None, None]
    sign = 1 - 2 * (bits >> 32 & 1)[..., None, None, None]
    values = images.to(torch.float32) if not images.dtype.is_floating_point else images
    values = _recoloured(values, kind, level, sign)
    if not images.dtype.is_floating_point:
        values = (values + _HALF).floor()
    return _moved(values.to(images.dtype), kind, level * sign)


def _is(kind: Tensor, *names: str) -> Tensor:
    chosen = kind == TRANSFORMS.index(names[0])
    for name in names[1:]:
        chosen = chosen | (kind == TRANSFORMS.index(name))
    return chosen


def _recoloured(values: Tensor, kind: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """The transforms of values; every other image stays as it is."""
    grey = _grey(values)
    # Each of the four moves the image away from another image, or towards it.
    other = torch.where(_is(kind, "contrast"), (grey.mean((-2, -1), keepdim=True) + _HALF).floor(), 0.0)
    other = torch.where(_is(kind, "saturation"), grey, other)
    other = torch.where(_is(kind, "sharpness"), blurred(values), other)
    blended = (other + (1 + 0.9 / (STRENGTHS - 1) * level * sign) * (values - other)).clamp(0, 255)
    step = 2.0 ** (4 / (STRENGTHS - 1) * level).round()
    blended = torch.where(_is(kind, "posterize"), (values / step).floor() * step, blended)
    inverted = torch.where(values >= 255 / (STRENGTHS - 1) * (STRENGTHS - 1 - level), 255 - values, values)
    blended = torch.where(_is(kind, "solarize"), inverted, blended)
    coloured = _is(kind, "brightness", "contrast", "saturation", "sharpness", "posterize", "solarize")
    return torch.where(coloured, blended, values)


def _grey(values: Tensor) -> Tensor:
    """Brightness (..., 1, H, W) by the weights of Rec. 601; the mean if there are not three channels."""
    if values.shape[-3] != 3:
        return (values.mean(-3, keepdim=True) + _HALF).floor()
    red, green, blue = values.unbind(-3)
    return (0.299 * red + 0.587 * green + 0.114 * blue + _HALF).floor().unsqueeze(-3)


def blurred(values: Tensor) -> Tensor:
    """Weighted means of 3 x 3 pixels, with weight 5 for the middle one; the border does not change."""
    height, width = values.shape[-2:]
    if min(height, width) < 3:
        return values
    rows = values[..., :-2, :] + values[..., 1:-1, :] + values[..., 2:, :]
    sums = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * values[..., 1:-1, 1:-1]
    inner = torch.nn.functional.pad((sums / 13 + _HALF).floor(), (1, 1, 1, 1))
    row, column = torch.arange(height, device=values.device), torch.arange(width, device=values.device)
    inside = ((row > 0) & (row < height - 1))[:, None] & ((column > 0) & (column < width - 1))
    return torch.where(inside, inner, values)


def _moved(images: Tensor, kind: Tensor, level: Tensor) -> Tensor:
    """The transforms that move pixels, by one gather: each pixel is read from its source."""
    height, width = images.shape[-2:]
    kind, level, most = kind[..., 0], level[..., 0], STRENGTHS - 1  # (..., B, 1, 1)
    angle = torch.where(_is(kind, "rotate"), math.radians(30) / most * level, 0.0)
    cosine, sine = angle.cos(), angle.sin()
    shear_x = torch.where(_is(kind, "shear_x"), 0.3 / most * level, 0.0)
    shear_y = torch.where(_is(kind, "shear_y"), 0.3 / most * level, 0.0)
    right = torch.where(_is(kind, "translate_x"), (2 * (3 * width // 10) * level + most) // (2 * most), 0)
    down = torch.where(_is(kind, "translate_y"), (2 * (3 * height // 10) * level + most) // (2 * most), 0)
    x = torch.arange(width, device=images.device) - (width - 1) / 2
    y = (torch.arange(height, device=images.device) - (height - 1) / 2)[:, None]
    middle_x, middle_y = (width - 1) / 2 + _HALF, (height - 1) / 2 + _HALF
    column = (cosine * x + (sine + shear_x) * y - right + middle_x).floor().long()  # (..., B, H, W)
    row = (cosine * y + (shear_y - sine) * x - down + middle_y).floor().long()
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    source = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).flatten(-2)[..., None, :]
    moved = images.flatten(-2).gather(-1, source.expand(*images.shape[:-2], -1)).view(images.shape)
    return torch.where(inside[..., None, :, :], moved, torch.zeros((), dtype=images.dtype, device=images.device))


def erase(images: Tensor, bits: Tensor, probability: Tensor | float, largest: float = 1 / 3) -> Tensor:
    """Set a random rectangle of some images to zero, which is the mean of normalised images.

    The probability (..., B), or what broadcasts to it, is compared with bits 0 to 15. Bits 16 to 27 choose the area,
    2% to the largest share of the image; bits 28 to 39 the ratio of height and width, 0.3 to 1 / 0.3, equally often
    above and below 1; bits 40 to 51 and 52 to 63 the place.
    """
    height, width = images.shape[-2:]
    erased = _fraction(bits, 0, 16) < probability
    area = (0.02 + (largest - 0.02) * _fraction(bits, 16, 12)) * height * width
    ratio = (math.log(0.3) * (1 - 2 * _fraction(bits, 28, 12))).exp()
    tall = (area * ratio).sqrt().round().long().clamp(1, height)
    wide = (area / ratio).sqrt().round().long().clamp(1, width)
    top = (bits >> 40 & 0xFFF) * (height - tall + 1) >> 12
    left = (bits >> 52 & 0xFFF) * (width - wide + 1) >> 12
    box = _box(top, top + tall, left, left + wide, height, width) & erased[..., None, None]
    return images.masked_fill(box[..., None, :, :], 0)


def beta_quantiles(parameter: float) -> Tensor:
    """4096 equally probable values of the Beta distribution with this parameter, twice: (4096,), float64."""
    from scipy.special import betaincinv

    shares = (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES
    return torch.as_tensor(betaincinv(parameter, parameter, shares.numpy()))


def mixing_weights(
    bits: Tensor, mixup: Tensor | None, cutmix: Tensor | None, height: int, width: int, probability: float = 1.0
) -> Tensor:
    """The weight of each pixel (..., H, W) beside its partner's; bits (...), one for each batch.

    A batch is mixed if bits 45 to 60, as a fraction, are below the probability; else all weights are 1. Bits 0 to 11
    choose a share of `mixup` or of `cutmix`, `beta_quantiles` (..., 4096). With mixup the share is every pixel's
    weight. With cutmix the weight is 0 in a rectangle of area 1 - share, centred on the pixel that bits 13 to 28 and
    29 to 44 choose and cut off at the border; and 1 elsewhere. Bit 12 chooses if both are given.
    """
    chosen = (bits & QUANTILES - 1)[..., None]
    weights: Tensor | None = None
    if mixup is not None:
        weights = mixup.gather(-1, chosen)[..., None].float().expand(*bits.shape, height, width)
    if cutmix is not None:
        side = (1 - cutmix.gather(-1, chosen)[..., 0]).sqrt()
        half_tall, half_wide = (height * side).long() // 2, (width * side).long() // 2
        row, column = (bits >> 13 & 0xFFFF) % height, (bits >> 29 & 0xFFFF) % width
        box = _box(row - half_tall, row + half_tall, column - half_wide, column + half_wide, height, width)
        outside = (~box).float()
        weights = outside if weights is None else outside.where((bits >> 12 & 1).bool()[..., None, None], weights)
    assert weights is not None, "one of the two is given"
    if probability < 1:
        weights = weights.where((_fraction(bits, 45, 16) < probability)[..., None, None], 1.0)
    return weights


def mix(images: Tensor, partners: Tensor, weights: Tensor) -> Tensor:
    """Images (..., B, C, H, W) times the weights (..., H, W) of a batch, plus partners times 1 - weights."""
    return partners + weights[..., None, None, :, :] * (images - partners)


def _fraction(bits: Tensor, start: int, count: int) -> Tensor:
    """`count` bits as a fraction in [0, 1); in float64, so that no device rounds it to another pixel."""
    return (bits >> start & (1 << count) - 1).double() / (1 << count)


def _box(top: Tensor, bottom: Tensor, left: Tensor, right: Tensor, height: int, width: int) -> Tensor:
    """Which pixels (..., H, W) are in rectangles (...); ends are exclusive."""
    row, column = torch.arange(height, device=top.device), torch.arange(width, device=top.device)
    rows = (row >= top[..., None]) & (row < bottom[..., None])
    columns = (column >= left[..., None]) & (column < right[..., None])
    return rows[..., :, None] & columns[..., None, :]
