"""A short tune: one short pair for each candidate. At most the best likely helps."""

import dataclasses
import json

import pytest
from tune_examples import BAD, BASE, FAIR, GOOD, NOTHING, TIMING, all_runs, prepare, question, runs_of

from asymtrain import UsageError
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.tune import CANDIDATES, Question, RacePlan, Rung, read_tune, replay, run_tune
from asymtrain.lab.tune.answer import budget_words, tune_figures, tune_tables, write_tuned
from asymtrain.lab.tune.planning import RACE_SEED, short_plan, whole_plan
from asymtrain.lab.tune.rule import judge_pair
from asymtrain.lab.tune.running import describe, read_plan, write_json

ASKED = question(short=True)  # nine epochs, three candidates
PLAN = RacePlan((Rung(3, 3, 1),), epochs=0, seeds=0, seconds=None, needed=None)
HELPS, HURTS = {GOOD: 0.1, FAIR: 0.05, BAD: -0.2}, {GOOD: -0.1, FAIR: -0.15, BAD: -0.2}
SHAPES = {"classes": 3, "size": 120, "test_size": 10, "image_size": 8}
TINY = RunSpec(arch="mlp", arch_options={"widths": (8, 8, 8)}, dataset_options=SHAPES, batch=16, epochs=2)


def answer(gains, asked=ASKED, plan=PLAN):
    runs = all_runs(asked, plan, gains)
    return describe(replay(asked, plan, runs), None, runs, None)


@pytest.mark.parametrize(("asked", "epochs"), [(30, 10), (50, 17), (2, 1), (1, 1)])
def test_a_pair_has_a_third_of_the_epochs(asked, epochs):
    plan = short_plan(candidates=9, epochs=asked)
    assert plan == RacePlan((Rung(epochs, 9, 1),), epochs=0, seeds=0, seconds=None, needed=None)
    assert RacePlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_a_whole_race_trains_the_same_runs():
    asked = Question(dataclasses.replace(BASE, epochs=30))
    of_pair = asked.rung_specs(short_plan(candidates=9, epochs=30).rungs[0], CANDIDATES)
    second = whole_plan(candidates=9, epochs=30, seeds=5).rungs[1]
    of_race = asked.rung_specs(second, CANDIDATES)
    assert of_pair.items() <= of_race.items()


@pytest.mark.parametrize("gains", [HELPS, HURTS], ids=["a gain", "a loss"])
def test_it_settles_nothing(gains):
    result = answer(gains)
    assert result.verdict == ("likely helps" if gains == HELPS else "inconclusive")
    assert result.race.ruling.because == "not confirmed"
    assert (result.comparison, result.race.pairs, result.race.missing) == (None, (), ())
    assert {run.spec.seed for run in result.runs} == {RACE_SEED}
    assert {run.spec.test for run in result.runs} == {"never"}
    assert len(result.runs) == 4
    assert [[entry.kept for entry in rung.entries] for rung in result.rungs] == [[True, False, False]]


def test_the_best_likely_helps_and_its_code_is_marked(tmp_path):
    result = answer(HELPS)
    assert result.candidate == GOOD
    points = result.race.best_pair["points"]
    assert points == pytest.approx(10, abs=2)
    assert result.sentence == (
        f"Likely helps: the best candidate, softmax, alpha 1, gave {points:+.1f} points of validation accuracy in one "
        "short pair (3 of 9 epochs, 80 validation images), not confirmed; one pair has no interval, and the best of 3 "
        "is biased upward."
    )
    assert result.snippet.startswith("# Not confirmed: one pair has no interval, and the best of 3 is biased upward.\n")
    assert "epochs = 9" in result.snippet  # those of the training that was asked about
    assert result.removal is not None
    (pairs,) = tune_figures(result)
    assert all(not bar.seeds for panel in pairs.panels for bar in panel.bars)  # they would repeat the diamonds
    page = write_tuned(tmp_path, result)["page"].read_text()
    headline = f"Likely helps: {points:+.1f} points of validation accuracy in one pair with softmax, alpha 1"
    assert f'<h1 class="headline soft">{headline}</h1>' in page
    assert "confirms nothing" in page


def test_a_loss_is_no_reason_to_attach():
    result = answer(HURTS)
    assert not result.snippet
    assert result.sentence.startswith("Inconclusive: the best candidate, softmax, alpha 1, gave -")
    assert result.sentence.endswith("one pair has no interval, and longer training can turn it.")
    equal = answer({NOTHING: 0.0}, question(NOTHING, short=True), short_plan(candidates=1, epochs=9))
    assert not equal.race.ruling.is_settled


