"""Parts other than a single change: trends, the interaction, cosines, signs, shares and identities."""

import dataclasses

import numpy as np
import pytest
from synthetic_evidence import SEEDS, VIT, effect, quantity, spread, verdict

from asymtrain.lab.studies.paper.claims import claim, family
from asymtrain.lab.studies.paper.evidence import Effect, Quantity
from asymtrain.lab.studies.paper.verdicts import judge

REDUNDANCY = [f"redundancy/vit/{n}" for n in (1, 7, 10, 20)]  # the paper: 0.3, 11.3, 15.9, 25.4


def levels(*means, width=1.0):
    """Effects of four levels whose seeds vary independently."""
    rng = np.random.default_rng(0)
    plain = np.full(10, 0.4)
    return [
        Effect(label, tuple(plain), tuple(0.4 * (1 + (mean + width * rng.normal(size=10)) / 100)), 200, (), SEEDS)
        for label, mean in zip(REDUNDANCY, means, strict=True)
    ]


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ((0, 10, 15, 25), "Reproduced"),
        ((0, 2, 4, 6), "Right direction, different size"),
        ((0, 20, 10, 25), "Contradicted"),  # a step back between
        ((25, 15, 10, 0), "Contradicted"),
        ((-40, -30, -25, -15), "Contradicted"),  # it grows, and is no gain
    ],
)
def test_a_trend_needs_its_ends_its_steps_and_its_sign(means, expected):
    assert verdict("c03", *levels(*means)).verdict == expected


def test_a_step_that_is_not_clear_does_not_stand_in_the_way_of_an_alternate():
    flat, rising = levels(5, 5, 5, 5), levels(0, 10, 10.1, 25, width=0.3)
    evidence = {name: {one.label: one for one in found} for name, found in (("primary", flat), ("all", rising))}
    assert judge(claim("c03"), evidence, alternates=("all",)).words == "Only under all"


def test_noise_does_not_carry_a_trend_over_its_steps():
    """Ends that are clear, and steps between which may as well go back: until 2026-11-19 this was reproduced."""
    found = verdict("c03", *levels(0, 10, 10.1, 25, width=1.5))
    assert (found.verdict, found.parts[0].ruling) == ("Inconclusive", "Reproduced")


def test_runs_that_are_equal_for_every_n_show_a_null_trend():
    """The same accuracies at every N, from different runs."""
    one, *_ = levels(5, 5, 5, 5)
    same = [dataclasses.replace(one, label=label) for label in REDUNDANCY]
    found = verdict("c03", *same)
    assert (found.verdict, found.effect, found.low, found.high) == ("No effect", 0, 0, 0)


def test_the_headline_is_paired_by_seed():
    wave = 3 * np.sin(np.arange(10))  # in both, so that it leaves the paired difference
    cnn = Effect("table1/cnn/20", (0.4,) * 10, tuple(0.4 * (1 + (wave - 15) / 100)), 200, (), SEEDS)
    differences = spread(20, 50, 12)
    vit = Effect(VIT, (0.4,) * 10, tuple(0.4 * (1 + (wave - 15 + differences) / 100)), 200, (), SEEDS)
    found = verdict("c06", cnn, vit)
    assert (found.low, found.high) == pytest.approx((20, 50))
    assert found.verdict == "Reproduced"
    assert "+35.0 points" in found.sentence
    shuffled = dataclasses.replace(vit, seeds=SEEDS[::-1], plain=vit.plain[::-1], asymmetric=vit.asymmetric[::-1])
    assert verdict("c06", cnn, shuffled).low == pytest.approx(20)


def test_the_headline_without_common_seeds_is_not_judged():
    found = verdict("c06", effect("table1/cnn/20", -20, -10), effect(VIT, 15, 35, seeds=range(10)))
    assert found.verdict == "Not yet run"
    assert found.effect is None


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.12, 0.12, "Reproduced"),
        (-0.13, 0.05, "Inconclusive"),
        (-0.3, -0.1202, "Contradicted"),
        (-0.3, -0.12, "Inconclusive"),
        (0.121, 0.3, "Contradicted"),
    ],
)
def test_near_zero_is_measured_by_the_papers_own_number(low, high, expected):
    """-0.0801 is near zero to the paper: 1.5 times that is 0.12015."""
    assert verdict("c09", quantity("table2/mlp/average", low, high)).verdict == expected


def test_cosines():
    assert verdict("c07", quantity("table2/vit/average", 0.1, 0.2)).verdict == "Reproduced"
    assert verdict("c07", quantity("table2/vit/average", 0.05, 0.09)).verdict == "Right direction, different size"
    assert verdict("c07", quantity("table2/vit/average", -0.009, 0.009)).verdict == "No effect"
    assert verdict("c07", quantity("table2/vit/average", -0.009, 0.011)).verdict == "Paper's size excluded"
    # "Consistently positive" is what is tested, not the printed minimum.
    assert verdict("c10", quantity("table2/vit/min", 0.01, 0.1)).verdict == "Reproduced"


def test_a_minimum_over_steps_contradicts_nothing_and_supports_only_what_it_reaches():
    """More measured steps lower it: until 2026-11-19 they contradicted c10 and gave c11 the right direction."""
    for low, high in ((-0.2, -0.1), (-0.1, 0.1), (-0.009, 0.009)):
        found = verdict("c10", quantity("table2/vit/min", low, high))
        assert (found.verdict, found.low) == ("Inconclusive", pytest.approx(low))
        assert verdict("c11", quantity("table2/cnn/min", low, high)).verdict == "Inconclusive"
    assert verdict("c11", quantity("table2/cnn/min", 0.1, 0.2)).verdict == "Inconclusive"
    assert verdict("c11", quantity("table2/cnn/min", -0.4, -0.3)).verdict == "Inconclusive"
    assert verdict("c11", quantity("table2/cnn/min", -0.9, -0.7)).verdict == "Reproduced"


