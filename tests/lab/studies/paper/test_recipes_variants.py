"""The recipes beyond the paper, from made-up accuracies, against plain computations."""

import itertools

import numpy as np
import pytest
from scipy import stats
from shown_tables import headings, rows_by_heading

from asymtrain.lab.report.drawing import draw
from asymtrain.lab.runs import Epoch, Run
from asymtrain.lab.studies.paper.recipe import build_result
from asymtrain.lab.studies.paper.recipes import RECIPES, variants
from asymtrain.lab.studies.paper.recipes.variants import EXACT, against_first, against_plain
from asymtrain.lab.studies.paper.study import SIZES, Scope, parse_readings
from asymtrain.lab.studies.snapshot import Snapshot

STUDY = Scope(sizes=SIZES["paper"], seeds=(42, 43, 44, 45))
FULL = Scope(sizes=SIZES["paper"])
WAVE = (0.0, 0.004, -0.004, 0.002, 0.001, -0.002, 0.003, -0.001, 0.002, 0.0)
CHANGES = {"early": 0.05, "linear": 0.003, "softmax": 0.04, "noise": -0.05}


def kind(spec):
    fields = (spec.signal, spec.alpha_schedule, spec.objective)
    return next((name for name in fields if name not in ("gradient", "constant", "sigmoid")), "")


def accuracy(spec):
    """Plain has 0.4 and a wave over seeds; detached is Plain; other ways add their change and a smaller wave."""
    i = spec.seed - 42
    if spec.redundancy == 0 or spec.signal == "detached":
        return 0.4 + WAVE[i]
    return 0.42 + CHANGES.get(kind(spec), 0.0) + WAVE[i] / 2


def finished(spec):
    cosine = None if spec.redundancy == 0 else 0.1 + 0.01 * (spec.seed - 42)
    value = accuracy(spec)
    epoch = Epoch(1, 1.0, None, 0.5, 0.5, value, cosine, cosine, cosine, 0.1)
    return Run(spec, (epoch,), answers=np.float64(value).tobytes())


def known_of(study, *names):
    specs = [spec for name in names for spec in RECIPES[name].needs(study, Snapshot()).specs]
    return Snapshot({spec.id: finished(spec) for spec in specs})


def made(study, known, name):
    return build_result(RECIPES[name], study, known)


def rows(table, backbone="ViT"):
    return {row["Branches"].text: row for row in rows_by_heading(table) if row["Backbone"].text == backbone}


def test_only_what_the_paper_lacks_is_trained_for_them():
    paper = {spec for name in ("table1", "table2") for spec in RECIPES[name].needs(STUDY, Snapshot()).specs}
    for name, ways, shared in (("schedules", variants.SCHEDULES, 1), ("controls", variants.CONTROLS, 3)):
        specs = set(RECIPES[name].needs(STUDY, Snapshot()).specs)
        # Three backbones and four seeds, of Plain and of each way; `shared` ways are runs of Tables 1 and 2.
        assert len(specs) == 12 * (1 + len(ways))
        assert len(specs - paper) == 12 * (len(ways) - shared)


def test_each_way_changes_one_thing():
    listed = against_plain(STUDY, "controls", variants.CONTROLS)
    for one in listed:
        arch = one.asymmetric[0].arch
        first = next(other for other in listed if other.plain == one.plain)
        mine, papers = one.asymmetric[0].to_dict(), first.asymmetric[0].to_dict()
        changed = {name for name in mine.keys() | papers.keys() if mine.get(name) != papers.get(name)}
        assert len(changed) == (0 if one.label.endswith("/paper") else 1), one.label
        if one.label.endswith("/weak"):
            assert one.asymmetric[0].alpha == pytest.approx({"mlp": 0.001, "cnn": 0.001, "vit": 0.01}[arch])


def test_effect_interval_p_and_cosine_against_scipy():
    known = known_of(STUDY, "schedules")
    (table,) = made(STUDY, known, "schedules").tables
    assert len(table.rows) == 15
    row = rows(table)["first half only"]
    runs = [known.runs[one] for one in row["Effect"].spec_ids]
    plain = np.array([run.test_accuracy for run in runs if run.spec.redundancy == 0])
    other = np.array([run.test_accuracy for run in runs if run.spec.alpha_schedule == "early"])
    assert len(plain) == len(other) == 4
    test = stats.ttest_rel(other, plain)
    low, high = test.confidence_interval(1 - 0.05 / 15)
    assert row["Effect"].value == pytest.approx(100 * (other - plain).mean() / plain.mean())
    assert row["Interval"].text == f"{100 * low / plain.mean():+.1f}% to {100 * high / plain.mean():+.1f}%"
    assert row["p"].value == pytest.approx(15 * test.pvalue)
    assert row["n"].text == "4"
    assert row["Mean cosine"].value == pytest.approx(0.1 + 0.01 * 1.5)


def test_controls_stand_against_plain_and_against_the_papers_branches():
    result = made(STUDY, known_of(STUDY, "controls"), "controls")
    plain, papers = map(rows, result.tables)
    assert [len(table.rows) for table in result.tables] == [24, 21]
    assert "as in the paper" not in papers
    assert papers["softmax loss"]["Effect"].value == pytest.approx(
        100 * 0.04 / np.mean([0.42 + w / 2 for w in WAVE[:4]])
    )
    assert plain["noise of equal norm"]["Effect"].value == pytest.approx(100 * (0.37 - 0.4) / 0.4, abs=0.2)
    assert [draw(figure)[:4] for figure in result.figures] == ["<svg", "<svg"]


