"""What final runs say, from invented ones: effects, verdicts, times, tables and the page."""

import dataclasses
import json
from collections import Counter
from statistics import fmean

import pytest
from invented_study import invented_run, invented_study, softmax_helps

from asymtrain.errors import UsageError
from asymtrain.lab.report.page import write_page
from asymtrain.lab.statistics import colour_of
from asymtrain.lab.studies.practice.analysis import (
    StepCost,
    analyse,
    compare_arms,
    corrected,
    epochs_to_plain,
    is_recommended,
    read_step_costs,
)
from asymtrain.lab.studies.practice.page import (
    cost_table,
    document,
    figures,
    judged_page,
    preset_sentence,
    ranks_table,
    sentences,
    tables,
    target_table,
)
from asymtrain.lab.studies.practice.protocol import (
    AHEAD,
    BLOCKS,
    ELSEWHERE,
    FALLING,
    FULL,
    MODELS,
    NONE,
    QUICK,
    REPORTED,
    SELECTED,
    TUNED,
    TUNED_BRANCHES,
    Task,
    arm_of,
    at_alpha,
    final_specs,
)

TASKS = [Task("mlp"), Task("cnn")]


@pytest.fixture(scope="module")
def results():
    tasks = [*TASKS, Task("cnn", part="controls"), Task("mlp", "cifar10", part="transfer")]
    return analyse(FULL, invented_study(FULL, tasks))


def test_the_selected_form_is_compared_with_plain_seed_by_seed(results):
    mlp, cnn = results.selected
    assert (mlp.task, cnn.task) == tuple(TASKS)
    assert mlp.arm.label == "softmax, alpha 1, later layers"
    assert mlp.row["n"] == len(mlp.differences) == 5
    assert mlp.row["points"] == pytest.approx(3.0, abs=0.3)
    assert fmean(mlp.differences) == pytest.approx(mlp.row["points"])
    assert mlp.row["p"] <= mlp.p_holm < 0.05
    assert mlp.verdict == "helps"
    assert mlp.calibration.mean == pytest.approx(-0.03)
    # Accuracy rises with the epochs: what ends 3 points higher is where Plain ends before the last.
    assert all(other < own == 30 for own, other in mlp.epochs)


@pytest.mark.parametrize(("gain", "verdict"), [(-0.03, "hurts"), (0.0, "no meaningful difference"), (0.03, "helps")])
def test_verdicts_follow_the_rule(gain, verdict):
    task, arm = TASKS[0], arm_of("sigmoid", at_alpha("sigmoid", 1.0))
    runs = {
        spec.id: invented_run(spec, lambda spec: gain * bool(spec.redundancy))
        for spec in final_specs(FULL, task, [NONE, arm])
    }
    effect = corrected(compare_arms(FULL, [(task, arm, NONE)], runs))[0]
    assert effect.verdict == verdict
    wide = dataclasses.replace(effect, p_holm=0.5, row={**effect.row, "points_low": -0.6})
    assert wide.verdict == "inconclusive"
    low = dataclasses.replace(effect, p_holm=0.5, row={**effect.row, "points_low": -0.4, "points_high": 0.6})
    assert low.verdict == "harmless"
    few = {spec_id: run for spec_id, run in runs.items() if run.spec.seed != 42}
    assert compare_arms(FULL, [(task, arm, NONE)], few)[0].verdict == "inconclusive"
    assert compare_arms(FULL, [(task, NONE, NONE)], runs) == []
    assert compare_arms(FULL, [(task, arm, NONE)], {}) == []


@pytest.mark.parametrize(
    ("points", "recommended"),
    [
        ((1.0, 0.0, 1.0), True),
        ((0.0, 0.0, 0.0), False),  # helps none
        ((1.0, -1.0, 1.0), False),  # hurts one
        ((1.0, None, 1.0), False),  # one is inconclusive
    ],
    ids=["suits all", "helps none", "hurts one", "one is inconclusive"],
)
def test_a_preset_helps_some_and_harms_none(results, points, recommended):
    arms = {name: arm_of(name, at_alpha("sigmoid", 1.0)) for name in ("fixed", ELSEWHERE)}
    task = TASKS[0]
    runs = {spec.id: invented_run(spec, lambda spec: 0.0) for spec in final_specs(FULL, task, [NONE, arms["fixed"]])}
    made = compare_arms(FULL, [(task, arm, NONE) for arm in arms.values()], runs)

    def with_gain(effect, gain):
        known = {"points": gain or 0.0, "points_low": -1.0 if gain is None else 0.0}
        return dataclasses.replace(effect, p_holm=0.01 if gain else 0.9, row={**effect.row, **known})

    # What is chosen on the models themselves does not count.
    fixed, elsewhere = with_gain(made[0], -1.0), made[1]
    effects = [fixed, *(with_gain(elsewhere, gain) for gain in points * 3)]

    def with_effects(effects):
        return dataclasses.replace(results, parts={"fixed": effects})

    assert is_recommended(with_effects(effects)) is recommended
    assert is_recommended(with_effects(effects[:-1])) is None  # a model is missing
    few = dataclasses.replace(elsewhere, row={**elsewhere.row, "n": 4})
    assert is_recommended(with_effects([*effects[:-1], few])) is None
    (sentence,) = preset_sentence(with_effects(effects))
    assert ("none can be" not in sentence) is recommended
    assert preset_sentence(with_effects(effects[:-1])) == []


