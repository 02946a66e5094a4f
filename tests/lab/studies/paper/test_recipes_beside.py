"""What stands beside the numbers: intervals, differences from the paper, which device and versions made them."""

import dataclasses

import numpy as np
import pytest
from scipy import stats
from shown_tables import rows_by_heading

from asymtrain.lab.report.table import Range, Table
from asymtrain.lab.runs import Epoch, Run, RunSpec
from asymtrain.lab.studies.paper.comparisons import effect_of
from asymtrain.lab.studies.paper.evidence import Effect
from asymtrain.lab.studies.paper.measurements import with_origin
from asymtrain.lab.studies.paper.numbers import printed
from asymtrain.lab.studies.paper.recipe import build_result
from asymtrain.lab.studies.paper.recipes import RECIPES, accuracy
from asymtrain.lab.studies.paper.study import READINGS, SIZES, Scope
from asymtrain.lab.studies.paper.tables import (
    OPPOSITE,
    SAME,
    UNCLEAR,
    cosine_table,
    difference_cells,
    difference_columns,
    image_interval_cell,
)
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.timing import count_test_images
from asymtrain.version import VERSION
from invented_runs import invented_epoch

# One worker: they share what was trained, and whoever comes first waits for it, long on a busy machine.
pytestmark = [pytest.mark.xdist_group("paper"), pytest.mark.timeout(1800)]


def by_column(cells, *digits):
    (row,) = rows_by_heading(Table("t", "", difference_columns(*digits), (tuple(cells),)))
    return row


def test_a_change_has_the_paired_interval_and_the_difference_from_the_papers():
    plain, other = (14.0, 15.0, 17.0), (20.0, 24.0, 21.0)
    found = Effect("table3/mlp/convergence", plain, other, 100, ("a", "b", "c", "d", "e", "f"), (42, 43, 44))
    row = by_column(difference_cells(found, printed("table3/mlp/convergence")), 1, 0)
    test = stats.ttest_rel(other, plain).confidence_interval(0.95)
    assert row["Plain"].text == f"15.3 ± {np.std(plain, ddof=1):.1f}"
    assert row["Plain"].spec_ids == ["a", "c", "e"]
    assert row["Change"].text == "+6.3"
    assert row["Interval"].text == f"{test.low:+.1f} to {test.high:+.1f}"
    assert [row[f"Paper: {name}"].text for name in ("Plain", "Asymmetric", "change")] == ["15", "21", "+6"]
    assert row["Difference"].value == pytest.approx(19 / 3 - 6)


def test_one_pair_has_no_interval_and_what_the_paper_lacks_is_not_missing():
    found = Effect("x", (1.0,), (2.0,), 1, ("a", "b"), (42,))
    row = by_column(difference_cells(found, None))
    assert row["Interval"].text == "—"
    assert not any(cell.missing for cell in row.values())
    row = by_column(difference_cells(None, printed("table4/cnn/50")), 4)
    waits = {name for name, cell in row.items() if cell.missing}
    assert waits == {"Plain", "Asymmetric", "Change", "Interval", "n", "Difference"}
    assert row["Paper: change"].text == f"{-0.0242 - 0.4665:+.4f}"


@pytest.mark.parametrize("name", ["table1", "table3", "table4", "table7", "table8", "table9", "table10", "table11",
                                  "table12", "table14", "table16"])  # fmt: skip
def test_each_row_has_ours_the_papers_an_interval_and_the_difference(tiny, known, name):
    for table in RECIPES[name].make(tiny, known).tables:
        if table.name in ("table1-sizes", "table1-cosine") or table.name.endswith("-fit"):
            continue  # more about the same cells
        for shown in rows_by_heading(table):
            assert {"Plain", "Asymmetric", "Interval", "n", "Paper: Plain", "Paper: Asymmetric"} <= set(shown)
            if shown["Paper: Plain"].value is not None:
                change = shown.get("Improvement", shown.get("Change"))
                said = shown.get("Paper: improvement", shown.get("Paper: change"))
                assert shown["Difference"].value == pytest.approx(change.value - said.value)


