"""Figures as values for the script of a page, and what of the plotting library a page carries."""

import dataclasses
import json
import re
from importlib.resources import files

import numpy as np
import pytest
from test_drawing import PANELS, X, drawn, figure, images

from asymtrain.lab.report.figure import POINTS, Bar, Bars, Figure, Image, Line, Lines, Surface
from asymtrain.lab.report.live import by_steps, embed, library, live_values, packed_script
from asymtrain.lab.report.page import sort_order
from asymtrain.lab.report.table import Cell, Column, Mean, Range, Table
from live_pages import unpacked

every_kind = pytest.mark.parametrize("kind", PANELS)


def test_a_line_keeps_its_values_its_intervals_and_its_seeds():
    line = Line(
        "Plain", "plain", X, (0.1234567, None, 0.0, 4e-7), (0.1, None, -1.0, 0.0), (0.2, None, 1.0, 1e-6),
        seeds=((0.1, 0.2, 0.3, 0.4),), seed_names=("42",),
    )  # fmt: skip
    (panel,) = live_values(Figure("f", "A title", [Lines("", "epoch", "accuracy", (line,), zero=True)]))["panels"]
    assert (panel["x_label"], panel["y_label"], panel["zero"]) == ("epoch", "accuracy", True)
    (shown,) = panel["lines"]
    assert shown["y"] == [0.1234567, None, 0, 4e-7]
    assert shown["low"] == [0.1, None, -1, 0]
    assert shown["x"] == [1, 2, 3, 4]
    assert (shown["seeds"], shown["seed_names"]) == ([[0.1, 0.2, 0.3, 0.4]], ("42",))
    assert shown["paint"] == "var(--plain, #0072b2)"  # as in the SVG
    assert "seeds_on_demand" not in shown


def test_names_with_an_underscore_in_the_script_are_fields_of_figures():
    script = files("asymtrain.lab.report").joinpath("templates/live.js").read_text()
    known = {field.name for kind in (Line, Lines, Bar, Bars, Surface, Image) for field in dataclasses.fields(kind)}
    assert set(re.findall(r"\b[a-z]\w*_\w+", script)) <= known  # those of the drawing library have none


def test_a_line_without_points_is_one_of_no_values():
    lines = (Line("Plain", "plain", (), ()), Line("Asymmetric", "asymmetric", (1, 2), (0.1, 0.2)))
    (panel,) = live_values(Figure("f", "A title", [Lines("", "epoch", "accuracy", lines)]))["panels"]
    assert [(line["x"], line["y"]) for line in panel["lines"]] == [([], []), ([1, 2], [0.1, 0.2])]


def test_bars_keep_a_mean_of_nought():
    bars = Bars("", "effect", "mlp", (Bar("a", 0.0, -1.0, 1.0, (0.0,)), Bar("b", None)))
    (panel,) = live_values(Figure("f", "", [bars]))["panels"]
    assert panel["bars"] == [{"label": "a", "estimate": 0, "low": -1, "high": 1, "seeds": [0]}, {"label": "b"}]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (POINTS, {"digits": 1, "signed": True, "unit": " points"}),
        (Column("", "share", digits=0), {"digits": 0, "unit": "%", "times": 100.0}),
        (Column("", "number", digits=None), None),
    ],
)
def test_a_figure_says_how_its_values_are_written(column, expected):
    bars = Bars("", "effect", "mlp", (Bar("a", 1 / 3, colour="good"),), written=column)
    for panel in (bars, Lines("", "x", "y", (), written=column)):
        (shown,) = live_values(Figure("f", "", [panel]))["panels"]
        assert shown.get("written") == expected
    (bar,) = live_values(Figure("f", "", [bars]))["panels"][0]["bars"]
    assert bar["estimate"] == pytest.approx(1 / 3, abs=1e-6)  # rounded once, where it is read
    assert "--good" in bar["paint"]


def test_a_picture_is_there_once_however_many_maps_lie_over_it():
    pixels = np.zeros((4, 4, 3))
    maps = [Image("Plain", pixels, np.ones((2, 2)), "scale", frame=f"epoch {i}") for i in range(3)]
    values = live_values(Figure("f", "", [Image("", pixels), *maps], 4))
    assert len(values["pictures"]) == 1
    assert [panel.get("frame") for panel in values["panels"]] == [None, "epoch 0", "epoch 1", "epoch 2"]
    assert values["panels"][1]["heat"] == [[1, 1], [1, 1]]
    assert "picture" not in live_values(Figure("f", "", images(missing=True), 3))["panels"][2]


@every_kind
def test_both_forms_stand_side_by_side_and_have_the_same_bytes_each_time(kind):
    text = embed(figure(kind))
    assert by_steps(drawn(kind)) in text
    values = re.search(r'<script type="application/gzip" class="values">(.*?)</script>', text, re.DOTALL)[1]
    assert len(json.loads(unpacked(values))["panels"]) == len(PANELS[kind])
    assert text == embed(figure(kind), drawn(kind))


def points_of(path):
    """The points of a path of straight lines, whether it is written by places or by steps."""
    points = [np.zeros(2)]
    for letter, numbers in re.findall("([MLl])([^MLlz]*)", path):
        for pair in np.array(re.findall(r"-?(?:\d+\.?\d*|\.\d+)", numbers), float).reshape(-1, 2):
            points.append(pair + points[-1] * (letter == "l"))
    return np.array(points)


@every_kind
def test_lines_by_steps_go_through_the_same_points(kind):
    svg = drawn(kind)
    small = by_steps(svg)
    paths, steps = (re.findall(r' d="([^"]*)"', text) for text in (svg, small))
    assert len(small) < len(svg)
    assert re.sub(r' d="[^"]*"', "", small) == re.sub(r' d="[^"]*"', "", svg)
    for before, after in zip(paths, steps, strict=True):
        assert (before.count("M"), before.count("z")) == (after.count("M"), after.count("z"))
        np.testing.assert_allclose(points_of(after), points_of(before), atol=0.051)
    assert max(points_of(path).max() for path in paths) > 50


def test_no_word_ends_the_script_that_it_stands_in():
    text = packed_script({"title": "</script><b>"}, 'id="x"')
    assert text.count("<") == 2
    assert json.loads(unpacked(re.search(r">(.*)</script>", text)[1])) == {"title": "</script><b>"}


@every_kind
def test_a_page_carries_the_part_of_the_library_that_it_needs(kind):
    element = library([figure(kind)])
    part, packed = re.search(r'data-part="(\w+)">([^<]+)<', element).groups()
    assert part == ("relief" if kind == "reliefs" else "flat")
    code = unpacked(packed)
    assert ("grid3D" in code) == (part == "relief")
    assert "IntersectionObserver" in unpacked(re.search(r'id="live">([^<]+)<', element)[1])
    assert len(element) < 500_000


def test_a_page_without_figures_carries_none():
    assert library([]) == library([Figure("f", "waits", [])]) == ""


def test_numbers_are_sorted_by_their_values():
    cells = [Cell(-0.5), Cell(3), Cell(Mean(0.25, 0.1)), Cell(Range(-1.0, 3.0)), Cell("words"), Cell(), Cell(1.0)]
    table = Table("t", "", (Column("n", "number"), Column("same", "number")), tuple((cell, Cell(1)) for cell in cells))
    assert sort_order(table, 0) == "0 3 1 2 - - 2"
    assert sort_order(table, 1) == ""
