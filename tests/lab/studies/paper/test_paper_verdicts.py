"""Each outcome of the verdict rule, from synthetic evidence on both sides of every boundary."""

import pytest
from synthetic_evidence import BITS, SEEDS, VIT, effect, paper_like, verdict

from asymtrain.lab.studies.paper.claims import claim, claims
from asymtrain.lab.studies.paper.evidence import Effect, Quantity
from asymtrain.lab.studies.paper.verdicts import cell_words, judge, judge_all


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (12.7 + BITS, 20, "Reproduced"),  # inside the band
        (30, 38.1 - BITS, "Reproduced"),
        (20, 30, "Reproduced"),
        (BITS, 25.4 + BITS, "Reproduced"),  # the estimate inside, and the paper's number in the interval
        (25.4 - BITS, 50, "Reproduced"),
        (12.7 - BITS, 20, "Right direction, different size"),
        (30, 38.1 + BITS, "Right direction, different size"),
        (10 - BITS, 25.4 - BITS, "Right direction, different size"),
        (BITS, 12.7 + BITS, "Right direction, different size"),  # touching the band is not enough
        (0.2, 0.8, "Right direction, different size"),  # excludes 0, however small
        (-BITS, 30, "Inconclusive"),
        (-30, -BITS, "Contradicted"),
        (-30, BITS, "Paper's size excluded"),
        (-5, 12.7 - BITS, "Paper's size excluded"),
        (-5, 12.7 + BITS, "Inconclusive"),
        (-1 + BITS, 1 - BITS, "No effect"),
        (-1 + BITS, 1 + BITS, "Paper's size excluded"),
        (-1 - BITS, 1 - BITS, "Paper's size excluded"),
    ],
)
def test_the_rule_on_both_sides_of_each_boundary(low, high, expected):
    found = verdict("c01", effect(VIT, low, high))
    assert found.verdict == found.words == expected
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-9)
    assert (found.effect, found.n) == (pytest.approx((low + high) / 2), 10)
    assert found.sentence.startswith(f"{expected}: ")
    assert "the paper has +25.4%" in found.sentence
    assert found.spec_ids == (f"{VIT}-a", f"{VIT}-b")


def test_the_rule_for_a_loss_is_the_mirror():
    label = "table1/cnn/1"  # the paper: -22.0%
    assert verdict("c02", effect(label, -30, -BITS)).verdict == "Reproduced"
    assert verdict("c02", effect(label, -11 + BITS, -BITS)).verdict == "Right direction, different size"
    assert verdict("c02", effect(label, BITS, 30)).verdict == "Contradicted"


def test_fewer_seeds_or_epochs_or_other_data_are_not_yet_run():
    nine = verdict("c01", effect(VIT, 20, 30, seeds=SEEDS[:9]))
    assert (nine.verdict, nine.preliminary, nine.n) == ("Not yet run", "Reproduced", 9)
    assert nine.lacks == "9 of 10 seeds"
    assert nine.sentence.startswith("Not yet run in full (preliminary: 9 of 10 seeds): so far +25.0%")
    short = verdict("c01", effect(VIT, 20, 30, epochs=199))
    assert (short.verdict, short.preliminary) == ("Not yet run", "Reproduced")
    assert short.lacks == "199 of 200 epochs"
    assert verdict("c01", effect(VIT, 20, 30, epochs=201)).verdict == "Reproduced"
    other = verdict("c01", effect(VIT, 20, 30, stand_in="shapes stand in for CIFAR-100"))
    assert other.verdict == "Not yet run"
    assert other.lacks == "shapes stand in for CIFAR-100"
    small = verdict("c01", effect(VIT, 20, 30, seeds=SEEDS[:2], epochs=3))
    assert "(preliminary: 2 of 10 seeds, 3 of 200 epochs): so far +25.0%" in small.sentence
    assert verdict("c01", effect(VIT, 20, 30)).lacks == ""


def test_one_seed_gives_a_number_and_no_interval():
    one = Effect(VIT, (0.4,), (0.5,), 200, ("a",), (42,))
    found = verdict("c01", one)
    assert (found.verdict, found.effect, found.low, found.n) == ("Not yet run", pytest.approx(25), None, 1)
    two = verdict("c01", effect(VIT, 20, 30, seeds=SEEDS[:2]))
    assert (two.low, two.high) == pytest.approx((20, 30))


def test_no_rows_are_not_yet_run():
    found = verdict("c04", effect("table1/cnn/1", -30, -20))
    assert (found.verdict, found.preliminary) == ("Not yet run", "Reproduced")
    assert found.missing == ("table1/cnn/7", "table1/cnn/10", "table1/cnn/20")
    assert found.lacks == "3 of 4 cells missing"
    empty = judge(claim("c01"), {})
    assert (empty.verdict, empty.preliminary, empty.effect) == ("Not yet run", None, None)
    assert empty.sentence == "Not yet run (no row yet); the paper has 25.4 (relative improvement %)."
    several = judge(claim("c22"), {}).sentence
    assert several.endswith("the paper has 93.7, 87.9 (percent asymmetric, plain).")
    assert [one.verdict for one in judge_all({})] == ["Not yet run"] * 36
    half = verdict("c06", effect("table1/vit/20", 20, 30))
    assert (half.verdict, half.lacks) == ("Not yet run", "1 of 2 cells missing")


