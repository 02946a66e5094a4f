"""`--fair`: as many trials for Plain as alpha gets, in tables of their own."""

import dataclasses

import pytest
from shown_tables import rows_by_heading

from asymtrain.errors import UsageError
from asymtrain.lab.cli.paper import StudyOptions
from asymtrain.lab.runs import Epoch, Run
from asymtrain.lab.studies.frame import missing
from asymtrain.lab.studies.paper import STUDY
from asymtrain.lab.studies.paper.recipe import build_result
from asymtrain.lab.studies.paper.recipes import RECIPES, table10, table16
from asymtrain.lab.studies.paper.study import SIZES, Scope
from asymtrain.lab.studies.paper.verdicts import gather
from asymtrain.lab.studies.snapshot import Snapshot

RECIPE_NAMES = ("table10", "table13", "table16")
SIZE = dataclasses.replace(
    SIZES["paper"],
    learning_rates=(1e-3, 3e-3),
    weight_decays=(1e-2, 1e-3),
    alphas=(0.1, 1.0, 10.0, 100.0),
    alphas_mlp_cifar10=(0.0, 10.0, 50.0),
)
PAPER, FAIR = (Scope(sizes=SIZE, seeds=(42, 43), fair=fair) for fair in (False, True))


def accuracy(spec):
    """Plain likes some label smoothing and a dropout of 0.75, Asymmetric an alpha of 10; both a rate of 1e-3."""
    value = 0.5 - 0.1 * (spec.learning_rate != 1e-3) - 0.01 * (spec.weight_decay != 1e-2)
    if spec.redundancy:
        return value + 0.03 * (spec.alpha == 10.0)
    return value + 0.02 * (dict(spec.arch_options).get("dropout") == 0.75) + 0.01 * (0.15 < spec.label_smoothing < 0.3)


def finished(spec):
    test = None if spec.test == "never" else accuracy(spec)
    return Run(spec, (Epoch(1, 1.0, None, 0.5, accuracy(spec), test, None, None, None, 0.1),))


def run_all(study):
    """Everything that the recipes ask for, round by round, with made-up accuracies."""
    recipes, runs, counts = [RECIPES[name] for name in RECIPE_NAMES], {}, []
    while True:
        left = missing(STUDY, recipes, study, Snapshot(runs))
        counts.append((len(left.specs), left.later))
        if not left.specs:
            return Snapshot(runs), counts
        runs |= {spec.id: finished(spec) for spec in left.specs}


@pytest.fixture(scope="module")
def rounds():
    return run_all(FAIR)


@pytest.fixture(scope="module")
def known(rounds):
    return rounds[0]


def made(study, known, name):
    result = build_result(RECIPES[name], study, known)
    return result, {table.name: table for table in result.tables}


rows = rows_by_heading


def test_fairness_adds_trials_and_changes_none(known):
    usual, _ = run_all(PAPER)
    assert set(usual.runs) < set(known.runs)
    extra = [run.spec for one, run in known.runs.items() if one not in usual.runs]
    assert all(spec.redundancy == 0 for spec in extra)
    trials = [spec for spec in extra if spec.test == "never"]
    # As many as there are alphas: four in each search, and three for the MLP on CIFAR-10. The dual search chooses the
    # same learning rate and weight decay for Plain, so its trials are those of CIFAR-100.
    assert len(trials) == 5 * 4 + 3
    assert {spec.seed for spec in trials} == {1000}
    assert len(extra) - len(trials) == 2 * 3 * 2


def test_the_count_of_what_waits_is_never_short(rounds):
    known, counts = rounds
    total = len(known.runs)
    done = 0
    for named, later in counts:
        assert done + named + later >= total
        done += named
    assert counts[-1] == (0, 0)


def test_plain_takes_its_best_trial_and_asymmetric_stays(known):
    (usual,) = [one for one in table10.comparisons(FAIR, known) if one.label == "table10/cnn"]
    (fair,) = [one for one in table10.comparisons(FAIR, known, fair=True) if one.label == "fair/table10/cnn"]
    assert fair.asymmetric == usual.asymmetric
    assert dict(fair.plain[0].arch_options) == {"dropout": 0.75}
    assert usual.plain[0].arch_options == ()
    (fair,) = [one for one in table10.comparisons(FAIR, known, fair=True) if one.label == "fair/table10/vit"]
    assert (fair.plain[0].label_smoothing, fair.asymmetric[0].label_smoothing) == (0.25, 0.0)
    assert fair.heading == ("ViT", "label smoothing 0.25")


