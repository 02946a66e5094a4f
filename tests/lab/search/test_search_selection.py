"""What is chosen from which runs: hand-made tables, no training."""

import dataclasses

import pytest
from search_examples import Laboratory, base_of, finish, run_of

from asymtrain.errors import UsageError
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.search import (
    chosen_spec,
    dual_search,
    final_specs,
    gold_standard,
    replay,
)
from asymtrain.lab.search.grids import LEARNING_RATES, LOG_ALPHAS, WEIGHT_DECAYS, plain_extras


def table_rule(tables):
    """Accuracy as a sum of hand-made table entries, for the settings that the tables name."""

    def rule(spec):
        of_side = tables[spec.variant]
        return [sum(table[getattr(spec, name)] for name, table in of_side.items())]

    return rule


PLAIN = {
    "learning_rate": {1e-4: 0.20, 1e-3: 0.35, 1e-2: 0.10},
    "weight_decay": {1e-3: 0.01, 1e-2: 0.04, 1e-1: 0.02},
}
GRIDS = {"learning_rates": (1e-4, 1e-3, 1e-2), "weight_decays": (1e-3, 1e-2, 1e-1), "alphas": (0.1, 1.0, 10.0)}


def test_gold_standard_takes_the_best_of_each_table_and_carries_plains_values_over():
    alphas = {"alpha": {0.1: 0.5, 1.0: 0.4, 10.0: 0.6}}
    result = finish(gold_standard(base_of(), **GRIDS), table_rule({"plain": PLAIN, "asymmetric": alphas}))
    assert result.chosen == {
        "plain": {"learning_rate": 1e-3, "weight_decay": 1e-2},
        "asymmetric": {"learning_rate": 1e-3, "weight_decay": 1e-2, "alpha": 10.0},
    }
    names = [(stage.stage.name, stage.stage.trains, stage.edges) for stage in result.stages]
    assert names == [
        ("learning rate", "plain", {}),
        ("weight decay", "plain", {}),
        ("alpha", "asymmetric", {"alpha": "highest"}),
    ]
    # The learning rate was searched at the fixed weight decay, the weight decay at the chosen learning rate.
    means = [[round(trial.mean, 6) for trial in stage.trials] for stage in result.stages]
    assert means == [[0.21, 0.36, 0.11], [0.36, 0.39, 0.37], [0.5, 0.4, 0.6]]


def test_the_papers_grids_are_the_default():
    search = gold_standard(base_of())
    (rates,), (decays,), (alphas,) = search.rounds
    assert [one["learning_rate"] for one in rates.candidates] == list(LEARNING_RATES)
    assert [one["weight_decay"] for one in decays.candidates] == sorted(WEIGHT_DECAYS)
    assert [one["alpha"] for one in alphas.candidates] == list(LOG_ALPHAS)
    assert [round(10 ** (-1 + i / 3), 3) for i in range(10)] == list(LOG_ALPHAS)
    assert search.epochs == 3
    assert gold_standard(base_of(epochs=200)).epochs == 150
    linear = gold_standard(base_of(dataset="cifar10", dataset_options={})).rounds[2][0]
    assert [one["alpha"] for one in linear.candidates] == [5.0 * i for i in range(11)]


def test_of_equal_values_the_smaller_is_chosen_whatever_the_order_it_was_given_in():
    grids = {**GRIDS, "learning_rates": (1e-2, 1e-4, 1e-3)}
    result = finish(gold_standard(base_of(), **grids), lambda spec: [0.5])
    assert result.chosen["asymmetric"] == {"learning_rate": 1e-4, "weight_decay": 1e-3, "alpha": 0.1}
    assert [stage.edges for stage in result.stages] == [
        {"learning_rate": "lowest"},
        {"weight_decay": "lowest"},
        {"alpha": "lowest"},
    ]


def test_a_grid_of_one_value_has_no_end_and_zero_is_called_off():
    grids = {"learning_rates": [1e-3], "weight_decays": [1e-3], "alphas": [0.0, 25.0, 50.0]}
    result = finish(gold_standard(base_of(), **grids), lambda spec: [0.5 - spec.alpha / 100])
    assert [stage.edges for stage in result.stages] == [{}, {}, {"alpha": "off"}]


