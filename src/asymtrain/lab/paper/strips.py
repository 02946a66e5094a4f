"""A claim at a glance: the paper's number and ours with its interval on one small axis, as SVG."""

from markupsafe import Markup

from asymtrain.lab.paper.rule import BAND, JudgedPart

WIDTH, HEIGHT, EDGE = 200.0, 26.0, 8.0
REACH = 1.7  # of the larger of the two numbers: an interval that goes farther ends in an arrow
BANDED = ("effect", "difference")
WITHOUT = ("significant", "zero", "agreement")  # their numbers are of another kind than the paper's


def strip(one: JudgedPart) -> Markup:
    """The strip of a ruled part; empty where there is nothing to compare."""
    paper, ours = one.part.paper, one.estimate
    if paper is None or ours is None or one.part.how in WITHOUT or not max(abs(paper), abs(ours)):
        return Markup()
    reach = REACH * max(abs(paper), abs(ours))

    def x(value: float) -> float:
        inside = max(-1.0, min(1.0, value / reach))
        return round(WIDTH / 2 + inside * (WIDTH / 2 - EDGE), 1)

    middle = HEIGHT / 2
    parts = []
    if one.part.how in BANDED:
        left, right = sorted(x(share * paper) for share in BAND)
        parts.append(f'<rect class="band" x="{left}" y="3" width="{right - left:.1f}" height="{HEIGHT - 6:g}"/>')
    parts.append(f'<path class="zero" d="M{x(0):g} 1V{HEIGHT - 1:g}"/>')
    if one.low is not None and one.high is not None:
        parts.append(f'<path class="bar" d="M{x(one.low):g} {middle:g}H{x(one.high):g}"/>')
        parts += [_arrow(x(end), middle, end) for end in (one.low, one.high) if abs(end) > reach]
    at = x(paper)
    parts.append(f'<path class="papers" d="M{at:g} {middle - 6:g}l6 6l-6 6l-6 -6z"/>')
    parts.append(f'<circle class="ours" cx="{x(ours):g}" cy="{middle:g}" r="4"/>')
    return Markup(f'<svg class="strip" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" aria-hidden="true">{"".join(parts)}</svg>')


def _arrow(x: float, middle: float, end: float) -> str:
    ahead = 5 if end > 0 else -5
    return f'<path class="arrow" d="M{x:g} {middle - 4:g}l{ahead} 4l{-ahead} 4z"/>'
