"""What a set of runs says about a question: the race, the winner, the verdict. Nothing is trained here."""

import dataclasses

import pytest
from tune_examples import BAD, BASE, FAIR, GOOD, PLAN, all_runs, question, runs_of

from asymtrain import UsageError
from asymtrain.lab.candidates import Candidate
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.tune import CANDIDATES, Question, RacePlan, Rung, as_candidates, replay
from asymtrain.lab.tune.planning import CONFIRMATION_SEED, RACE_SEED

GAINS = {GOOD: 0.1, FAIR: 0.05, BAD: -0.2}


def raced(gains=GAINS, plan=PLAN, asked=None):
    asked = asked or question()
    return replay(asked, plan, all_runs(asked, plan, gains))


def kept(race):
    return [[(entry.candidate, entry.kept) for entry in rung.entries] for rung in race.rungs]


def test_the_better_half_trains_longer_and_the_winner_is_confirmed():
    race = raced()
    assert kept(race) == [[(GOOD, True), (FAIR, True), (BAD, False)], [(GOOD, True), (FAIR, False)]]
    assert race.winner == GOOD
    assert race.ruling.verdict == "helps"
    assert [seed for seed, _, _ in race.pairs] == list(range(CONFIRMATION_SEED, CONFIRMATION_SEED + 5))
    assert race.row["n"] == 5
    assert race.row["points"] == pytest.approx(10, abs=2)
    assert list(race.course) == [3, 9]  # of both lengths; at nine epochs the confirmation's
    assert race.course[9] == race.row["points"]


def test_the_interval_is_of_fresh_seeds_alone():
    """A winner by luck: its runs of the race are far better than those of the confirmation."""
    asked = question()
    runs = all_runs(asked, PLAN, GAINS)
    confirmation = {spec.id: spec for spec in asked.confirmation_specs(GOOD, PLAN).values()}
    runs |= runs_of(confirmation.values(), {GOOD: 0.0})
    race = replay(asked, PLAN, runs)
    assert race.winner == GOOD
    assert race.rungs[-1].entries[0].row["points"] > 5
    assert abs(race.row["points"]) < 1
    assert race.ruling.verdict != "helps"


def test_where_every_candidate_is_clearly_worse_nothing_is_confirmed():
    worse = {GOOD: -0.1, FAIR: -0.15, BAD: -0.2}
    race = raced(worse)
    assert race.winner is None
    assert [[entry.kept for entry in result.entries] for result in race.rungs] == [[True, False, False], [False]]
    assert not race.missing
    assert (race.ruling.verdict, race.ruling.because) == ("likely hurts", "no candidate")
    assert race.ruling.reason == "every candidate was clearly worse than Plain in the race"
    short = dataclasses.replace(PLAN, rungs=PLAN.rungs[:1])
    race = replay(question(), short, all_runs(question(), short, worse))
    assert (race.winner, len(race.rungs)) == (None, 1)
    assert (race.ruling.verdict, race.ruling.because) == ("inconclusive", "moving")
    told = "in the race, after 3 of 9 epochs, and no other length was measured: give more minutes"
    assert race.ruling.reason.endswith(told)


def test_a_plain_that_has_not_learnt_in_the_race_says_nothing_of_candidates():
    asked, runs = question(), {}
    specs = [item for rung in PLAN.rungs for item in asked.rung_specs(rung, asked.candidates).items()]
    for (candidate, seed), spec in specs:
        run = runs_of([spec], {})[spec.id]
        accuracy = 0.28 if candidate is None else 0.1 + 0.01 * (seed - RACE_SEED)  # of four classes
        epochs = tuple(dataclasses.replace(epoch, validation_accuracy=accuracy) for epoch in run.history)
        runs[spec.id] = dataclasses.replace(run, history=epochs)
    race = replay(asked, PLAN, runs)
    assert race.winner is None
    assert (race.ruling.verdict, race.ruling.because) == ("inconclusive", "not learnt")
    assert race.ruling.reason.endswith(": give more epochs, or another learning rate")


def test_a_plain_that_names_the_largest_class_alone_has_not_learnt():
    """Of four classes the largest has 58% of the images, as much as Plain has right."""
    asked = question()
    runs = all_runs(asked, PLAN, GAINS)
    assert replay(asked, PLAN, runs).ruling.verdict == "helps"
    race = replay(asked, PLAN, runs, largest=(0.58, 0.58))
    assert (race.ruling.verdict, race.ruling.because) == ("inconclusive", "not learnt")
    assert replay(asked, PLAN, runs, largest=(0.58, 0.4)).ruling.verdict == "helps"  # where test images are balanced


