"""AutoAugment's policy for CIFAR (Cubuk et al., 2018) on whole batches, in whole numbers.

Each image gets one of 25 pairs of operations, and each operation of the pair is applied with its probability. They are
PIL's on bytes, as the scripts of Compact Transformers and of SPT + LSA call them: shears are interpolated, pixels from
outside the image are grey (128), and the rotation has one direction. Everything is integer arithmetic, so every device
gives the same bytes; PIL computes in floats, and is sometimes one lower if the exact result is a whole number.
"""

import math

import torch
from torch import Tensor

from asymtrain.lab.data.augment import blurred

POLICY = (
    (("invert", 1, 7), ("contrast", 2, 6)),
    (("rotate", 7, 2), ("translate_x", 3, 9)),
    (("sharpness", 8, 1), ("sharpness", 9, 3)),
    (("shear_y", 5, 8), ("translate_y", 7, 9)),
    (("autocontrast", 5, 8), ("equalize", 9, 2)),
    (("shear_y", 2, 7), ("posterize", 3, 7)),
    (("colour", 4, 3), ("brightness", 6, 7)),
    (("sharpness", 3, 9), ("brightness", 7, 9)),
    (("equalize", 6, 5), ("equalize", 5, 1)),
    (("contrast", 6, 7), ("sharpness", 6, 5)),
    (("colour", 7, 7), ("translate_x", 5, 8)),
    (("equalize", 3, 7), ("autocontrast", 4, 8)),
    (("translate_y", 4, 3), ("sharpness", 2, 6)),
    (("brightness", 9, 6), ("colour", 2, 8)),
    (("solarize", 5, 2), ("invert", 0, 3)),
    (("equalize", 2, 0), ("autocontrast", 6, 0)),
    (("equalize", 2, 8), ("equalize", 6, 4)),
    (("colour", 9, 9), ("equalize", 6, 6)),
    (("autocontrast", 8, 4), ("solarize", 2, 8)),
    (("brightness", 1, 3), ("colour", 7, 0)),
    (("solarize", 4, 5), ("autocontrast", 9, 3)),
    (("translate_y", 9, 9), ("translate_y", 7, 9)),
    (("autocontrast", 9, 2), ("solarize", 8, 3)),
    (("equalize", 8, 8), ("invert", 1, 3)),
    (("translate_y", 7, 9), ("autocontrast", 9, 1)),
)
"""Pairs of operations, each operation with its probability in tenths and its level from 0 to 9."""
OPERATIONS = tuple(dict.fromkeys(name for pair in POLICY for name, *_ in pair))
_OUTSIDE = 128
_ROTATION = math.radians(30 / 9 * 2)  # the policy has one


def policy_table(device: torch.device) -> Tensor:
    """The policy as numbers (25, 2, 3): operation, probability in tenths, level."""
    rows = [[(OPERATIONS.index(name), tenths, level) for name, tenths, level in pair] for pair in POLICY]
    return torch.tensor(rows, device=device)


def autoaugment(images: Tensor, bits: Tensor, policy: Tensor) -> Tensor:
    """A pair of operations for each image: bytes (..., B, C, H, W), bits (..., B) int64, policy of `policy_table`.

    Bits 0 to 15 choose the pair, bits 16 to 31 and 32 to 47 whether each of the two applies, bits 48 and 49 its sign.
    """
    pair = policy[(bits & 0xFFFF) % len(POLICY)]
    values = images.to(torch.int32)
    for i in range(2):
        kind, tenths, level = pair[..., i, :].unbind(-1)
        happens = (bits >> 16 * (i + 1) & 0xFFFF) * 10 < tenths << 16
        kind = torch.where(happens, kind, -1)[..., None, None, None]
        strength = ((1 - 2 * (bits >> 48 + i & 1)) * level)[..., None, None, None]
        values = _moved(_sheared(_recoloured(values, kind, strength), kind, strength), kind, strength)
    return values.to(torch.uint8)


def _is(kind: Tensor, name: str) -> Tensor:
    return kind == OPERATIONS.index(name)


def _recoloured(values: Tensor, kind: Tensor, strength: Tensor) -> Tensor:
    """Operations on colour: most map each value to another; colour and sharpness blend with another image."""
    luma = _luma(values)
    tables = _tables(values.flatten(-2).long(), luma, kind, strength)
    looked_up = tables.gather(-1, values.flatten(-2).long()).view(values.shape)
    blended = _blend(torch.where(_is(kind, "colour"), luma, blurred(values).to(values.dtype)), values, strength)
    blends = _is(kind, "colour") | _is(kind, "sharpness")
    return torch.where(blends, blended, looked_up).to(values.dtype)


