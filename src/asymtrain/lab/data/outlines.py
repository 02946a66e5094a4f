"""The ten outlines and ten fills of which `shapes` makes its classes.

Coordinates u, v (N, H, W) are the object's own: centred, turned with it, about 1 at its edge. Only operations that
IEEE 754 rounds exactly are used here (no sine, no BLAS), so every machine draws the same bytes.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Plane = npt.NDArray[np.float32]

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


def _wave(x: Plane) -> Plane:
    """A square wave of period 1 between 0 and 1, its edges softened."""
    return np.clip((np.abs(x - np.floor(x) - 0.5) - 0.25) * 8 + 0.5, 0, 1)


def _dots(u: Plane, v: Plane) -> Plane:
    du, dv = u - np.floor(u) - 0.5, v - np.floor(v) - 0.5
    return np.clip((0.34 - _radius(du, dv)) * 6 + 0.5, 0, 1)


def _line(x: Plane) -> Plane:
    return np.clip((np.abs(x - np.floor(x) - 0.5) - 0.32) * 8 + 0.5, 0, 1)


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
    "gridded": lambda u, v, d, phase, freq, grain: np.maximum(_line(u * freq + phase), _line(v * freq + phase)),
    "shaded": lambda u, v, d, phase, freq, grain: np.clip(v * 0.6 + 0.5, 0, 1),
    "speckled": lambda u, v, d, phase, freq, grain: (grain > 0).astype(np.float32),
}
