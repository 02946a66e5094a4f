"""What a set of runs says: stages, the race, the answer. Runs are invented, and nothing trains."""

from dataclasses import replace

import numpy as np
import pytest
from tune_examples import BAD, BASE, FAIR, GOOD, PLAN, all_runs, invented, question

from asymtrain import UsageError
from asymtrain.lab.candidates import RECOMMENDED, Candidate
from asymtrain.lab.tune import ALTERNATIVES, RULE, Question, as_candidates, replay
from asymtrain.lab.tune.question import FRESH_SEED, PAIR_SEED, RACE_SEED
from asymtrain.lab.tune.race import Pairs, Race, is_decided
from invented_runs import invent

HELPS = {GOOD: 0.1, FAIR: 0.05, BAD: -0.2}


def stages(asked, plan, gains, make=invented, **options):
    """The stages that a question comes through, and the race at its end."""
    runs, seen = {}, []
    while (race := replay(asked, plan, runs, **options)).missing:
        seen += [race.stage] if race.stage not in seen[-1:] else []
        runs |= {spec.id: make(spec, gains) for spec in race.missing}
    return seen, race


def with_outcome(learns):
    """Makes runs that diverge but where this is true of their spec."""
    return lambda spec, gains: replace(invented(spec, gains), outcome="finished" if learns(spec) else "diverged")


def test_without_a_plan_a_pair_is_timed():
    race = replay(question(), None, {})
    assert race.stage == "timing"
    assert [(spec.variant, spec.epochs, spec.seed) for spec in race.missing] == [
        ("plain", 2, RACE_SEED), ("asymmetric", 2, RACE_SEED)
    ]  # fmt: skip


def test_a_default_that_helps_races_others_which_are_not_better():
    seen, race = stages(question(), PLAN, HELPS)
    assert seen == ["pairs", "race"]
    assert race.winner is None
    assert 3 <= race.first.n < RULE.most_pairs
    assert (race.ruling.verdict, race.best.candidate) == ("helps", GOOD)
    assert [[pairs.candidate for pairs in rung] for rung in race.rungs] == [[FAIR, BAD], [FAIR], [FAIR]]
    assert [rung[0].n for rung in race.rungs] == [1, 2, 3]


def test_pairs_are_tested_one_by_one_and_batches_may_end_early():
    asked, runs = question(GOOD), {}
    race = replay(asked, PLAN, runs, batch=4)
    assert [spec.seed for spec in race.missing] == [seed for seed in range(PAIR_SEED, PAIR_SEED + 4) for _ in range(2)]
    for spec in race.missing:
        runs[spec.id] = invented(spec, {GOOD: 0.1})
    assert replay(asked, PLAN, runs, batch=4).first.n == 4
    while (race := replay(asked, PLAN, runs, batch=4)).missing:
        runs |= {spec.id: invented(spec, {GOOD: 0.1}) for spec in race.missing[:2]}
    assert race.ruling.verdict == "helps"


def test_a_better_alternative_is_confirmed_on_fresh_seeds_and_is_the_answer():
    seen, race = stages(question(FAIR, GOOD, BAD), PLAN, {FAIR: 0.05, GOOD: 0.15, BAD: -0.2})
    assert seen == ["pairs", "race", "fresh"]
    assert race.winner == race.best.candidate == GOOD
    assert race.ruling.verdict == "helps"
    assert race.ahead.interval[0] > 0
    assert set(race.ahead.seeds) == set(race.second.seeds) <= set(range(FRESH_SEED, FRESH_SEED + RULE.most_pairs))
    # What chose saw neither these seeds nor a test image.
    raced = [run.spec for rung in race.rungs for pairs in rung for run in pairs.runs]
    assert {spec.test for spec in raced} == {"never"}
    assert {spec.seed for spec in raced} <= set(range(RACE_SEED, RACE_SEED + RULE.rungs))
    assert {run.spec.validation for run in race.second.runs} == {"none"}


def test_an_alternative_helps_where_the_default_hurts():
    _, race = stages(question(BAD, GOOD), PLAN, {BAD: -0.2, GOOD: 0.1})
    assert race.rulings[0].verdict == "hurts"
    assert (race.best.candidate, race.ruling.verdict) == (GOOD, "helps")


def test_without_time_for_a_race_an_open_question_gets_more_pairs():
    runs, asked = {}, question(GOOD, FAIR)
    for _ in range(40):  # no gain, and noise that never decides
        race = replay(asked, PLAN, runs, rungs=0)
        runs |= {
            spec.id: invented(spec, {GOOD: 0.1 * (-1) ** spec.seed})
            for spec in race.missing
        }  # fmt: skip
    assert race.stage == "more"
    assert race.first.n > RULE.most_pairs
    assert race.is_open


@pytest.mark.parametrize("given", [True, False])
def test_a_baseline_at_chance_tries_lower_rates_unless_one_was_given(given):
    asked = replace(question(GOOD), rate_given=given)
    rate = BASE.learning_rate
    seen, race = stages(asked, PLAN, {GOOD: 0.1}, with_outcome(lambda spec: spec.learning_rate < rate / 2))
    if given:
        assert seen == ["pairs"]
        assert race.ruling.because == "not learnt"
        assert race.first.n == 1  # nothing more is trained
    else:
        assert seen == ["pairs", "rates", "pairs"]
        assert race.ruling.verdict == "helps"
        assert race.rate in race.rates
        assert race.base.learning_rate == race.rate < rate / 2
        assert race.question == asked


