import re
import xml.etree.ElementTree as ET

import matplotlib as mpl
import pytest

from asymtrain.lab.report import figures, history_frame
from asymtrain.lab.runs import RunSpec, pairs


@pytest.fixture
def history(make_run):
    return history_frame([make_run(spec) for spec in pairs(RunSpec(arch="vit", epochs=5), [42, 43, 44])])


DRAWN = [figures.learning_curves, figures.cosine_over_training]


@pytest.mark.parametrize("draw", DRAWN)
def test_the_same_runs_give_the_same_bytes_whatever_the_users_settings(draw, history):
    first = draw(history, "f", "A figure")
    with mpl.rc_context({"font.size": 30, "lines.linewidth": 9, "svg.fonttype": "path"}):
        second = draw(history, "f", "A figure")
    assert first == second


@pytest.mark.parametrize("draw", DRAWN)
def test_a_figure_is_xml_without_dates_style_sheets_or_fixed_colours(draw, history):
    text = draw(history, "f", 'A "figure" & more')
    root = ET.fromstring(text)
    assert root.attrib["aria-label"] == 'A "figure" & more'
    assert "<style" not in text
    assert not re.search(r"\d{4}-\d{2}-\d{2}", text)
    assert figures.INK not in text
    # Every colour comes from the page, with a fallback for a figure that stands alone.
    assert not re.findall(r"(?<!, )#[0-9a-f]{6}\b", text.lower())


def test_figures_of_one_page_share_no_ids(history):
    ids = [set(re.findall(r'\bid="([^"]+)"', figures.learning_curves(history, name, ""))) for name in ("a", "b")]
    assert ids[0]
    assert not ids[0] & ids[1]


def test_each_reference_has_its_target(history):
    text = figures.learning_curves(history, "a", "")
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
    assert used
    assert used <= set(re.findall(r'\bid="([^"]+)"', text))


LEGEND = 3  # points of a line in the legend


def points(text, colour, width):
    """Lengths of the lines of this colour and width, in points."""
    found = re.findall(r'<path d="([^"]+)"[^>]*style="([^"]+)"', text)
    return [d.count("L") + 1 for d, style in found if colour in style and f"stroke-width: {width}" in style]


def test_seeds_are_thin_and_their_mean_is_thick(history):
    text = figures.learning_curves(history, "a", "")
    assert len(points(text, "--asymmetric", 2.2)) == 2  # the mean, and the legend
    thin = re.findall(r"stroke-opacity: 0.5", text)
    assert len(thin) == 6


def test_a_diverged_run_ends_and_the_mean_ends_with_it(make_run):
    specs = pairs(RunSpec(arch="vit", epochs=5), [42, 43])
    runs = [make_run(spec) for spec in specs[:3]] + [make_run(specs[3], epochs=2, diverged=True)]
    text = figures.learning_curves(history_frame(runs), "a", "")
    assert sorted(points(text, "--asymmetric", 2.2)) == [2, LEGEND]
    assert sorted(points(text, "--plain", 2.2)) == [LEGEND, 5]


def test_one_epoch_is_drawn_as_a_marker(make_run):
    text = figures.learning_curves(history_frame([make_run(spec) for spec in pairs(RunSpec(epochs=1), [42])]), "a", "")
    assert "<use" in text


def test_training_accuracy_stands_in_where_nothing_is_held_out(history):
    text = figures.learning_curves(history.assign(validation_accuracy=None), "a", "")
    assert "train accuracy" in text
    assert "validation accuracy" not in text
