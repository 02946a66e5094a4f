"""`shapes`: images drawn by code. Each has one object with an outline and a fill, in a random scene.

A class is an outline and a fill, and the first k * k classes are k outlines times k fills: neither alone determines
the class. Colour, position, size, rotation, background, clutter, occlusion and noise are random for each image. An
image depends on the seed, its index and the options, not on the number of images: a longer set begins with the
shorter one. All arithmetic is exact or rounded by IEEE 754, so every machine draws the same bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from asymtrain.lab.data.arrays import Bytes, Dataset, Examples, Labels, Masks, whole_number

Plane = npt.NDArray[np.float32]

_BLOCK = 64  # images drawn together; few enough that the planes fit into the CPU's cache
_SPAN = 32.0  # lengths below are in 32nds of the image, which are pixels in an image of 32 pixels
_CLUTTER = 5  # pieces of clutter; the last one is in front of the object
_GRID = 5  # the background is interpolated from this many colours on a side

# Rounded, so that differences in the last bit of the C library's sine cannot move a pixel.
_COS = np.round(np.cos(np.arange(1024) * (2 * np.pi / 1024)), 6).astype(np.float32)
_SIN = np.round(np.sin(np.arange(1024) * (2 * np.pi / 1024)), 6).astype(np.float32)


CLASSES, SIZE, TEST_SIZE = 20, 4000, 1000


def load(
    *, classes: int = CLASSES, size: int = SIZE, test_size: int = TEST_SIZE, image_size: int = 32, seed: int = 0
) -> Dataset:
    """Draw `size` training images and `test_size` test images, with each object's visible part as a mask."""
    classes = whole_number("classes", classes, 2, len(OUTLINES) * len(FILLS))
    size = whole_number("size", size, classes)
    test_size = whole_number("test_size", test_size, classes)
    image_size = whole_number("image_size", image_size, 8, 512)
    seed = whole_number("seed", seed, 0)
    train = _draw_set(seed, "train", size, classes, image_size)
    test = _draw_set(seed, "test", test_size, classes, image_size)
    outlines, fills = list(OUTLINES), list(FILLS)
    names = tuple(f"{fills[f]} {outlines[o]}" for o, f in class_table()[:classes])
    return Dataset("shapes", train, test, names)


def class_table() -> list[tuple[int, int]]:
    """The outline and fill of each of the 100 classes; every prefix uses outlines and fills about equally."""
    table = []
    for k in range(len(OUTLINES)):
        table.append((k, k))
        for j in range(k):
            table += [(k, j), (j, k)]
    return table