def test_a_setting_that_other_families_do_not_have_is_not_recommended():
    """Branches help the transformers, which are three of nine, and hurt the others."""

    def of_transformers(spec):
        return (softmax_helps(spec) if "vit" in spec.arch or "swin" in spec.arch else -0.01) * bool(spec.redundancy)

    results = analyse(QUICK, invented_study(QUICK, map(Task, MODELS), of_transformers))
    assert results.parts["fixed"] == ()  # no final run is stored
    assert is_recommended(results) is False
    assert preset_sentence(results) == [
        "One setting for all models: none can be recommended. "
        "Where it is chosen by all models or chosen by other families, Plain has the best mean rank."
    ]


def test_a_run_that_never_has_plains_accuracy_has_no_epoch():
    plain, other = (
        invented_run(spec, lambda spec: -0.1 * bool(spec.redundancy))
        for arm in (NONE, arm_of("sigmoid", at_alpha("sigmoid", 1.0)))
        for spec in final_specs(FULL, TASKS[0], [arm])[:1]
    )
    assert epochs_to_plain(plain, other) == (30, None)
    assert epochs_to_plain(dataclasses.replace(plain, outcome="diverged"), other) == (None, None)


def test_epochs_to_plain_are_means_over_the_same_seeds(results):
    effect = dataclasses.replace(results.selected[0], epochs=((20, None), (30, 10), (26, 20)))
    (row,) = target_table([effect]).rows
    assert [cell.value for cell in row[1:]] == [28.0, 15.0, "2 of 3"]
    (row,) = target_table([dataclasses.replace(effect, epochs=((20, None),))]).rows
    assert [cell.value for cell in row[1:]] == [None, None, "0 of 1"]


FORM = {"objective": "softmax", "bias": "none", "layers": "later"}
COST = StepCost("mlp", "eager", FORM, 2, 0.001, 1.2, 0.99, "a GPU", "2.11")


def test_time_to_plain_is_epochs_times_the_cost_of_a_step(results):
    mlp, cnn = results.selected
    mlp = dataclasses.replace(mlp, epochs=((20, None), (30, 10), (26, 20)), step_costs=(COST,))
    table = target_table([mlp, cnn])
    times = [row[[column.name for column in table.columns].index("Time, eager")].value for row in table.rows]
    assert times == [pytest.approx(15 * 1.2 / 28), None]
    assert mlp.relative_time(COST) == times[0]
    assert dataclasses.replace(mlp, epochs=((20, None),)).relative_time(COST) is None
    (row,) = cost_table([mlp, cnn]).rows
    assert [cell.value for cell in row[2:]] == ["eager", 2, 1.0, 1.2, 0.99]
    timed = document(dataclasses.replace(results, selected=(mlp, cnn)))
    assert timed["effects"][0]["step_costs"][0]["relative_time"] == times[0]
    assert "cost" not in {table.name for table in tables(results)}  # nor anything else of it


def test_costs_are_read_and_of_equal_rows_the_last_counts(tmp_path):
    row = {"group": "practice", **dataclasses.asdict(COST), "kernels": [1, 2]}
    rows = [row, {**row, "mode": "compiled"}, {"group": "models", "model": "resnet50"}, {**row, "ratio": 1.5}]
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(rows))
    read = read_step_costs([file])
    assert read == (dataclasses.replace(COST, ratio=1.5), dataclasses.replace(COST, mode="compiled"))
    assert read_step_costs([]) == ()
    bad = [
        {"mode": "fast"}, {"ratio": 0}, {"ratio": "1"}, {"branches": {}}, {"branches": 3}, {"group": "practice"},
    ]  # fmt: skip
    texts = ["", "{", "3", '{"a": 1}', "[" * 100_000, *(json.dumps([{**row, **change}]) for change in bad[:-1])]
    for text in (*texts, json.dumps(bad[-1:])):
        file.write_text(text)
        with pytest.raises(UsageError, match=r"costs\.json does not hold costs of steps"):
            read_step_costs([file])
    with pytest.raises(UsageError, match=r"cannot read the costs of steps in .*: No such file"):
        read_step_costs([tmp_path / "none.json"])


