"""How rough a surface is, in a few numbers, and what many draws of directions say together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asymtrain.gradients._intervals import ANYTHING, Bounds
from asymtrain.lab.statistics.estimates import POSITIVE, SHARES, estimate

STATISTICS: dict[str, Bounds] = {
    "std": POSITIVE,
    "range": POSITIVE,
    "mean_gradient": POSITIVE,
    "plane_r2": SHARES,
    "residual_std": POSITIVE,
}
"""What a surface is described by, with the least and the largest value of each."""
CONFIDENCE = 0.95


@dataclass(frozen=True)
class SurfaceStatistics:
    """One surface in numbers. All but `non_finite` are None where a point of the surface is not finite.

    Attributes:
        std: standard deviation of the losses over all grid points (divided by their number).
        range: largest loss less smallest.
        mean_gradient: mean over grid points of the gradient's length, where the gradient is the difference of
            neighbouring grid points per grid index: half of (next - previous) inside, (next - this) at an edge, as
            numpy.gradient with spacing 1.
        plane_r2: share of the variance that the least-squares plane explains; None for a constant surface.
        residual_std: standard deviation of what the plane leaves.
        center: the loss in the middle of the grid; between the middle points where the grid is even.
        non_finite: how many grid points have an infinite loss or none.
    """

    std: float | None
    range: float | None
    mean_gradient: float | None
    plane_r2: float | None
    residual_std: float | None
    center: float | None
    non_finite: int = 0


@dataclass(frozen=True)
class Interval:
    """A mean over n draws, or over the means of n seeds; its t interval; and the range of 95% of single draws.

    The t interval is cut at the values that there can be (see `estimate`), the range is that of percentiles. Intervals
    are None where there is one value.
    """

    n: int
    mean: float | None
    low: float | None
    high: float | None
    percentile_low: float | None
    percentile_high: float | None


def surface_statistics(losses: npt.NDArray[np.float64]) -> SurfaceStatistics:
    """The numbers of a surface (n, m)."""
    non_finite = int(np.count_nonzero(~np.isfinite(losses)))
    if non_finite:
        return SurfaceStatistics(None, None, None, None, None, None, non_finite)
    rows, columns = losses.shape
    middle = losses[(rows - 1) // 2 : rows // 2 + 1, (columns - 1) // 2 : columns // 2 + 1]
    # From the middle's loss on: the variation may be a millionth of the loss itself.
    shifted = losses - middle.mean()
    along, across = np.gradient(shifted)
    plane = fitted_plane(shifted)
    residual = shifted - plane
    variance = float(shifted.var())
    # Below this the variation is the rounding of float64 numbers of this size.
    constant = math.sqrt(variance) <= 1e-15 * max(1.0, abs(float(middle.mean())))
    return SurfaceStatistics(
        std=math.sqrt(variance),
        range=float(np.ptp(shifted)),
        mean_gradient=float(np.hypot(along, across).mean()),
        plane_r2=None if constant else max(0.0, 1 - float(residual.var()) / variance),  # below 0 is rounding
        residual_std=float(residual.std()),
        center=float(middle.mean()),
    )


def fitted_plane(losses: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The least-squares plane of a surface, on its grid. On a full grid the slopes can be fitted one by one."""
    x, y = (np.arange(n) - (n - 1) / 2 for n in losses.shape)
    slope_x = (x @ losses.mean(1)) / (x @ x)
    slope_y = (losses.mean(0) @ y) / (y @ y)
    return losses.mean() + slope_x * x[:, None] + slope_y * y[None, :]


def interval(groups: Sequence[Sequence[float | None]], within: Bounds = ANYTHING) -> Interval:
    """Mean and intervals of the draws of each seed; missing ones are left out.

    Of one seed, over its draws. Of several, over the seeds' means, since draws around one state say nothing of another;
    the percentiles are those of all single draws.
    """
    seen = [[value for value in group if value is not None] for group in groups]
    draws = [value for group in seen for value in group]
    means = [math.fsum(group) / len(group) for group in seen if group]
    found = estimate(draws if len(groups) == 1 else means, CONFIDENCE, within)
    low = high = None
    if len(draws) > 1:
        tail = 100 * (1 - CONFIDENCE) / 2
        low, high = map(float, np.percentile(draws, [tail, 100 - tail]))
    return Interval(found.n, found.mean, found.low, found.high, low, high)