def _draw_set(seed: int, part: str, size: int, classes: int, image_size: int) -> Examples:
    # Whole blocks are drawn and the last one is cut, so images do not depend on the size of the set.
    images_drawn = -(-size // _BLOCK) * _BLOCK
    labels = _balanced_labels(seed, part, images_drawn, classes)
    kinds = np.array(class_table())[labels]
    images = np.empty((size, 3, image_size, image_size), np.uint8)
    masks = np.empty((size, image_size, image_size), np.bool_)
    for start in range(0, images_drawn, _BLOCK):
        chance = _Chance(seed, f"shapes-{part}-{start}")
        pixels, visible = _draw_block(chance, kinds[start : start + _BLOCK], image_size)
        images[start : start + _BLOCK] = pixels[: size - start]
        masks[start : start + _BLOCK] = visible[: size - start]
    return Examples(images, labels[:size].copy(), masks)


def _balanced_labels(seed: int, part: str, size: int, classes: int) -> Labels:
    """Labels in which each group of `classes` images has every class once, in random order."""
    rounds = -(-size // classes)
    raw = _Chance(seed, f"shapes-{part}-labels").raw(rounds * classes).reshape(rounds, classes)
    return raw.argsort(axis=1, kind="stable").reshape(-1)[:size].astype(np.int64)


class _Chance:
    """Uniform numbers from the raw bits of PCG64, which numpy promises not to change."""

    def __init__(self, seed: int, purpose: str) -> None:
        from asymtrain import streams  # here: it imports torch, which names and counts of classes do not need

        self._source = np.random.PCG64(streams.key(seed, purpose) & (2**63 - 1))

    def raw(self, count: int) -> npt.NDArray[np.uint64]:
        return np.asarray(self._source.random_raw(count), np.uint64)

    def uniform(self, low: float, high: float, *shape: int) -> Plane:
        unit = (self.raw(prod(shape)) >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
        return unit.reshape(shape) * np.float32(high - low) + np.float32(low)

    def bytes(self, *shape: int) -> Bytes:
        # A fixed byte order gives the same bytes on big-endian machines.
        words = self.raw(-(-prod(shape) // 8)).astype("<u8", copy=False)
        return words.view(np.uint8)[: prod(shape)].reshape(shape)


@dataclass(frozen=True)
class _Pose:
    """The pose of an object: centre, radius, and the cosine and sine of its rotation, each (N,)."""

    x: Plane
    y: Plane
    radius: Plane
    cos: Plane
    sin: Plane

    def coordinates(self, image_size: int) -> tuple[Plane, Plane]:
        """Each pixel's coordinates (N, H, W) relative to this pose."""
        axis = (np.arange(image_size, dtype=np.float32) + np.float32(0.5)) * np.float32(_SPAN / image_size)
        dx = (axis - self.x[:, None]) / self.radius[:, None]
        dy = (axis - self.y[:, None]) / self.radius[:, None]
        cos, sin = self.cos[:, None], self.sin[:, None]
        return (dx * cos)[:, None, :] + (dy * sin)[:, :, None], (dy * cos)[:, :, None] - (dx * sin)[:, None, :]

    def coverage(self, distance: Plane, image_size: int) -> Plane:
        """The share of each pixel inside an outline, from its signed distance."""
        sharpness = self.radius * np.float32(image_size / _SPAN)
        return np.clip(np.float32(0.5) - distance * sharpness[:, None, None], 0, 1)


def _draw_block(chance: _Chance, kinds: npt.NDArray[np.int64], image_size: int) -> tuple[Bytes, Masks]:
    ground, first_level, second_level = _brightness(chance)
    canvas = _background(chance, ground, image_size)
    *behind, (front, front_colour) = [_clutter(chance, image_size) for _ in range(_CLUTTER)]
    pose = _object_pose(chance)
    first, second = _colours(chance, first_level), _colours(chance, second_level)
    phase, freq = chance.uniform(0, 1, _BLOCK, 1, 1), chance.uniform(1.6, 2.2, _BLOCK, 1, 1)
    strength = chance.uniform(0.02, 0.14, _BLOCK, 1, 1, 1)
    noise = chance.bytes(_BLOCK, 3, image_size, image_size).astype(np.float32) - np.float32(127.5)

    u, v = pose.coordinates(image_size)
    distance, share = np.empty_like(u), np.empty_like(u)
    for kind, outline in enumerate(OUTLINES.values()):
        rows = np.flatnonzero(kinds[:, 0] == kind)
        distance[rows] = outline(u[rows], v[rows])
    grain = noise[:, 0, ::2, ::2].repeat(2, axis=1).repeat(2, axis=2)[:, :image_size, :image_size]
    for kind, fill in enumerate(FILLS.values()):
        rows = np.flatnonzero(kinds[:, 1] == kind)
        share[rows] = fill(u[rows], v[rows], distance[rows], phase[rows], freq[rows], grain[rows])
    cover = pose.coverage(distance, image_size)

    for piece, colour in behind:
        _paint(canvas, piece, colour)
    _paint(canvas, cover, first + share[:, None] * (second - first))
    _paint(canvas, front, front_colour)
    canvas += noise * strength
    return np.clip(canvas + np.float32(0.5), 0, 255).astype(np.uint8), (cover >= 0.5) & (front < 0.5)


def _paint(canvas: Plane, cover: Plane, colour: Plane) -> None:
    canvas += cover[:, None] * (colour - canvas)


def _brightness(chance: _Chance) -> tuple[Plane, Plane, Plane]:
    """Mean levels of background, first and second colour; neighbours differ by 0.3 or more, modulo 1.

    The first colour is usually the brighter one: otherwise no linear classifier could beat chance.
    """
    ground = chance.uniform(0.05, 0.45, _BLOCK)
    first = ground + chance.uniform(0.3, 0.7, _BLOCK)
    first -= np.floor(first)
    second = first + chance.uniform(0.3, 0.7, _BLOCK)
    return ground, first, second - np.floor(second)


def _colours(chance: _Chance, level: Plane) -> Plane:
    return level[:, None, None, None] * np.float32(255) + chance.uniform(-70, 70, _BLOCK, 3, 1, 1)


def _background(chance: _Chance, level: Plane, image_size: int) -> Plane:
    """Soft blotches around one colour: a small grid of integer levels, interpolated."""
    corners = chance.uniform(-30, 30, _BLOCK, 3, _GRID, _GRID) + _colours(chance, level)
    position = np.linspace(0, _GRID - 1, image_size)
    weights = np.clip(1 - np.abs(position[:, None] - np.arange(_GRID)), 0, 1)
    # Whole numbers times 64ths are exact in float32, whatever the order in which BLAS adds them.
    w = (np.round(weights * 64) / 64).astype(np.float32)
    return np.asarray(w @ (np.round(corners) @ w.T), np.float32)


def _object_pose(chance: _Chance) -> _Pose:
    radius = chance.uniform(9.5, 14, _BLOCK)
    room = np.float32(_SPAN / 2) - radius
    middle = np.float32(_SPAN / 2)
    x = middle + room * chance.uniform(-1, 1, _BLOCK)
    y = middle + room * chance.uniform(-1, 1, _BLOCK)
    # Up to 30 degrees in either direction.
    angle = chance.uniform(-85, 85, _BLOCK).astype(np.int64) % 1024
    return _Pose(x, y, radius, _COS[angle], _SIN[angle])


def _clutter(chance: _Chance, image_size: int) -> tuple[Plane, Plane]:
    """One small box or ellipse for each image: its coverage (N, H, W) and its colour (N, 3, 1, 1)."""
    angle = chance.uniform(0, 1024, _BLOCK).astype(np.int64)
    x, y = chance.uniform(0, _SPAN, _BLOCK), chance.uniform(0, _SPAN, _BLOCK)
    pose = _Pose(x, y, chance.uniform(1.5, 4, _BLOCK), _COS[angle], _SIN[angle])
    u, v = pose.coordinates(image_size)
    flat = chance.uniform(1.5, 4, _BLOCK)[:, None, None]
    box = np.maximum(np.abs(u), np.abs(v) * flat)
    ellipse = u * u + v * v * flat
    is_round = (chance.uniform(0, 1, _BLOCK) < 0.5)[:, None, None]
    cover = pose.coverage(np.where(is_round, ellipse, box) - np.float32(1), image_size)
    return cover, chance.uniform(0, 255, _BLOCK, 3, 1, 1)


# The ten outlines and ten fills. Coordinates u, v (N, H, W) are the object's: centred, rotated with it, about 1 at
# its edge. Only operations that IEEE 754 rounds exactly are used (no sine, no BLAS).

_TRIANGLE = ((0.0, 1.0), (0.866025, -0.5), (-0.866025, -0.5))
_PENTAGON = ((0.0, 1.0), (0.951057, 0.309017), (0.587785, -0.809017), (-0.587785, -0.809017), (-0.951057, 0.309017))


def _radius(u: Plane, v: Plane) -> Plane:
    return np.sqrt(u * u + v * v)


def _box(u: Plane, v: Plane, half_width: float, half_height: float) -> Plane:
    return np.maximum(np.abs(u) - half_width, np.abs(v) - half_height)


def _sides(u: Plane, v: Plane, normals: tuple[tuple[float, float], ...]) -> Plane:
    return np.stack([a * u + b * v for a, b in normals])


def _star(u: Plane, v: Plane) -> Plane:
    # A pentagram is the set of points on the inner side of at least four of its five lines.
    return np.partition(_sides(u, v, _PENTAGON), 3, axis=0)[3] - 0.38


# Each gives a signed distance (N, H, W): negative inside, in units of the object's radius.
OUTLINES: dict[str, Callable[[Plane, Plane], Plane]] = {
    "disc": lambda u, v: _radius(u, v) - 0.85,
    "square": lambda u, v: _box(u, v, 0.75, 0.75),
    "triangle": lambda u, v: _sides(u, v, _TRIANGLE).max(axis=0) - 0.55,
    "cross": lambda u, v: np.minimum(_box(u, v, 0.95, 0.33), _box(u, v, 0.33, 0.95)),
    "ring": lambda u, v: np.abs(_radius(u, v) - 0.66) - 0.27,
    "crescent": lambda u, v: np.maximum(_radius(u, v) - 0.95, 0.72 - _radius(u - 0.5, v)),
    "star": _star,
    "bar": lambda u, v: _box(u, v, 1.0, 0.42),
    "hourglass": lambda u, v: np.maximum(np.abs(u) - 0.85, (np.abs(v) - 0.8 * np.abs(u) - 0.15) * 0.78),
    "corner": lambda u, v: np.maximum(_box(u, v, 0.8, 0.8), np.minimum(0.15 - u, 0.15 - v)),
}


def _wave(x: Plane, half_gap: float = 0.25) -> Plane:
    """A square wave of period 1 between 0 and 1 with soft edges; a larger gap gives thinner lines."""
    return np.clip((np.abs(x - np.floor(x) - 0.5) - half_gap) * 8 + 0.5, 0, 1)


def _dots(u: Plane, v: Plane) -> Plane:
    du, dv = u - np.floor(u) - 0.5, v - np.floor(v) - 0.5
    return np.clip((0.34 - _radius(du, dv)) * 6 + 0.5, 0, 1)


def _checked(u: Plane, v: Plane) -> Plane:
    a, b = _wave(u), _wave(v)
    return a + b - 2 * a * b


# Each gives the share of the second colour (N, H, W) from: u and v, the signed distance to the outline, the phase
# and the frequency (N, 1, 1) of the fill, and noise around 0 (N, H, W).
FILLS: dict[str, Callable[[Plane, Plane, Plane, Plane, Plane, Plane], Plane]] = {
    "solid": lambda u, v, d, phase, freq, grain: np.zeros_like(u),
    "striped": lambda u, v, d, phase, freq, grain: _wave(v * freq + phase),
    "checked": lambda u, v, d, phase, freq, grain: _checked(u * freq * 0.8 + phase, v * freq * 0.8 + phase),
    "dotted": lambda u, v, d, phase, freq, grain: _dots(u * freq + phase, v * freq + phase),
    "halved": lambda u, v, d, phase, freq, grain: np.clip(v * 8 + 0.5, 0, 1),
    "banded": lambda u, v, d, phase, freq, grain: _wave(_radius(u, v) * freq + phase),
    "rimmed": lambda u, v, d, phase, freq, grain: np.clip((d + 0.2) * 8 + 0.5, 0, 1),
    "gridded": lambda u, v, d, phase, freq, grain: np.maximum(
        _wave(u * freq + phase, 0.32), _wave(v * freq + phase, 0.32)
    ),
    "shaded": lambda u, v, d, phase, freq, grain: np.clip(v * 0.6 + 0.5, 0, 1),
    "speckled": lambda u, v, d, phase, freq, grain: (grain > 0).astype(np.float32),
}