def test_controls_and_other_data_have_tables_of_their_own(results):
    controls = results.parts["controls"]
    assert [effect.arm.name for effect in controls][:3] == [SELECTED, "random labels", "frozen branches"]
    assert [effect.task.data for effect in results.parts["transfer"]] == ["cifar10"] * 2
    names = [table.name for table in tables(results)]
    assert names == [
        "selected",
        "target",
        "calibration",
        "transfer",
        "controls",
        "configurations",
        "selection",
        "ranks",
        "missing",
    ]
    drawn = {figure.name: figure for figure in figures(results)}
    assert list(drawn) == ["forest", "configurations", "transfer", "controls"]
    panels = drawn["configurations"].panels
    ((left, right),) = {panel.ends for panel in panels}  # one scale for all objectives, which holds every seed
    assert all(left < seed < right for panel in panels for bar in panel.bars for seed in bar.seeds)


def test_published_networks_come_first_with_what_is_reported_of_them():
    def gain(spec):
        """Branches reach the changed architecture of ViT-Lite, at their best epoch and after the last."""
        return 0.2 + 0.07 * (spec.redundancy and spec.objective == "softmax")

    blocks = [block for name, block in BLOCKS.items() if name.startswith("published-vit-lite")]
    known = invented_study(FULL, [task for block in blocks for task in block.parts], gain)
    best = max(run.history[-1].test_accuracy for run in known.values())
    early = next(run for run in known.values() if not run.spec.redundancy)  # one of three is better at an early epoch
    first = early.history[0]._replace(test_accuracy=best)
    results = analyse(FULL, known | {early.spec.id: dataclasses.replace(early, history=(first, *early.history[1:]))})
    table = tables(results)[0]
    assert table.title == "Networks of published tables"
    assert [row[1] for row in table.texts()] == ["none", "softmax, alpha 1, later layers", AHEAD[FALLING].label]
    plain, softmax, falling = results.reached
    assert plain.last.n == softmax.last.n == falling.last.n == 3
    assert plain.best == pytest.approx(plain.last.mean + (best - early.history[-1].test_accuracy) / 3)
    assert softmax.best == pytest.approx(softmax.last.mean)
    reported = REPORTED["vit_lite"]
    cells = [cell.value for cell in table.rows[1]]
    assert cells[7] == pytest.approx(100 * (softmax.last.mean - reported.accuracy))
    assert 0 < cells[9] == pytest.approx(100 * (softmax.last.mean - reported.changed))
    assert [(effect.arm.name, effect.verdict) for effect in results.parts["published"]] == [
        ("softmax, later layers", "helps"),
        (FALLING, "no meaningful difference"),
    ]
    assert "published" in [figure.name for figure in figures(results)]
    diverged = {spec_id: dataclasses.replace(run, outcome="diverged", classes=100) for spec_id, run in known.items()}
    assert [own.last.mean for own in analyse(FULL, diverged).reached] == pytest.approx([0.01] * 3)


def test_long_runs_are_compared_at_every_epoch():
    def gain(spec):
        return 0.02 * bool(spec.redundancy)

    task = Task("mixer", "cifar100-long", "strong", "length")
    results = analyse(FULL, invented_study(FULL, [Task("mixer"), task], gain))
    (figure,) = (figure for figure in figures(results) if figure.name == "length-courses")
    (panel,) = figure.panels
    assert panel.title == "MLP-Mixer"
    assert [line.label for line in panel.lines] == [SELECTED, FALLING]
    for line, effect in zip(panel.lines, results.parts["length"], strict=True):
        assert len(line.x) == len(line.y) == 100
        assert line.y[-1] == pytest.approx(effect.row["points"])
        assert line.y[0] == pytest.approx(2.0, abs=0.3)


def test_branches_on_a_tuned_recipe_are_compared_with_that_recipe():
    def gain(spec):
        """A slow start gives 4 points, and a configuration of branches 3 without it and 1 with it."""
        slow = spec.warmup > spec.epochs / 10
        return 0.04 * slow + (0.01 if slow else 0.03) * (spec.redundancy and spec.objective == "softmax")

    tasks = [Task("mlp"), Task("mlp", part="tuned")]
    results = analyse(FULL, invented_study(FULL, tasks, gain))
    assert [(effect.arm.name, effect.against.name) for effect in results.parts["tuned"]] == [
        (TUNED_BRANCHES, TUNED),
        (TUNED, "none"),
        (SELECTED, TUNED),
    ]
    points = [effect.row["points"] for effect in results.parts["tuned"]]
    assert points == pytest.approx([1.0, 4.0, -1.0], abs=0.3)
    table = next(table for table in tables(results) if table.name == "tuned")
    assert "Without it" in [column.name for column in table.columns]
    (figure,) = (figure for figure in figures(results) if figure.name == "tuned")
    labels = [panel.x_label for panel in figure.panels]
    assert ["Plain" in label for label in labels] == [False, True, False]
    assert [row["against"] for row in document(results)["parts"]["tuned"]][1] == "none"