def test_what_is_missing_is_named_stage_by_stage():
    asked = question()
    race = replay(asked, PLAN, {})
    assert len(race.missing) == 4 * 3
    assert race.stage == "rung 1 of 2"
    runs = runs_of(race.missing[:-1], GAINS)
    race = replay(asked, PLAN, runs)
    assert [spec.id for spec in race.missing] == [race.missing[0].id]
    assert (race.rungs[0].finished, race.rungs[0].wanted) == (11, 12)
    assert kept(race) == [[(GOOD, None), (FAIR, None), (BAD, None)]]  # nothing is dropped before all are there
    assert (race.ruling.verdict, race.ruling.because) == ("inconclusive", "time")
    assert "1 run of rung 1 of 2 is missing" in race.ruling.reason


def test_a_confirmation_under_way_says_nothing_yet():
    asked = question()
    runs = all_runs(asked, PLAN, GAINS)
    last = [spec.id for spec in asked.confirmation_specs(GOOD, PLAN).values()][-1]
    del runs[last]
    race = replay(asked, PLAN, runs)
    assert race.stage == "the confirmation"
    assert race.row is None
    assert len(race.pairs) == 4
    assert race.ruling.because == "time"


def test_a_diverged_run_counts_at_chance():
    asked = question()
    runs = all_runs(asked, PLAN, GAINS)
    first = asked.rung_specs(PLAN.rungs[0], asked.candidates)
    spec = first[GOOD, RACE_SEED]
    runs[spec.id] = dataclasses.replace(runs[spec.id], outcome="diverged")
    entry = replay(asked, PLAN, runs).rungs[0].entries[0]
    assert entry.row["asymmetric_diverged"] == 1
    assert min(entry.differences) < -10


def test_a_plan_without_rungs_says_how_long_it_would_take():
    race = replay(question(minutes=2.0), RacePlan((), 0, 5, 0.0, 41.2), {})
    assert race.ruling.because == "time"
    assert "2 minutes are too short for a race" in race.ruling.reason
    assert "about 42 minutes" in race.ruling.reason


def test_a_short_confirmation_that_moves_settles_nothing():
    asked, plan = question(), RacePlan((Rung(1, 3, 3), Rung(3, 2, 3)), 3, 5, 60.0, 1.0)
    runs = all_runs(asked, plan, {**GAINS, GOOD: 0.3})
    runs |= runs_of(asked.confirmation_specs(GOOD, plan).values(), {GOOD: 0.05})
    race = replay(asked, plan, runs)
    assert race.ruling.because == "moving"
    assert "3 of 9 epochs" in race.ruling.reason


def test_which_runs_answer():
    asked = question()
    race, confirmation = asked.race_spec(GOOD, 3, RACE_SEED), asked.confirmation_spec(GOOD, 9, CONFIRMATION_SEED)
    assert (race.validation, race.test, race.epochs, race.cosine_every) == ("split", "never", 3, 0)
    assert (confirmation.validation, confirmation.test) == ("none", "every")
    assert race.warmup == pytest.approx(BASE.warmup / 3)  # a whole schedule, only shorter
    assert Candidate.of(race) == GOOD
    assert asked.race_spec(None, 3, RACE_SEED) == race.plain()  # a true pair
    assert len(asked.timing_specs()) == 4


def test_the_default_candidates():
    assert 6 <= len(CANDIDATES) <= 12
    assert len(set(CANDIDATES)) == len(CANDIDATES)
    assert {candidate.objective for candidate in CANDIDATES} == {"sigmoid", "softmax"}
    assert {candidate.layers for candidate in CANDIDATES} == {"all", "later", "middle"}


def test_candidates_by_their_fields():
    assert as_candidates([{"objective": "softmax", "alpha": 1}, GOOD]) == (GOOD,)
    assert as_candidates(None) == CANDIDATES


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param([{"obective": "softmax"}], "field of a candidate 'obective'", id="a field"),
        pytest.param([{"objective": "sofmax"}], "objective must be one of", id="an objective"),
        pytest.param([{"layers": "front"}], "layers must be one of", id="layers"),
        pytest.param([{"alpha": "much"}], "alpha must be a number", id="alpha"),
        pytest.param("softmax", "must be a list", id="a text"),
        pytest.param(GOOD, "must be a list", id="one alone"),
        pytest.param(["softmax"], "by their fields", id="texts"),
    ],
)
def test_candidates_that_are_none(given, said):
    with pytest.raises(UsageError, match=said):
        as_candidates(given)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"minutes": 0.0}, "minutes must be a number above 0", id="no time"),
        pytest.param({"minutes": float("inf")}, "finite", id="endless"),
        pytest.param({"seeds": 4}, "seeds must be from 5", id="few seeds"),
        pytest.param({"candidates": ()}, "nothing to try", id="no candidates"),
        pytest.param({"base": BASE.plain()}, "redundancy", id="Plain"),
        pytest.param(
            {"base": RunSpec(signal="noise"), "candidates": (Candidate(balance="norms"),)},
            "signal is .noise.: give candidates other than sigmoid, gradient ratio 0.1",
            id="a ratio without gradients",
        ),
    ],
)
def test_questions_that_cannot_be_asked(changes, said):
    with pytest.raises(UsageError, match=said):
        Question(**{"base": BASE, "candidates": (GOOD,), **changes})