@pytest.mark.parametrize("name", RECIPES)
def test_only_a_study_of_the_papers_training_is_titled_and_compared_as_such(name):
    """Small networks on shapes, or on a part of CIFAR, have no difference to the paper's numbers."""
    whole = build_result(RECIPES[name], Scope(sizes=SIZES["paper"]), Snapshot())
    papers = {table.name: table for table in whole.tables}
    for data, trained in (("stand-in", "shapes with"), ("cifar", "images a class")):
        quick = build_result(RECIPES[name], Scope(data=data), Snapshot())
        assert (trained in quick.title) == ("CIFAR" in whole.title)
        for table in quick.tables:
            of_paper = papers[table.name]
            assert (trained in table.title) == ("CIFAR" in of_paper.title)
            differences = [column for column in of_paper.columns if column.against_paper]
            assert [column for column in of_paper.columns if column not in differences] == list(table.columns)
            assert ("Difference: our" in of_paper.note) == bool(differences)
            assert "Difference: our" not in table.note


def answered(one):
    """Runs of a comparison with invented answers to 40 images: Plain gets half of them right, Asymmetric more."""
    rng = np.random.default_rng(0)
    right = {spec.id: rng.random(40) < (0.5 if spec.redundancy == 0 else 0.7) for spec in (*one.plain, *one.asymmetric)}
    runs = {}
    for spec in (*one.plain, *one.asymmetric):
        value = float(right[spec.id].mean())
        epoch = Epoch(1, 1.0, None, 0.5, 0.5, value, None, None, None, 0.1)
        runs[spec.id] = Run(spec, (epoch,), answers=np.packbits(right[spec.id]).tobytes())
    return Snapshot(runs), right


def test_answers_are_those_behind_the_accuracy(known, tiny):
    one = accuracy.table1_cells(tiny)[-1]
    assert count_test_images(one.plain[0]) == 40
    assert count_test_images(RunSpec(dataset="folder:of-another-machine")) == 1000
    for spec in (*one.plain, *one.asymmetric):
        run = known.runs[spec.id]
        assert run.test_accuracy == pytest.approx(np.unpackbits(np.frombuffer(run.answers, np.uint8))[:40].mean())


def test_the_interval_over_images_is_that_of_images_drawn_another_way(tiny):
    one = accuracy.table1_cells(tiny)[-1]
    known, right = answered(one)
    # Images as indices, and the sums from them.
    rng = np.random.default_rng(1)
    before, after = (sum(right[spec.id] for spec in side).astype(float) for side in (one.plain, one.asymmetric))
    drawn = rng.integers(40, size=(4000, 40))
    changes = 100 * (after[drawn].sum(1) / before[drawn].sum(1) - 1)
    cell = rows_by_heading(build_result(RECIPES["table1"], tiny, known).tables[0])[-1]["Interval over images"]
    low, high = cell.low, cell.high
    assert set(cell.spec_ids) == set(effect_of(known, one).spec_ids)
    assert (low, high) == pytest.approx(np.quantile(changes, [0.025, 0.975]), abs=0.1 * (high - low) + 0.1)


def test_without_answers_of_all_there_is_no_interval_over_images(tiny):
    one = accuracy.table1_cells(tiny)[0]
    known, _ = answered(one)
    assert isinstance(image_interval_cell(known, one).value, Range)
    runs = dict(known.runs)
    runs[one.plain[0].id] = dataclasses.replace(runs[one.plain[0].id], answers=None)
    for cell in (
        image_interval_cell(Snapshot(runs), one),
        image_interval_cell(known, dataclasses.replace(one, reading=READINGS["best"])),
    ):
        assert (cell.value, cell.missing) == (None, False)
    assert image_interval_cell(Snapshot(), one).missing


def test_a_plain_that_is_never_right_has_no_interval_over_images(tiny):
    one = accuracy.table1_cells(tiny)[0]
    epoch = Epoch(1, 1.0, None, 0.5, 0.5, 0.0, None, None, None, 0.1)
    runs = {spec.id: Run(spec, (epoch,), answers=bytes(5)) for spec in (*one.plain, *one.asymmetric)}
    assert image_interval_cell(Snapshot(runs), one).value is None


def resonant(one, cosines, gains):
    """Runs of a comparison of two epochs, with the cosines and the gains in accuracy that the seeds are given."""
    runs = {}
    for plain, asymmetric, cosine, gain in zip(one.plain, one.asymmetric, cosines, gains, strict=True):
        ends = Epoch(2, 1.0, None, 0.5, 0.5, 0.5, None, None, None, 0.1)
        runs[plain.id] = Run(plain, (ends._replace(epoch=1, test_accuracy=None), ends))
        history = [
            Epoch(number, 1.0, 0.5, 0.5, 0.5, test, cosine, cosine, cosine, 0.1, conflict=float(cosine < 0),
                  main_norm=2.0, auxiliary_norm=norm)
            for number, test, norm in ((1, None, 4.0), (2, 0.5 + gain, 1.0))
        ]  # fmt: skip
        runs[asymmetric.id] = Run(asymmetric, tuple(history))
    return Snapshot(runs)