def test_the_gap_of_the_asymmetric_side_alone():
    values = spread(-0.03, -0.005, family("table4/cnn/50"))
    gap = Effect("table4/cnn/50", (0.4,) * 10, tuple(values), 50, (), SEEDS)
    found = verdict("c17", gap)
    assert (found.verdict, found.low) == ("Reproduced", pytest.approx(-0.03))


def test_coverage_at_epoch_20_against_plain_at_100():
    early = Effect("table14/object_coverage/20", (0.1,) * 10, tuple(0.8 * (1 + spread(8, 20, 12) / 100)), 20, (), SEEDS)
    late = Effect("table14/object_coverage/100", (0.8,) * 10, (0.1,) * 10, 100, (), SEEDS)
    found = verdict("c27", early, late)
    assert (found.verdict, found.low, found.high) == ("Reproduced", pytest.approx(8), pytest.approx(20))


def backbones(cosine_of_cnn):
    cosines = {"mlp": (-0.1, -0.05), "cnn": cosine_of_cnn, "vit": (0.1, 0.2)}
    effects = {"mlp": (-12, -6), "cnn": (-20, -10), "vit": (20, 30)}
    return [
        *(quantity(f"table2/{arch}/average", *ends) for arch, ends in cosines.items()),
        *(effect(f"table1/{arch}/20", *ends) for arch, ends in effects.items()),
    ]


def test_signs_that_agree():
    assert verdict("c12", *backbones((-0.3, -0.2))).verdict == "Reproduced"
    assert verdict("c12", *backbones((-0.3, 0.1))).verdict == "Inconclusive"
    assert verdict("c12", *backbones((0.2, 0.3))).verdict == "Contradicted"
    # An effect that is not clear agrees with no cosine, and contradicts none.
    unclear = [effect(one.label, -5, 1) if one.label == "table1/cnn/20" else one for one in backbones((0.2, 0.3))]
    assert verdict("c12", *unclear).verdict == "Inconclusive"


def small(label):
    """Clear beyond doubt and yet small: both sides spread far more than their difference."""
    plain = tuple(np.linspace(0.2, 0.6, 10))
    return Effect(label, plain, tuple(np.add(plain, 0.01 + 1e-5 * np.cos(range(10)))), 200, (), SEEDS)


def test_every_cell_must_be_significant_and_large():
    cells = [effect(label, 20, 30) for label in claim("c35").needs]
    found = verdict("c35", *cells)
    assert (found.verdict, found.effect) == ("Reproduced", 1)
    assert verdict("c35", effect(cells[0].label, -30, -20), *cells[1:]).verdict == "Reproduced"  # a loss is large too
    # Not significant is not small: ten noisy seeds cannot contradict, as they did until 2026-11-19.
    found = verdict("c35", effect(cells[0].label, -1, 30), *cells[1:])
    assert found.verdict == "Inconclusive"
    assert "11 of 12 cells" in found.sentence
    assert verdict("c35", small(cells[0].label), *cells[1:]).verdict == "Contradicted"


def test_the_identity_shows_in_one_run_and_breaks_in_one():
    zeros = [Quantity(f"inference/{arch}", (0.0,), 1, (), (42,)) for arch in ("mlp", "cnn", "vit")]
    assert verdict("c36", *zeros).verdict == "Reproduced"
    assert verdict("c36", *zeros[:2], Quantity("inference/vit", (0.0, 1e-9), 1, (), (42, 43))).verdict == "Contradicted"
    cancelling = Quantity("inference/vit", (-1e-9, 1e-9), 1, (), (42, 43))
    assert verdict("c36", *zeros[:2], cancelling).verdict == "Contradicted"


def test_a_contradiction_does_not_wait_for_missing_cells():
    cells = [effect(label, 20, 30) for label in claim("c35").needs]
    weak = small(cells[0].label)
    found = verdict("c35", weak, *cells[1:9])
    assert (found.verdict, found.lacks, len(found.missing)) == ("Contradicted", "", 3)
    words = "8 of 9 cells (10 seeds); 3 of 12 cells missing, which cannot change the verdict; the paper has 12/12"
    assert words in found.sentence
    all_pass = verdict("c35", *cells[:9])
    assert (all_pass.verdict, all_pass.parts) == ("Not yet run", ())  # which says nothing of all twelve
    unclear = verdict("c35", effect(cells[0].label, -5, 30), *cells[1:9])
    assert (unclear.verdict, unclear.parts) == ("Not yet run", ())
    short = [dataclasses.replace(one, epochs=100) for one in (weak, *cells[1:9])]
    assert verdict("c35", *short).verdict == "Not yet run"  # more epochs may mend it
    hurt = claim("c04").needs
    assert verdict("c04", effect(hurt[0], 5, 9)).verdict == "Contradicted"
    assert verdict("c04", effect(hurt[0], -5, 9)).verdict == "Not yet run"


def test_where_signs_are_compared_both_numbers_are_said():
    found = verdict("c12", quantity("table2/cnn/average", 0.1, 0.2), effect("table1/cnn/20", -16, -12))
    assert found.verdict == "Contradicted"
    assert "-14.0% beside a cosine of +0.1500 (10 seeds, interval -16.0% to -12.0%) for CNN, N = 20;" in found.sentence
    assert "the paper has -15.3% beside -0.2574" in found.sentence
