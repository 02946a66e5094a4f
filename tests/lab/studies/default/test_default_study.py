"""The study of a default, on invented rows: what is chosen, by whom, on how many seeds, and what the page concludes."""

import hashlib
import random

import pytest

from asymtrain.lab.runs import Run
from asymtrain.lab.studies.default import STUDY
from asymtrain.lab.studies.default.page import arms_of, conditions, judged_page
from asymtrain.lab.studies.default.protocol import (
    BLOCKS,
    CANDIDATES,
    CHOOSING,
    FULL,
    MODELS,
    QUICK,
    UNSEEN,
    DefaultTask,
    arms,
)
from asymtrain.lab.studies.default.selection import DEFAULT, OTHERS, OWN, choice, choices, needs, seeds
from asymtrain.lab.studies.frame import missing
from asymtrain.lab.studies.practice.protocol import final_seeds, selection_specs
from asymtrain.lab.studies.snapshot import Snapshot
from invented_runs import invented_epoch

CONVOLUTIONS = ("cnn", "plain18", "resnet18", "convnext")
PINNED = "83d274b2cdcf"  # of the specs of the selection
EVERY = [task for block in BLOCKS.values() for task in block.parts]


def helps_tokens(spec):
    """Without convolutions branches gain with their strength; with them the weak ones alone do no harm."""
    if not spec.redundancy:
        return 0.0
    weak = spec.alpha == 0.1
    if "tokens" in spec_kind(spec):
        return 0.01 if weak else 0.03
    return 0.002 if weak else -0.03


def spec_kind(spec):
    return next(DefaultTask(name, "select").kind for name, model in MODELS.items() if model.arch == spec.arch)


def invented_run(spec, gain, spread):
    # Of a pair both runs share the seed's part of the noise.
    noise = random.Random(spec.seed).gauss(0, 0.01) + random.Random(spec.id).gauss(0, spread)
    accuracy = 0.5 + gain(spec) + noise
    epochs = tuple(
        invented_epoch(number, accuracy, accuracy if spec.test == "every" else None, None)._replace(
            validation_accuracy=accuracy if spec.validation == "split" else None
        )
        for number in range(1, spec.epochs + 1)
    )
    return Run(spec, epochs)


def invented_study(tasks=EVERY, gain=helps_tokens, spread=0.0005, study=QUICK):
    known = {}
    while specs := missing(STUDY, tasks, study, Snapshot(known)).specs:
        known |= {spec.id: invented_run(spec, gain, spread) for spec in specs}
    return known


@pytest.fixture(scope="module")
def known():
    return invented_study()


def test_the_protocol_is_pinned():
    trained = [
        spec
        for model in CHOOSING
        for spec in selection_specs(FULL, DefaultTask(model, "select"), arms(DefaultTask(model, "select").kind))
    ]
    assert len(set(trained)) == len(trained) == 9 * 9 * 2
    assert {(spec.epochs, spec.validation, spec.test, spec.batch) for spec in trained} == {(30, "split", "never", 128)}
    ids = hashlib.sha256(" ".join(sorted(spec.id for spec in trained)).encode()).hexdigest()[:12]
    assert ids == PINNED


def test_no_seed_is_used_twice_and_unseen_models_choose_nothing():
    final = final_seeds(FULL, DefaultTask("mlp", "confirm"))
    assert len(final) == 15
    assert not set(FULL.selection_seeds) & set(final)
    assert not set(CHOOSING) & set(UNSEEN)
    assert {task.model for block in BLOCKS.values() for task in block.parts if task.part == "select"} == set(CHOOSING)


def test_all_candidates_can_be_trained_on_every_model():
    assert len(CANDIDATES) == 8
    heads = {task.kind: {arm.fields.get("head") for arm in arms(task.kind)} for task in EVERY}
    assert heads == {"tokens": {None, "linear", "mlp"}, "convolutions": {None, "linear", "tower"}}


def gains(**values):
    return {name: values.get(name, 0.0) for name in CANDIDATES}


def test_families_count_equally_and_a_large_loss_excludes():
    of = {"vit": gains(prior=3.0), "vit_tiny": gains(prior=3.0), "swin": gains(prior=3.0), "mlp": gains(later=4.0)}
    assert choice(of) == "later"  # 2.0, beside 1.5: three transformers are one family
    assert choice({**of, "mixer": gains(later=-1.1, prior=0.0)}) == "prior"
    assert choice({"mlp": gains(**dict.fromkeys(CANDIDATES, -0.1))}) is None
    assert choice({"mlp": gains(prior=1.0, weak=1.0)}) == "prior"  # of equals the first