def _tables(pixels: Tensor, luma: Tensor, kind: Tensor, strength: Tensor) -> Tensor:
    """The new value for each of the 256 values in each channel (..., B, C, 256), from pixels (..., B, C, H * W)."""
    value = torch.arange(256, device=pixels.device)
    kind, strength, level = kind[..., 0], strength[..., 0], strength[..., 0].abs()
    size = pixels.shape[-1]
    mean = (2 * luma.sum((-2, -1)) + size)[..., None] // (2 * size)
    low, high = pixels.amin(-1, keepdim=True), pixels.amax(-1, keepdim=True)
    counts = torch.zeros(*pixels.shape[:-1], 256, dtype=torch.int32, device=pixels.device)
    counts = counts.scatter_add(-1, pixels, torch.ones_like(pixels, dtype=torch.int32))
    step = (size - counts.gather(-1, high)) // 255
    below = counts.cumsum(-1) - counts
    spread = (value - low) * 255 // (high - low).clamp(min=1)
    cleared = (8 * level + 9) // 18  # of the eight bits
    results = {
        "invert": 255 - value,
        "solarize": torch.where(9 * value < 256 * (9 - level), value, 255 - value),
        "posterize": value >> cleared << cleared,
        "brightness": _blend(torch.zeros_like(value), value, strength),
        "contrast": _blend(mean, value, strength),
        "autocontrast": torch.where(high > low, spread.clamp(0, 255), value),
        "equalize": torch.where(step > 0, ((step // 2 + below) // step.clamp(min=1)).clamp(max=255), value),
    }
    tables = value.expand(counts.shape)
    for name, result in results.items():
        tables = torch.where(_is(kind, name), result, tables)
    return tables


def _blend(other: Tensor, values: Tensor, strength: Tensor) -> Tensor:
    """The image, moved to 1 + strength / 10 times its distance from another image."""
    return (10 * other + (10 + strength) * (values - other)).clamp(0, 2550) // 10


def _luma(values: Tensor) -> Tensor:
    """PIL's brightness (..., 1, H, W); the mean over channels if there are not three."""
    if values.shape[-3] != 3:
        return values.sum(-3, keepdim=True) // values.shape[-3]
    red, green, blue = values.unbind(-3)
    return (19595 * red + 38470 * green + 7471 * blue + 32768 >> 16).unsqueeze(-3)


def _sheared(values: Tensor, kind: Tensor, strength: Tensor) -> Tensor:
    """Move each column by its distance from the left times strength / 30; cubic, in integer sixtieths of a pixel."""
    height, width = values.shape[-2:]
    row = torch.arange(height, device=values.device)[:, None]
    position = 60 * row + strength * (2 * torch.arange(width, device=values.device) + 1)  # (..., B, 1, H, W)
    first, part = position // 60 - 1, position % 60
    taps = (values.gather(-2, (first + k).clamp(0, height - 1).expand(values.shape)) for k in range(4))
    one, two, three, four = taps
    rise, bend, turn = three - one, 2 * (one - two) + three - four, two - one + four - three
    cubes = 216000 * two + part * (3600 * rise + part * (60 * bend + part * turn))
    inside = (position + 30 >= 0) & (position + 30 < 60 * height)
    sheared = torch.where(inside, (cubes // 216000).clamp(0, 255), _OUTSIDE)
    return torch.where(_is(kind, "shear_y"), sheared, values).to(values.dtype)


def _moved(values: Tensor, kind: Tensor, strength: Tensor) -> Tensor:
    """Translations and the rotation: each pixel is read from its source."""
    height, width = values.shape[-2:]
    x = torch.arange(width, device=values.device)
    y = torch.arange(height, device=values.device)[:, None]
    unit = 2 * 9 * 331  # a level is a ninth of 150 / 331 of the side
    column = (unit * x + unit // 2 + torch.where(_is(kind, "translate_x"), strength, 0) * 300 * width) // unit
    row = (unit * y + unit // 2 + torch.where(_is(kind, "translate_y"), strength, 0) * 300 * height) // unit
    (xx, xy, x0), (yx, yy, y0) = _rotation(height, width)
    column = torch.where(_is(kind, "rotate"), (xx * x + xy * y + x0) >> 16, column)
    row = torch.where(_is(kind, "rotate"), (yx * x + yy * y + y0) >> 16, row)
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    source = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).flatten(-2)
    moved = values.flatten(-2).gather(-1, source.expand(values.flatten(-2).shape)).view(values.shape)
    return torch.where(inside, moved, _OUTSIDE).to(values.dtype)


def _rotation(height: int, width: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Coefficients from a pixel's column and row to its source's, in 65536ths, for PIL's rotation about the middle."""
    cosine, sine = math.cos(_ROTATION), math.sin(_ROTATION)

    def row(a: float, b: float, middle: float) -> tuple[int, int, int]:
        start = middle - a * (width - 1) / 2 - b * (height - 1) / 2
        return math.floor(65536 * a + 0.5), math.floor(65536 * b + 0.5), math.floor(65536 * start + 0.5)

    return row(cosine, -sine, width / 2), row(sine, cosine, height / 2)