def beside(known, one):
    (row,) = rows_by_heading(cosine_table(known, [one], "x", "x", ("Backbone", "N"), 2))
    return row


def test_the_cosine_stands_beside_the_change_and_their_signs_are_compared(tiny):
    one = accuracy.table1_cells(tiny)[0]
    up, down = [0.1, 0.11, 0.12][: len(one.plain)], [-0.1, -0.11, -0.12][: len(one.plain)]
    row = beside(resonant(one, up, down), one)
    assert row["Signs"].text == OPPOSITE
    assert row["Mean cosine"].value == pytest.approx(np.mean(up))
    assert row["Change"].value == pytest.approx(100 * np.mean(down) / 0.5)
    assert (row["Pull at first"].value, row["Pull"].value) == pytest.approx(
        (2 * one.asymmetric[0].alpha, 1.25 * one.asymmetric[0].alpha)
    )
    assert row["In conflict"].value == 0
    assert beside(resonant(one, down, down), one)["Signs"].text == SAME
    assert beside(resonant(one, down, down), one)["In conflict"].value == 1
    assert beside(resonant(one, up, [-0.1, 0.1, 0.0][: len(one.plain)]), one)["Signs"].text == UNCLEAR


def test_without_runs_the_row_of_the_cosine_says_its_alpha_only(tiny):
    row = beside(Snapshot(), accuracy.table1_cells(tiny)[0])
    assert [name for name, cell in row.items() if not cell.missing] == ["Backbone", "N", "Alpha"]


@pytest.mark.parametrize("name", ["table5", "table14", "figure4", "figure9", "identity"])
def test_what_is_only_measured_names_device_versions_and_seconds(results, name):
    result = results[name]
    assert result.runs_there == 0
    assert result.devices == ("cpu",)
    assert result.versions["asymtrain"] == VERSION
    assert result.seconds > 0


def test_seconds_of_measurements_are_summed_once(results, known, tiny):
    wanted = RECIPES["table14"].needs(tiny, known).measurements
    values = [value for one in wanted for value in known.values(one.spec, one.name).values()]
    assert results["table14"].seconds == pytest.approx(sum(value.get("seconds", 0) for value in values))
    assert sum("seconds" in value for value in values) == len(wanted)


def test_what_the_instrument_says_itself_is_kept():
    made = with_origin({2: {"x": 1}, 1: {"x": 0, "seconds": 5.0}}, "cpu", 9.0)
    assert made[2] == {"x": 1}
    assert (made[1]["seconds"], made[1]["device"], made[1]["x"]) == (5.0, "cpu", 0)
    assert with_origin({}, "cpu", 9.0) == {}


def test_older_measurements_without_versions_still_make_a_result(known, tiny):
    old = {
        key: {
            epoch: {k: v for k, v in value.items() if k not in ("versions", "seconds", "device")}
            for epoch, value in values.items()
        }
        for key, values in known.measured.items()
    }
    result = build_result(RECIPES["identity"], tiny, dataclasses.replace(known, measured=old))
    assert (result.devices, result.versions, result.seconds, result.is_complete) == ((), {}, 0, True)


def test_at_equal_settings_the_paper_stands_only_beside_the_row_that_has_them(results):
    equal = next(table for table in results["table1"].tables if table.name == "table1-equal")
    rows = rows_by_heading(equal)
    assert {row["N"].text for row in rows if row["Paper: improvement"].value is not None} == {"20x"}
    assert len([row for row in rows if row["N"].text == "20x"]) == 3


def test_convergence_over_all_epochs_is_not_cut_at_100():
    """Accuracy rises to epoch 180 without branches and to 150 with them."""
    study = Scope(sizes=SIZES["paper"], seeds=(42, 43))
    runs = {}
    for spec in RECIPES["table3"].needs(study, Snapshot()).specs:
        top = 150 if spec.redundancy else 180
        history = tuple(invented_epoch(at, min(at, top) / 200, None, None) for at in range(1, 201))
        runs[spec.id] = Run(spec, history)
    found = build_result(RECIPES["table3"], study, Snapshot(runs)).evidence["primary"]
    whole, cut = found["convergence/vit"], found["table3/vit/convergence"]
    assert (whole.plain, whole.asymmetric, whole.epochs) == ((179, 179), (149, 149), 200)
    assert (cut.plain, cut.asymmetric, cut.epochs) == ((100, 100), (100, 100), 100)
