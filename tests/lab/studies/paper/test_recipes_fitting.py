"""Tables over all of training, from made-up curves, against plain computations."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from asymtrain.lab.report.table import Range
from asymtrain.lab.runs import Epoch, Run
from asymtrain.lab.studies.paper.numbers import labels
from asymtrain.lab.studies.paper.recipe import build_result
from asymtrain.lab.studies.paper.recipes import RECIPES, fitting
from asymtrain.lab.studies.paper.study import SIZES, Scope
from asymtrain.lab.studies.snapshot import Snapshot

STUDY = Scope(sizes=SIZES["paper"], seeds=(42, 43, 44), hyperparameters="paper")
# Training and test accuracy by epoch. Asymmetric fits as Plain does, an epoch later: all that it gains is time.
PLAIN = ((0.2, 0.20), (0.5, 0.30), (0.8, 0.26), (0.9, 0.20))
SLOWER = ((0.1, 0.10), (0.2, 0.20), (0.5, 0.30), (0.8, 0.26))
CELLS = 3 * len(labels("table8"))


def trained(spec, curve, outcome="finished"):
    """A run along a curve; a seed moves its test accuracies by a thousandth or two."""
    shift = 0.001 * (spec.seed - 42) * (1 if spec.redundancy else 2)
    history = [
        Epoch(i, 1.0, None, fit, None, test + shift, None, None, None, 0.1) for i, (fit, test) in enumerate(curve, 1)
    ]
    return Run(spec, tuple(history), outcome)


def known_of(**changed):
    specs = RECIPES["fitting"].needs(STUDY, Snapshot()).specs
    return Snapshot({spec.id: trained(spec, SLOWER if spec.redundancy else PLAIN, **changed) for spec in specs})


def first_row(known, table="fitting-table8"):
    made = {one.name: one for one in build_result(RECIPES["fitting"], STUDY, known).tables}[table]
    return {column.name: cell.value for column, cell in zip(made.columns, made.rows[0], strict=True)}


def test_each_cell_has_three_alphas_one_plain_and_a_test_at_every_epoch():
    specs = RECIPES["fitting"].needs(STUDY, Snapshot()).specs
    assert {spec.test for spec in specs} == {"every"}
    assert {spec.validation for spec in specs} == {"none"}
    assert {spec.alpha for spec in specs if spec.redundancy} == {0.1, 1.0, 100.0}
    # The full sets of Tables 7 and 8 are the clean ones of Tables 11 and 12.
    cells = sum(len(labels(table)) for table in fitting.TABLES) - 2
    assert len(specs) == len(set(specs)) == cells * 4 * len(STUDY.seeds)


def test_but_for_alpha_and_the_tests_they_are_the_tables_runs():
    for table, recipe in (("table8", RECIPES["table8"]), ("table12", RECIPES["table12"])):
        theirs = set(recipe.needs(STUDY, Snapshot()).specs)
        for one in fitting.comparisons(STUDY, Snapshot(), table):
            assert {dataclasses.replace(spec, test="last") for spec in one.plain} <= theirs
            if one.label.endswith(fitting.OWN):
                assert {dataclasses.replace(spec, test="last") for spec in one.asymmetric} <= theirs


def test_an_effect_that_is_time_is_there_at_the_last_epoch_alone():
    row = first_row(known_of())
    shifts = np.array([0.0, 0.001, 0.002])
    for way, (before, after) in {
        "Last epoch": (0.20, 0.26),
        "Best epoch": (0.3, 0.3),
        "Equal fit": (0.26, 0.26),
    }.items():
        plain, other = before + 2 * shifts, after + shifts
        changes = 100 * (other - plain) / plain.mean()
        ends = stats.ttest_1samp(changes, 0).confidence_interval(1 - 0.05 / CELLS)
        assert row[way] == pytest.approx(changes.mean())
        interval = row[f"Interval, {way.lower()}"]
        assert isinstance(interval, Range)
        assert (interval.low, interval.high) == pytest.approx(tuple(ends))
    assert (row["Best: Plain"].mean, row["Best: Asymmetric"].mean) == (2, 3)
    assert (row["Plain"].mean, row["Asymmetric"].mean) == pytest.approx((0.202, 0.261))
    assert row["n"] == 3


def test_sentences_count_intervals_on_either_side_of_0():
    known = known_of()
    notes = build_result(RECIPES["fitting"], STUDY, known).notes
    assert [note.partition(",")[0] for note in notes] == ["Table 7", "Table 8", "Table 11", "Table 12"]
    assert f"{CELLS} of {CELLS} cells: last epoch {CELLS} above and 0 below 0" in notes[1]
    assert "best epoch 0 above and 0 below 0; equal fit 0 above and 0 below 0." in notes[1]
    assert build_result(RECIPES["fitting"], STUDY, Snapshot()).notes == ()


def test_a_diverged_run_counts_at_chance_however_it_is_looked_at():
    known = known_of()
    one = fitting.comparisons(STUDY, known, "table8")[0]
    runs = dict(known.runs)
    runs[one.asymmetric[0].id] = Run(one.asymmetric[0], (), "diverged")
    for look in fitting.LOOKS:
        effect = fitting.effect(Snapshot(runs), one, look)
        assert (effect.plain[0], effect.asymmetric[0]) == (pytest.approx(0.20), 0.01)
    assert first_row(Snapshot(runs))["Best: Asymmetric"].mean == 3


def test_what_a_search_is_to_choose_waits_for_it():
    searched = dataclasses.replace(STUDY, hyperparameters="searched")
    needs = RECIPES["fitting"].needs(searched, Snapshot())
    assert any(name.startswith("fitting/table7/mlp/10/") for _, name in needs.later)
    assert not any(spec.test == "every" and spec.dataset == "cifar10" for spec in needs.specs)
    (first, *_) = fitting.comparisons(searched, Snapshot(), "table7")
    assert (first.plain, first.heading[1]) == ((), 0.1)
