"""The figures of a report, as values: what is drawn of them is in test_drawing.py."""

import pytest

from asymtrain.lab.report import history_frame
from asymtrain.lab.report.run_report import cosine_over_training, effect_figure, learning_curves
from asymtrain.lab.report.summary import summarise
from asymtrain.lab.runs import RunSpec, pairs


@pytest.fixture
def history(make_run):
    return history_frame([make_run(spec) for spec in pairs(RunSpec(arch="vit", epochs=5), [42, 43, 44])])


def test_each_seed_stands_beside_the_mean(history):
    (panel,) = learning_curves(history, "0", "ViT").panels
    assert [(line.label, line.colour) for line in panel.lines] == [("Plain", "plain"), ("Asymmetric", "asymmetric")]
    assert panel.y_label == "validation accuracy"
    plain = panel.lines[0]
    rows = history[history["variant"] == "plain"]
    assert plain.x == (1, 2, 3, 4, 5)
    assert len(plain.seeds) == 3
    assert list(plain.seeds[1]) == list(rows[rows["seed"] == 43]["validation_accuracy"])
    assert plain.y == pytest.approx([sum(values) / 3 for values in zip(*plain.seeds, strict=True)])


def test_chance_has_a_line_unless_it_lies_far_below_the_curves(history):
    values = history["validation_accuracy"]
    near = float(values.min() - 0.4 * (values.max() - values.min()))
    for chance, labels in ((near, ["chance"]), (near - 0.2 * float(values.max() - values.min()), []), (None, [])):
        (panel,) = learning_curves(history, "0", "ViT", chance=chance).panels
        assert [line.label for line in panel.lines[2:]] == labels
        assert all(line.y == (chance, chance) for line in panel.lines[2:])


def test_a_diverged_run_ends_and_the_mean_ends_with_it(make_run):
    specs = pairs(RunSpec(arch="vit", epochs=5), [42, 43])
    runs = [make_run(spec) for spec in specs[:3]] + [make_run(specs[3], epochs=2, diverged=True)]
    plain, asymmetric = learning_curves(history_frame(runs), "0", "ViT").panels[0].lines
    assert None not in plain.y
    assert [value is None for value in asymmetric.y] == [False, False, True, True, True]
    assert sorted(sum(value is None for value in seed) for seed in asymmetric.seeds) == [0, 3]


def test_training_accuracy_stands_in_where_nothing_is_held_out(history):
    (panel,) = learning_curves(history.assign(validation_accuracy=None), "0", "ViT").panels
    assert panel.y_label == "train accuracy"
    assert None not in panel.lines[0].y


def test_the_band_of_cosines_spans_single_steps(history):
    (panel,) = cosine_over_training(history, "0", "ViT").panels
    (line,) = panel.lines
    rows = history[history["variant"] == "asymmetric"].groupby("epoch")
    assert list(line.low) == list(rows["cosine_min"].min())
    assert list(line.high) == list(rows["cosine_max"].max())
    assert panel.zero
    assert cosine_over_training(history.assign(cosine=None), "0", "ViT").missing


def test_the_effect_has_a_bar_for_each_comparison_and_a_dot_for_each_seed(study):
    summary = summarise(study)
    (panel,) = effect_figure(summary).panels
    for bar, row, seeds in zip(panel.bars, summary.comparisons, summary.pairs, strict=True):
        assert (bar.label, bar.estimate, bar.low, bar.high) == (
            row["label"], row["points"], row["points_low"], row["points_high"],
        )  # fmt: skip
        assert len(bar.seeds) == 3
        assert sum(bar.seeds) / 3 == pytest.approx(row["points"])
        assert bar.seeds[0] == pytest.approx(100 * (seeds.iloc[0]["asymmetric"] - seeds.iloc[0]["plain"]))
