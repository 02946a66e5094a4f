"""Figures of a probe: nothing is cut, whatever the modules are called."""

import pytest

from asymtrain.lab.probe import PlaceFinding
from asymtrain.lab.probe.page import alignment_against_gain, alignment_over_time, short_names
from asymtrain.lab.report.drawing import figure_style, lay_out

LONG = "model.backbone.encoder.stages.{}.residual_group.blocks.0.attention_output"


def place(name):
    return PlaceFinding(
        name, tuple(range(20)), tuple(0.02 * i for i in range(20)), 0.2, 0.1, 0.3, *(None,) * 6, 0.0, None
    )


def assert_inside(figure):
    """Every legend lies within the figure, and beside the axes."""
    figure.draw_without_rendering()  # lays it out
    whole = figure.bbox
    (axes,) = figure.axes
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert whole.x0 <= box.x0
    assert box.x1 <= whole.x1
    assert box.y1 <= whole.y1
    assert box.y0 >= axes.get_window_extent().y1
    assert axes.get_window_extent().height > 0.4 * whole.height


@pytest.mark.parametrize("count", [1, 4, 6])
@pytest.mark.parametrize("name", ["layer{}", "resnet.encoder.stages.{}", LONG])
def test_the_legend_over_time_fits(name, count):
    with figure_style():
        figure = lay_out(alignment_over_time([place(name.format(i)) for i in range(count)]))
        assert_inside(figure)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(set(labels)) == count


def test_the_legend_of_the_scatter_fits():
    kinds = [f"{arch} {data}" for arch in ("mlp", "cnn", "vit") for data in ("cifar100", "shapes", "cifar10")]
    with figure_style():
        cases = [(kind, 0.1, 1.0, 0.0, 2.0) for kind in [*kinds, "text transformer"]]
        assert_inside(lay_out(alignment_against_gain(cases, "scatter", "Alignment against gain")))


def test_a_long_name_keeps_what_tells_it_apart():
    assert short_names(["layer1", "layer2"], 6) == ["layer1", "layer2"]
    assert short_names(["encoder.layer1", "decoder.layer1"], 8) == ["…encoder", "…decoder"]
    assert short_names([LONG.format(1), LONG.format(12)], 20) == ["…stages.1", "…stages.12"]
    assert short_names([LONG.format(1), "head"], 20) == ["….0.attention_output", "head"]
    assert short_names(["a" * 30], 20) == [f"…{'a' * 19}"]
