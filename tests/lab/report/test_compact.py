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
    values = [tuple(map(tuple, part.tolist())) for part in (heights, heights.T)]
    equal, other = (Surface("", ticks, ticks, part, "height") for part in values)
    return Figure("surfaces", "Equal surfaces", [equal, equal, equal, other], 4)


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
    assert compact(draw(surfaces()), "s").count("<use") > 20  # two of the surfaces


def pieces(svg):
    """The straight lines that are drawn, each with its two ends, in points."""
    root = ElementTree.fromstring(svg)
    paths = {path.get("id"): path for path in root.iter("{http://www.w3.org/2000/svg}path")}
    places = [(path, 0.0, 0.0) for path in root.iter("{http://www.w3.org/2000/svg}path")]
    for use in root.iter("{http://www.w3.org/2000/svg}use"):
        target = use.get("href") or use.get("{http://www.w3.org/1999/xlink}href")
        places.append((paths[target[1:]], float(use.get("x", 0)), float(use.get("y", 0))))
    drawn = []
    for path, x, y in places:
        data = path.get("d", "")
        if "C" in data or "h0" in data or ("fill" in path.get("style", "") and "none" not in path.get("style", "")):
            continue
        at = start = np.zeros(2)
        scale = 0.1 if path.get("transform") else 1.0
        for letter, numbers in re.findall(r"([MmLlHVz])([^MmLlHVz]*)", data):
            ends = np.array(re.findall(r"-?[\d.]+", numbers), float)
            if letter in "HV":
                ends = np.array([ends[0], at[1]] if letter == "H" else [at[0], ends[0]])
            for pair in ends.reshape(-1, 2):
                to = at + pair if letter.islower() else pair
                if letter in "LlHV":
                    drawn.append((at * scale + (x, y), to * scale + (x, y)))
                else:
                    start = to
                at = to
            at = start if letter == "z" else at
    return np.array(drawn)


@pytest.mark.parametrize("many", [curves(), surfaces()], ids=["curves", "surfaces"])
def test_every_point_of_a_line_is_still_on_a_line(many):
    svg = draw(many)
    before, after = pieces(svg), pieces(compact(svg, many.name))
    assert len(after) < 0.9 * len(before)
    starts, ways = after[:, 0], after[:, 1] - after[:, 0]
    for point in before.reshape(-1, 2)[::7]:
        share = np.clip(((point - starts) * ways).sum(1) / np.maximum(1e-9, (ways**2).sum(1)), 0, 1)
        assert np.hypot(*(point - starts - share[:, None] * ways).T).min() < 0.5


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


def test_round_marks_are_lines_without_length():
    svg = draw(figure("bars"))
    small = compact(svg, "bars")
    assert "C" not in "".join(re.findall(r' d="([^"]*)"', small))
    before = [tuple(map(float, place)) for place in re.findall(r'x="(\S+)" y="(\S+)" style="[^"]*opacity: 0.6', svg)]
    after = [tuple(map(float, place)) for place in re.findall(r"M(\S+) (\S+?)h0", small)]
    assert len(before) > 3
    np.testing.assert_allclose(after, before, atol=0.051)
