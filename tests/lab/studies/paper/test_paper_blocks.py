"""The blocks of the reproduction: which runs and measurements each holds."""

import pytest

from asymtrain.lab.runs import DEFAULTS
from asymtrain.lab.studies.frame import joined, missing
from asymtrain.lab.studies.paper import STUDY
from asymtrain.lab.studies.paper.blocks import BLOCKS
from asymtrain.lab.studies.paper.measurements import measurement_seconds, passes_of
from asymtrain.lab.studies.paper.recipe import build_result
from asymtrain.lab.studies.paper.recipes import RECIPES
from asymtrain.lab.studies.paper.study import READINGS, SIZES, Scope
from asymtrain.lab.studies.snapshot import Snapshot

PAPER = Scope(sizes=SIZES["paper"], precision="bf16")


def needs(name):
    return needs_of(name, Snapshot())


def needs_of(name, known):
    scope = BLOCKS[name].scope(PAPER)
    return joined(part.needs(scope, known) for part in BLOCKS[name].parts)


def values(name, field):
    return {getattr(spec, field) for spec in needs(name).specs}


def test_the_order_is_that_of_information_a_minute():
    assert list(BLOCKS) == [
        *("fitting", "equal-alpha", "mechanism", "attention", "frozen", "landscapes", "cifar10", "all-active"),
        *("ordinary", "precision"),
    ]


@pytest.mark.parametrize("name", [name for name in BLOCKS if name not in ("fitting", "all-active", "ordinary")])
def test_these_are_of_the_cnn_and_the_vit_alone(name):
    measured = set() if name == "cifar10" else {wanted.spec.arch for wanted in needs(name).measurements}
    archs = measured | values(name, "arch")
    assert archs == ({"vit"} if name == "attention" else {"cnn", "vit"})


def test_the_mechanism_is_plain_the_papers_branches_and_one_thing_changed():
    specs = needs("mechanism").specs
    changed = {
        (spec.arch, name, getattr(spec, name))
        for spec in specs
        for name in ("bias", "branch_labels", "objective")
        if getattr(spec, name) != DEFAULTS[name]
    }
    assert changed == {
        ("cnn", "bias", "prior"),
        ("cnn", "branch_labels", "random"),
        ("vit", "branch_labels", "random"),
        ("vit", "objective", "softmax"),
    }
    assert len(specs) == 2 * 4 * 10


def test_blocks_differ_from_the_study_where_they_say_so():
    assert values("precision", "precision") == {"tf32"}
    assert values("frozen", "precision") == {"bf16"}
    assert values("frozen", "signal") == {"gradient", "detached"}
    assert values("all-active", "activation") == {"last", "all"}
    assert values("frozen", "activation") == {"last"}
    assert values("equal-alpha", "alpha") >= {0.1, 1.0, 4.642, 100.0}
    assert len(needs("attention").measurements) == 20
    assert {(one.spec.arch, one.settings.loss) for one in needs("cifar10").measurements} == {
        ("mlp", "main"),
        ("mlp", "total"),
    }
    assert needs("cifar10").later  # the runs that their search chooses
    shown = {claim for recipe in BLOCKS["attention"].parts for claim in recipe.claims}
    assert shown == {"c22", "c23", "c24", "c25", "c26", "c27"}


def test_landscapes_are_of_both_losses_and_keep_the_names_of_stored_ones():
    wanted = needs("landscapes").measurements
    names = {(one.spec.arch, one.settings.loss): one.name for one in wanted}
    assert names == {
        ("cnn", "main"): "landscape draws=1 precision=tf32 N=0+1+20+300",
        ("vit", "main"): "landscape draws=1 N=0+1+20+300",
        ("cnn", "total"): "landscape draws=1 loss=total precision=tf32 alpha=0.1 N=0+1+20+300",
        ("vit", "total"): "landscape draws=1 loss=total alpha=1 N=0+1+20+300",
    }
    assert len(wanted) == 2 * 2 * 10
    # Those of the first seed in results/recipes-3-epochs.
    assert {one.spec.id for one in wanted if one.spec.seed == 42} == {"a680d21aa356c663", "4d67bbb0129a290a"}
    assert len(passes_of(wanted)) == 2 * 10


@pytest.mark.parametrize("loss", ["main", "total"])
def test_a_cnn_that_is_stored_in_float32_is_found_and_stays_so(loss):
    """Those of results/ were measured before the CNN's surfaces were in TF32."""
    names = {"main": "landscape draws=1 N=0+1+20+300", "total": "landscape draws=1 loss=total alpha=0.1 N=0+1+20+300"}
    known = Snapshot(measured={("a680d21aa356c663", names[loss]): {0: {"rows": []}}})
    wanted = needs_of("landscapes", known).measurements
    of_cnn = {(one.spec.seed, one.settings.loss): one for one in wanted if one.spec.arch == "cnn"}
    assert {loss: of_cnn[42, loss].name for loss in names} == names
    assert {one.settings.precision for (seed, _), one in of_cnn.items() if seed != 42} == {"tf32"}
    left = missing(STUDY, BLOCKS["landscapes"].parts, PAPER, known).measurements
    assert {one.name for one in wanted if one.spec.id == "a680d21aa356c663"} - {
        one.name for one in left if one.spec.id == "a680d21aa356c663"
    } == {names[loss]}
    assert len(left) == len(wanted) - 1
    note = next(table.note for table in build_result(RECIPES["table5"], PAPER, known).tables if table.name == "table6")
    assert f"Of its networks here, float32: {int(loss == 'main')}, TF32: 0." in note


def test_both_losses_of_a_network_take_the_time_of_one():
    wanted = needs("landscapes").measurements
    main = [one for one in wanted if one.settings.loss == "main"]
    both, one = (measurement_seconds(part, Snapshot(), "cuda", 1, small=False) for part in (wanted, main))
    assert both == one > 0


def test_the_ordinary_reading_trains_both_sides_otherwise():
    recipe = {(spec.schedule, spec.augmentation, spec.variant) for spec in needs("ordinary").specs}
    assert {both for both in recipe if both[0] == "cosine"} == {
        ("cosine", "flip_shift", "plain"),
        ("cosine", "flip_shift", "asymmetric"),
    }
    assert READINGS["ordinary"].declared
    # Table 1 at its own settings: a Plain and an Asymmetric run for each of them and seed.
    assert sum(spec.schedule == "cosine" for spec in needs("ordinary").specs) == 130
