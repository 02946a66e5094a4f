"""The protocol: its specs are pinned, and what is selected follows from validation accuracies alone."""

import dataclasses
import hashlib

import pytest
from invented_study import invented_run, invented_study, softmax_helps

from asymtrain.errors import UsageError
from asymtrain.lab.candidates import Candidate
from asymtrain.lab.studies.frame import check_ready, first_unfinished, get_block, missing, seconds_left
from asymtrain.lab.studies.practice import STUDY
from asymtrain.lab.studies.practice.protocol import (
    BLOCKS,
    CONFIGURATIONS,
    CONTROLS,
    FALLING,
    FULL,
    LASTING,
    MODELS,
    QUICK,
    RECOMMENDATION,
    SELECTED,
    TUNED,
    TUNED_BRANCHES,
    Task,
    at_alpha,
    final_specs,
    first_wave,
    plain_trials,
    second_wave,
    selection_specs,
)
from asymtrain.lab.studies.practice.selection import final_arms, fixed_setting, mean_ranks, needs, select
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.timing import BOTH, START, has_rates, image_steps

# Where a number changes, the protocol does: docs/practice-protocol.md then lists it as a deviation.
PINNED = {
    "backbones": (192, "5ee19aba373a"),
    "plain18": (64, "b7865c67fa44"),
    "mixer": (64, "ddc1f3c1376c"),
    "convnext": (64, "a1c7cffb7228"),
    "swin": (64, "47b59800d94e"),
    "resnet18": (64, "eee7197fe9a8"),
    "vit-tiny": (64, "5cf9e29460fe"),
    "fixed": (50, "6790cf73e65a"),
    "fixed-large": (40, "c5648295962a"),
    "tuned-mlp": (32, "ffff7170a58a"),
    "tuned-mixer": (34, "9b07be907715"),
    "tuned-vit-tiny": (34, "b9dd619669c0"),
    "tuned-swin": (24, "3e689d6113b0"),  # by the invented rows nothing tunes its baseline
    "signal-mlp": (30, "5d4b5c571313"),
    "signal-mixer": (30, "2a1bf58711d1"),
    "signal-vit-tiny": (30, "0c67c2fa3950"),
    "signal-swin": (30, "54f030fded10"),
    "length-vit-tiny": (9, "0be493b851c9"),
    "length-swin": (9, "02413425a7a7"),
    "length-mixer": (9, "3032df667a2c"),
    "length-resnet18": (9, "eeb31df28149"),
    "published-vit-lite-softmax": (6, "8c99cca4c423"),
    "published-vit-lite-falling": (6, "a020a75216d9"),
    "published-small-vit-softmax": (6, "65f306284972"),
    "published-small-vit-falling": (6, "475e86b677f4"),
    "cifar10": (54, "1b96983f097d"),
    "fashion": (54, "d0dd5685591c"),
    "cifar100-tenth": (54, "70e79e283c13"),
    "seeds-resnet18": (30, "c9d99c346472"),
    "seeds-cnn": (30, "952457be7f56"),
    "seeds-plain18": (30, "6ffd21932d48"),
    "seeds-convnext": (30, "0e8c3db4647f"),
    "strong": (40, "1c5f844e09d8"),
    "controls": (97, "db152f8cbcfd"),
}


def digest(specs):
    return hashlib.sha256(" ".join(sorted(spec.id for spec in specs)).encode()).hexdigest()[:12]


@pytest.fixture(scope="module")
def selected():
    """The whole study on CIFAR-100."""
    return invented_study(FULL, map(Task, MODELS))


@pytest.mark.parametrize("name", BLOCKS)
def test_the_specs_of_a_block_are_those_of_the_protocol(name, selected):
    known = invented_study(FULL, BLOCKS[name].parts, known=selected)
    specs = [spec for task in BLOCKS[name].parts for spec in needs(FULL, task, known).specs]
    assert (len(set(specs)), digest(set(specs))) == PINNED[name]


