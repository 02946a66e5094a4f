"""Figures of attention: the same bytes every time, pixels inside, values where they belong."""

import base64
import io
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from asymtrain.lab.instruments.attention.figures import (
    maps_over_images,
    metrics_over_epochs,
    metrics_over_layers,
    overlay,
    paper_maps,
)
from asymtrain.lab.instruments.attention.pictures import MapPicture, MapRow
from asymtrain.lab.instruments.attention.summary import Summary
from asymtrain.lab.statistics.estimates import Estimate

PIXELS = np.random.default_rng(0).integers(0, 256, (2, 3, 16, 16), dtype=np.uint8)
UNIFORM = np.full(16, 1 / 16)
PEAK = np.eye(16)[5] * 0.5 + 0.5 / 16
COLUMNS = (("plain", "epoch 1"), ("asymmetric", "epoch 1"), ("plain", "epoch 9"), ("asymmetric", "epoch 9"))


def picture(last=PEAK):
    rows = tuple(MapRow(f"<{i}>", PIXELS[i], (UNIFORM, PEAK, UNIFORM, last)) for i in range(2))
    return MapPicture('Maps & "more"', COLUMNS, rows)


def images_in(svg):
    found = re.findall(r'href="data:image/png;base64,([^"]+)"', svg)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))) for text in found]


def test_the_picture_holds_each_image_and_map_once_and_is_the_same_every_time():
    svg = maps_over_images(picture(), "maps")
    ET.fromstring(svg)
    assert svg == maps_over_images(picture(), "maps")
    assert paper_maps is maps_over_images
    found = [image for image in images_in(svg) if image.shape[:2] == (16, 16)]  # without the bar of colours
    assert len(found) == 10
    assert np.array_equal(found[0][..., :3], PIXELS[0].transpose(1, 2, 0))
    for text in ("Plain", "Asymmetric", "epoch 9", "attention / uniform", "&lt;0&gt;"):
        assert text in svg
    assert 'aria-label="Maps &amp; &quot;more&quot;"' in svg
    assert "var(--plain" in svg
    assert len(svg) < 120_000


def test_a_map_that_is_missing_or_undefined_is_said_to_be():
    for missing in (None, np.full(16, np.nan)):
        svg = maps_over_images(picture(missing), "maps")
        assert svg.count(">none<") == 2


def test_an_overlay_is_bright_where_the_map_is():
    grey = np.full((3, 16, 16), 100, np.uint8)
    drawn = overlay(grey, PEAK, top=8.0).astype(int).sum(-1)
    inside = drawn[4:8, 4:8]  # patch 5 of a grid of 4 x 4
    assert inside.min() == inside.max() > drawn[0, 0]
    drawn[4:8, 4:8] = drawn[0, 0]
    assert (drawn == drawn[0, 0]).all()


def test_one_scale_of_colours_for_all():
    """Twice the weight is another colour, whichever map it stands in."""
    low, high = (overlay(PIXELS[0], m, 4.0) for m in (UNIFORM, 2 * UNIFORM))
    assert not np.array_equal(low, high)
    assert np.array_equal(overlay(PIXELS[0], 9 * UNIFORM, 4.0), overlay(PIXELS[0], 4 * UNIFORM, 4.0))


def summaries(scopes=("mean", "blocks.0", "blocks.1"), metrics=("peak_strength", "entropy", "gini", "coverage_above")):
    made = []
    for scope in scopes:
        for i, metric in enumerate(metrics):
            for epoch in (1, 5):
                for group, variant in (("Plain", "plain"), ("Asymmetric", "asymmetric"), ("A - P", "difference")):
                    value = i + epoch / 10
                    found = Estimate(3, value, 0.1, value - 0.1, value + 0.1)
                    made.append(Summary(group, variant, epoch, scope, metric, found, "seeds"))
    return made


def test_curves_have_a_panel_for_each_metric():
    svg = metrics_over_epochs(summaries(), "mean", "curves", "Curves")
    ET.fromstring(svg)
    assert svg == metrics_over_epochs(summaries(), "mean", "curves", "Curves")
    for text in ("peak strength", "map entropy (nats)", "sparsity (Gini)", "patches above threshold"):
        assert svg.count(f">{text}<") == 1
    assert "weight on the object" not in svg
    assert svg.count(">epoch<") == 4
    assert svg.count(">Plain<") == svg.count(">Asymmetric<") == 1
    assert "A - P" not in svg
    layers = metrics_over_layers(summaries(), ["blocks.0", "blocks.1"], 5, "layers", "Layers")
    assert layers.count(">layer<") == 4


@pytest.mark.parametrize("estimate", [Estimate(1, 0.5, None, None, None), Estimate(0, None, None, None, None)])
def test_curves_without_intervals_or_values_are_drawn(estimate):
    one = Summary("Plain", "plain", 3, "mean", "gini", estimate, "seeds")
    assert ET.fromstring(metrics_over_epochs([one], "mean", "curves", "Curves")).tag.endswith("svg")