def test_table_10_against_a_fair_plain_has_its_own_rows_and_no_evidence(known):
    result, tables = made(FAIR, known, "table10")
    assert list(tables) == ["table10", "table10-fair"]
    assert result.is_complete
    for usual, fair in zip(rows(tables["table10"]), rows(tables["table10-fair"]), strict=True):
        assert fair["Asymmetric"] == usual["Asymmetric"]
        assert fair["Plain"].value > usual["Plain"].value
        assert fair["Paper: improvement"] == usual["Paper: improvement"]
    assert gather([result]) == gather([made(PAPER, known, "table10")[0]])


def test_table_16_has_each_sides_own_settings_and_plains_regulariser(known):
    result, tables = made(FAIR, known, "table16")
    assert list(tables) == ["table16", "table16-fair", "table16-fair-trials"]
    assert result.is_complete
    usual = {one.label: one for one in table16.comparisons(FAIR, known)}
    for one in table16.comparisons(FAIR, known, fair=True):
        before = usual[one.label.removeprefix("fair/")]
        assert one.asymmetric == before.asymmetric
        changed = dataclasses.replace(one.plain[0], label_smoothing=0.0, arch_options=before.plain[0].arch_options)
        assert changed == before.plain[0] != one.plain[0]
    for before, fair in zip(rows(tables["table16"]), rows(tables["table16-fair"]), strict=True):
        assert fair["Asymmetric"] == before["Asymmetric"]
        # 0.02 of 0.5 by dropout, which the CNN alone has, else 0.01 by label smoothing.
        gain = 0.02 if fair["Backbone"].text == "CNN" else 0.01
        assert fair["Plain"].value == pytest.approx(before["Plain"].value + gain)
    assert gather([result]) == gather([made(PAPER, known, "table16")[0]])
    assert len(tables["table16-fair-trials"].rows) == 3 * 5


def test_table_13_shows_what_was_tried_on_plain(known):
    result, tables = made(FAIR, known, "table13")
    assert result.is_complete
    assert list(tables) == ["table13", "table13-trials", "table13-fair", "table13-fair-trials"]
    (cnn,) = [
        row for row in rows(tables["table13-fair"]) if (row["Data"].text, row["Backbone"].text) == ("CIFAR-100", "CNN")
    ]
    values = [
        cnn[name].value for name in ("Trials", "Plain as it is", "Plain, best of its trials", "Asymmetric, best alpha")
    ]
    assert values == pytest.approx([4, 0.5, 0.52, 0.53])
    assert cnn["Plain's gain"].text == "+4.0%"
    assert cnn["Asymmetric's gain"].text == "+6.0%"
    tried = [row for row in rows(tables["table13-fair-trials"]) if row["Backbone"].text == "CNN"]
    assert len(tried) == 2 * 5
    assert tried[0]["Plain with"].text == "dropout 0.5, label smoothing 0"
    assert [row["Plain with"].text for row in tried if row[""].text] == ["dropout 0.75, label smoothing 0"] * 2
    _, usual = made(PAPER, known, "table13")
    assert list(usual.values()) == [tables["table13"], tables["table13-trials"]]


def test_of_nothing_the_fair_tables_are_missing():
    for name in RECIPE_NAMES:
        result, tables = made(FAIR, Snapshot(), name)
        fair = tables[f"{name}-fair"]
        assert fair.rows
        assert all(any(cell.missing for cell in row) for row in fair.rows)
        assert not result.is_complete


def test_a_trial_that_was_not_run_is_missing(known):
    runs = dict(known.runs)
    gone = next(one for one, run in runs.items() if run.spec.alpha == 10.0 and run.spec.test == "never")
    del runs[gone]
    _, tables = made(PAPER, Snapshot(runs), "table13")
    absent = [row for row in rows(tables["table13-trials"]) if row["Validation accuracy"].missing]
    assert absent
    assert all(row["n"].missing for row in absent)
    assert "0" not in [row["n"].text for row in rows(tables["table13-trials"])]


def test_the_option_makes_the_study_and_contradicts_given_settings(monkeypatch):
    monkeypatch.setitem(SIZES, "paper", SIZE)
    assert StudyOptions(scale="paper", seeds="42,43", fair=True).build() == FAIR
    assert StudyOptions(scale="paper", seeds="42,43").build() == PAPER
    with pytest.raises(UsageError, match="drop one of them"):
        StudyOptions(scale="paper", hyperparameters="paper", fair=True).build()
