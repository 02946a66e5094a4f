"""Who stays in the race, and what a confirmation says: pure functions, by table."""

import dataclasses
from pathlib import Path

import pytest

from asymtrain.lab.tune import CANDIDATES, RULE, Standing, is_moving, judge, survivors
from asymtrain.lab.tune.rule import judge_race, kept_of


def row(low, high, *, n=5, points=None, at_chance=0, diverged=0):
    points = (low + high) / 2 if points is None else points
    return {
        "n": n, "points": points, "points_low": low, "points_high": high, "plain_at_chance": at_chance,
        "plain_diverged": diverged,
    }  # fmt: skip


def standings(*values):
    """Candidates by (points, half of the interval)."""
    return [Standing(points, points - half, points + half) for points, half in values]


@pytest.mark.parametrize(
    ("values", "going_on"),
    [
        pytest.param([(1.0, 2), (3.0, 2), (2.0, 2), (-1.0, 2)], [1, 2], id="the better half, best first"),
        pytest.param([(1.0, 2), (3.0, 2), (2.0, 2)], [1, 2], id="of three, two"),
        pytest.param([(1.0, 2), (1.0, 2)], [0], id="of equals the first"),
        pytest.param([(-3.0, 1), (-2.0, 1)], [], id="all clearly worse than Plain"),
        pytest.param([(-3.0, 1), (-2.0, 1), (-1.0, 2)], [2], id="the clearly worse of the better half too"),
        pytest.param([(-0.5, 1)], [0], id="one that is not clearly worse"),
    ],
)
def test_survivors(values, going_on):
    assert survivors(standings(*values)) == going_on


def test_of_equals_the_cheaper_goes_on_whatever_the_last_bits_of_a_mean_are():
    assert survivors([Standing(1.0, 0.0, 2.0, cost=2), Standing(1.0 - 1e-15, 0.0, 2.0, cost=1)]) == [1]
    assert survivors([Standing(1.0, 0.0, 2.0, cost=2), Standing(0.999, 0.0, 2.0, cost=1)]) == [0]


def test_before_the_last_rung_the_best_goes_on_even_where_all_are_clearly_worse():
    assert survivors(standings((-3.0, 1), (-2.0, 1)), last=False) == [1]
    assert survivors(standings((-3.0, 1), (1.0, 2)), last=False) == [1]


def test_without_an_interval_nothing_is_clearly_worse():
    assert survivors([Standing(-5.0, None, None)]) == [0]


@pytest.mark.parametrize(("count", "kept"), [(1, 1), (2, 1), (3, 2), (5, 3), (9, 5)])
def test_half_of_the_candidates_go_on_rounded_up(count, kept):
    assert kept_of(count) == kept


@pytest.mark.parametrize(
    ("course", "moving"),
    [
        pytest.param([3.0], True, id="of one length nothing can be told"),
        pytest.param([2.0, 3.0], False, id="growing"),
        pytest.param([3.0, 2.9], False, id="as it was"),
        pytest.param([6.0, 3.0, 1.2], True, id="shrinking"),
        pytest.param([6.0, 5.2], False, id="little smaller"),
        pytest.param([2.0, -1.0], True, id="another sign"),
        pytest.param([-2.0, 1.0], True, id="another sign upwards"),
        pytest.param([0.2, -0.1], False, id="around 0"),
        pytest.param([-1.0, -3.0], False, id="ever worse"),
        pytest.param([-5.0, -1.0], True, id="harm that goes away"),
        pytest.param([9.0, 1.0, 1.1], False, id="the last step decides"),
    ],
)
def test_is_moving(course, moving):
    assert is_moving(course) is moving