DETACHED = "detached from the backbone"


def test_detached_branches_are_exactly_nothing_and_said_to_be():
    known = known_of(STUDY, "controls")
    result = made(STUDY, known, "controls")
    row = rows(result.tables[0])[DETACHED]
    assert (row["Effect"].text, row["Effect"].value, row["p"].value) == (EXACT, 0.0, 1.0)
    assert result.notes[0] == "Detached branches give Plain's answer to every test image in all 12 pairs."
    assert f"an effect of exactly 0, for {DETACHED}" in result.notes[1]
    # One of them rounded otherwise: it is shown as it is.
    spec_id = next(one for one, run in known.runs.items() if run.spec.signal == "detached")
    run = known.runs[spec_id]
    epoch = Epoch(1, 1.0, None, 0.5, 0.5, run.test_accuracy + 0.0003, 0.1, 0.1, 0.1, 0.1)
    moved = Snapshot({**known.runs, spec_id: Run(run.spec, (epoch,), answers=b"other")})
    first = made(STUDY, moved, "controls").notes[0]
    assert "in 11 of 12 pairs; accuracies are at most 0.03 points apart" in first


def test_sentences_follow_the_intervals_and_say_what_is_preliminary():
    notes = {note.partition(" ")[0]: note for note in made(STUDY, known_of(STUDY, "schedules"), "schedules").notes}
    assert list(notes) == ["MLP", "CNN", "ViT"]
    assert notes["ViT"].startswith("ViT against Plain (preliminary: 4 of 10 seeds): the interval excludes 0 for ")
    clear, _, unclear = notes["ViT"].partition("the interval includes 0 for")
    table = rows(made(STUDY, known_of(STUDY, "schedules"), "schedules").tables[0])
    for words, row in table.items():
        assert words in (clear if row["Interval"].low > 0 or row["Interval"].high < 0 else unclear)
    whole = made(FULL, known_of(FULL, "schedules"), "schedules").notes
    assert all("(10 seeds)" in note for note in whole)
    one = Scope(sizes=SIZES["quick"], seeds=(42,))
    alone = made(one, known_of(one, "schedules"), "schedules").notes
    assert "1 of 10 seeds, 6 of 200 epochs, small networks on shapes" in alone[0]
    assert "without an interval are constant, as in the paper (" in alone[0]


def test_another_reading_has_rows_of_its_own_and_no_runs():
    best = Scope(sizes=SIZES["paper"], seeds=STUDY.seeds, readings=parse_readings(["best,sum"]))
    listed = against_plain(best, "controls", variants.CONTROLS)
    assert [one.reading.name for one in listed[::24]] == ["primary", "best"]
    assert len(against_first(listed)) == 2 * 21
    assert all(other.plain == one.plain for one, other in itertools.pairwise(against_first(listed)[:7]))
    (table,) = made(best, known_of(STUDY, "schedules"), "schedules").tables
    assert "Reading" in headings(table)
    assert len(table.rows) == 30
    assert "corrected for 15 cells" in table.note


def test_backbones_are_compared_at_equal_alpha():
    """By scipy from the accuracies: ViTs gain 0.02 with alpha 1, CNNs lose 0.06 and a seed of their own."""

    def run(spec):
        loss = 0.08 + 0.01 * (spec.seed == 43) if spec.arch == "cnn" and spec.redundancy else 0.0
        value = accuracy(spec) - loss
        return Run(spec, (Epoch(1, 1.0, None, 0.5, 0.5, value, None, None, None, 0.1),))

    specs = RECIPES["alphas"].needs(STUDY, Snapshot()).specs
    assert {spec.alpha for spec in specs if spec.redundancy} == {variant.alpha for variant in variants.ALPHAS}
    assert len({(spec.learning_rate, spec.weight_decay) for spec in specs if spec.arch == "vit"}) == 1
    paper = set(RECIPES["table1"].needs(STUDY, Snapshot()).specs)
    assert len(set(specs) - paper) == 4 * (3 * 4 - 6)  # Table 1 has six of the twelve cells
    known = Snapshot({spec.id: run(spec) for spec in specs})
    table, between = made(STUDY, known, "alphas").tables
    assert len(table.rows) == len(between.rows) == 12
    row = next(
        one
        for one in rows_by_heading(between)
        if (one["Alpha"].text, one["Backbones"].text) == ("alpha 1", "ViT less CNN")
    )
    plain = 0.4 + np.array(WAVE[:4])
    vit, cnn = (100 * (0.42 + np.array(WAVE[:4]) / 2 - less - plain) / plain.mean()
                for less in (0.0, 0.08 + 0.01 * np.array([0, 1, 0, 0])))  # fmt: skip
    test = stats.ttest_1samp(vit - cnn, 0)
    ends = test.confidence_interval(1 - 0.05 / 12)
    assert row["Difference"].value == pytest.approx((vit - cnn).mean())
    assert row["Interval"].text == f"{ends.low:+.1f} to {ends.high:+.1f}"
    assert row["p"].value == pytest.approx(12 * test.pvalue)
    missing = Snapshot({spec.id: run(spec) for spec in specs if spec.arch != "mlp"})
    waits = made(STUDY, missing, "alphas").tables[1]
    assert sum(row[2].missing for row in waits.rows) == 8
