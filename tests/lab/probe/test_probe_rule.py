"""Numbers against scipy, and the advice that follows from them."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from asymtrain.lab.probe import RULE, PlaceFinding, Shadow, Trial, advise
from asymtrain.lab.probe.evidence import median, t_interval, trend, z_score
from asymtrain.lab.probe.result import Probe
from asymtrain.lab.probe.rule import has_learnt, kept_places, outlook


def place(name="blocks.0", alignment=0.3, half=0.1, measured=40):
    low, high = (None, None) if alignment is None else (alignment - half, alignment + half)
    cosines = (alignment,) * measured
    return PlaceFinding(
        name, tuple(range(measured)), cosines, alignment, low, high, 0.0, -0.1, 0.1, 0.0, 1.0, 0.5, 0.4, 1.0
    )


def shadow(alignment=0.3, steps=200, accuracy=0.6, places=()):
    together = place("all places", alignment)
    return Shadow(places or (place(),), together, steps, accuracy, 1.0, 0.1, 1600, 0, 1.0, 0.01)


def trial(differences, changes=None, alpha=1.0, held_out=10_000):
    changes = changes or [0.0] * len(differences)
    plain = tuple((0.3, 0.5) for _ in differences)
    asymmetric = tuple((0.3 + d - c, 0.5 + d) for d, c in zip(differences, changes, strict=True))
    return Trial(alpha, tuple(range(len(differences))), plain, asymmetric, 200, held_out)


def test_a_trial_knows_its_differences_and_their_changes():
    one = trial([0.02, 0.03], [0.01, -0.01])
    assert one.differences == pytest.approx([0.02, 0.03])
    assert one.changes == pytest.approx([0.01, -0.01])


def test_intervals_and_scores_are_scipys():
    values = [0.01, 0.03, -0.005, 0.02]
    expected = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert t_interval(values) == pytest.approx(expected)
    assert t_interval([1.0]) == (None, None)
    t = np.mean(values) / stats.sem(values)
    assert z_score(values, 0.0) == pytest.approx(stats.norm.ppf(stats.t.cdf(t, 3)))
    assert z_score([-v for v in values], 0.0) == pytest.approx(-z_score(values, 0.0))
    assert z_score([0.1], 0.01) == 0.0
    assert z_score([0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1], 1e-9) == pytest.approx(3.0)


def test_the_floor_keeps_equal_differences_from_certainty():
    assert z_score([0.001, 0.001], 0.002) < z_score([0.001, 0.001], 1e-6)


def test_a_tiny_held_out_set_gives_no_narrow_interval_and_no_verdict():
    """Two pairs that differ by the same one of eight images: that is not certainty."""
    tiny = trial([0.125, 0.125], held_out=8)
    large = trial([0.125, 0.125])
    seen = outlook(shadow(), tiny)
    half = stats.t.ppf(0.975, 1) * 0.125 / np.sqrt(2)
    assert (seen.low, seen.high) == pytest.approx((0.125 - half, 0.125 + half))
    assert seen.probability < outlook(shadow(), large).probability
    found = advise(shadow(), [tiny])
    assert found.verdict == "cannot tell"
    assert any("on 8 held-out samples" in reason for reason in found.because)
    assert any("one of its 8 samples is 12.5 points (at least 50 samples)" in reason for reason in found.because)
    assert advise(shadow(), [large]).verdict == "attach"


def test_a_trend_is_the_line_through_the_blocks():
    drawn = np.random.default_rng(0)
    values = list(0.01 * np.arange(40) + 0.05 * drawn.standard_normal(40))
    blocks = np.array(values).reshape(8, 5).mean(1)
    line = stats.linregress(2 + 5 * np.arange(8), blocks)
    change, low, high = trend(values)
    half = stats.t.ppf(0.975, 6) * line.stderr
    assert (change, low, high) == pytest.approx((39 * line.slope, 39 * (line.slope - half), 39 * (line.slope + half)))
    assert trend(values[:14]) == (None, None, None)
    assert median([3.0, 1.0, 2.0, 10.0]) == 2.5
    assert median([]) is None


def test_a_clear_gain_is_attached_with_the_better_alpha():
    found = advise(shadow(), [trial([0.03, 0.031, 0.029, 0.03, 0.03], alpha=0.1), trial([-0.01, 0.01, 0.0, 0.0, 0.0])])
    assert (found.verdict, found.alpha, found.sign) == ("attach", 0.1, 1)
    assert found.places == ("blocks.0",)
    assert found.probability == max(one.probability for one in found.outlooks)


def test_a_clear_loss_at_every_alpha_is_left():
    found = advise(shadow(), [trial([-0.03, -0.031, -0.029, -0.03, -0.03], alpha=a) for a in (0.1, 1.0)])
    assert (found.verdict, found.alpha, found.sign, found.places) == ("leave", None, -1, ())


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (shadow(steps=RULE.least_steps - 1), "too few"),
        (shadow(accuracy=0.11), "hardly begun to learn"),
    ],
)
def test_it_cannot_tell_from_too_little_whatever_the_pairs_say(seen, text):
    found = advise(seen, [trial([0.03, 0.031, 0.029, 0.03, 0.03])])
    assert (found.verdict, found.sign) == ("cannot tell", 0)
    assert any(text in reason for reason in found.because)


def test_one_pair_and_mixed_pairs_are_no_basis():
    assert any("pairs were finished" in reason for reason in advise(shadow(), [trial([0.05])]).because)
    mixed = advise(shadow(), [trial([0.03, -0.03, 0.01])])
    assert mixed.verdict == "cannot tell"
    assert any("no basis for advice" in reason for reason in mixed.because)


def test_without_pairs_it_says_that_alignment_is_weak():
    found = advise(shadow(0.5))
    assert found.outlooks[0].alpha is None
    assert any("weak predictor" in reason for reason in found.because)
    assert advise(shadow(0.9)).probability > advise(shadow(-0.9)).probability


def test_the_probability_is_the_logistic_of_the_documented_sum():
    one = trial([0.01, 0.02, 0.0], [0.01, 0.0, 0.01])
    rule = dataclasses.replace(RULE, intercept=0.1, level=0.5, trend=0.25, cosine=2.0, floor=0.0)
    total = 0.1 + 0.5 * z_score(one.differences, 0.0) + 0.25 * z_score(one.changes, 0.0) + 2.0 * 0.3
    assert outlook(shadow(0.3), one, rule).probability == pytest.approx(1 / (1 + np.exp(-total)))


def test_places_that_clearly_conflict_are_left_out_unless_all_do():
    good, bad, wide = place("a"), place("b", -0.3), place("c", -0.05)
    assert kept_places(shadow(places=(good, bad, wide))) == ["a", "c"]
    assert kept_places(shadow(places=(bad,))) == ["b"]
    found = advise(shadow(places=(good, bad)), [trial([0.03, 0.031, 0.029, 0.03, 0.03])])
    assert found.places == ("a",)
    assert any("Left out" in reason and "b" in reason for reason in found.because)


def test_chance_is_judged_by_the_number_of_images():
    few = dataclasses.replace(shadow(accuracy=0.15), images=50)
    assert not has_learnt(few)
    assert has_learnt(dataclasses.replace(few, images=5000))


def test_a_probe_prints_its_advice():
    advice = advise(shadow(), [trial([0.03, 0.031, 0.029, 0.03, 0.03])])
    text = str(Probe(shadow(), (), advice, ("A note.",), 1.0))
    assert text.startswith("Attach at blocks.0 with alpha 1: probability of a gain 0.")
    assert text.endswith(f"A note.\nThe probability's constants: {RULE.basis}.")
    assert RULE.basis


def test_the_page_names_the_thresholds():
    page = (Path(__file__).parents[3] / "docs" / "probe.md").read_text()
    assert f"fewer than {RULE.least_held_out} held-out samples" in " ".join(page.split())
    assert f"At a probability of {RULE.sure:g} or more" in page
    assert f"At {1 - RULE.sure:.2g} or less" in page
