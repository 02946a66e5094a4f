"""Figures as values for the script of a page, and what of the plotting library a page carries."""

import base64
import gzip
import json
import re

import numpy as np
import pytest
from test_drawing import PANELS, X, figure, images

from asymtrain.lab.report.drawing import draw
from asymtrain.lab.report.figure import Bar, Bars, Figure, Image, Line, Lines
from asymtrain.lab.report.live import embed, json_script, library, live_values
from asymtrain.lab.report.page import sort_key
from asymtrain.lab.report.table import Cell, Interval, Mean

every_kind = pytest.mark.parametrize("kind", PANELS)


def test_a_line_keeps_its_values_its_intervals_and_its_seeds():
    line = Line(
        "Plain", "plain", X, (0.1234567, None, 0.0, 4e-7), (0.1, None, -1.0, 0.0), (0.2, None, 1.0, 1e-6),
        seeds=((0.1, 0.2, 0.3, 0.4),), seed_names=("42",),
    )  # fmt: skip
    (panel,) = live_values(Figure("f", "A title", [Lines("", "epoch", "accuracy", (line,), zero=True)]))["panels"]
    assert (panel["xLabel"], panel["yLabel"], panel["zero"]) == ("epoch", "accuracy", True)
    (shown,) = panel["lines"]
    assert shown["y"] == [0.1235, None, 0, 4e-7]
    assert shown["low"] == [0.1, None, -1, 0]
    assert shown["x"] == {"first": 1, "count": 4}
    assert (shown["seeds"], shown["names"]) == ([[0.1, 0.2, 0.3, 0.4]], ("42",))
    assert shown["paint"] == "var(--plain, #0072b2)"  # as in the SVG
    assert "onDemand" not in shown


def test_bars_keep_a_mean_of_nought():
    bars = Bars("", "effect", "mlp", (Bar("a", 0.0, -1.0, 1.0, (0.0,)), Bar("b", None)))
    (panel,) = live_values(Figure("f", "", [bars]))["panels"]
    assert panel["bars"] == [{"label": "a", "at": 0, "low": -1, "high": 1, "seeds": [0]}, {"label": "b"}]


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
    assert draw(figure(kind)) in text
    values = re.search(r'<script type="application/json" class="values">(.*?)</script>', text, re.DOTALL)[1]
    assert len(json.loads(values)["panels"]) == len(PANELS[kind])
    assert text == embed(figure(kind))


def test_no_word_ends_the_script_that_it_stands_in():
    text = json_script({"title": "</script><b>"})
    assert text.count("</script>") == 1
    assert json.loads(re.search(r">(.*)</script>", text)[1]) == {"title": "</script><b>"}


@every_kind
def test_a_page_carries_the_part_of_the_library_that_it_needs(kind):
    element = library([figure(kind)])
    part, packed = re.search(r'data-part="(\w+)">([^<]+)<', element).groups()
    assert part == ("relief" if kind == "reliefs" else "flat")
    code = gzip.decompress(base64.b64decode(packed))
    assert (b"grid3D" in code) == (part == "relief")
    assert len(element) < 500_000


def test_a_page_without_figures_carries_none():
    assert library([]) == library([Figure("f", "waits", [])]) == ""


def test_numbers_are_sorted_by_their_values():
    cells = [Cell(-0.5), Cell(3), Cell(Mean(0.25, 0.1)), Cell(Interval(-1.0, 3.0)), Cell("words"), Cell()]
    assert [sort_key(cell) for cell in cells] == ["-0.5", "3", "0.25", "1", "", ""]