def test_a_run_counts_by_its_best_epoch():
    curves = {1e-4: [0.1, 0.9, 0.2], 1e-3: [0.1, 0.2, 0.3]}
    grids = {"learning_rates": list(curves), "weight_decays": [1e-3], "alphas": [1.0]}

    def rule(spec):
        return curves[spec.learning_rate]

    assert finish(gold_standard(base_of(), **grids), rule).chosen["plain"]["learning_rate"] == 1e-4


def test_seeds_are_averaged_and_their_deviation_is_the_samples():
    by_seed = {1e-4: {7: 0.2, 8: 0.8}, 1e-3: {7: 0.55, 8: 0.55}}
    grids = {"learning_rates": list(by_seed), "weight_decays": [1e-3], "alphas": [1.0], "seeds": (7, 8, 8)}
    result = finish(gold_standard(base_of(), **grids), lambda spec: [by_seed[spec.learning_rate][spec.seed]])
    low, high = result.stages[0].trials
    assert (low.mean, low.std, low.n) == (pytest.approx(0.5), pytest.approx(0.6 / 2**0.5), 2)
    assert (high.mean, high.std) == (pytest.approx(0.55), 0.0)
    assert result.chosen["plain"]["learning_rate"] == 1e-3


def test_a_diverged_run_counts_at_chance_however_well_it_began():
    search = gold_standard(base_of(), learning_rates=[1e-3, 1e-2], weight_decays=[1e-3], alphas=[1.0])
    good, wild = replay(search, {}).missing
    runs = {good.id: run_of(good, 0.3, 0.4), wild.id: run_of(wild, 0.9, outcome="diverged")}
    result = replay(search, runs, chance=lambda: 0.25)
    assert [trial.mean for trial in result.stages[0].trials] == [0.4, 0.25]
    assert [trial.diverged for trial in result.stages[0].trials] == [0, 1]
    assert result.chosen["plain"]["learning_rate"] == 1e-3


def test_dual_search_decides_each_side_by_its_own_runs():
    other = {
        "learning_rate": {1e-4: 0.1, 1e-3: 0.2, 1e-2: 0.3},
        "weight_decay": {1e-3: 0.03, 1e-2: 0.02, 1e-1: 0.01},
        "alpha": {0.1: 0.0, 0.7: 0.0, 1.0: 0.2, 10.0: 0.1},
    }
    result = finish(dual_search(base_of(alpha=0.7), **GRIDS), table_rule({"plain": PLAIN, "asymmetric": other}))
    assert result.chosen == {
        "plain": {"learning_rate": 1e-3, "weight_decay": 1e-2},
        "asymmetric": {"learning_rate": 1e-2, "weight_decay": 1e-3, "alpha": 1.0},
    }
    # Whatever happens to Asymmetric, Plain's choice and Plain's runs stay what they are, and the other way round.
    worse = {name: {value: -score for value, score in table.items()} for name, table in other.items()}
    changed = finish(dual_search(base_of(alpha=0.7), **GRIDS), table_rule({"plain": PLAIN, "asymmetric": worse}))
    assert changed.chosen["plain"] == result.chosen["plain"]
    assert changed.chosen["asymmetric"]["learning_rate"] == 1e-4
    plain = [[stage for stage in one.stages if stage.stage.trains == "plain"] for one in (result, changed)]
    assert plain[0] == plain[1]


def test_without_alphas_the_dual_search_keeps_the_bases():
    result = finish(dual_search(base_of(alpha=0.7), **{**GRIDS, "alphas": ()}), lambda spec: [0.5])
    assert len(result.stages) == 4
    assert chosen_spec(result, "asymmetric").alpha == 0.7