def test_every_part_must_have_its_seeds():
    parts = [effect("table3/vit/convergence", 40, 70), effect("table3/vit/final", 25, 35, seeds=SEEDS[:9])]
    found = verdict("c15", *parts)
    assert (found.verdict, found.preliminary, found.lacks) == ("Not yet run", "Reproduced", "9 of 10 seeds")


def test_a_plain_of_zero_has_no_percentage():
    zero = Effect(VIT, (0.0,) * 10, (0.1,) * 10, 200, (), SEEDS)
    found = verdict("c01", zero)
    assert (found.verdict, found.effect) == ("Not yet run", None)
    assert "undefined" in found.sentence


def test_a_change_is_a_share_of_the_size_of_plains_mean():
    gaps = Effect("table4/vit/10", (-0.1, -0.3), (-0.3, -0.1), 10, (), (42, 43))
    assert gaps.changes == pytest.approx({42: -100, 43: 100})


CNN = [f"table1/cnn/{n}" for n in (1, 7, 10, 20)]


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ([(-25, -20), (-25, -20), (-40, -30), (-20, -12)], "Reproduced"),
        ([(-25, -20), (-25, -20), (-5, -1), (-20, -12)], "Right direction, different size"),
        ([(-25, -20), (-5, -1), (-20, 5), (-20, -12)], "Inconclusive"),
        ([(-20, 5), (-5, -1), (-5, 5), (-20, -12)], "Paper's size excluded"),
        ([(-25, -20), (-5, -1), (-5, 5), (-0.5, 0.5)], "No effect"),
        ([(1, 2), (-5, -1), (-5, 5), (-0.5, 0.5)], "Contradicted"),
    ],
)
def test_a_claim_is_as_good_as_its_weakest_cell(intervals, expected):
    found = verdict("c04", *(effect(label, *ends) for label, ends in zip(CNN, intervals, strict=True)))
    assert found.verdict == expected
    assert len(found.parts) == 4
    first = next(ends for ends, part in zip(intervals, found.parts, strict=True) if part.ruling == expected)
    assert (found.low, found.high) == pytest.approx(first)  # of several that decide, the first
    assert f"1 {expected.lower()}" in found.sentence or expected == "Reproduced"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-1 + BITS, 1 - BITS, "Reproduced"),
        (0.1, 0.9, "Reproduced"),
        (-0.5, 1 + BITS, "Inconclusive"),
        (BITS, 1 + BITS, "Contradicted"),
        (-2, -BITS, "Contradicted"),
    ],
)
def test_what_the_paper_reports_as_null_is_reproduced_only_as_null(low, high, expected):
    others = [effect("table10/mlp", 1.5, 3), effect("table10/vit", 1, 2)]
    assert verdict("c30", *others, effect("table10/cnn", low, high)).verdict == expected


def test_a_claim_with_one_part_that_has_rows_does_not_count_parts():
    found = verdict("c30", effect("table10/mlp", -3, -1))
    words = "-2.0% (10 seeds, interval -3.0% to -1.0%) for MLP on CIFAR-10; 2 of 3 cells missing, which cannot change"
    assert found.sentence.startswith(f"Contradicted: {words}")


def test_evidence_must_pair_up():
    with pytest.raises(ValueError, match="pair up"):
        Effect(VIT, (0.1,), (0.2, 0.3), 1, (), (1, 2))
    with pytest.raises(ValueError, match="pair up"):
        Quantity(VIT, (0.1, 0.2), 1, (), (1, 1))


def test_the_paper_s_own_numbers_reproduce_all_but_two_claims_that_they_do_not_bear_out():
    needed = dict.fromkeys(label for one in claims() for label in one.needs)
    evidence = {label: paper_like(label, seed) for seed, label in enumerate(needed)}
    failed = {one.claim.id: one.verdict for one in judge_all({"primary": evidence}) if one.verdict != "Reproduced"}
    assert failed == {"c10": "Inconclusive", "c35": "Inconclusive"}


def test_every_label_has_words_of_its_own():
    found = {label: cell_words(label) for one in claims() for label in one.needs}
    assert not [label for label, words in found.items() if "/" in words or "_" in words or "{" in words]
    assert len(set(found.values())) == len(found)
    assert found["redundancy/vit/7"] == "ViT, N = 7 at equal settings"
    assert found["table12/mlp/0.5"] == "MLP, 50% label noise on CIFAR-100"
    assert found["table3/cnn/final"] == "final validation accuracy of the CNN"


def test_of_several_parts_both_numbers_are_of_the_one_that_decides():
    later = "table3/vit/convergence"
    found = verdict("c15", effect(later, -10, -5), paper_like("table3/vit/final", 1))
    assert found.verdict == "Contradicted"
    assert "for convergence epoch of the ViT; of 2 parts 1 reproduced, 1 contradicted" in found.sentence
    assert found.sentence.endswith("the paper has +57.9%.")
    trend = verdict("c03", *(paper_like(label, i) for i, label in enumerate(claim("c03").needs)))
    assert "of 5 parts 2 reproduced, 3 steps not reversed" in trend.sentence
