"""Figures as SVG: one figure of every kind, with what all of them share, and then what each kind draws."""

import base64
import functools
import io
import re
import xml.etree.ElementTree as ET

import matplotlib as mpl
import numpy as np
import PIL.Image
import pytest

from asymtrain.lab.report.drawing import (
    GRID,
    INK,
    draw,
    ends_of,
    figure_style,
    heat_colours,
    is_wide,
    lay_out,
    reach_of,
    size_of,
)
from asymtrain.lab.report.figure import Bar, Bars, Figure, Image, Line, Lines, Surface

X = (1.0, 2.0, 3.0, 4.0)
PIXELS = np.random.default_rng(0).integers(0, 256, (16, 16, 3)) / 255
HEAT = np.arange(16).reshape(4, 4) / 4


def curve(label, colour, shift=0.0, **more):
    return Line(label, colour, X, tuple(0.1 * x + shift for x in X), **more)


PLAIN = curve("Plain", "plain", seeds=((0.1, 0.2, None, None), (0.2, 0.2, 0.3, 0.4)))
ASYMMETRIC = curve("Asymmetric", "asymmetric", 0.1, low=(0.1, None, 0.2, 0.3), high=(0.3, None, 0.6, 0.7))
AXES = ("", "epoch", "accuracy")
GRID_X = (-2.0, -1.0, 0.0, 1.0, 2.0)


def surface(scale, title="Plain", **more):
    values = tuple(tuple(scale * (x * x + y) for y in GRID_X) for x in GRID_X)
    return Surface(title, GRID_X, GRID_X, values, "loss - middle", **more)


def bars(title, colour="mlp", labels=("a", "b")):
    shown = (Bar(labels[0], 1.0, -1.0, 3.0, (0.5, 2.0)), Bar(labels[1], None))
    return Bars(title, "effect (%)", colour, shown)


def images(missing=False):
    first = Image("", PIXELS, label="<row>")
    maps = Image("Plain\nepoch 1", PIXELS, HEAT, "attention / uniform", colour="plain", apart=True)
    return [first, maps, Image("Asymmetric\nepoch 1", None if missing else PIXELS, colour="asymmetric")]


PANELS = {
    "lines": [Lines(*AXES, (PLAIN, ASYMMETRIC), marks=(2.0,), zero=True)],
    "several": [Lines(f"Panel {i}", "epoch", "", (PLAIN, ASYMMETRIC)) for i in range(5)],
    "ticks": [Lines(*AXES, (PLAIN,), ticks=X, tick_labels=("a", "b", "c", "d"), ring=(2.0, 0.2))],
    "log": [Lines(*AXES, (curve("MLP", "mlp", marker=True),), log=True)],
    "marks": [Lines(*AXES, (curve("one", 5, marker=True, joined=False), curve("two", "ink", hollow=True)))],
    "bars": [bars("MLP"), bars("CNN", "cnn"), bars("ViT", "vit")],
    "contours": [surface(1e-4, group="a"), surface(2e-4, group="a"), surface(1.0, group="b"), surface(2.0, group="b")],
    "reliefs": [surface(1e-4, relief=True), surface(2e-4, "10x", relief=True)],
    "images": images(),
}


def figure(kind, columns=3, name="f", title='A "figure" & more'):
    return Figure(name, title, PANELS[kind], 2 if kind == "contours" else columns)


def single(*lines, **more):
    return Figure("f", "A figure", [Lines(*AXES, lines, **more)])


def ids(svg):
    return re.findall(r'\bid="([^"]+)"', svg)


@functools.cache
def drawn(kind):
    """The figure of a kind, drawn once for all tests that only read it."""
    return draw(figure(kind))


every_kind = pytest.mark.parametrize("kind", PANELS)


@every_kind
def test_the_same_figure_gives_the_same_bytes_whatever_the_users_settings(kind):
    first = drawn(kind)
    with mpl.rc_context({"font.size": 30, "lines.linewidth": 9, "svg.fonttype": "path"}):
        assert draw(figure(kind)) == first


