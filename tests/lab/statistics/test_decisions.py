"""The one rule for verdicts: a case on either side of each of its limits."""

from pathlib import Path

import pytest

from asymtrain.lab.statistics import FEWEST, LEVEL, VERDICTS, colour_of, decide, direction, is_within

CASES = [  # estimate, low, high, n, further arguments, verdict, reason
    (1.0, 0.1, 2.0, 5, {}, "helps", "clear"),
    (-1.0, -2.0, -0.1, 5, {}, "hurts", "clear"),
    (1.0, 0.0, 2.0, 5, {}, "inconclusive", "wide"),
    (-1.0, -2.0, 0.0, 5, {}, "inconclusive", "wide"),
    (1.0, 0.1, 2.0, 4, {}, "inconclusive", "few seeds"),
    (1.0, 0.1, 2.0, 4, {"fewest": 4}, "helps", "clear"),
    (1.0, None, None, 1, {}, "inconclusive", "single seed"),
    (1.0, None, None, 5, {}, "inconclusive", "no spread"),
    (0.0, -0.4, 0.4, 5, {"margin": 0.5}, "no meaningful difference", "margin"),
    (0.1, -0.4, 0.5, 5, {"margin": 0.5}, "harmless", "margin"),
    (0.0, -0.5, 0.4, 5, {"margin": 0.5}, "inconclusive", "wide"),
    (0.2, 0.1, 0.3, 5, {"margin": 0.5}, "helps", "clear"),  # an effect may be smaller than the margin
    (0.2, None, None, 5, {"margin": 0.5}, "no meaningful difference", "margin"),
    (0.5, None, None, 5, {"margin": 0.5}, "harmless", "margin"),
    (-0.5, None, None, 5, {"margin": 0.5}, "inconclusive", "wide"),
    (1.0, -0.1, 2.0, 5, {"p": 0.049}, "helps", "clear"),  # a p of the caller decides, not the interval
    (-1.0, -2.0, 0.1, 5, {"p": 0.049}, "hurts", "clear"),
    (1.0, 0.1, 2.0, 5, {"p": LEVEL}, "inconclusive", "wide"),
    (1.0, 0.1, 2.0, 5, {"p": LEVEL, "margin": 0.5}, "harmless", "margin"),
    (1.0, 0.1, 2.0, 4, {"p": 0.001, "margin": 0.5}, "inconclusive", "few seeds"),
]


@pytest.mark.parametrize(("estimate", "low", "high", "n", "more", "verdict", "reason"), CASES)
def test_each_limit_of_the_rule(estimate, low, high, n, more, verdict, reason):
    found = decide(estimate, low, high, n, **more)
    assert (found.verdict, found.reason) == (verdict, reason)
    assert verdict in VERDICTS


def test_five_seeds_and_five_percent():
    assert (FEWEST, LEVEL) == (5, 0.05)


@pytest.mark.parametrize(("low", "high", "sign"), [(0.1, 1, 1), (0, 1, 0), (-1, 1, 0), (-1, 0, 0), (-1, -0.1, -1)])
def test_the_direction_of_an_interval(low, high, sign):
    assert direction(low, high) == sign


@pytest.mark.parametrize(("low", "high", "inside"), [(-0.9, 0.9, True), (-1, 0.9, False), (-0.9, 1, False)])
def test_within_a_margin(low, high, inside):
    assert is_within(low, high, 1) == inside


def test_only_clear_effects_have_a_colour():
    assert {verdict: colour_of(verdict) for verdict in VERDICTS if colour_of(verdict) != "soft"} == {
        "helps": "good",
        "hurts": "bad",
    }


def test_the_glossary_defines_every_verdict():
    page = (Path(__file__).parents[3] / "docs" / "glossary.md").read_text()
    section = page.partition("\n## Verdicts\n")[2].partition("\n## ")[0]
    assert all(f"**{verdict}**" in section for verdict in VERDICTS)
