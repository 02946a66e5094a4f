"""What alternate readings change, and what they leave."""

import dataclasses

import pytest

from asymtrain.lab.studies.paper.evidence import accuracy
from asymtrain.lab.studies.paper.recipe import RecipeResult, build_result
from asymtrain.lab.studies.paper.recipes import RECIPES
from asymtrain.lab.studies.paper.recipes.accuracy import table10_cells, table16_cells
from asymtrain.lab.studies.paper.spec_index import index_specs, specs_behind
from asymtrain.lab.studies.paper.study import READINGS, SIZES, Scope, parse_readings
from asymtrain.lab.studies.paper.verdicts import gather
from asymtrain.lab.studies.snapshot import Snapshot
from invented_runs import invent

# One worker: they share what was trained, and whoever comes first waits for it, long on a busy machine.
pytestmark = [pytest.mark.xdist_group("paper"), pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def readings(every_reading, known):
    return {name: build_result(recipe, every_reading, known) for name, recipe in RECIPES.items()}


def test_best_and_instruments_need_no_other_training(readings):
    assert set(readings["table1"].evidence["best"]) == set(readings["table1"].evidence["primary"])
    assert set(readings["table2"].evidence["instruments"]) == set(readings["table2"].evidence["primary"])
    assert set(readings["table5"].evidence["instruments"]) == set(readings["table5"].evidence["primary"])


def test_best_is_the_test_accuracy_at_the_best_validation_epoch(readings, known):
    effect = readings["table1"].evidence["best"]["table1/cnn/7"]
    for i, spec_id in enumerate(effect.spec_ids[::2]):
        epochs = known.runs[spec_id].history
        best = max(epochs, key=lambda epoch: (epoch.validation_accuracy, -epoch.epoch))
        assert effect.plain[i] == best.test_accuracy


def test_instruments_takes_the_detached_cosine_and_directions_of_unit_norm(readings, known):
    cosine = readings["table2"].evidence["instruments"]["table2/mlp/average"]
    assert {known.runs[one].spec.signal for one in cosine.spec_ids} == {"detached"}
    flat = readings["table5"].evidence["instruments"]["table5/mlp/300/std_loss"]
    assert all(after < before for before, after in zip(flat.plain, flat.asymmetric, strict=True))
    same = readings["table5"].evidence["primary"]["table5/mlp/300/std_loss"]
    assert same.plain == same.asymmetric
    assert (same.same, flat.same) == (True, False)


def test_what_was_not_trained_is_missing_and_no_evidence(readings):
    assert "sum" not in readings["table9"].evidence
    for table in readings["table9"].tables:
        shown = [row for row in table.rows if row[1].value == "losses summed over classes"]
        assert len(shown) == 7
        assert all(row[2].missing for row in shown)


def test_the_reading_of_the_schedule_is_of_the_tables_that_it_changes(readings):
    """Elsewhere its specs are the primary reading's, and rows under its name would be of other runs."""
    title = READINGS["ordinary"].title
    shown = {
        table.name
        for result in readings.values()
        for table in result.tables
        if any(cell.value == title for row in table.rows for cell in row)
    }
    assert shown == {"table1", "table1-cosine", "table1-sizes", "table3-convergence", "table3-final"}
    assert "ordinary" not in readings["table14"].evidence | readings["figure9"].evidence


def test_rows_of_one_reading_are_corrected_for_that_reading_alone(readings, results):
    many, few = readings["table1"].tables[0], results["table1"].tables[0]
    primary = [row for row in many.rows if row[2].value == "primary reading"]
    assert [row[3:] for row in primary] == [row[2:] for row in few.rows]


def test_a_cell_that_a_reading_does_not_touch_is_the_primary_ones():
    def result(**evidence):
        return RecipeResult("name", "title", "question", "how", (), (), evidence)

    found = gather(
        [
            result(primary={"table1/vit/20": 1, "table1/cnn/1": 2}, best={"table1/vit/20": 3}),
            result(primary={"table2/vit/average": 4}, sum={"table2/vit/average": 5}),
        ]
    )
    assert found["best"] == {"table1/vit/20": 3, "table2/vit/average": 4}  # of its own table, nothing is borrowed
    assert found["sum"] == {"table2/vit/average": 5}  # it trains otherwise: nothing is borrowed
    assert "instruments" not in found


def test_the_papers_settings_in_place_of_a_search(tiny):
    study = Scope(sizes=tiny.sizes, hyperparameters="paper")
    for recipe in (RECIPES["table10"], RECIPES["table16"]):
        needs = recipe.needs(study, Snapshot())
        assert not any(needs.later.values())
        assert {spec.seed for spec in needs.specs} == {42, 43}
    (cnn,) = [one for one in table10_cells(study, Snapshot()) if one.label == "table10/cnn"]
    assert (cnn.asymmetric[0].weight_decay, cnn.asymmetric[0].alpha) == (0.01, 100.0)


def test_table_16_searches_each_side_and_trains_three_branches(tiny, known):
    cells = {one.label: one for one in table16_cells(tiny, known)}
    every, one = cells["table16/all/vit"].asymmetric[0], cells["table16/one/vit"].asymmetric[0]
    assert (every.redundancy, every.activation) == (3, "all")
    assert (one.redundancy, one.activation) == (1, "last")
    trials = RECIPES["table16"].needs(tiny, Snapshot()).specs
    assert {spec.redundancy for spec in trials} == {0, 1, 3}
    assert all(spec.test == "never" for spec in trials)


def test_a_finished_search_is_counted_once_for_all_that_wait_for_it(tiny, known):
    later = {}
    for name in ("table7", "table10", "table11", "table13"):
        later |= RECIPES[name].needs(tiny, Snapshot()).later
    searches = [name for _, name in later if name.startswith("gold")]
    assert len(searches) == 6  # two datasets, three backbones
    done = dataclasses.replace(known, measured={})
    assert not any(RECIPES["table10"].needs(tiny, done).later.values())


@pytest.mark.parametrize("name", ["table1", "table2", "table5"])
def test_what_a_claim_comes_to_does_not_depend_on_the_readings_that_are_shown(name, tiny, every_reading, known):
    shown, every = (build_result(RECIPES[name], study, known) for study in (tiny, every_reading))
    assert shown.evidence == every.evidence
    assert set(every.evidence) > {"primary"}
    assert len(every.tables[0].rows) > len(shown.tables[0].rows) or name == "table5"  # its views are always there


def test_runs_of_a_reading_that_is_not_shown_can_be_linked_to(tiny, every_reading, known):
    """A verdict may rest on them; the page lists those that it does rest on, with their fields."""
    hidden = next(spec for spec in RECIPES["table1"].needs(every_reading, known).specs if spec.class_reduction == "sum")
    spec = RECIPES["table1"].needs(tiny, known).specs[0]
    rows = Snapshot({**known.runs, hidden.id: dataclasses.replace(known.runs[spec.id], spec=hidden)})
    behind = specs_behind([RECIPES["table1"]], tiny, rows)
    assert hidden not in behind.specs["table1"]
    for used in ([spec.id], [spec.id, hidden.id]):
        index = index_specs([used], behind)
        listed = {one: listing for listing in index.listings for one, _, _ in listing.specs}
        assert (hidden.id in listed) == (hidden.id in used)
    assert "sum" in listed[hidden.id].fields
    assert not [listing for listing in index.listings if listing.title == "Other specs"]


def test_last20_is_the_mean_test_accuracy_of_the_last_20_epochs(readings, known):
    effect = readings["table1"].evidence["last20"]["table1/cnn/7"]
    assert set(readings["table1"].evidence["last20"]) == set(readings["table1"].evidence["primary"])
    for i, spec_id in enumerate(effect.spec_ids[::2]):
        tested = [epoch.test_accuracy for epoch in known.runs[spec_id].history]
        assert effect.plain[i] == pytest.approx(sum(tested) / len(tested))  # the tiny study has fewer epochs than 20
    run = known.runs[effect.spec_ids[0]]
    epochs = [run.history[0]._replace(test_accuracy=share) for share in (0.9, *[0.1] * 10, *[0.2] * 10)]
    assert accuracy(dataclasses.replace(run, history=tuple(epochs)), READINGS["last20"]) == pytest.approx(0.15)


def test_half_of_a_run_whose_rate_falls_is_no_run():
    """Table 3 takes the first 100 epochs of the paper's runs, and all of those of the reading `ordinary`."""
    study = Scope(sizes=SIZES["paper"], readings=parse_readings(["ordinary"]), seeds=(42, 43), epochs=150)
    specs = RECIPES["table3"].needs(study, Snapshot()).specs
    result = build_result(RECIPES["table3"], study, Snapshot({spec.id: invent(spec) for spec in specs}))
    for reading, schedule, epochs in (("primary", "constant", 100), ("ordinary", "cosine", 150)):
        final = result.evidence[reading]["table3/cnn/final"]
        runs = {spec.id: spec for spec in specs}
        assert {runs[one].schedule for one in final.spec_ids} == {schedule}
        assert final.epochs == epochs
        for final_accuracy, one in zip(final.plain, final.spec_ids[::2], strict=True):
            assert final_accuracy == invent(runs[one]).history[epochs - 1].validation_accuracy
    assert not {"cosine"} & {spec.schedule for spec in RECIPES["table4"].needs(study, Snapshot()).specs}


def test_what_is_measured_has_a_title_of_its_own_under_every_reading():
    study = Scope(sizes=SIZES["paper"], readings=parse_readings(["every"]))
    needs = (recipe.needs(study, Snapshot()).measurements for recipe in RECIPES.values())
    wanted = {(one.spec.id, one.name): one.title for measurements in needs for one in measurements}
    assert len(set(wanted.values())) == len(wanted)
    title = "attention of vit asymmetric seed 42, of the class token"
    assert {title, f"{title}, losses summed over classes", f"{title}, all branches active"} <= set(wanted.values())
