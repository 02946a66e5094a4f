"""Lines of the paper's figures from curves over seeds."""

import dataclasses
from collections.abc import Iterable

from asymtrain.lab.instruments.curves import Curve
from asymtrain.lab.report.figure import Colour, Dash, Line

LEAST = 4  # seeds for a band: the t interval of fewer is wider than the figure


def curve_line(label: str, colour: Colour, curve: Curve, *, dash: Dash = "solid", seeds: bool = False) -> Line:
    """A curve with its interval over seeds; with each seed's line where asked for, or where there are few."""
    line = dataclasses.replace(curve.line(label, colour), dash=dash)
    alone = seeds or len(curve.seeds) < LEAST
    return dataclasses.replace(line, low=(), high=(), seeds_on_demand=False) if alone else line


def has_points(lines: Iterable[Line]) -> bool:
    return any(value is not None for line in lines for value in line.y)