def test_where_no_rate_learns_it_ends():
    asked = replace(question(GOOD), rate_given=False)
    _, race = stages(asked, PLAN, {}, with_outcome(lambda spec: False))
    assert (race.stage, race.ruling.because, race.rate) == ("end", "not learnt", None)
    assert len(race.rates) == 2
    assert not race.is_open


def test_where_only_branches_make_it_learn_they_help():
    asked = replace(question(GOOD), rate_given=False)
    seen, race = stages(asked, PLAN, {GOOD: 0.1}, with_outcome(lambda spec: spec.redundancy > 0))
    assert seen == ["pairs", "rates", "pairs"]  # first no lower rate made it learn without them
    assert (race.ruling.verdict, race.rate) == ("helps", None)


def test_pairs_and_fresh_pairs_never_share_a_seed():
    assert RACE_SEED + RULE.rungs <= FRESH_SEED
    assert FRESH_SEED + RULE.most_pairs + RULE.pairs <= PAIR_SEED  # pairs have no end


def test_the_race_has_as_many_rungs_as_the_time_holds():
    asked, gains = question(FAIR, GOOD, BAD), {FAIR: 0.05, GOOD: 0.15, BAD: -0.2}
    seen, race = stages(asked, PLAN, gains, rungs=1)
    assert seen == ["pairs", "race", "fresh"]
    assert len(race.rungs) == 1
    assert race.winner == GOOD
    seen, race = stages(asked, PLAN, gains, rungs=0)
    assert seen == ["pairs"]
    assert not race.rungs


def test_a_run_that_diverged_counts_as_chance():
    asked = question(GOOD)
    runs = all_runs(asked, PLAN, {GOOD: 0.1})
    spec = asked.spec(GOOD, PLAN.epochs, PAIR_SEED)
    runs[spec.id] = replace(invent(spec, diverged=True), classes=4)
    assert replay(asked, PLAN, runs).first.after[0] == 0.25
    assert replay(asked, PLAN, runs, (0.0, 0.4)).first.after[0] == 0.4


def pairs_until_decided(candidate, rng, *sides):
    """Pairs of invented accuracies, as long as `replay` asks for more: the baseline with each of these sides."""
    values = 0.5 + 0.05 * rng.normal(size=(1 + len(sides), RULE.most_pairs))
    for n in range(1, RULE.most_pairs + 1):
        found = [
            Pairs(candidate, 9, tuple(range(n)), tuple(values[side][:n]), tuple(values[-1][:n]))
            for side in (0, *range(1, len(sides)))
        ]
        if all(map(is_decided, found)):
            break
    return found


def test_a_whole_tune_errs_in_at_most_5_percent_without_an_effect():
    """Also where the winner of a race may take the default's place: branches that do nothing, of any kind."""
    rng, asked, wrong = np.random.default_rng(0), question(), 0
    for _ in range(2000):
        (first,) = pairs_until_decided(GOOD, rng, "with the default")
        second, ahead = pairs_until_decided(FAIR, rng, "with the default", "with the winner")
        race = Race(asked, PLAN, "end", (), first, winner=FAIR, second=second, ahead=ahead)
        wrong += race.ruling.verdict in ("helps", "hurts")
    assert wrong <= 0.05 * 2000


def test_candidates_are_given_as_values_or_by_their_fields():
    assert as_candidates(None, RECOMMENDED) == (RECOMMENDED, *ALTERNATIVES)
    assert as_candidates([GOOD, {"objective": "softmax", "alpha": 1.0}], RECOMMENDED) == (GOOD,)
    assert len({candidate.label for candidate in as_candidates(None, RECOMMENDED)}) == 1 + len(ALTERNATIVES)
    with pytest.raises(UsageError, match="field of a candidate 'alfa'"):
        as_candidates([{"alfa": 1}], RECOMMENDED)
    with pytest.raises(UsageError, match="must be a list of candidates"):
        as_candidates("softmax", RECOMMENDED)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"base": replace(BASE, redundancy=0)}, "redundancy 1 or more", id="no branches"),
        pytest.param({"candidates": ()}, "nothing to try", id="no candidates"),
        pytest.param({"minutes": 0}, "minutes must be a number above 0", id="no time"),
        pytest.param({"minutes": True}, "minutes must be a number", id="no number"),
        pytest.param(
            {"candidates": (Candidate(alpha=1.0, bias="prior"),), "base": replace(BASE, head="mlp")}, "", id=""
        ),
    ],
)
def test_what_cannot_be_asked(changes, said):
    if not said:  # the candidate's head replaces that of the base
        assert Question(**{"base": BASE, "candidates": (GOOD,)} | changes).default.head == "linear"
        return
    with pytest.raises(UsageError, match=said):
        Question(**{"base": BASE, "candidates": (GOOD,)} | changes)