@pytest.mark.parametrize("arch", ["mlp", "cnn"])
def test_fairness_gives_plain_as_many_extra_trials_as_alpha_has_values(arch):
    base = base_of(arch)
    search = gold_standard(base, fair=True)
    alphas, extras = search.rounds[2]
    assert len(extras.candidates) == len(alphas.candidates) + 1  # what Plain has already competes too
    before = replay(search, {})
    runs = Laboratory(lambda spec: [0.5])
    runs.train(before)
    runs.train(replay(search, runs))
    asked = replay(search, runs).missing
    assert [spec.variant for spec in asked].count("plain") == len(alphas.candidates)
    assert [spec.variant for spec in asked].count("asymmetric") == len(alphas.candidates)
    dropouts = {dict(spec.arch_options).get("dropout") for spec in asked if spec.variant == "plain"}
    smoothings = {spec.label_smoothing for spec in asked if spec.variant == "plain"}
    if arch == "cnn":
        assert dropouts == {None, 0.0, 0.15, 0.3, 0.6, 0.75}
        assert smoothings == {0.0, 0.1, 0.2, 0.3, 0.4, 0.5}
    else:
        assert dropouts == {None}
        assert sorted(smoothings) == pytest.approx([0.05 * i for i in range(1, 11)])
    # Of equals Plain keeps what it had.
    runs.train(replay(search, runs))
    result = replay(search, runs)
    assert chosen_spec(result, "plain") == dataclasses.replace(base.plain(), learning_rate=1e-4, weight_decay=1e-5)


def test_extras_that_win_are_plains_alone():
    def rule(spec):
        return [0.5 + (0.1 if dict(spec.arch_options).get("dropout") == 0.3 else 0) + 0.01 * spec.label_smoothing]

    result = finish(gold_standard(base_of("cnn"), fair=True), rule)
    assert result.chosen["plain"]["dropout"] == 0.3
    assert dict(chosen_spec(result, "plain").arch_options)["dropout"] == 0.3
    assert "dropout" not in dict(chosen_spec(result, "asymmetric").arch_options)
    assert chosen_spec(result, "asymmetric").label_smoothing == 0.0


def test_final_specs_have_the_chosen_values_and_the_bases_length_and_test():
    result = finish(gold_standard(base_of(redundancy=3), **GRIDS), lambda spec: [spec.learning_rate + spec.alpha])
    plain, asymmetric, *rest = final_specs(result, [42, 43])
    assert (plain.variant, asymmetric.variant, len(rest)) == ("plain", "asymmetric", 2)
    assert {spec.seed for spec in (plain, asymmetric)} == {42}
    assert (asymmetric.epochs, asymmetric.test, asymmetric.redundancy) == (4, "last", 3)
    assert (plain.learning_rate, asymmetric.learning_rate, asymmetric.alpha) == (1e-2, 1e-2, 10.0)
    assert plain == dataclasses.replace(asymmetric, seed=42).plain()


def test_an_unfinished_search_says_what_is_known_and_what_is_missing():
    search = gold_standard(base_of(), seeds=(7, 8), **GRIDS)
    asked = replay(search, {}).missing
    assert len(asked) == 6
    runs = {spec.id: run_of(spec, 0.5) for spec in asked[:3]}
    result = replay(search, runs)
    assert [trial.n for trial in result.stages[0].trials] == [2, 1, 0]
    assert [trial.mean for trial in result.stages[0].trials] == [0.5, 0.5, None]
    assert result.stages[0].chosen is None
    assert {spec.id for spec in result.missing} == {spec.id for spec in asked[3:]} == set(result.stages[0].missing)
    assert result.runs_left == 3 + 6 + 6
    assert result.chosen == {"plain": {}, "asymmetric": {}}
    with pytest.raises(UsageError, match="with 3 runs missing"):
        chosen_spec(result, "plain")


def test_regularisers_of_a_model_by_name():
    """What is known of its dropout is what its spec says."""
    base = RunSpec(arch="timm:resnet18")
    assert [sorted(extra) for extra in plain_extras(base, 2)] == [["label_smoothing"]] * 3
    with_dropout = dataclasses.replace(base, arch_options={"dropout": 0.25})
    assert [extra["dropout"] for extra in plain_extras(with_dropout, 2)] == [0.25, 0.75, 0.25]
