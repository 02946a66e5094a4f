"""From the paper's words to specs: which runs are the same run, and what a scale means."""

import dataclasses

import pytest

from asymtrain.errors import UsageError
from asymtrain.lab.runs import Epoch, Run
from asymtrain.lab.studies import timing
from asymtrain.lab.studies.paper.numbers import hyperparameters
from asymtrain.lab.studies.paper.recipes import RECIPES, accuracy, choose
from asymtrain.lab.studies.paper.study import (
    ALTERNATES,
    PRIMARY,
    READINGS,
    SIZES,
    Scope,
    asymmetric_spec,
    data_fields,
    few_shot_size,
    parse_readings,
    plain_spec,
    table_values,
)
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.timing import estimate, has_rates, image_steps

PAPER = Scope(sizes=SIZES["paper"])
QUICK = Scope(sizes=SIZES["quick"])


def test_at_the_papers_scale_a_spec_is_table_13s():
    values = table_values(PAPER, "cnn", 10)
    spec = asymmetric_spec(PAPER, PRIMARY, "cnn", "cifar100", values, 10)
    assert (spec.dataset, spec.epochs, spec.batch, spec.arch_options) == ("cifar100", 200, 128, ())
    assert (spec.learning_rate, spec.weight_decay, spec.alpha) == (3e-4, 1e-3, 1.0)
    assert (spec.validation, spec.augmentation, spec.schedule, spec.class_reduction) == (
        "split",
        "none",
        "constant",
        "mean",
    )
    assert PAPER.seeds == tuple(range(42, 52))
    assert values == hyperparameters("cnn", 10)


def test_with_one_live_branch_n_does_not_make_another_run():
    values = table_values(PAPER, "mlp", 20)
    specs = {asymmetric_spec(PAPER, PRIMARY, "mlp", "cifar100", values, n) for n in (1, 7, 10, 20)}
    assert len(specs) == 1
    assert specs.pop().redundancy == 1
    every = [asymmetric_spec(PAPER, READINGS["all"], "mlp", "cifar100", values, n) for n in (1, 7, 10, 20)]
    assert [spec.redundancy for spec in every] == [1, 7, 10, 20]
    assert [spec.activation for spec in every] == ["last", "all", "all", "all"]


def test_table_1_at_the_papers_scale_is_the_issues_list_of_runs():
    specs = RECIPES["table1"].needs(PAPER, Snapshot()).specs
    settings = {(spec.arch, spec.weight_decay, spec.alpha) for spec in specs if spec.redundancy}
    assert settings == {
        ("mlp", 0.001, 100.0), ("mlp", 0.001, 0.1),
        ("cnn", 0.01, 100.0), ("cnn", 0.001, 0.1), ("cnn", 0.001, 1.0),
        ("vit", 0.1, 4.642), ("vit", 0.01, 4.642), ("vit", 0.01, 1.0),
    }  # fmt: skip
    assert len(specs) == 10 * (8 + 5)


@pytest.mark.parametrize("name", ["table3", "table4", "figure3", "figure8"])
def test_trajectories_rest_on_table_1(name):
    mine = set(RECIPES[name].needs(PAPER, Snapshot()).specs)
    assert mine <= set(RECIPES["table1"].needs(PAPER, Snapshot()).specs)


def test_all_images_of_a_class_are_the_noise_tables_clean_runs():
    known = Snapshot()
    few = accuracy.swept_cells(PAPER, known, "table8")[-1]
    clean = accuracy.swept_cells(PAPER, known, "table12")[0]
    assert few.label == "table8/mlp/500"
    assert few.plain == clean.plain
    assert few.asymmetric == clean.asymmetric
    assert clean.plain[0].validation == "none"


def test_sum_changes_asymmetric_alone():
    (cell,) = [one for one in accuracy.table1_cells(Scope(sizes=SIZES["paper"], readings=parse_readings(["sum"])))
               if one.reading.name == "sum" and one.label == "table1/vit/20"]  # fmt: skip
    assert {spec.class_reduction for spec in cell.asymmetric} == {"sum"}
    (primary,) = [one for one in accuracy.table1_cells(PAPER) if one.label == "table1/vit/20"]
    assert cell.plain == primary.plain


def test_best_needs_no_run_of_its_own():
    best = Scope(sizes=SIZES["paper"], readings=parse_readings(["best"]))
    for recipe in RECIPES.values():
        assert set(recipe.needs(best, Snapshot()).specs) == set(recipe.needs(PAPER, Snapshot()).specs)