@every_kind
def test_a_figure_is_xml_that_says_its_title_and_has_no_dates_style_sheets_or_stand_ins(kind):
    svg = drawn(kind)
    assert ET.fromstring(svg).attrib["aria-label"] == 'A "figure" & more'
    assert "<style" not in svg
    assert not re.search(r"\d{4}-\d{2}-\d{2}", svg)
    assert INK not in svg
    assert GRID not in svg
    assert not re.search(r"\bnan\b", svg, re.IGNORECASE)


@every_kind
def test_figures_of_one_page_share_no_ids_and_each_reference_has_its_target(kind):
    svg = drawn(kind)
    assert ids(svg)
    assert all(name.startswith("f-") for name in ids(svg))  # the name of the figure, which a page has once
    assert {*re.findall(r'(?:url\(#|href="#)([^")]+)', svg)} <= {*ids(svg)}


@pytest.mark.parametrize("kind", ["lines", "bars"])
def test_the_two_variants_and_the_ink_take_their_colours_from_the_page(kind):
    svg = drawn(kind)
    for name in ("--plain", "--asymmetric", "--ink", "--rule"):
        assert f"var({name}, #" in svg


@every_kind
def test_the_size_is_known_without_drawing(kind):
    shown = ET.fromstring(drawn(kind)).attrib["viewBox"].split()
    assert [float(size) / 72 for size in shown[2:]] == pytest.approx(size_of(figure(kind)), abs=1e-4)


def test_panels_side_by_side_make_a_figure_wide():
    assert is_wide(figure("several"))
    assert is_wide(figure("bars"))
    assert not is_wide(figure("several", columns=1))
    assert not is_wide(figure("lines"))
    assert not is_wide(Figure("f", "waits", []))


# Lines


def axes_of(shown):
    with figure_style():
        return lay_out(shown).axes[0]


def test_seeds_are_thin_means_thick_and_a_variant_has_one_dash():
    axes = axes_of(single(PLAIN))
    widths = [line.get_linewidth() for line in axes.lines]
    assert widths == [0.8, 0.8, 2.0]
    assert [len(line.get_xdata()) for line in axes.lines] == [2, 4, 4]
    assert {line.get_linestyle() for line in axes.lines} == {"--"}
    assert axes_of(single(ASYMMETRIC)).lines[0].get_linestyle() == "-"
    assert axes_of(single(curve("", "plain", dash="solid"))).lines[0].get_linestyle() == "-"


def test_intervals_are_a_band_or_bars_where_points_are_marked():
    band = axes_of(single(ASYMMETRIC))
    assert len(band.collections) == 1
    ends = band.collections[0].get_paths()[0].get_extents()
    assert (ends.y0, ends.y1) == pytest.approx((0.1, 0.7))
    marked = axes_of(single(curve("", "mlp", low=(0.0, None, 0.1, 0.2), high=(0.3, 1.0, 0.5, 0.6), marker=True)))
    assert not marked.collections
    bars_drawn = [tuple(line.get_ydata()) for line in marked.lines if len(line.get_xdata()) == 2]
    assert bars_drawn == [(0.0, 0.3), (0.1, 0.5), (0.2, 0.6)]


def test_a_missing_value_is_passed_over_and_a_gap_where_points_are_marked():
    values = (0.1, None, 0.3, 0.4)
    (line,) = axes_of(single(Line("", "mlp", X, values))).lines
    assert list(line.get_xdata()) == [1, 3, 4]
    (line,) = axes_of(single(Line("", "mlp", X, values, marker=True))).lines
    assert np.isnan(line.get_ydata()).tolist() == [False, True, False, False]


def test_one_point_is_drawn_as_a_marker():
    (line,) = axes_of(single(Line("", "mlp", X, (None, 0.5, None, None)))).lines
    assert line.get_marker() == "o"
    (line,) = axes_of(single(curve("", "mlp"))).lines
    assert line.get_marker() == ""


def test_seeds_of_marked_points_are_dots_that_no_mark_hides():
    axes = axes_of(single(curve("", "asymmetric", seeds=((0.1, None, 0.2, 0.3),), marker=True)))
    dots, mean = axes.lines
    assert (dots.get_linestyle(), dots.get_marker()) == ("None", "o")
    assert list(dots.get_xdata()) == [1, 3, 4]
    (at, _), (beside, _) = (line.get_transform().transform((1, 0.1)) for line in (mean, dots))
    points = 72 * (beside - at) / axes.figure.dpi
    assert points > (mean.get_markersize() + dots.get_markersize()) / 2
    assert axes.get_ylim()[0] < 0.1, "the axis reaches them"


