"""The numbers in the tables against plain computations from the rows."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats
from shown_tables import rows_by_heading

from asymtrain.lab.runs import Epoch, Run
from asymtrain.lab.studies.paper import tables
from asymtrain.lab.studies.paper.comparisons import effect_of
from asymtrain.lab.studies.paper.measurements import landscapes_wanted
from asymtrain.lab.studies.paper.recipe import build_result
from asymtrain.lab.studies.paper.recipes import RECIPES, accuracy, training
from asymtrain.lab.studies.paper.searches import gold_search
from asymtrain.lab.studies.paper.study import PRIMARY, READINGS, SIZES, Scope
from asymtrain.lab.studies.paper.tables import effect_table, sizes_table
from asymtrain.lab.studies.snapshot import Snapshot

# One worker: they share what was trained, and whoever comes first waits for it, long on a busy machine.
pytestmark = [pytest.mark.xdist_group("paper"), pytest.mark.timeout(1800)]


def cells(table, **heading):
    """The row whose first cells read as given, by the names of the columns."""
    (found,) = [row for row in rows_by_heading(table) if all(row[name].text == text for name, text in heading.items())]
    return found


def test_table_1_against_numpy_and_scipy(tiny, known):
    table, *_ = RECIPES["table1"].make(tiny, known).tables
    row = cells(table, Backbone="ViT", N="7x")
    runs = [known.runs[one] for one in row["Improvement"].spec_ids]
    plain = np.array([run.test_accuracy for run in runs if run.spec.redundancy == 0])
    other = np.array([run.test_accuracy for run in runs if run.spec.redundancy == 1])
    # Table 13 at N = 7.
    assert {(run.spec.weight_decay, run.spec.alpha) for run in runs} == {(0.01, 0.0), (0.01, 4.642)}
    assert [run.spec.seed for run in runs] == [42, 42, 43, 43]
    assert row["Plain"].value == pytest.approx(plain.mean())
    assert row["Plain"].text == f"{plain.mean():.3f} ± {plain.std(ddof=1):.3f}"
    assert row["Improvement"].value == pytest.approx(100 * (other - plain).mean() / plain.mean())
    # Of 40 images, two seeds may well differ by the same number: then there is no spread to test by.
    mean, error = (other - plain).mean(), np.abs(np.diff(other - plain)[0]) / 2
    if error > 1e-9:
        assert row["p"].value == pytest.approx(min(1.0, 12 * 2 * stats.t.sf(abs(mean) / error, 1)))
    reach = stats.t.ppf(1 - 0.025 / 12, 1) * (error if error > 1e-9 else 0.0)
    assert (row["Interval"].low, row["Interval"].high) == pytest.approx(
        (100 * (mean - reach) / plain.mean(), 100 * (mean + reach) / plain.mean()), abs=1e-6
    )
    assert row["Paper: improvement"].text == "+11.3%"
    assert row["Difference"].value == pytest.approx(row["Improvement"].value - 11.3)


def test_effect_sizes_against_numpy_and_scipy():
    plain, other = np.array([0.40, 0.42, 0.41, 0.43, 0.44, 0.40]), np.array([0.45, 0.44, 0.47, 0.46, 0.45, 0.46])
    (cell,) = [one for one in accuracy.table1_cells(Scope(sizes=SIZES["paper"])) if one.label == "table1/vit/20"]
    sides = [
        [Run(spec, (Epoch(200, 1.0, None, 0.5, 0.5, value, None, None, None, 1.0),))
         for spec, value in zip(specs, values, strict=False)]
        for specs, values in ((cell.plain, plain), (cell.asymmetric, other))
    ]  # fmt: skip
    known = Snapshot({run.spec.id: run for runs in sides for run in runs})
    table = sizes_table(known, [cell, cell], "t", "T", ("Backbone", "N"))
    row = cells(dataclasses.replace(table, rows=table.rows[:1]), Backbone="ViT")
    change = other - plain
    assert row["d_z"].value == pytest.approx(change.mean() / change.std(ddof=1))
    assert row["d_av"].value == pytest.approx(change.mean() / np.mean([plain.std(ddof=1), other.std(ddof=1)]))
    assert row["In words"].text == "large"
    assert row["Wilcoxon p"].value == pytest.approx(stats.wilcoxon(change).pvalue)
    low, high = row["Bootstrap over seeds"].low, row["Bootstrap over seeds"].high
    assert 0 < low < 100 * change.mean() / plain.mean() < high
    # The least effect found in four of five studies of six pairs, by the noncentral t of a test at 5% / 2 cells.
    d = row["Detectable"].value / 100 * plain.mean() / change.std(ddof=1)
    critical = stats.t.ppf(1 - 0.025 / 2, 5)
    assert stats.nct.sf(critical, 5, d * np.sqrt(6)) == pytest.approx(0.8, abs=1e-3)
    assert row["n"].value == 6
    empty = sizes_table(Snapshot(), [cell], "t", "T", ("Backbone", "N")).rows[0]
    assert all(cell.missing for cell in empty[2:])


def test_at_equal_settings_the_rows_of_a_backbone_are_one_run(results):
    _, equal, *_ = results["table1"].tables
    for name in ("MLP", "CNN", "ViT"):
        rows = [row for row in equal.rows if row[0].value == name]
        assert len(rows) == 4
        assert len({row[4].spec_ids for row in rows}) == 1


def test_the_gap_and_convergence_are_those_of_the_histories(results, tiny, known):
    (table,) = results["table4"].tables
    row = cells(table, Backbone="CNN", Epoch="2")
    runs = [known.runs[one] for one in row["Asymmetric"].spec_ids]
    gaps = [run.history[1].train_accuracy - run.history[1].validation_accuracy for run in runs]
    assert row["Asymmetric"].value == pytest.approx(sum(gaps) / 2)
    convergence, final = results["table3"].tables
    row = cells(convergence, Backbone="MLP")
    firsts = []
    for one in row["Plain"].spec_ids:
        seen = [epoch.validation_accuracy for epoch in known.runs[one].history]
        firsts.append(1 + next(i for i, value in enumerate(seen) if value >= 0.99 * max(seen)))
    assert row["Plain"].value == pytest.approx(sum(firsts) / 2)
    row = cells(final, Backbone="MLP")
    last = [known.runs[one].history[-1].validation_accuracy for one in row["Plain"].spec_ids]
    assert row["Plain"].value == pytest.approx(sum(last) / 2)


def test_cosines_are_those_of_the_histories(results, known):
    (table,) = results["table2"].tables
    row = cells(table, Backbone="ViT", Branches="as trained")
    runs = [known.runs[one] for one in row["Average"].spec_ids]
    means = [np.mean([epoch.cosine for epoch in run.history]) for run in runs]
    assert row["Average"].value == pytest.approx(np.mean(means))
    assert row["Least"].value == pytest.approx(np.mean([min(e.cosine_min for e in run.history) for run in runs]))
    detached = cells(table, Backbone="ViT", Branches="on detached features")
    ids = detached["Average"].spec_ids
    assert {known.runs[one].spec.signal for one in ids} == {"detached"}


def test_landscape_changes_against_the_rows(results, known):
    table = next(table for table in results["table5"].tables if table.name == "table5")
    row = cells(table, Directions="all parameters, unit norm", N="300x")
    changes = []
    for one in row["Deviation"].spec_ids:
        (values,) = [
            value[0]
            for (spec, name), value in known.measured.items()
            if spec == one and "rows" in value.get(0, {}) and "loss=total" not in name
        ]
        view = [r for r in values["rows"] if (r["directions"], r["scaling"]) == ("all", "norm")]
        mean = {n: np.mean([r["std"] for r in view if r["redundancy"] == n]) for n in (0, 300)}
        changes.append(100 * (mean[300] / mean[0] - 1))
        counts = {r["redundancy"]: r["parameters"] for r in view}
    assert row["Change"].value == pytest.approx(np.mean(changes))
    assert row["By parameter count"].value == pytest.approx(100 * (math.sqrt(counts[0] / counts[300]) - 1))
    # Directions of unit variance move every weight as far at every N: the surface is the same.
    same = cells(table, Directions="all parameters, unit variance", N="300x")
    assert same["Change"].value == 0
    assert same["Interval"].text == "—"  # an identity, not a measurement
    assert row["Interval"].low < row["Interval"].high < 0


@pytest.mark.parametrize(("table", "arch", "alpha"), [("table5", "MLP", "0.1"), ("table6", "ViT", "1")])
def test_the_total_loss_stands_beside_the_main_loss(results, known, table, arch, alpha):
    shown = {one.name: one for one in results["table5"].tables}
    here = {"Backbone": arch, "Directions": "all parameters, unit norm", "N": "20x"}
    row, main = cells(shown[f"{table}-total"], **here), cells(shown[table], **here)
    ids = row["Deviation, total loss"].spec_ids
    name = f"landscape grid=3 sample=10 draws=2 loss=total alpha={alpha} N=0+1+20+300"
    spreads = {0: [], 20: []}
    for one in ids:
        view = [r for r in known.measured[one, name][0]["rows"] if (r["directions"], r["scaling"]) == ("all", "norm")]
        for level, values in spreads.items():
            values.append(np.mean([r["std"] for r in view if r["redundancy"] == level]))
    assert len(ids) == row["n"].value == 2
    assert row["Alpha"].text == alpha
    assert row["Deviation, total loss"].value == pytest.approx(np.mean(spreads[20]))
    changes = 100 * (np.array(spreads[20]) / np.array(spreads[0]) - 1)
    assert row["Change, total loss"].value == pytest.approx(changes.mean())
    assert (row["Deviation, main loss"].value, row["Change, main loss"].value) == (
        main["Deviation"].value,
        main["Change"].value,
    )
    assert row["Deviation, total loss"].value != row["Deviation, main loss"].value
    plain = cells(shown[f"{table}-total"], **{**here, "N": "Plain"})
    assert plain["Deviation, total loss"].value == pytest.approx(plain["Deviation, main loss"].value)
    assert plain["Alpha"].value is None


def test_losses_are_compared_on_the_networks_that_have_both(known, tiny):
    one = landscapes_wanted(tiny, known, "cnn", "cifar100", "total")[0]
    part = {key: values for key, values in known.measured.items() if key != (one.spec.id, one.name)}
    made = build_result(RECIPES["table5"], tiny, dataclasses.replace(known, measured=part))
    shown = {table.name: table for table in made.tables}
    here = {"Backbone": "CNN", "Directions": "all parameters, unit norm", "N": "300x"}
    both, main = cells(shown["table6-total"], **here), cells(shown["table6"], **here)
    assert (both["n"].value, main["n"].value) == (1, 2)
    assert both["Deviation, main loss"].value != main["Deviation"].value
    assert one.spec.id not in both["Deviation, main loss"].spec_ids


def test_no_verdict_rests_on_the_total_loss(results, known, tiny):
    main_only = {key: values for key, values in known.measured.items() if "loss=total" not in key[1]}
    made = build_result(RECIPES["table5"], tiny, dataclasses.replace(known, measured=main_only))
    assert made.evidence == results["table5"].evidence
    assert made.missing_count == 2 * 12 * 7 + 12 * 7 == 252  # of the total loss alone


def test_attention_is_the_mean_over_seeds(results, known, tiny):
    for table, scope in zip(results["table14"].tables, ("mean", "rollout"), strict=True):
        row = cells(table, Metric="Map entropy (nats)", Epoch=str(tiny.at(100)))
        ids = row["Asymmetric"].spec_ids
        found = [value for (spec, _), value in known.measured.items() if spec in ids]
        means = [value[tiny.at(100)]["scopes"][scope]["entropy"][0] for value in found if tiny.at(100) in value]
        assert len(ids) == 2
        assert row["Asymmetric"].value == pytest.approx(np.mean(means))


def test_identities_are_exact(results):
    (table,) = results["identity"].tables
    assert [[cell.value for cell in row[1:]] for row in table.rows] == [[0.0, 0.0, 0.0]] * 3


def test_the_search_chooses_by_validation_and_table_10_takes_it(results, known, tiny):
    search = gold_search(tiny, "cnn", "cifar10")
    trials = [run for run in known.runs.values() if run.spec.seed == 1000 and run.spec.arch == "cnn"]
    options = search.base.dataset_options
    plain = [run for run in trials if run.spec.redundancy == 0 and run.spec.dataset_options == options]
    first = [run for run in plain if run.spec.weight_decay == 1e-3]
    best = max(first, key=lambda run: (run.best_validation.validation_accuracy, -run.spec.learning_rate))
    used = {
        spec.learning_rate for one in accuracy.table10_cells(tiny, known) for spec in one.plain if spec.arch == "cnn"
    }
    assert used == {best.spec.learning_rate}
    chosen = next(table for table in results["table13"].tables if table.name == "table13")
    shown = {row[3].value for row in chosen.rows if row[0].value.endswith("CIFAR-10)") and row[1].value == "CNN"}
    assert shown == used


def fake_run(spec, accuracies, outcome="finished"):
    history = tuple(
        Epoch(i + 1, 1.0, None, 0.5, validation, test, None, None, None, 0.1)
        for i, (validation, test) in enumerate(accuracies)
    )
    return Run(spec, history, outcome)


def test_a_diverged_run_counts_at_chance_and_the_best_epoch_is_by_validation(tiny):
    one = dataclasses.replace(accuracy.table1_cells(tiny)[0], paper=None)
    runs = {}
    for plain, other in zip(one.plain, one.asymmetric, strict=True):
        runs[plain.id] = fake_run(plain, [(0.9, 0.6), (0.5, 0.4)])
        runs[other.id] = fake_run(other, [(0.3, 0.3)], "diverged")
    known = Snapshot(runs)
    effect = effect_of(known, one)
    assert effect.plain == (0.4, 0.4)
    assert effect.asymmetric == (0.25, 0.25)
    best = effect_of(known, dataclasses.replace(one, reading=READINGS["best"]))
    assert best.plain == (0.6, 0.6)
    assert best.stand_in
    table = effect_table(known, [one], "name", "title", ("Backbone", "N"))
    assert cells(table, Backbone="MLP")["Improvement"].value == pytest.approx(100 * (0.25 - 0.4) / 0.4)


def test_one_seed_has_a_number_and_no_interval(tiny, known):
    study = Scope(sizes=tiny.sizes, seeds=(42,))
    table = effect_table(known, accuracy.table1_cells(study), "name", "title", ("Backbone", "N"))
    for shown in rows_by_heading(table):
        assert shown["n"].text == "1"
        assert shown["Interval"].text == "—"
        assert not shown["Interval"].missing


def test_pairs_that_are_half_there_are_left_out(tiny, known):
    one = training.comparisons(tiny)[0]
    runs = {spec_id: run for spec_id, run in known.runs.items() if spec_id != one.plain[0].id}
    effect = effect_of(Snapshot(runs), dataclasses.replace(one, reading=PRIMARY))
    assert effect.seeds == (43,)


def test_training_accuracies_stand_beside_a_swept_table(results, known):
    for name in ("table7", "table8", "table9", "table11", "table12"):
        shown, fitted = results[name].tables
        assert fitted.name == f"{name}-fit"
        assert [row[0] for row in fitted.rows] == [row[0] for row in shown.rows]
        for row in rows_by_heading(fitted):
            _, plain, asymmetric, n = row.values()
            assert n.value == len(plain.spec_ids) == len(asymmetric.spec_ids)
            for cell, branches in ((plain, False), (asymmetric, True)):
                runs = [known.runs[one] for one in cell.spec_ids]
                assert {run.spec.redundancy > 0 for run in runs} == {branches}
                assert cell.value == pytest.approx(np.mean([run.history[-1].train_accuracy for run in runs]))


def test_tables_are_made_of_the_readings_that_are_shown_alone(tiny, known, monkeypatch):
    asked = []
    monkeypatch.setattr(tables, "bootstrap_seeds", lambda *sides: asked.append(sides) or (0.0, 1.0))
    result = build_result(RECIPES["table1"], tiny, known)
    (sizes,) = [table for table in result.tables if table.name == "table1-sizes"]
    number = [column.name for column in sizes.columns].index("Bootstrap over seeds")
    assert len(asked) == sum(row[number].value is not None for row in sizes.rows) > 0
    assert {"best", "last20"} <= result.evidence.keys()  # other readings of the same runs
    asked.clear()
    assert build_result(RECIPES["table1"], tiny, known, with_tables=False).evidence == result.evidence  # for verdicts
    assert not asked
