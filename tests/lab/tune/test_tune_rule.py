"""The verdict on pairs, and what fits into the time."""

import numpy as np
import pytest

from asymtrain.lab.tune import RULE, Plan, Timing, judge, make_plan
from asymtrain.lab.tune.rule import kept_of, pairs_needed, race_epochs

CLEAR = [2.0, 2.3, 1.8, 2.1, 2.2]


@pytest.mark.parametrize(
    ("differences", "not_learnt", "epochs", "verdict", "because"),
    [
        pytest.param(CLEAR, 0, 30, "helps", "gain", id="a gain"),
        pytest.param([-d for d in CLEAR], 0, 30, "hurts", "no gain", id="a loss"),
        pytest.param(CLEAR, 0, 15, "helps", "gain", id="half of the training"),
        pytest.param(CLEAR, 0, 14, "likely helps", "short", id="less than half"),
        pytest.param([-d for d in CLEAR], 0, 14, "likely hurts", "short", id="a loss after less than half"),
        pytest.param([0.1, -0.1, 0.0, 0.1, -0.1], 0, 30, "no meaningful difference", "no gain", id="nothing"),
        pytest.param([0.0] * 8, 0, 30, "no meaningful difference", "no gain", id="equal"),
        pytest.param([0.0] * 7, 0, 30, "inconclusive", "no spread", id="equal so far"),
        pytest.param([2.0] * 4, 0, 30, "likely helps", "no spread", id="no spread"),
        pytest.param([3.0, -1.0, 1.5, 0.5], 0, 30, "likely helps", "wide", id="wide"),
        pytest.param([-3.0, 1.0, -1.5, 0.5], 0, 30, "inconclusive", "wide", id="wide and below"),
        pytest.param([-2.0, -1.0, -1.8, 0.2, -1.5, -1.2, -0.1], 0, 30, "likely hurts", "no gain", id="no gain left"),
        pytest.param([0.1, -0.1, 0.0, 0.1, -0.1], 0, 14, "inconclusive", "short", id="nothing after less than half"),
        pytest.param([2.0, 2.1], 0, 30, "likely helps", "few pairs", id="two pairs"),
        pytest.param([-1.0], 0, 30, "inconclusive", "few pairs", id="a pair below"),
        pytest.param([], 0, 30, "inconclusive", "few pairs", id="no pair"),
        pytest.param(CLEAR, 3, 30, "inconclusive", "not learnt", id="nothing learns"),
        pytest.param(CLEAR, 2, 30, "helps", "gain", id="mostly it did"),
    ],
)
def test_verdicts(differences, not_learnt, epochs, verdict, because):
    ruling = judge(differences, not_learnt, epochs, 30)
    assert (ruling.verdict, ruling.because) == (verdict, because)
    assert ruling.is_settled == (verdict in ("helps", "hurts", "no meaningful difference"))
    assert ruling.reason


def test_how_many_pairs_would_decide():
    noisy = [3.0, -1.0, 1.5, 0.5]
    needed = pairs_needed(noisy)
    again = np.resize(noisy, 4 * (needed // 4 + 1))
    assert 8 < needed < 100
    assert judge(again, 0, 30, 30).verdict == "helps"
    assert pairs_needed([1.0, 1.0]) is None
    assert pairs_needed([1.0]) is None
    assert pairs_needed([0.0, 0.0]) == RULE.most_pairs


@pytest.mark.parametrize(
    ("seconds", "plan"),
    [
        pytest.param(1e6, Plan(30, 15_000), id="much time"),
        pytest.param(300, Plan(30, 4), id="four whole pairs"),
        pytest.param(150, Plan(16, 4), id="four shorter ones"),
        pytest.param(40, Plan(4, 4), id="four short ones"),
        pytest.param(14, Plan(1, 6), id="pairs of one epoch"),
        pytest.param(7, Plan(1, 3), id="three pairs of one epoch"),
        pytest.param(3, Plan(1, 1), id="one pair of one epoch"),
        pytest.param(1, Plan(1, 0), id="none"),
    ],
)
def test_the_plan_makes_pairs_as_long_as_four_of_them_fit(seconds, plan):
    assert make_plan(Timing(1.0, 5.0), seconds, 30) == plan


@pytest.mark.parametrize("seconds", np.geomspace(20, 600, 25))
def test_while_pairs_are_shorter_than_asked_for_the_plan_takes_its_part_of_the_time(seconds):
    plan = make_plan(Timing(1.0, 0.0), seconds, 60)
    used = 2 * plan.epochs * plan.pairs / seconds
    assert used <= RULE.used
    assert plan.epochs == 60 or used > RULE.used - 2 * (plan.pairs + 1) / seconds


def test_what_a_race_takes():
    assert [kept_of(n) for n in (1, 2, 3, 7)] == [1, 1, 2, 4]
    # Eight runs, then five, then three, of ten epochs each; then four fresh seeds of three runs.
    assert race_epochs(7, Plan(30, 4)) == 16 * 10 + 12 * 30
