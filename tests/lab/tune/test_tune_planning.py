"""What fits into the time."""

import pytest

from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.tune import Rung, Timing, make_plan
from asymtrain.lab.tune.planning import RacePlan, confirmation_seconds, ladder, race_seconds, whole_plan
from asymtrain.lab.tune.rule import RULE
from asymtrain.lab.tune.running import Stopwatch, _timing_of
from invented_runs import invented_epoch

TIMING = Timing(epoch=1.0, start=5.0, runs=10)


def plan(seconds, *, candidates=9, epochs=30, seeds=5, timing=TIMING):
    return make_plan(timing, seconds, candidates=candidates, epochs=epochs, seeds=seeds)


def test_with_time_for_everything_the_last_rung_and_the_confirmation_are_as_long_as_asked():
    made = plan(10_000)
    assert made.rungs == (Rung(4, 9, 3), Rung(10, 5, 3), Rung(30, 3, 3))
    assert (made.epochs, made.seeds) == (30, 5)


def test_a_race_takes_a_start_and_its_epochs_for_each_rung():
    slow, rungs = Timing(epoch=2.0, start=5.0, runs=10), (Rung(4, 9, 3), Rung(10, 5, 3))
    assert race_seconds(rungs, slow) == 2 * 5 + 2 * sum(rung.run_epochs for rung in rungs)


def longest_within(seconds, made, epochs):
    return race_seconds(made.rungs, TIMING) + confirmation_seconds(epochs, made.seeds, TIMING) <= seconds


@pytest.mark.parametrize("seconds", [60, 100, 200, 400, 700, 1000, 1200, 1500])
def test_a_plan_fits_into_its_time_and_leaves_the_confirmation_its_share(seconds):
    made = plan(seconds)
    planned = race_seconds(made.rungs, TIMING) + confirmation_seconds(made.epochs, made.seeds, TIMING)
    if made.rungs:
        assert made.seconds == pytest.approx(planned)
        assert planned <= RULE.used * seconds
        assert made.epochs >= made.rungs[-1].epochs >= 1
        # All that the race leaves, and at least its share.
        fitting = [epochs for epochs in range(31) if longest_within(RULE.used * seconds, made, epochs)]
        assert made.epochs == max(fitting)
        share = RULE.confirmation_share * RULE.used * seconds
        assert all(confirmation_seconds(epochs, 5, TIMING) > share for epochs in range(made.epochs + 1, 31))
    else:
        assert made.epochs == 0
    assert made.needed > 10


def test_more_time_gives_a_longer_race():
    plans = [plan(seconds) for seconds in range(50, 2500, 50)]
    lasts = [made.rungs[-1].epochs if made.rungs else 0 for made in plans]
    assert lasts == sorted(lasts)
    assert (lasts[0], lasts[-1]) == (0, 30)


@pytest.mark.parametrize("candidates", [1, 4, 9, 12])
@pytest.mark.parametrize("epochs", [1, 3, 30])
def test_what_is_needed_is_enough(candidates, epochs):
    needed = 60 * plan(60, candidates=candidates, epochs=epochs).needed
    timed = TIMING.start + 10 * RULE.timing_epochs * TIMING.epoch
    made = plan(needed - timed + 1e-6, candidates=candidates, epochs=epochs)
    assert (made.epochs, made.rungs[-1].epochs, made.rungs[0].seeds) == (epochs, epochs, RULE.race_seeds)


def test_seeds_are_given_up_before_the_race_is():
    tight = [plan(seconds) for seconds in range(40, 200)]
    assert {made.rungs[0].seeds for made in tight if made.rungs} == {2, 3}
    assert all(made.seeds == 5 for made in tight)


@pytest.mark.parametrize(
    ("last", "candidates", "rungs"),
    [
        pytest.param(30, 1, [(10, 1), (30, 1)], id="one candidate"),
        pytest.param(30, 2, [(10, 2), (30, 1)], id="two"),
        pytest.param(30, 4, [(10, 4), (30, 2)], id="four"),
        pytest.param(30, 40, [(4, 40), (10, 20), (30, 10)], id="many"),
        pytest.param(2, 9, [(1, 9), (2, 5)], id="a short race"),
        pytest.param(1, 9, [(1, 9)], id="the shortest"),
    ],
)
def test_the_ladder(last, candidates, rungs):
    assert [(rung.epochs, rung.candidates) for rung in ladder(last, candidates, 3)] == rungs


def test_without_a_clock_the_plan_is_that_of_time_for_everything():
    made, whole = plan(10_000), whole_plan(candidates=9, epochs=30, seeds=5)
    assert (whole.rungs, whole.epochs, whole.seeds) == (made.rungs, made.epochs, made.seeds)
    assert whole.seconds is None


@pytest.mark.parametrize("made", [plan(600), whole_plan(candidates=2, epochs=3, seeds=5)], ids=["limited", "whole"])
def test_a_plan_comes_back_from_json(made):
    assert RacePlan.from_dict(made.to_dict()) == made


def test_the_stopwatch_tells_the_start_from_the_epochs():
    now = iter([0.0, 12.0, 14.0, 16.0])
    watch = Stopwatch(lambda: next(now))
    for done in (0, 1, 1, 2, 3):  # a number that is reported twice is timed once
        watch.update(done)
    assert watch.timing(3) == Timing(epoch=2.0, start=10.0, runs=3)


def test_a_stopwatch_with_one_report_counts_everything_as_epochs():
    now = iter([0.0, 12.0])
    watch = Stopwatch(lambda: next(now))
    assert watch.timing(4) is None
    watch.update(4)
    timing = watch.timing(4)
    assert timing == Timing(epoch=3.0, start=0.0, runs=4)


def test_stored_runs_are_timed_by_their_own_seconds():
    run = Run(RunSpec(epochs=2), (invented_epoch(1, 0.5, None, None), invented_epoch(2, 0.5, None, None)))
    assert _timing_of([run]) == Timing(run.seconds / 2, 0.0, 1)
    assert _timing_of([]) is None