@pytest.mark.parametrize(
    ("epochs", "paper", "ours"), [(200, 10, 10), (200, 100, 100), (100, 50, 50), (40, 50, 20), (6, 10, 1), (1, 100, 1)]
)
def test_epochs_keep_their_share_of_a_shorter_run(epochs, paper, ours):
    assert Scope(sizes=SIZES["paper"], epochs=epochs).at(paper) == ours


def test_trials_of_a_search_keep_their_share():
    assert PAPER.search_epochs == 150
    assert Scope(sizes=SIZES["paper"], epochs=20).search_epochs == 15


def test_what_stands_in_is_said():
    assert PAPER.stand_in == ""
    assert "shapes" in QUICK.stand_in
    assert data_fields(QUICK, "cifar100")["dataset"] == "shapes"
    real = Scope(sizes=SIZES["quick"], data="cifar")
    assert data_fields(real, "cifar100") == {"dataset": "cifar100", "per_class": 20}
    assert "CIFAR" in real.stand_in


def test_few_shot_of_a_part_of_cifar_never_exceeds_the_part():
    real = Scope(sizes=SIZES["quick"], data="cifar")
    sizes = [few_shot_size(real, "cifar100", size) for size in (5, 100, 200, 500)]
    assert sizes == [2, 4, 8, None]
    spec = plain_spec(real, "mlp", "cifar100", table_values(real, "mlp", 1), per_class=None)
    assert spec.per_class == 20


def test_seeds_of_the_search_are_refused():
    with pytest.raises(UsageError, match="seed 1000 is one of the search's"):
        Scope(sizes=SIZES["quick"], seeds=(42, 1000))


def test_readings_by_name():
    assert parse_readings([]) == (PRIMARY,)
    assert [reading.name for reading in parse_readings(["best,sum"])] == ["primary", "sum", "best"]
    assert parse_readings(["every"]) == tuple(READINGS.values())
    assert len(ALTERNATES) <= 4
    with pytest.raises(UsageError, match="did you mean 'best'"):
        parse_readings(["bets"])
    with pytest.raises(UsageError, match="each reading once"):
        parse_readings(["sum", "sum"])


@pytest.mark.parametrize("name", ["table15", "Table 15", "TABLE_2", "figure-2", "table02"])
def test_recipes_by_the_papers_names(name):
    (recipe,) = choose([name])
    assert recipe.name == "table2"


def test_recipes_all_or_a_list():
    assert choose(["all"]) == tuple(RECIPES.values())
    assert [recipe.name for recipe in choose(["table6", "table5", "table1"])] == ["table5", "table1"]
    with pytest.raises(UsageError, match=r"table18.*table17.*figure9"):
        choose(["table18"])


def test_an_estimate_rests_on_like_runs_where_there_are_some():
    spec = plain_spec(PAPER, "vit", "cifar100", table_values(PAPER, "vit", 20))
    # 40,000 trained on, 10,000 validated and 10,000 tested in each epoch.
    assert image_steps(spec) == pytest.approx(200 * (40_000 + 20_000 / 3))
    rule = estimate([spec], Snapshot(), "cuda", 1, small=False)
    assert (rule.like, rule.seconds) == (0, pytest.approx(image_steps(spec) / 227e3))
    history = tuple(Epoch(i + 1, 1.0, None, 0.5, 0.5, 0.5, None, None, None, 2.0) for i in range(3))
    known = Snapshot({"x": Run(spec, history, device="NVIDIA H200")})
    like = estimate([spec, spec], known, "cuda", 2, small=False)
    assert (like.like, like.seconds) == (2, pytest.approx(200 * 2.0))
    assert "like runs" in like.basis
    slow = Run(dataclasses.replace(spec, seed=43), tuple(one._replace(seconds=9.0) for one in history))
    beside = Snapshot({**known.runs, "y": dataclasses.replace(slow, device="NVIDIA H200")})  # other work on the GPU
    assert estimate([spec, spec], beside, "cuda", 2, small=False) == like
    # A CPU's seconds say nothing of a GPU's.
    assert estimate([spec], known, "cpu", 1, small=False).like == 0


def test_the_rates_of_a_store_are_computed_once_for_many_estimates(monkeypatch):
    asked = []
    monkeypatch.setattr(timing, "image_steps", lambda spec, epochs=None: asked.append(epochs) or 1.0)
    spec = plain_spec(PAPER, "vit", "cifar100", table_values(PAPER, "vit", 20))
    history = (Epoch(1, 1.0, None, 0.5, 0.5, 0.5, None, None, None, 2.0),)
    known = Snapshot({"x": Run(spec, history, device="NVIDIA H200")})
    for _ in range(3):
        estimate([spec], known, "cuda", 1, small=False)
        assert has_rates([spec], known, "cuda")
    assert len([epochs for epochs in asked if epochs is not None]) == 1  # those of the stored run