def test_selected_forms_are_one_family_whatever_their_objectives():
    def gain(spec):
        """Softmax is selected for the MLP, and a prior bias for the CNN."""
        liked = spec.objective == "softmax" if spec.arch == "mlp" else spec.bias == "prior"
        return 0.003 * (spec.redundancy and liked)

    tasks = [*TASKS, *(Task(task.model, recipe="strong", part="strong") for task in TASKS)]
    strong = analyse(FULL, invented_study(FULL, tasks, gain)).parts["strong"]
    assert [effect.arm.fields["objective"] for effect in strong] == ["softmax", "sigmoid"]
    low, high = sorted(strong, key=lambda effect: effect.row["p"])
    assert low.p_holm == pytest.approx(min(1.0, 2 * low.row["p"]))
    assert high.p_holm == pytest.approx(max(low.p_holm, high.row["p"]))


def test_calibration_errors_are_means_over_the_pairs_that_have_both():
    arm = arm_of("sigmoid", at_alpha("sigmoid", 1.0))
    runs = {
        spec.id: dataclasses.replace(invented_run(spec, lambda _: 0.0), calibration_error=0.01 * (spec.seed - 41))
        for spec in final_specs(FULL, TASKS[0], [NONE, arm])
    }
    lost = final_specs(FULL, TASKS[0], [arm])[-1]
    runs[lost.id] = dataclasses.replace(runs[lost.id], outcome="diverged", calibration_error=None)
    (effect,) = compare_arms(FULL, [(TASKS[0], arm, NONE)], runs)
    assert effect.calibration.n == 4
    assert effect.calibration_errors == (pytest.approx(0.025), pytest.approx(0.025))


def test_the_selection_is_shown_as_differences_to_plain(results):
    selection = next(table for table in tables(results) if table.name == "selection")
    row = next(row for row in selection.texts() if row[:1] == ["MLP"] and "softmax" in row[2])
    assert row[-1] == "softmax, alpha 1, later layers (goes first)"
    assert [cell[0] for cell in row[3:7]] == ["+"] * 4
    ranks = ranks_table(results.selections)
    assert ranks.texts()[0][0] == "softmax, alpha 1"
    assert len(ranks.rows) == 13


def test_the_page_is_the_same_when_it_is_written_again(results, tmp_path):
    first, second = (
        write_page(tmp_path / name, "practice", facts={"Command": "x"}, **judged_page(results).content) for name in "ab"
    )
    assert first["page"].read_bytes() == second["page"].read_bytes()
    page = first["page"].read_text()
    # The verdicts are those of the plot and of the table: no cards repeat them.
    assert 'class="answers"' not in page
    counts = Counter(effect.verdict for effect in results.selected)
    said = f"Branches helped {counts['helps']} of {counts.total()} models"
    assert f'<h1 class="headline good">{said}</h1>' in page
    (panel,) = figures(results)[0].panels
    ordered = sorted(results.selected, key=lambda effect: -effect.row["points"])
    assert [bar.colour for bar in panel.bars] == [colour_of(effect.verdict) for effect in ordered]
    assert '<p class="lead">Test accuracy after 30 epochs of CIFAR-100 with the recipe ordinary, as the diff' in page
    assert page.index('<h2 id="figures">') < page.index("The configuration that validation selected</h2>")
    assert (tmp_path / "a" / "practice-forest.svg").exists()
    assert document(results)["effects"][0]["verdict"] == "helps"


def test_an_empty_store_has_an_empty_page(tmp_path):
    empty = analyse(FULL, {})
    assert figures(empty) == []
    (missing,) = tables(empty)
    assert [row[0] for row in missing.texts()] == list(BLOCKS)
    assert (
        "No model is finished yet."
        in write_page(tmp_path, "practice", facts={}, **judged_page(empty).content)["page"].read_text()
    )


def test_where_validation_prefers_none_the_sentence_and_the_table_say_so():
    known = invented_study(FULL, TASKS[:1], lambda spec: -0.05 * bool(spec.redundancy))
    results = analyse(FULL, known)
    assert sentences(results)[0].endswith("Validation accuracy was no better than without branches.")
    assert tables(results)[0].note.endswith("no better than without branches: MLP.")