@pytest.mark.parametrize(
    ("points", "candidates", "reason"),
    [
        (0.0, 9, "one pair has no interval, and longer training can turn it"),
        (1.0, 1, "one pair has no interval"),
        (1.0, 9, "one pair has no interval, and the best of 9 is biased upward"),
    ],
    ids=["no difference", "one candidate", "nine"],
)
def test_the_reason(points, candidates, reason):
    counts = dict.fromkeys(("plain_at_chance", "plain_diverged", "asymmetric_at_chance", "asymmetric_diverged"), 0)
    row = {"n": 1, "points": points, **counts}
    assert judge_pair(row, candidates).reason == reason
    late = judge_pair({**row, "plain_at_chance": 1}, candidates)
    assert late.because == "not confirmed"
    assert "Plain was still at chance" in late.reason
    lost = judge_pair({**row, "plain_at_chance": 1, "asymmetric_diverged": 1}, candidates)
    assert lost.because == "not learnt"
    assert lost.reason.startswith("neither Plain nor the best candidate came above chance")


def test_what_is_shown():
    result = answer(HELPS)
    race, removal = tune_tables(result)
    assert race.title == "One short pair for each candidate"
    assert [row[-1] for row in race.texts()] == ["best", "—", "1 at chance"]
    assert "biased upward" in race.note
    assert removal.name == "removal"
    assert [figure.title for figure in tune_figures(result)] == ["Short pairs: 3 epochs"]
    told = "a short tune: one pair for each candidate (3 epochs), and no confirmation"
    assert budget_words(result) == f"at most 30 minutes, {told}"
    assert budget_words(answer(HELPS, question(short=True, minutes=None))) == f"no limit, {told}"


def test_what_is_missing():
    race = replay(ASKED, PLAN, {})
    assert len(race.missing) == 4
    race = replay(ASKED, PLAN, runs_of(race.missing[1:], HELPS))
    assert race.winner is None
    assert race.ruling.reason.startswith("1 run of the short pairs is missing: give the same command again")


def test_it_trains_one_pair_each_and_goes_on(one_core, tmp_path):
    asked, stages, trained = Question(TINY, (GOOD, NOTHING), short=True), [], []
    watching = {"on_stage": stages.append, "on_run": lambda run, done, total: trained.append(run.spec.id)}
    store = tmp_path / "runs.sqlite"
    over = run_tune(dataclasses.replace(asked, minutes=1e-6), store=store, out=tmp_path)
    assert over.race.ruling.because == "time"
    result = run_tune(asked, store=store, out=tmp_path, **watching)  # other minutes are the same question
    assert stages == ["Short pairs: 2 candidates and Plain, 1 seed, 1 epoch"]
    assert result.timing is None
    assert len(result.runs) == 3
    write_json(tmp_path, result)
    document = json.loads((tmp_path / "tune.json").read_bytes())
    assert document["question"]["short"] is True
    assert (document["because"], document["comparison"]) == ("not confirmed", None)
    again = run_tune(asked, store=store, out=tmp_path, **watching)
    assert len(trained) == len(stages) * 3 == 3
    assert again.to_dict() == result.to_dict() == read_tune(asked, store, tmp_path).to_dict()


def test_a_race_goes_on_in_its_folder_but_it_does_not_in_that_of_a_race(tmp_path):
    short = question(short=True)
    write_json(tmp_path, answer(HELPS, short))
    whole = question(minutes=5.0, seeds=6)
    assert read_plan(tmp_path, short) == (None, PLAN)
    assert read_plan(tmp_path, whole) == (None, None)  # which then makes its own
    with pytest.raises(UsageError, match="candidates"):
        read_plan(tmp_path, question(GOOD, short=True))
    other = dataclasses.replace(BASE, epochs=RunSpec.epochs, warmup=2.0)  # a recipe's warm-up follows from the epochs
    with pytest.raises(UsageError, match="epochs"):
        read_plan(tmp_path, dataclasses.replace(short, base=other))
    raced = RacePlan((Rung(3, 3, 3),), epochs=9, seeds=6, seconds=60.0, needed=1.0)
    prepare(tmp_path, whole, raced)
    assert read_plan(tmp_path, whole) == (TIMING, raced)
    with pytest.raises(UsageError, match="differs in short: give another folder with --out"):
        read_plan(tmp_path, short)