def test_points_that_are_not_joined_have_a_mark_for_each_colour():
    lines = [curve(str(i), i, marker=True, joined=False) for i in range(3)]
    drawn = axes_of(single(*lines)).lines
    assert len({line.get_marker() for line in drawn}) == 3
    assert {line.get_linestyle() for line in drawn} == {"None"}


def test_colours_of_a_list_repeat_in_thicker_lines():
    first, later = axes_of(single(curve("a", 1), curve("b", 5))).lines
    assert first.get_color() == later.get_color()
    assert later.get_linewidth() > first.get_linewidth()


def legend_texts(shown):
    with figure_style():
        canvas = lay_out(shown)
    return [text.get_text() for legend in canvas.legends for text in legend.get_texts()]


def test_lines_of_one_label_share_an_entry_and_an_empty_label_has_none():
    lines = (curve("Plain", "plain", thin=True), curve("Plain", "plain"), curve("", "mlp"))
    assert legend_texts(single(*lines)) == ["Plain"]
    # In two columns, which matplotlib fills from above: Plain and validation side by side.
    assert legend_texts(single(*lines, kinds=("validation", "training"))) == ["Plain", "training", "validation"]
    assert legend_texts(single(curve("Plain", "plain"), kinds=("validation", "training"))) == ["Plain"]
    assert legend_texts(single(curve("", "mlp"))) == []
    assert legend_texts(figure("several")) == ["Plain", "Asymmetric"]
    with figure_style():
        (entry,) = lay_out(single(*lines)).legends[0].get_lines()
    assert entry.get_linewidth() == 2.0  # of the thick one


@pytest.mark.parametrize("length", [3, 16, 38])
@pytest.mark.parametrize("count", [1, 4, 6, 9])
def test_a_legend_lies_inside_the_figure_and_above_the_axes(count, length):
    shown = single(*(curve(f"{'x' * (length - 1)}{i}", i) for i in range(count)))
    with figure_style():
        canvas = lay_out(shown)
        canvas.draw_without_rendering()
    box, axes = canvas.legends[0].get_window_extent(), canvas.axes[0].get_window_extent()
    assert canvas.bbox.x0 <= box.x0
    assert box.x1 <= canvas.bbox.x1
    assert box.y1 <= canvas.bbox.y1
    assert box.y0 >= axes.y1
    assert axes.height > 0.4 * canvas.bbox.height


def test_marks_zero_ring_and_ticks():
    axes = axes_of(
        single(curve("", "mlp"), marks=(2.5,), zero=True, ring=(2.0, 0.2), ticks=X, tick_labels=tuple("abcd"))
    )
    zero, mark, _, ring = axes.lines
    assert list(zero.get_ydata()) == [0, 0]
    assert list(mark.get_xdata()) == [2.5, 2.5]
    assert (list(ring.get_xdata()), ring.get_fillstyle()) == ([2.0], "none")
    assert [text.get_text() for text in axes.get_xticklabels()] == ["a", "b", "c", "d"]
    assert len(axes_of(single(curve("", "mlp"))).lines) == 1


def test_an_axis_is_logarithmic_where_all_values_are_positive():
    band = {"low": (-9.0, -9.0, -9.0, -9.0), "high": (9.0, 9.0, 9.0, 9.0)}
    axes = axes_of(single(curve("", "mlp", **band), log=True))
    assert axes.get_yscale() == "log"
    assert axes.get_ylim() == pytest.approx((0.1 / 1.3, 0.4 * 1.3))  # the band does not stretch it
    assert axes_of(single(curve("", "mlp", -0.1), log=True)).get_yscale() == "linear"
    assert axes_of(single(curve("", "mlp"), from_zero=True)).get_ylim()[0] == 0
    assert axes_of(single(curve("", "mlp"))).get_ylim()[0] > 0


