"""The SVG of a page: smaller than that of a file, and the same picture."""

import io
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from test_drawing import PANELS, figure

from asymtrain.lab.report.compact import compact, simplify
from asymtrain.lab.report.drawing import draw
from asymtrain.lab.report.figure import Figure, Line, Lines, Surface

every_kind = pytest.mark.parametrize("kind", PANELS)


def curves():
    random = np.random.default_rng(0)
    x = tuple(map(float, range(1, 101)))
    y = np.cumsum(random.normal(size=(4, 100)), axis=1)
    lines = tuple(
        Line(f"line {i}", i, x, tuple(row), tuple(row - 1), tuple(row + 1), seeds=(tuple(row + 0.5),))
        for i, row in enumerate(y)
    )
    return Figure("curves", "Many points", [Lines("One", "epoch", "loss", lines, zero=True)] * 2, 2)


def surfaces():
    grid = np.linspace(-1, 1, 31)
    heights = np.sin(3 * grid)[:, None] + np.cos(2 * grid)
    ticks = tuple(map(float, grid))
    equal = Surface("", ticks, ticks, tuple(map(tuple, heights.tolist())), "height")
    return Figure("surfaces", "Equal surfaces", [equal] * 3, 3)


def words(svg):
    return sorted(element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("}text"))


@every_kind
def test_no_word_is_lost_and_no_reference_leads_nowhere(kind):
    svg = draw(figure(kind))
    small = compact(svg, figure(kind).name)
    assert words(small) == words(svg)
    assert len(small) < len(svg)
    ids = re.findall(r'\bid="([^"]+)"', small)
    assert len(set(ids)) == len(ids)
    assert {*re.findall(r'(?:url\(#|href="#)([^")]+)', small)} <= {*ids}
    assert small == compact(svg, figure(kind).name)
    assert not {*ids} & {*re.findall(r'\bid="([^"]+)"', compact(svg, "another"))}
    assert 'aria-label="' in small


def test_curves_and_equal_surfaces_take_a_small_part():
    for many in (curves(), surfaces()):
        svg = draw(many)
        assert len(compact(svg, many.name)) < 0.4 * len(svg), many.name
    assert compact(draw(surfaces()), "s").count("<use") > 20  # two of the three surfaces


def test_points_on_the_way_are_left_out_and_no_other():
    line = np.array([[0, 0], [1, 0.1], [2, 0], [3, 5], [4, 0]], float)
    assert simplify(line, 0.2).tolist() == [[0, 0], [2, 0], [3, 5], [4, 0]]
    assert simplify(line, 0.05).tolist() == line.tolist()
    random = np.cumsum(np.random.default_rng(0).normal(size=(200, 2)), axis=0)
    kept = simplify(random, 0.5)
    assert 20 < len(kept) < 200
    starts, ways = kept[:-1], np.diff(kept, axis=0)
    for point in random:
        share = np.clip(((point - starts) * ways).sum(1) / (ways**2).sum(1), 0, 1)
        assert np.hypot(*(point - starts - share[:, None] * ways).T).min() <= 0.5 + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*PANELS, "curves", "surfaces"])
def test_a_browser_draws_the_same_picture(browser, kind):
    image = pytest.importorskip("PIL.Image")
    drawn = {"curves": curves, "surfaces": surfaces}.get(kind, lambda: figure(kind))()
    svg, page = draw(drawn), browser.new_page(viewport={"width": 1100, "height": 900})
    shots = []
    for text in (svg, compact(svg, drawn.name)):
        page.set_content(f"<body style='margin: 0'>{text}")
        shown = image.open(io.BytesIO(page.locator("svg").screenshot())).convert("RGB")
        shots.append(np.asarray(shown, np.float64))
    page.close()
    assert shots[0].shape == shots[1].shape
    apart = np.abs(shots[0] - shots[1])
    assert apart.mean() < 1.5
    assert (apart.max(2) > 100).mean() < 0.005  # edges may be shaded otherwise
    assert shots[0].std() > 5
