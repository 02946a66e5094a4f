"""Lines of the paper's figures from curves over seeds."""

from collections.abc import Iterable

from asymtrain.lab.instruments.curves import Curve
from asymtrain.lab.report.figure import Colour, Dash, Line

LEAST = 4  # seeds for a band: the t interval of fewer is wider than the figure


def curve_line(label: str, colour: Colour, curve: Curve, *, dash: Dash = "solid", seeds: bool = False) -> Line:
    """A curve with its interval over seeds; with each seed's line where asked for, or where there are few."""
    x = tuple(float(epoch) for epoch in curve.epochs)
    mean = tuple(point.mean for point in curve.points)
    if seeds or len(curve.seeds) < LEAST:
        return Line(label, colour, x, mean, seeds=curve.seeds, seed_names=curve.names, dash=dash)
    low, high = tuple(point.low for point in curve.points), tuple(point.high for point in curve.points)
    return Line(label, colour, x, mean, low, high, curve.seeds, curve.names, seeds_on_demand=True, dash=dash)


def has_points(lines: Iterable[Line]) -> bool:
    return any(value is not None for line in lines for value in line.y)