def test_the_legend_keeps_pairs_together():
    lines = [
        curve(f"{arch}{words}", arch, dash=dash)
        for arch in ("mlp", "cnn", "vit")
        for words, dash in (("", "solid"), (", paper", "dotted"))
    ]
    for figure in (single(*lines), Figure("f", "", [Lines(*AXES, tuple(lines))] * 3, 3)):
        with figure_style():
            canvas = lay_out(figure)
            canvas.draw_without_rendering()
        (legend,) = canvas.legends
        boxes = {text.get_text(): text.get_window_extent() for text in legend.get_texts()}
        places = [boxes[line.label] for line in lines]
        for ours, papers in zip(places[::2], places[1::2], strict=True):
            assert ours.y0 == pytest.approx(papers.y0, abs=2) or ours.x0 == pytest.approx(papers.x0, abs=2)


# Bars


def test_an_axis_reaches_as_far_as_the_intervals_unless_they_dwarf_what_was_measured():
    assert reach_of(bars("")) == pytest.approx(1.1 * 3.0)
    wide = Bars("", "", "mlp", (Bar("a", 1.0, -500.0, 502.0, (0.5, 2.0)),))
    assert reach_of(wide) == pytest.approx(1.1 * 3 * 2.0)
    assert reach_of(Bars("", "", "mlp", (Bar("a", 0.0, 0.0, 0.0, (0.0, 0.0)),))) > 0
    assert reach_of(Bars("", "", "mlp", (Bar("a", None),))) > 0


def test_a_side_of_an_axis_is_as_long_as_what_lies_on_it_needs():
    gain, neither = Bar("a", 6.0, 5.0, 7.0, (6.5,)), Bar("b", 0.1, -1.0, 1.2, (0.0,))
    assert ends_of(Bars("", "", "mlp", (gain, neither))) == pytest.approx((-1.1, 7.7))
    assert ends_of(Bars("", "", "mlp", (gain,))) == pytest.approx((-0.05 * 7.7, 7.7))
    assert ends_of(Bars("", "", "mlp", (Bar("a", 1.0, -500.0, 502.0, (2.0,)),))) == pytest.approx((-6.6, 6.6))
    # Steps of a hundredth would be read as differences, and their labels do not fit.
    for bars_at_0 in ((), (Bar("a", 0.0), Bar("b", 0.0))):
        assert ends_of(Bars("", "", "mlp", bars_at_0)) == pytest.approx((-1.1, 1.1))


def bar_markers(bar):
    axes = axes_of(Figure("f", "", [Bars("", "effect", "mlp", (bar,))]))
    return {line.get_marker(): line for line in axes.lines}


def test_a_cut_end_is_an_arrow():
    assert {"<", ">"} & bar_markers(Bar("a", 1.0, -500.0, 502.0, (2.0,))).keys() == {"<", ">"}
    assert {"<", ">"} & bar_markers(Bar("a", 1.0, 0.5, 502.0, (2.0,))).keys() == {">"}
    assert not {"<", ">"} & bar_markers(Bar("a", 1.0, -1.0, 3.0, (2.0,))).keys()


def test_a_bar_has_its_estimate_its_interval_and_its_seeds():
    drawn = bar_markers(Bar("a", 1.0, -1.0, 3.0, (0.5, 2.0)))
    assert list(drawn["D"].get_xdata()) == [1.0]
    assert list(drawn["o"].get_xdata()) == [0.5, 2.0]
    axes = axes_of(Figure("f", "", [Bars("", "effect", "mlp", (Bar("a", 1.0, -1.0, 3.0),))]))
    assert [-1.0, 3.0] in [list(line.get_xdata()) for line in axes.lines]
    assert "D" not in bar_markers(Bar("a", None))


def test_panels_with_the_same_rows_and_words_say_them_once():
    svg = drawn("bars")
    assert svg.count(">a<") == 1
    assert svg.count(">effect (%)<") == 1
    other = Figure("f", "", [bars("MLP"), bars("CNN", labels=("c", "d"))], 2)
    assert all(draw(other).count(f">{label}<") == 1 for label in "abcd")


# Surfaces


def test_surfaces_of_one_group_share_a_scale():
    with figure_style():
        canvas = lay_out(figure("contours"))
    *panels, first, second = canvas.axes
    assert len(panels) == 4
    assert first.get_ylim() == pytest.approx((-2e-4 * 2, 2e-4 * 6))
    assert second.get_ylim() == pytest.approx((-2.0 * 2, 2.0 * 6))