def test_the_selection_reads_no_test_image_and_shares_no_seed_with_the_final_runs():
    for name in MODELS:
        trials = plain_trials(Task(name, part="tuned"))
        arms = [*first_wave(), *second_wave(CONFIGURATIONS), *trials]
        selection = selection_specs(FULL, Task(name), arms)
        final = final_specs(FULL, Task(name), arms)
        assert {(spec.test, spec.validation, spec.epochs) for spec in selection} == {("never", "split", 10)}
        assert {(spec.test, spec.validation, spec.epochs) for spec in final} == {("every", "none", 30)}
        assert not {spec.seed for spec in selection} & {spec.seed for spec in final}
        assert len({spec.seed for spec in final}) >= 5


def test_each_wave_names_the_next():
    task = Task("cnn")
    empty = needs(FULL, task, {})
    assert (len(empty.specs), len(empty.stand_ins)) == (26, 38)
    known = {spec.id: invented_run(spec, softmax_helps) for spec in empty.specs}
    second = needs(FULL, task, known)
    new = missing(STUDY, [task], FULL, Snapshot(known)).specs
    assert (len(new), len(second.stand_ins)) == (18, 20)
    assert {(spec.objective, spec.bias, spec.alpha) for spec in new} == {
        ("sigmoid", "none", 0.01), ("sigmoid", "prior", 0.01), ("softmax", "none", 1.0),
    }  # fmt: skip
    known |= {spec.id: invented_run(spec, softmax_helps) for spec in new}
    last = needs(FULL, task, known)
    final = missing(STUDY, [task], FULL, Snapshot(known)).specs
    assert (len(final), len(last.stand_ins)) == (20, 0)
    assert {Candidate.of(spec) for spec in final if spec.objective == "softmax"} == {
        Candidate(objective="softmax", alpha=1.0, layers="later")
    }
    selection = select(FULL, task, known)
    assert selection.complete
    assert selection.selected == "softmax"


def test_of_equal_trials_the_first_is_taken_and_a_diverged_run_counts_as_chance():
    task = Task("mlp")
    known = invented_study(QUICK, [task], lambda spec: 0.0)
    level = {spec_id: _level(run, 0.4) for spec_id, run in known.items()}
    assert select(QUICK, task, level).configurations["sigmoid"] == at_alpha("sigmoid", 0.01)
    first = selection_specs(QUICK, task, first_wave()[1:2])
    level |= {spec.id: dataclasses.replace(level[spec.id], outcome="diverged") for spec in first}
    trial = select(QUICK, task, level).first[1]
    assert trial.mean == 0.25
    assert select(QUICK, task, level).first[0].mean == 0.4


def _level(run, accuracy):
    last = run.history[-1]._replace(validation_accuracy=accuracy)
    return dataclasses.replace(run, history=(*run.history[:-1], last))


def test_ranks_share_equal_layers_and_none_may_be_the_best():
    tasks = [Task("mlp"), Task("cnn")]
    known = invented_study(QUICK, tasks, lambda spec: -0.1 * bool(spec.redundancy))
    selections = [select(QUICK, task, known) for task in tasks]
    ranks = mean_ranks(selections)
    assert sum(ranks) == pytest.approx(sum(range(1, 14)))
    assert ranks[0] == 1
    assert fixed_setting(selections).name == "none"
    level = {spec_id: _level(run, 0.4) for spec_id, run in known.items()}
    assert mean_ranks([select(QUICK, task, level) for task in tasks]) == [7.0] * 13


def test_the_fixed_setting_of_a_model_can_come_from_other_families():
    tasks = [Task(name) for name in MODELS]

    def gain(spec):
        """Transformers and ResNet-18 like sigmoid, the five others softmax."""
        liked = "sigmoid" if any(name in spec.arch for name in ("vit", "swin", "resnet18")) else "softmax"
        if not spec.redundancy or spec.objective != liked:
            return -0.02 if spec.redundancy else -0.03
        return 0.02 * (spec.alpha == 1 and spec.bias == "none")

    known = invented_study(QUICK, tasks, gain)
    arms = {name: final_arms(QUICK, Task(name, part="fixed"), known) for name in ("vit", "mlp")}
    assert [arm.name for arm in arms["vit"]] == ["none", "chosen by all models", "chosen by other families"]
    assert arms["vit"][1] == arms["mlp"][1]
    assert (arms["vit"][2].label, arms["mlp"][2].label) == ("softmax, alpha 1", "sigmoid, alpha 1")