def test_each_family_is_given_what_the_others_chose():
    def only_transformers_gain(spec):
        family = next(model.family for model in MODELS.values() if model.arch == spec.arch)
        return (0.03 if family == "transformer" else -0.005) * (spec.alpha if spec.redundancy else 0)

    tasks = [task for task in EVERY if task.part == "select"]
    known = invented_study(tasks, only_transformers_gain)
    of_mlp = choices(QUICK, DefaultTask("mlp", "confirm"), known)
    of_vit = choices(QUICK, DefaultTask("vit", "confirm"), known)
    assert of_vit[OTHERS] is None  # the MLPs lose by every candidate
    assert of_mlp[OTHERS] is not None
    assert of_mlp[DEFAULT] == of_vit[DEFAULT]
    assert choices(QUICK, DefaultTask("eva02", "unseen"), known) == {DEFAULT: of_vit[DEFAULT]}


def test_nothing_is_chosen_before_all_models_of_a_kind_are_trained(known):
    task = DefaultTask("vit", "confirm")
    gone = selection_specs(QUICK, DefaultTask("swin", "select"), arms("tokens"))[0].id
    some = {spec_id: run for spec_id, run in known.items() if spec_id != gone}
    wanted = needs(QUICK, task, some)
    assert [other.model for other in wanted.waits_for] == ["swin"]
    assert wanted.specs == ()
    assert len(wanted.stand_ins) == 20
    assert choices(QUICK, DefaultTask("cnn", "confirm"), some) is not None  # of the other kind


@pytest.mark.parametrize(("spread", "count"), [(0.0005, 5), (0.02, 15)])
def test_a_wide_interval_is_given_more_seeds_whatever_its_sign(spread, count):
    task = DefaultTask("mlp", "confirm")
    tasks = [other for other in EVERY if other.part == "select" and other.kind == "tokens"]
    for gain in (helps_tokens, lambda spec: -helps_tokens(spec) if spec.validation == "none" else helps_tokens(spec)):
        known = invented_study([*tasks, task], gain, spread)
        assert len(seeds(QUICK, task, known)) == count


def test_the_page_says_which_conditions_are_met(known):
    page = judged_page(QUICK, known)
    assert page.headline == ("good", "The default meets 4 of 4 conditions")
    others = arms_of(QUICK, "confirm", OTHERS, known)
    assert {effect.task.model for effect in others.effects} == set(CHOOSING)
    points = {effect.task.model: effect.row["points"] for effect in others.effects}
    assert all(2.5 < points[model] < 3.5 for model in CHOOSING if model not in CONVOLUTIONS)
    assert all(abs(points[model] - 0.2) < 0.2 for model in CONVOLUTIONS)
    (forest,) = page.figures
    assert len(forest.panels[0].bars) == 9 + 4 + 5
    assert {"confirmed", "conditions", "choices", "gains", "arms"} == {table.name for table in page.tables}


@pytest.mark.parametrize(
    ("gain", "met"),
    [
        (None, [True, True, True, True]),
        # On fresh seeds the token models lose what they gained on validation.
        (
            lambda spec: -0.03 if spec.validation == "none" and spec.redundancy else helps_tokens(spec),
            [False, False, True, False],
        ),
        # Unseen models alone lose.
        (
            lambda spec: (
                -0.03 if spec.redundancy and spec.arch in {m.arch for m in UNSEEN.values()} else helps_tokens(spec)
            ),
            [True, True, True, False],
        ),
    ],
    ids=["earned", "fades", "unseen"],
)
def test_the_default_earns_its_place_by_four_conditions(gain, met, known):
    known = invented_study(gain=gain) if gain else known
    found = conditions(
        arms_of(QUICK, "confirm", OTHERS, known),
        arms_of(QUICK, "confirm", OWN, known),
        arms_of(QUICK, "unseen", DEFAULT, known),
    )
    assert [one.met for one in found] == met


def test_an_empty_store_concludes_nothing():
    page = judged_page(QUICK, {})
    assert page.headline is None
    assert all("not known yet" in sentence for sentence in page.sentences)
    assert [table.name for table in page.tables] == ["conditions", "missing"]
