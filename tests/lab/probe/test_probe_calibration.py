"""Fitting and scoring against closed forms."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from asymtrain.errors import UsageError
from asymtrain.lab.probe import RULE, Rule, Trial

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from probe_calibration import (
    Case,
    correlation,
    fit,
    refreshed,
    rule_line,
    score,
    score_parts,
    score_text,
    trial_from_dict,
)


def case(gain, probability=0.5, alignment=0.1, family="a", level=0.0, trend=0.0, spread=0.001, verdict="cannot tell"):
    differences = (gain - spread, gain, gain + spread)
    return Case(family, 1.0, alignment, level, trend, probability, verdict, differences, 0.5, alignment)


HELPED, HURT, UNCLEAR = 0.02, -0.02, 0.0


def test_outcomes_are_those_of_the_paired_interval():
    assert [case(gain).outcome for gain in (HELPED, HURT, UNCLEAR)] == [1, -1, 0]
    low, high = stats.t.interval(0.95, 2, HELPED, 0.001 / np.sqrt(3))
    assert case(HELPED).interval == pytest.approx((low, high))
    assert case(HELPED).gain == pytest.approx(4.0)
    assert case(HELPED, spread=0.0).outcome == 1


def test_a_score_by_hand():
    cases = [
        case(HELPED, 0.9, verdict="attach"),
        case(HURT, 0.6),
        case(HURT, 0.1, verdict="leave"),
        case(UNCLEAR, 0.85, verdict="attach"),
        case(UNCLEAR, 0.5),
    ]
    found = score("probe", cases)
    assert (found.clear, found.right) == (3, pytest.approx(2 / 3))
    assert found.brier == pytest.approx((0.01 + 0.36 + 0.01) / 3)
    assert (found.committed, found.committed_right, found.unclear, found.unclear_committed) == (2, 2, 2, 1)
    n, p, z = 3, 2 / 3, stats.norm.ppf(0.975)
    centre, half = p + z * z / (2 * n), z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert (found.low, found.high) == pytest.approx(
        ((centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n))
    )
    always = score("always yes", cases)
    assert (always.right, always.brier, always.unclear_committed) == (pytest.approx(1 / 3), pytest.approx(2 / 3), 2)
    by_sign = score("sign of the mean cosine", [case(HELPED, alignment=-0.1), case(HURT, alignment=-0.1)])
    assert by_sign.right == 0.5
    with pytest.raises(UsageError, match="no case has a clear effect"):
        score("probe", [case(UNCLEAR)])


def test_a_fit_recovers_what_made_the_cases():
    drawn = np.random.default_rng(0)
    true = dataclasses.replace(RULE, intercept=-0.5, level=1.5, trend=0.7, cosine=2.0)
    cases = []
    for i in range(1500):
        level, trend, alignment = drawn.normal(size=3)
        blank = case(0.0, alignment=alignment, level=level, trend=trend, family=str(i % 7))
        helps = drawn.random() < refreshed(blank, true)
        cases.append(dataclasses.replace(blank, differences=(0.5 if helps else -0.5,) * 5))
    found = fit(cases)
    for name in ("intercept", "level", "trend", "cosine"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), abs=0.3), name
    assert found.sure == RULE.sure
    assert 0 < found.alone < found.cosine  # what is left out blurs the rest
    with pytest.raises(UsageError, match="two families"):
        fit(cases[:1])
    # The line for rule.py is Python that gives the same rule, and says where it comes from.
    namespace = {"Rule": Rule}
    exec(rule_line(found), namespace)
    assert namespace["RULE"] == found
    assert found.basis == "fitted to 1500 cases of 7 families"


def test_the_correlation_is_spearmans_and_its_interval_is_over_families():
    drawn = np.random.default_rng(1)
    alignments = drawn.normal(size=8)
    cases = [case(a + drawn.normal(), alignment=a, family=str(i)) for i, a in enumerate(alignments)]
    found, low, high = correlation(cases, lambda one: one.alignment, draws=300)
    expected = stats.spearmanr([one.alignment for one in cases], [one.gain for one in cases]).statistic
    assert found == pytest.approx(expected)
    assert low < found < high
    # More cases of the same families say nothing new.
    thrice = [one for one in cases for _ in range(3)]
    assert correlation(thrice, lambda one: one.alignment, draws=300) == pytest.approx((found, low, high))
    assert correlation(cases, lambda one: 0.5) is None
    with pytest.raises(UsageError, match="three families"):
        correlation(cases[:2], lambda one: one.alignment)


@pytest.mark.slow
def test_both_parts_are_scored_and_shown():
    tune = [case(g, 0.7, family=f, level=g * 50) for f, g in (("a", HELPED), ("b", HURT), ("c", HELPED))]
    scored = [case(g, 0.7, family=f, level=g * 50) for f, g in (("d", HELPED), ("e", HURT))]
    found = score_parts(tune, scored)
    assert [part for part, _ in found] == ["tune"] * 4 + ["score"] * 5
    assert found[-1][1].right == 1.0  # the fitted rule knows that the level decides
    several = [dataclasses.replace(one, alignment=i / 10) for i, one in enumerate([*tune, *scored])]
    text = score_text(found, several)
    assert text.count("\n| ") == 9
    assert "5 cases of 5 families" in text
    # A case without a cosine over the full training is not counted where that is asked for.
    partly = [dataclasses.replace(one, cosine=i / 7 if i else None) for i, one in enumerate(several)]
    assert "4 cases of 4 families" in score_text(found, partly)
    assert score_parts([case(UNCLEAR)], []) == []


def test_a_trial_comes_back_from_json():
    one = Trial(0.1, (3, 4), ((0.1, 0.2), (0.3, 0.4)), ((0.2, 0.3), (0.4, 0.5)), 60, 80)
    assert trial_from_dict(json.loads(json.dumps(dataclasses.asdict(one)))) == one