def test_controls_are_of_the_selected_form_and_plain_has_trials_too():
    task = Task("cnn", part="controls")
    known = invented_study(QUICK, [Task("cnn")])

    def smoothing_helps(spec):
        return softmax_helps(spec) + 0.05 * (spec.label_smoothing > 0)

    known = invented_study(QUICK, [task], smoothing_helps, known)
    arms = {arm.name: arm for arm in final_arms(QUICK, task, known)}
    assert list(arms) == ["none", SELECTED, "random labels", "frozen branches", "Plain, changed"]
    assert arms["random labels"].fields["branch_labels"] == "random"
    assert arms["Plain, changed"].label == "Plain, label smoothing 0.1"


def test_branches_come_on_top_of_the_change_that_tunes_the_baseline_best():
    task = Task("mixer", part="tuned")
    known = invented_study(QUICK, [Task("mixer")])
    # Without a better trial the baseline stays as it is, and there is nothing to train.
    level = invented_study(QUICK, [task], lambda spec: softmax_helps(spec) - 0.05, known)
    assert [arm.name for arm in final_arms(QUICK, task, level)] == ["none", SELECTED]

    def slow_start_helps(spec):
        return softmax_helps(spec) + 0.05 * (spec.warmup > spec.epochs / 10)

    known = invented_study(QUICK, [task], slow_start_helps, known)
    arms = {arm.name: arm for arm in final_arms(QUICK, task, known)}
    assert list(arms) == ["none", SELECTED, TUNED, TUNED_BRANCHES]
    assert arms[TUNED].label == "Plain, twice the warm-up"
    assert arms[TUNED_BRANCHES].label == f"{arms[SELECTED].label}; twice the warm-up"
    plain, tuned, both = (final_specs(FULL, task, [arms[name]])[0] for name in ("none", TUNED, TUNED_BRANCHES))
    assert (plain.warmup, tuned.warmup, both.warmup) == (3, 6, 6)
    assert both.plain() == tuned


def test_a_published_network_has_its_recipe_and_waits_for_nothing():
    lite, small = (BLOCKS[f"published-{name}-falling"].parts[0] for name in ("vit-lite", "small-vit"))
    for task, steps in ((lite, 200), (small, 300)):
        wanted = needs(FULL, task, {})
        assert (wanted.waits_for, wanted.stand_ins) == ((), ())
        plain, branched = wanted.specs[:3], wanted.specs[3:]
        assert [spec.seed for spec in plain] == [spec.seed for spec in branched] == [42, 43, 44]
        assert all(spec.plain() == other for spec, other in zip(branched, plain, strict=True))
        assert {(spec.test, spec.validation, spec.epochs * spec.passes) for spec in wanted.specs} == {
            ("every", "none", steps)
        }
        assert {Candidate.of(spec) for spec in branched} == {LASTING}
    (spec, *_) = needs(FULL, lite, {}).specs
    assert (spec.learning_rate, spec.weight_decay, spec.warmup, spec.augmentation) == (5e-4, 0.03, 5, "policy_first")
    (spec, *_) = needs(FULL, small, {}).specs
    assert (spec.warmup, spec.erasing, spec.erased_area, spec.mixing) == (10, 0.25, 0.4, 0.5)
    softmax = BLOCKS["published-vit-lite-softmax"].parts[0]
    assert needs(FULL, softmax, {}).specs[:3] == needs(FULL, lite, {}).specs[:3]


def test_other_data_and_more_seeds_take_what_was_selected():
    known = invented_study(FULL, [Task("cnn"), Task("mlp")])
    for name, strength in (("cnn", 0.05), ("mlp", 0.5)):
        arms = final_arms(FULL, Task(name, "fashion", part="transfer"), known)
        assert [arm.name for arm in arms] == ["none", SELECTED, RECOMMENDATION]
        assert arms[2].label == f"sigmoid with prior bias, strength {strength}"
    task = Task("cnn", part="seeds")
    specs = final_specs(FULL, task, final_arms(FULL, task, known))
    assert sorted({spec.seed for spec in specs}) == list(range(47, 62))
    assert dataclasses.replace(specs[0], seed=42) == final_specs(FULL, Task("cnn"), final_arms(FULL, task, known))[0]


