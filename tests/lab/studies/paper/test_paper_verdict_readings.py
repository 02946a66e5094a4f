"""Alternate readings: when a claim holds only under one, and the correction for having tried several."""

import pytest
from scipy import stats
from synthetic_evidence import BITS, VIT, effect, quantity

from asymtrain.lab.studies.paper.claims import claim
from asymtrain.lab.studies.paper.recipe import RecipeResult
from asymtrain.lab.studies.paper.study import ALTERNATES, PRIMARY
from asymtrain.lab.studies.paper.verdicts import gather, judge, judge_results


def under(primary, alternate, alternates=("sum", "all"), more=None):
    evidence = {"primary": {VIT: primary}, "sum": {VIT: alternate}, **(more or {})}
    return judge(claim("c01"), evidence, alternates=alternates)


def test_only_under_an_alternate():
    found = under(effect(VIT, -0.5, 0.5), effect(VIT, 20, 30))
    assert (found.verdict, found.words, found.reading) == ("Only under", "Only under sum", "sum")
    assert found.effect == pytest.approx(25)
    assert "Under primary: No effect" in found.sentence


@pytest.mark.parametrize(("low", "high"), [(20, 30), (1, 2), (BITS, 12)])
def test_where_the_primary_reading_gives_the_sign_no_alternate_is_asked(low, high):
    assert under(effect(VIT, low, high), effect(VIT, 20, 30)).reading == "primary"


def test_an_alternate_must_be_whole_and_reproduced():
    primary = effect(VIT, -5, 5)
    assert under(primary, effect(VIT, 1, 2)).verdict == "Paper's size excluded"
    assert under(primary, effect(VIT, 20, 30, epochs=100)).verdict == "Paper's size excluded"
    assert under(effect(VIT, -5, 5, epochs=100), effect(VIT, 20, 30)).verdict == "Not yet run"


def test_an_alternate_that_is_clear_and_says_otherwise_is_named_beside_the_verdict():
    found = under(effect(VIT, -5, 20), effect(VIT, 1, 2))
    assert (found.verdict, found.reading) == ("Inconclusive", "primary")
    words = "Under sum (not corrected for the number of readings): Right direction, different size: +1.5% (10 seeds"
    assert words in found.sentence
    for clear, says in ((effect(VIT, -5, 5), "Paper's size excluded"), (effect(VIT, -5, -1), "Contradicted")):
        assert f"readings): {says}: " in under(effect(VIT, -5, 20), clear).sentence
    for unclear in (effect(VIT, -4, 20), effect(VIT, 1, 2, epochs=100)):
        assert "Under sum" not in under(effect(VIT, -5, 20), unclear).sentence
    assert "Under sum" not in under(effect(VIT, -9, -2), effect(VIT, -8, -3)).sentence  # the same again


def with_p(p, label=VIT, at=25):
    """An effect of about the paper's size with this paired p."""
    t = stats.t.isf(p / 2, 9)
    reach = abs(at) / t * stats.t.ppf(1 - 0.025 / 12, 9)
    return effect(label, at - reach, at + reach)


def test_holm_over_alternates_and_cells():
    primary = effect(VIT, -5, 20)
    # Two alternates and twelve cells: 24 tests, so 0.05 / 24 is the bound; the table alone would ask for 0.05 / 12.
    assert under(primary, with_p(0.99 * 0.05 / 24)).verdict == "Only under"
    assert under(primary, with_p(1.01 * 0.05 / 24)).verdict == "Inconclusive"
    assert under(primary, with_p(1.01 * 0.05 / 24), alternates=("sum",)).verdict == "Only under"
    # Holm steps down: a smaller p under another alternate leaves 23 tests.
    clearer = {"all": {VIT: effect(VIT, 80, 90)}}
    assert under(primary, with_p(1.01 * 0.05 / 24), more=clearer).verdict == "Only under"
    assert under(primary, with_p(1.01 * 0.05 / 23), more=clearer).verdict == "Inconclusive"


def test_holm_asks_it_of_every_part():
    """Three cells of four beyond doubt leave 21 tests for the last one."""
    needs = claim("c04").needs
    primary, others = ({label: effect(label, *ends) for label in needs} for ends in ((-5, 5), (-22, -21)))
    for p, expected in ((0.99 * 0.05 / 21, "Only under"), (1.01 * 0.05 / 21, "Paper's size excluded")):
        evidence = {"primary": primary, "sum": {**others, needs[0]: with_p(p, needs[0], -22)}}
        assert judge(claim("c04"), evidence, alternates=("sum", "all")).verdict == expected


def test_near_zero_under_an_alternate_is_corrected_too():
    """Just inside the margin is clear enough for the cells of the table, and not for four alternates as well."""
    (label,) = claim("c09").needs
    for reach, expected in ((0.119, "Contradicted"), (0.05, "Only under")):
        evidence = {"primary": {label: quantity(label, 0.4, 0.6)}, "sum": {label: quantity(label, -reach, reach)}}
        assert judge(claim("c09"), evidence, alternates=("sum", "all", "best", "instruments")).verdict == expected


def test_alternates_are_four_beside_the_primary_reading():
    assert len({reading.name for reading in (PRIMARY, *ALTERNATES)}) == 5  # Holm's correction counts them


CNN, COSINE = "table1/cnn/20", "table2/vit/average"


def result(**evidence):
    """What a recipe found, by reading."""
    labelled = {reading: {one.label: one for one in found} for reading, found in evidence.items()}
    return RecipeResult("a", "", "", "", (), (), labelled)


def test_a_reading_takes_the_cells_of_tables_that_it_does_not_touch_from_the_primary_one():
    cosine, plain, other = quantity(COSINE, 0.1, 0.2), effect(VIT, 20, 30), effect(VIT, 1, 2)
    found = gather(
        [result(primary=(plain, effect(CNN, -20, -10)), best=(other,), all=(other,)), result(primary=(cosine,))]
    )
    assert found["best"] == {COSINE: cosine, VIT: other}  # Table 1 is its own, and the CNN has no row there
    assert found["all"] == {VIT: other}  # another training has other cosines


def test_verdicts_ask_all_readings_that_are_declared():
    found = judge_results(
        [result(primary=(effect(VIT, -5, 20),), best=(effect(VIT, 24, 26),), last20=(effect(VIT, 1, 2),))]
    )
    (vit,) = (one for one in found if one.claim.id == "c01")
    assert vit.words == "Only under best"
    assert "By the mean of the last 20 epochs (declared on 2026-11-16, after rows were seen): Right dir" in vit.sentence
