"""Figures of attention: values where they belong, the same bytes every time, pixels inside."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from asymtrain.lab.instruments.attention.result import GroupMetric
from asymtrain.lab.instruments.attention.show import map_image, metric_figures, over_epochs
from asymtrain.lab.report.drawing import draw
from asymtrain.lab.report.figure import Figure
from asymtrain.lab.report.table import table_json
from asymtrain.lab.statistics.estimates import Estimate

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 16, 16), dtype=np.uint8)
PEAK = np.eye(16)[5] * 0.5 + 0.5 / 16


def test_a_map_is_in_multiples_of_the_uniform_value_and_lies_on_the_grid_of_its_patches():
    heat = map_image(PIXELS, PEAK, is_map=True).heat
    assert heat.shape == (4, 4)
    assert heat[1, 1] == pytest.approx(16 * PEAK[5])
    assert heat.mean() == pytest.approx(1)


@pytest.mark.parametrize("missing", [None, np.full(16, np.nan)])
def test_a_map_that_is_missing_or_undefined_is_said_to_be(missing):
    panel = map_image(PIXELS, missing, is_map=True)
    assert panel.pixels is None
    assert draw(Figure("maps", "Maps", [panel])).count(">none<") == 1


def summaries(scopes=("mean", "blocks.0", "blocks.1"), metrics=("peak_strength", "entropy", "gini", "coverage_above")):
    made = []
    for scope in scopes:
        for i, metric in enumerate(metrics):
            for epoch in (1, 5):
                for group, variant in (("Plain", "plain"), ("Asymmetric", "asymmetric"), ("A - P", "difference")):
                    value = i + epoch / 10
                    found = Estimate(3, value, 0.1, value - 0.1, value + 0.1)
                    made.append(GroupMetric(group, variant, epoch, scope, metric, found, "seeds"))
    return made


def test_curves_have_a_panel_for_each_metric():
    epochs, layers = metric_figures(summaries(), ["blocks.0", "blocks.1"])
    names = ["peak strength", "map entropy (nats)", "sparsity (Gini)", "patches above threshold"]
    assert [panel.title for panel in epochs.panels] == [panel.title for panel in layers.panels] == names
    plain, asymmetric = epochs.panels[1].lines
    assert (plain.label, plain.x, plain.y) == ("Plain", (1.0, 5.0), (1.1, 1.5))
    assert asymmetric.low == pytest.approx((1.0, 1.4))
    assert layers.panels[1].lines[0].x == (1.0, 2.0)
    svg = draw(epochs)
    assert svg.count(">Plain<") == svg.count(">Asymmetric<") == 1


@pytest.mark.parametrize("estimate", [Estimate(1, 0.5, None, None, None), Estimate(0, None, None, None, None)])
def test_curves_without_intervals_or_values_are_drawn(estimate):
    made = [GroupMetric("Plain", "plain", epoch, "mean", "gini", estimate, "seeds") for epoch in (3, 4)]
    (figure,) = metric_figures(made, ["blocks.0"])
    assert ET.fromstring(draw(figure)).tag.endswith("svg")


def test_an_interval_that_is_cut_at_one_side_is_given_by_its_ends():
    cut = GroupMetric("Plain", "plain", 1, "mean", "gini", Estimate(2, 0.3, 0.2, 0.0, 0.9), "seeds")
    table = over_epochs([cut])
    cell = table_json(table)["rows"][0][2]
    assert (cell["text"], cell["value"], cell["low"], cell["high"]) == ("0.300 (0.000 to 0.900)", 0.3, 0.0, 0.9)
    assert "cut there and given by its ends" in table.note


@pytest.mark.parametrize(("channels", "shown"), [(1, (0, 0, 0)), (2, (0, 0, 0)), (3, (0, 1, 2)), (5, (0, 1, 2))])
def test_images_of_any_number_of_channels_are_shown(channels, shown):
    pixels = np.arange(channels * 16, dtype=np.uint8).reshape(channels, 4, 4)
    picture = map_image(pixels).pixels
    np.testing.assert_array_equal(picture, pixels[list(shown)].transpose(1, 2, 0) / 255)