def test_the_first_index_goes_along_x():
    values = ((0.0, 0.0), (1.0, 1.0))  # rises with x
    axes = axes_of(Figure("f", "", [Surface("", (0.0, 1.0), (0.0, 1.0), values)]))
    contour = next(c for c in axes.collections if len(c.get_paths()) > 1)
    boxes = [path.get_extents() for path in contour.get_paths() if len(path.vertices)]
    assert boxes[0].x1 < boxes[-1].x1
    assert boxes[0].y1 == boxes[-1].y1


def test_gaps_and_flat_surfaces_are_drawn():
    holes = ((None, 1.0, 2.0), (1.0, None, 2.0), (1.0, 1.0, 1.0))
    flat = ((1.0,) * 3,) * 3
    for values in (holes, flat, ((None,) * 3,) * 3):
        for relief in (False, True):
            shown = Surface("", (0.0, 1.0, 2.0), (0.0, 1.0, 2.0), values, relief=relief)
            assert draw(Figure("f", "", [shown])).startswith("<svg")


@pytest.mark.parametrize("degrees", range(0, 360, 45))
def test_labels_of_a_relief_are_not_cut_whichever_side_they_stand_on(degrees):
    along_x, along_y = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    grid = tuple(5 * x for x in GRID_X)
    values = tuple(tuple(float(1.23e-5 * (along_x * x + along_y * y)) for y in grid) for x in grid)
    slope = Surface("Plain", grid, grid, values, "loss - middle", relief=True)
    with figure_style():
        canvas = lay_out(Figure("f", "", [slope] * 4, 4))
        canvas.draw_without_rendering()
        boxes = [axes.get_tightbbox() for axes in canvas.axes]
    assert min(box.x0 for box in boxes) >= 0
    assert max(box.x1 for box in boxes) <= canvas.bbox.width


def test_a_relief_names_its_unit_once():
    assert drawn("reliefs").count("loss - middle in units of 1e-3") == 1


# Images


def pictures_in(svg):
    found = re.findall(r'href="data:image/png;base64,([^"]+)"', svg)
    return [np.asarray(PIL.Image.open(io.BytesIO(base64.b64decode(text)))) for text in found]


def test_a_picture_is_embedded_as_it_is_and_a_map_over_it():
    svg = drawn("images")
    first, grey, heat, plain, *_ = pictures_in(svg)
    for shown in (first, plain):
        assert np.array_equal(shown[..., :3], np.round(PIXELS * 255))
    assert grey.shape == first.shape
    assert np.ptp(grey[..., :3], axis=-1).max() == 0
    assert heat.shape[:2] == np.shape(HEAT)
    assert svg.count('opacity="0.65"') == 1  # what lies under it shows through
    assert heat[..., 3].min() == 255
    for text in ("Plain", "epoch 1", "attention / uniform", "&lt;row&gt;"):
        assert text in svg


def test_nothing_to_show_is_said():
    assert draw(Figure("f", "", images(missing=True), 3)).count(">none<") == 1
    assert ">none<" not in drawn("images")


def test_a_name_is_drawn_as_it_is():
    """Neither mathematics between dollar signs nor a control character, with which the file would be no XML."""
    figure = Figure("odd", "\x1b title", [Lines("", "$x_1$", "$\\frac$", (curve("a $b$ \x1b[31m", "plain"),))])
    texts = [element.text for element in ET.fromstring(draw(figure)).iter("{http://www.w3.org/2000/svg}text")]
    assert {"$x_1$", "$\\frac$", r"a $b$ \u001b[31m"} <= set(texts)


def test_a_map_is_bright_where_its_values_are_high_on_one_scale_that_ends():
    maps = (Image("", PIXELS, np.full((4, 4), level)) for level in (1.0, 2.0, 4.0, 9.0))
    one, two, four, nine = (heat_colours(panel, 4.0).astype(int).sum(-1)[0, 0] for panel in maps)
    assert one < two < four == nine
    with pytest.raises(AssertionError, match="grid"):
        heat_colours(Image("", PIXELS, np.ones((3, 4))), 2.0)
