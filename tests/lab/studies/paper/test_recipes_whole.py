"""Every recipe, from nothing to a table without an empty place."""

import dataclasses

import pytest

from asymtrain.lab import executors
from asymtrain.lab.instruments.landscape.measure import measure_losses
from asymtrain.lab.report.drawing import draw
from asymtrain.lab.store import Store
from asymtrain.lab.studies.frame import check_ready, missing, run_parts
from asymtrain.lab.studies.paper import STUDY as PAPER
from asymtrain.lab.studies.paper.claims import claims
from asymtrain.lab.studies.paper.measurements import take
from asymtrain.lab.studies.paper.recipe import build_result, parts_of
from asymtrain.lab.studies.paper.recipes import RECIPES, aliases
from asymtrain.lab.studies.paper.study import ARCHS, SIZES, Scope
from asymtrain.lab.studies.paper.verdicts import gather, judge_results
from asymtrain.lab.studies.snapshot import Snapshot, read_store

# One worker: they share what was trained, and whoever comes first waits for it, long on a busy machine.
pytestmark = [pytest.mark.xdist_group("paper"), pytest.mark.timeout(1800)]


@pytest.mark.parametrize("name", RECIPES)
def test_no_place_is_empty(results, name):
    result = results[name]
    assert result.missing_count == 0
    assert result.is_complete
    assert result.tables or result.figures
    for table in result.tables:
        assert table.rows
        assert all(text for row in table.texts() for text in row[:-1])
    for figure in result.figures:
        assert draw(figure).startswith("<svg")
        assert figure.caption


def test_all_tables_and_figures_of_the_paper_are_covered():
    wanted = {f"table{n}" for n in range(1, 18)} | {f"figure{n}" for n in range(2, 10)}
    beyond = {name for name, recipe in RECIPES.items() if recipe.beyond}
    assert beyond == {"identity", "alphas", "schedules", "controls", "fitting"}
    assert set(aliases()) == wanted | beyond


def test_every_claim_has_its_evidence_and_belongs_to_one_recipe(results):
    labels = set(gather(results.values())["primary"])
    for claim in claims():
        assert set(claim.needs) <= labels, claim.id
    owners = [name for result in results.values() for name in result.claims]
    assert sorted(owners) == [claim.id for claim in claims()]


def test_two_seeds_of_a_stand_in_are_never_a_verdict(results):
    for judgement in judge_results(results.values()):
        assert judgement.verdict == "Not yet run"
        assert judgement.preliminary is not None


@pytest.mark.slow
def test_the_same_rows_give_the_same_bytes(results, tiny, known):
    for name, recipe in RECIPES.items():
        again = build_result(recipe, tiny, known)
        assert dataclasses.replace(again, figures=()) == dataclasses.replace(results[name], figures=())
        assert list(map(draw, again.figures)) == list(map(draw, results[name].figures))