@pytest.mark.parametrize(
    ("compared", "verdict", "because"),
    [
        pytest.param(row(0.1, 4.0), "helps", "gain", id="above 0"),
        pytest.param(row(-3.0, -0.5), "hurts", "no gain", id="below 0"),
        pytest.param(row(-0.4, 0.5), "no meaningful difference", "no gain", id="around 0 and narrow"),
        pytest.param(row(-6.0, 0.9), "likely hurts", "no gain", id="no gain of the margin"),
        pytest.param(row(-0.1, 1.5), "likely helps", "wide", id="a gain is not excluded"),
        pytest.param(row(-52.0, 42.0), "inconclusive", "wide", id="anything is possible"),
        pytest.param(row(0.1, 4.0, n=4), "inconclusive", "few seeds", id="few seeds"),
        pytest.param(row(0.1, 4.0, at_chance=2), "inconclusive", "not learnt", id="Plain at chance"),
        pytest.param(row(0.1, 4.0, at_chance=1, diverged=1), "inconclusive", "not learnt", id="Plain diverged"),
        pytest.param(row(0.1, 4.0, at_chance=1), "helps", "gain", id="one of five at chance"),
        pytest.param(row(None, None, points=0.0), "no meaningful difference", "no gain", id="always the same accuracy"),
        pytest.param(row(None, None, points=2.0), "likely helps", "no spread", id="always the same difference"),
        pytest.param(row(None, None, points=-2.0), "inconclusive", "no spread", id="always the same loss"),
    ],
)
def test_judge(compared, verdict, because):
    ruling = judge(compared, 30, 30)
    assert (ruling.verdict, ruling.because) == (verdict, because)
    assert ruling.reason
    assert ruling.is_settled == (because in ("gain", "no gain"))


@pytest.mark.parametrize(
    ("epochs", "course", "because"),
    [
        pytest.param(10, [4.0, 2.0], "moving", id="shorter, and moving"),
        pytest.param(10, [2.0], "moving", id="shorter, and one length alone"),
        pytest.param(15, [1.8, 2.0], "gain", id="half as long, and at rest"),
        pytest.param(14, [1.8, 2.0], "short", id="at rest, and less than half as long"),
        pytest.param(30, [4.0, 2.0], "gain", id="as long as asked"),
    ],
)
def test_a_confirmation_that_is_shorter_than_the_training_must_be_at_rest(epochs, course, because):
    ruling = judge(row(1.0, 3.0), epochs, 30, course)
    assert (ruling.because, ruling.verdict) == (because, "helps" if because == "gain" else "likely helps")


def test_no_gain_is_said_of_a_shorter_training_too():
    assert judge(row(-3.0, -1.0), 10, 30, [-1.8, -2.0]).verdict == "hurts"


@pytest.mark.parametrize(
    ("epochs", "course", "because"),
    [
        pytest.param(10, [-5.0], "moving", id="shorter, and one length alone"),
        pytest.param(10, [-5.0, -2.0], "moving", id="shorter, and harm that goes away"),
        pytest.param(10, [-2.0, -5.0], "no candidate", id="shorter, and ever worse"),
        pytest.param(30, [-5.0, -2.0], "no candidate", id="as long as asked"),
    ],
)
def test_a_race_without_a_survivor_that_is_shorter_than_the_training_must_be_at_rest(epochs, course, because):
    ruling = judge_race(row(-6.0, -1.0), epochs, 30, course)
    assert (ruling.because, ruling.verdict) == (because, "inconclusive" if because == "moving" else "likely hurts")
    assert judge_race(row(-6.0, -1.0, at_chance=2), epochs, 30, course).because == "not learnt"


def test_a_narrow_nothing_that_still_moves_settles_nothing():
    assert judge(row(-0.5, 0.5), 10, 30, [-5.0, 0.0]).because == "moving"


def test_every_threshold_can_be_set():
    strict = dataclasses.replace(RULE, margin=5.0)
    assert judge(row(-0.1, 1.5), 30, 30, rule=strict).verdict == "no meaningful difference"


def test_the_documentation_has_every_threshold_and_every_candidate():
    page = (Path(__file__).parents[3] / "docs" / "tune.md").read_text()
    for name, value in dataclasses.asdict(RULE).items():
        assert f"`{name}` {value:g}" in page
    fields = [one.fields() | {"alpha": f"{one.alpha:g}"} for one in CANDIDATES]
    shown = ("objective", "bias", "alpha", "layers", "alpha_schedule")
    table = "\n".join(f"| {' | '.join(row[name] for name in shown)} |" for row in fields)
    assert f"|---|---|---|---|---|\n{table}\n\n" in page
