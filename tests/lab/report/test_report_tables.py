import io
import random

import pandas as pd
import pytest

from asymtrain.lab.comparisons import compare
from asymtrain.lab.report import history_frame, rows_frame
from asymtrain.lab.report.summary import summarise
from asymtrain.lab.runs import DEFAULTS, RunSpec, pairs


def test_a_row_holds_every_setting_and_result(make_run):
    spec = RunSpec(arch="vit", arch_options={"depth": 2, "width": 32}, epochs=3, learning_rate=3e-4, seed=7)
    run = make_run(spec)
    row = rows_frame([run]).to_dict("records")[0]
    assert set(DEFAULTS) <= set(row)
    assert row["id"] == spec.id
    assert row["learning_rate"] == 3e-4
    assert row["arch_options"] == '{"depth": 2, "width": 32}'
    assert row["variant"] == "asymmetric"
    assert row["test_accuracy"] == run.history[-1].test_accuracy
    assert row["best_validation_accuracy"] == max(epoch.validation_accuracy for epoch in run.history)
    assert row["mean_cosine"] == pytest.approx(sum(epoch.cosine for epoch in run.history) / 3)
    assert row["seconds"] == 4.5


def test_history_has_every_epoch(make_run):
    runs = [make_run(spec) for spec in pairs(RunSpec(epochs=5), [1, 2])]
    frame = history_frame(runs)
    assert len(frame) == 20
    for run in runs:
        assert list(frame[frame["id"] == run.spec.id]["main_loss"]) == [epoch.main_loss for epoch in run.history]


def test_the_order_of_runs_does_not_matter(study):
    shuffled = random.Random(0).sample(study, len(study))
    pd.testing.assert_frame_equal(rows_frame(shuffled), rows_frame(study))
    pd.testing.assert_frame_equal(history_frame(shuffled), history_frame(study))
    assert list(rows_frame(shuffled)["arch"].unique()) == ["mlp", "cnn", "vit"]


def test_a_comparison_survives_the_csv(study):
    rows = rows_frame(study)
    again = pd.read_csv(io.StringIO(rows.to_csv(index=False)))
    ours, theirs = compare(rows).to_dict("records"), compare(again).to_dict("records")
    assert [row["arch"] for row in ours] == [row["arch"] for row in theirs] == ["mlp", "cnn", "vit"]
    assert [row["p"] for row in ours] == pytest.approx([row["p"] for row in theirs])


def test_no_runs_give_empty_frames_with_columns():
    assert "test_accuracy" in rows_frame([]).columns
    assert "main_loss" in history_frame([]).columns
    assert summarise([]).comparisons == []


def test_runs_without_a_partner_are_counted(study):
    summary = summarise(study[:-1])
    assert summary.waiting == 1
    assert [row["n"] for row in summary.comparisons] == [3, 3, 2]


def test_runs_of_a_search_are_rows_but_not_compared(make_run):
    import dataclasses

    runs = [make_run(spec) for spec in pairs(RunSpec(epochs=2, test="never"), [1, 2])]
    searched = [
        dataclasses.replace(run, history=tuple(e._replace(test_accuracy=None) for e in run.history)) for run in runs
    ]
    summary = summarise(searched)
    assert len(summary.rows) == 4
    assert summary.comparisons == []
    assert (summary.waiting, summary.untested) == (0, 4)  # they wait for no partner


def test_settings_that_differ_name_the_comparison(make_run):
    weak, strong = RunSpec(epochs=2, alpha=0.1), RunSpec(epochs=2, alpha=2)
    specs = dict.fromkeys([*pairs(weak, [1, 2]), *pairs(strong, [1, 2])])
    labels = [row["label"] for row in summarise(map(make_run, specs)).comparisons]
    assert labels == ["MLP, alpha 0.1", "MLP, alpha 2.0"]