def test_nothing_is_trained_or_measured_twice(kitchen, tiny, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("training began")

    monkeypatch.setattr(executors, "execute", never)
    taken = "asymtrain.lab.studies.paper.measurements.take"
    monkeypatch.setattr(taken, lambda wanted, *place: iter(list(map(never, wanted))))
    assert run_parts(PAPER, list(RECIPES.values()), tiny, kitchen).left.specs == ()
    with Store(kitchen, read_only=True) as store:
        assert {record.attempt for record in store.records(every_attempt=True)} == {1}
        assert store.pending() == []


def test_of_nothing_every_place_is_shown_as_missing(tiny):
    for recipe in RECIPES.values():
        result = build_result(recipe, tiny, Snapshot())
        assert result.missing_count > 0
        assert not result.is_complete
        assert result.evidence == {}
        assert result.runs_there == 0


def test_searches_computed_no_test_accuracy(known, tiny):
    trials = [run for run in known.runs.values() if run.spec.seed in tiny.sizes.search_seeds]
    assert trials
    assert all(epoch.test_accuracy is None for run in trials for epoch in run.history)


def test_time_that_is_over_leaves_the_rest_for_the_next_call(tiny, tmp_path):
    recipes = [RECIPES["table3"]]
    done = run_parts(PAPER, recipes, tiny, tmp_path / "runs.sqlite", minutes=1e-9)
    assert len(done.left.specs) == 12
    assert not done.interrupted


def test_ctrl_c_is_told_from_the_end(tiny, tmp_path, monkeypatch):
    def stopped(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(executors, "execute", stopped)
    assert run_parts(PAPER, [RECIPES["table3"]], tiny, tmp_path / "runs.sqlite").interrupted


def test_both_losses_of_a_network_are_measured_and_stored_together(tiny, tmp_path, monkeypatch):
    """Whoever stops after the first has the second too: it would take another pass."""
    calls = []

    def counted(*arguments, **options):
        calls.append(arguments)
        return measure_losses(*arguments, **options)

    monkeypatch.setattr("asymtrain.lab.instruments.landscape.measure.measure_losses", counted)
    wanted = RECIPES["table5"].needs(tiny, Snapshot()).measurements
    mlp = [one for one in wanted if one.spec.arch == "mlp" and one.spec.seed == 42]
    taken = take(mlp, tmp_path / "runs.sqlite", "cpu")
    assert next(taken) == mlp[0]
    known = read_store(tmp_path / "runs.sqlite")
    assert len(mlp) == 2
    assert len(calls) == 1
    main, total = (known.values(one.spec, one.name)[0] for one in mlp)
    assert ("surfaces" in main, "surfaces" in total) == (True, False)
    assert main["seconds"] == total["seconds"] > 0
    # What is there already is not measured again with the other.
    assert [
        one.name for one in missing(PAPER, parts_of([RECIPES["table5"]], tiny, ["mlp"]), tiny, known).measurements
    ] == [one.name for one in wanted if one.spec.arch == "mlp" and one.spec.seed != 42]


def test_every_reading_needs_more_runs_but_names_each_once(tiny, every_reading):
    few, many = (missing(PAPER, list(RECIPES.values()), study, Snapshot()).specs for study in (tiny, every_reading))
    assert set(few) < set(many)
    assert len(set(many)) == len(many)


def test_no_two_measurements_of_a_run_have_one_title(every_reading):
    wanted = missing(PAPER, list(RECIPES.values()), every_reading, Snapshot()).measurements
    titles = {(one.spec.id, one.title) for one in wanted}
    assert len(titles) == len(wanted)
    shown = {title for _, title in titles}
    assert {f"landscape of mlp plain seed 42, {loss} loss" for loss in ("main", "total")} <= shown
    assert {f"attention of vit plain seed 42, of {whose}" for whose in ("the class token", "all queries")} <= shown


def test_what_is_missing_of_each_backbone_adds_up(tiny):
    """What waits for a search too: the groups of `Needs.later` say the backbone."""
    recipes = list(RECIPES.values())
    whole = missing(PAPER, recipes, tiny, Snapshot())
    parts = [missing(PAPER, parts_of(recipes, tiny, [arch]), tiny, Snapshot()) for arch in ARCHS]
    assert sum(len(part.specs) for part in parts) == len(whole.specs)
    assert sum(len(part.measurements) for part in parts) == len(whole.measurements)
    assert sum(part.later for part in parts) == whole.later > 0


@pytest.mark.parametrize(
    ("archs", "datasets"), [(["vit"], {"cifar100"}), (["mlp"], {"cifar10"}), (ARCHS, {"cifar10", "cifar100"})]
)
def test_one_backbone_asks_for_its_data_alone(archs, datasets, monkeypatch):
    """Table 5 is the MLP on CIFAR-10, Table 6 the others on CIFAR-100."""
    loaded = []
    monkeypatch.setattr("asymtrain.lab.engine.load_for", lambda spec, root: loaded.append(spec.dataset))
    study = Scope(sizes=SIZES["paper"])
    parts = parts_of([RECIPES["table5"]], study, archs)
    check_ready(PAPER, "table5", parts, missing(PAPER, parts, study, Snapshot()), None)
    assert set(loaded) == datasets
    assert len(loaded) == len(datasets)


def test_three_active_branches_are_a_dose_of_their_own(tiny, every_reading):
    """Where all branches are active N acts; where one is live, a third level would be the same run."""
    doses = {
        (spec.activation, spec.redundancy)
        for spec in RECIPES["table1"].needs(every_reading, Snapshot()).specs
        if spec.redundancy
    }
    assert doses == {("last", 1), ("all", 3), ("all", 7), ("all", 10), ("all", 20)}
    assert {spec.redundancy for spec in RECIPES["table1"].needs(tiny, Snapshot()).specs} == {0, 1}


@pytest.mark.parametrize("name", ["figure3", "figure8"])
def test_curves_show_the_backbones_that_are_there(name, tiny, known):
    part = Snapshot({spec_id: run for spec_id, run in known.runs.items() if run.spec.arch != "cnn"})
    (whole,), (figure,), (nothing,) = (
        build_result(RECIPES[name], tiny, rows).figures for rows in (known, part, Snapshot())
    )
    assert "CNN" in draw(whole)
    assert "To come" not in whole.caption
    assert figure.caption.endswith("To come: CNN.")
    assert "MLP" in draw(figure)
    assert "CNN" not in draw(figure)
    assert nothing.missing