def test_each_control_takes_one_part_of_the_signal_away():
    known = invented_study(FULL, [Task("swin")])
    arms = final_arms(FULL, Task("swin", part="signal"), known)
    assert [arm.name for arm in arms] == ["none", SELECTED, *CONTROLS]
    own, *controls = (final_specs(FULL, Task("swin"), [arm])[0] for arm in arms[1:])
    for control, change in zip(controls, CONTROLS.values(), strict=True):
        assert dataclasses.replace(own, **change) == control != own


def test_long_runs_are_of_the_recipe_strong_with_three_seeds():
    known = invented_study(FULL, [Task("swin")])
    task = Task("swin", "cifar100-long", "strong", "length")
    arms = final_arms(FULL, task, known)
    assert [arm.name for arm in arms] == ["none", SELECTED, FALLING]
    for specs in (final_specs(FULL, task, [arm]) for arm in arms):
        assert [(spec.seed, spec.epochs, spec.mixup, spec.test) for spec in specs] == [
            (seed, 100, 0.2, "every") for seed in (42, 43, 44)
        ]
    (shared, *_) = final_specs(FULL, task, arms[2:])
    assert (shared.alpha, shared.bias, shared.alpha_schedule, shared.layers) == (10, "prior", "cosine", "all")


def check(block, data_root):
    check_ready(STUDY, block.name, block.parts, missing(STUDY, block.parts, FULL, Snapshot()), data_root)


def test_a_block_that_takes_a_selection_waits_for_it(tmp_path):
    with pytest.raises(
        UsageError, match=r"selected in backbones, mixer, resnet18, vit-tiny: run that .* results/practice-\*`"
    ):
        check(get_block(STUDY, "cifar10"), tmp_path)
    assert first_unfinished(STUDY, QUICK, Snapshot()).name == "backbones"
    known = invented_study(QUICK, BLOCKS["backbones"].parts)
    assert missing(STUDY, BLOCKS["backbones"].parts, QUICK, Snapshot(known)).is_empty
    assert first_unfinished(STUDY, QUICK, Snapshot(known)).name == "plain18"
    with pytest.raises(UsageError, match="block of the practice study"):
        get_block(STUDY, "backbone")


def test_several_blocks_are_run_as_one(tmp_path):
    both = get_block(STUDY, "fixed", "mixer", "fixed")
    assert both.parts == (*BLOCKS["fixed"].parts, *BLOCKS["mixer"].parts)
    assert both.name == "fixed, mixer"
    with pytest.raises(
        UsageError, match=r"^fixed, mixer takes what was selected in backbones, plain18, convnext, swin"
    ):
        check(both, tmp_path)
    with pytest.raises(UsageError, match="fixd"):
        get_block(STUDY, "fixed", "fixd")


def test_the_time_that_is_left_is_by_rates_of_the_model_on_this_kind_of_device():
    known = invented_study(FULL, [Task("resnet18")])
    on_gpu = Snapshot({name: dataclasses.replace(run, device="NVIDIA H200") for name, run in known.items()})
    controls = missing(STUDY, [Task("resnet18", part="controls")], FULL, on_gpu)
    assert not has_rates(controls.to_train, on_gpu, "cpu")
    assert has_rates(controls.to_train, on_gpu, "cuda")
    taken = min(run.seconds / image_steps(run.spec) for run in known.values())
    wanted = sum(image_steps(spec) for spec in controls.to_train)  # those with dropout among them
    left, _ = seconds_left(STUDY, FULL, controls, on_gpu, ("cuda", 1))
    assert left == pytest.approx(START["cuda"] + taken * wanted)


def test_a_step_that_takes_both_gradients_takes_longer_where_none_was_timed():
    known = invented_study(FULL, [Task("swin"), Task("swin", part="signal")])
    noise = [spec_id for spec_id, run in known.items() if run.spec.signal == "noise"]
    on_gpu = {name: dataclasses.replace(run, device="NVIDIA H200") for name, run in known.items() if name not in noise}
    left = missing(STUDY, BLOCKS["signal-swin"].parts, FULL, Snapshot(on_gpu))
    assert [spec.id for spec in left.specs] == noise
    taken = min(run.seconds / image_steps(run.spec) for run in on_gpu.values())
    seconds, _ = seconds_left(STUDY, FULL, left, Snapshot(on_gpu), ("cuda", 1))
    assert seconds == pytest.approx(START["cuda"] + BOTH * taken * sum(map(image_steps, left.specs)))
