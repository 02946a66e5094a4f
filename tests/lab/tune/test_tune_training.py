"""Questions that are answered by training."""

import json
import os
import re
import shutil
from dataclasses import replace

import pytest
from tune_examples import GOOD, NOTHING, TIMING, Cut, points, prepare, without_times

from asymtrain import UsageError
from asymtrain.lab.candidates import Candidate
from asymtrain.lab.data.own import load_arrays
from asymtrain.lab.data.registry import kept_dataset
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.sources import Inputs, kept_function
from asymtrain.lab.store import Store
from asymtrain.lab.tune import Question, RacePlan, Rung, read_tune, run_tune, without_equals
from asymtrain.lab.tune.answer import write_tuned
from asymtrain.lab.tune.planning import confirmation_seconds, race_seconds
from asymtrain.lab.tune.running import _alone_in, write_json

pytestmark = pytest.mark.usefixtures("one_core")
SHAPES = {"classes": 3, "size": 120, "test_size": 40, "image_size": 8}
TINY = RunSpec(arch="mlp", arch_options={"widths": (8, 8, 8)}, dataset_options=SHAPES, batch=16, epochs=2)
PLAN = RacePlan((Rung(1, 2, 2), Rung(2, 1, 2)), epochs=2, seeds=5, seconds=60.0, needed=1.0)


@pytest.fixture
def cut():
    """The training of a network that only branches teach."""
    with kept_dataset(load_arrays(points())) as data:
        inputs = Inputs((20,), "vectors")
        with kept_function(Cut, (), classes=3, inputs=inputs) as arch:
            yield RunSpec(arch=arch, dataset=data, at=("trunk",), epochs=3, batch=32, learning_rate=0.1)


def test_branches_that_help_are_advised(cut, tmp_path):
    asked = Question(cut, (NOTHING, GOOD))
    prepare(tmp_path, asked, RacePlan((Rung(1, 2, 2),), epochs=3, seeds=5, seconds=60.0, needed=1.0))
    result = run_tune(asked, store=tmp_path / "runs.sqlite", out=tmp_path)
    assert result.verdict == "helps", result
    assert result.candidate == GOOD
    assert result.comparison["points"] > 10
    assert result.layers == ("trunk",)
    assert result.sentence.startswith("Attach softmax, alpha 1: +")
    assert "5 fresh seeds, 3 epochs, 121 test images" in result.sentence


@pytest.mark.parametrize(
    ("layers", "kept"),
    [(1, ["all"]), (2, ["all", "later"]), (3, ["all", "later", "middle"])],
    ids=["one", "two", "three"],
)
def test_candidates_that_few_layers_make_equal_race_once(layers, kept):
    base = replace(TINY, arch_options={"widths": (8,) * (layers + 1)})  # the last has no place
    asked = Question(base, tuple(Candidate(layers=words) for words in ("all", "later", "middle")))
    fewer = without_equals(asked)
    assert [candidate.layers for candidate in fewer.candidates] == kept
    other = Question(base, (*asked.candidates, Candidate(alpha=1.0, layers="middle")))
    assert len(without_equals(other).candidates) == len(kept) + 1


def test_branches_without_weight_are_not(tmp_path):
    asked = Question(TINY, (NOTHING, Candidate(alpha=0.0, layers="later")))
    prepare(tmp_path, asked, PLAN)
    result = run_tune(asked, store=tmp_path / "runs.sqlite", out=tmp_path)
    assert result.comparison["points"] == 0
    assert not result.snippet
    assert result.verdict == "no meaningful difference" or result.race.ruling.because == "not learnt"


def test_a_call_times_plans_and_answers(tmp_path):
    asked, stages = Question(TINY, (GOOD, NOTHING), minutes=10.0), []
    result = run_tune(asked, store=tmp_path / "runs.sqlite", out=tmp_path, on_stage=stages.append)
    assert result.timing.epoch > 0
    assert result.race.plan.epochs == 2
    assert [stage.partition(":")[0] for stage in stages] == ["Timing", "Rung 1 of 2", "Rung 2 of 2", "Confirmation"]
    assert RacePlan.from_dict(json.loads((tmp_path / "tune.json").read_bytes())["plan"]) == result.race.plan
    # The race never saw the test images, nor the seeds of the confirmation.
    with Store(tmp_path / "runs.sqlite", read_only=True) as store:
        runs = store.runs()
    race = [run for run in runs if run.spec.test == "never"]
    assert {run.spec.seed for run in race} == {3000, 3001, 3002}
    assert all(epoch.test_accuracy is None for run in race for epoch in run.history)
    assert {run.spec.seed for run in runs if run.spec.test != "never"} == set(range(3100, 3105))
    assert {run.spec.validation for run in runs if run.spec.test != "never"} == {"none"}
    tested = {(run.spec.seed, run.spec.variant): run.test_accuracy for run in runs if run.spec.test != "never"}
    assert result.race.pairs == tuple(
        (seed, tested[seed, "plain"], tested[seed, "asymmetric"]) for seed in range(3100, 3105)
    )
    again = run_tune(asked, store=tmp_path / "runs.sqlite", out=tmp_path)
    assert [run.spec.id for run in again.runs] == [run.spec.id for run in result.runs]  # those that were timed too
    assert len(again.runs) == len(runs)


def test_without_a_limit_nothing_is_timed_and_everything_is_trained(tmp_path):
    asked, stages = Question(TINY, (GOOD, NOTHING), minutes=None), []
    store, left = tmp_path / "runs.sqlite", []
    watching = {"progress": lambda state: left.append(state.seconds_left), "on_stage": stages.append}
    result = run_tune(asked, store=store, out=tmp_path, **watching)
    assert [stage.partition(":")[0] for stage in stages] == ["Rung 1 of 2", "Rung 2 of 2", "Confirmation"]
    assert result.timing is None
    assert any(left)  # a bar has the time left all the same
    plan = RacePlan((Rung(1, 2, 3), Rung(2, 1, 3)), epochs=2, seeds=5, seconds=None, needed=None)
    assert result.race.plan == plan
    assert RacePlan.from_dict(json.loads((tmp_path / "tune.json").read_bytes())["plan"]) == plan
    again = run_tune(asked, store=store, out=tmp_path, on_stage=stages.append)
    assert len(stages) == 3
    assert again.to_dict() == result.to_dict() == read_tune(asked, store, tmp_path).to_dict()


class Stop(Exception):
    """Ends a call in its middle, as a kill would."""


def stopping_after(count):
    left = [count]

    def run(*_):
        left[0] -= 1
        if not left[0]:
            raise Stop

    return run


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """A question, and the folder in which a single call answered it."""
    asked, out = Question(TINY, (GOOD, NOTHING)), tmp_path_factory.mktemp("answered")
    prepare(out, asked, PLAN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
        write_json(out, run_tune(asked, store=out / "runs.sqlite", out=out))
    return asked, out


@pytest.mark.parametrize("count", [2, 8, 12], ids=["in the first rung", "in the second", "in the confirmation"])
def test_after_an_interruption_the_same_call_ends_with_the_same_answer(count, answered, tmp_path):
    asked, whole = answered
    store = tmp_path / "runs.sqlite"
    prepare(tmp_path, asked, PLAN)
    with pytest.raises(Stop):
        run_tune(asked, store=store, out=tmp_path, on_run=stopping_after(count))
    so_far = read_tune(asked, store, tmp_path)
    assert so_far.race.ruling.because == "time"
    trained = []
    watching = {"progress": lambda state: trained.extend(state.finished)}
    result = run_tune(asked, store=store, out=tmp_path, **watching)
    assert {run.spec.id for run in trained}.isdisjoint(run.spec.id for run in so_far.runs)
    assert result.race.plan == PLAN
    write_json(tmp_path, result)
    ours, theirs = (json.loads((folder / "tune.json").read_bytes()) for folder in (tmp_path, whole))
    assert without_times(ours) == without_times(theirs)


def test_more_seeds_go_on_in_the_same_folder(answered, tmp_path):
    asked, whole = answered
    out, trained = shutil.copytree(whole, tmp_path / "more"), []
    watching = {"on_run": lambda run, done, total: trained.append((run.spec.variant, run.spec.seed))}
    result = run_tune(replace(asked, seeds=7), store=out / "runs.sqlite", out=out, **watching)
    assert sorted(trained) == [(side, seed) for side in ("asymmetric", "plain") for seed in (3105, 3106)]
    assert result.comparison["n"] == 7
    made = result.race.plan
    assert made.seconds == race_seconds(made.rungs, TIMING) + confirmation_seconds(made.epochs, 7, TIMING)
    write_json(out, result)
    with pytest.raises(UsageError, match="differs in seeds"):
        run_tune(asked, store=out / "runs.sqlite", out=out)


def test_a_page_is_byte_identical_when_it_is_built_again(answered, tmp_path):
    asked, out = answered
    pages = [write_tuned(tmp_path / name, read_tune(asked, out / "runs.sqlite", out)) for name in ("one", "two")]
    one, two = ({name: path.read_bytes() for name, path in files.items()} for files in pages)
    assert one == two
    assert one["json"] == (out / "tune.json").read_bytes()


def test_time_that_is_over_keeps_what_was_measured(tmp_path):
    asked = Question(TINY, (GOOD,), minutes=1e-6)
    result = run_tune(asked, store=tmp_path / "runs.sqlite", out=tmp_path)
    assert (result.verdict, result.race.ruling.because) == ("inconclusive", "time")
    assert not (tmp_path / "tune.json").exists()  # no plan was made
    prepare(tmp_path, asked, PLAN)
    stopped = run_tune(asked, store=tmp_path / "runs.sqlite", out=tmp_path)
    told = r"\d runs of rung 1 of 2 are missing, as the time given, 1e-06 min, was over: give the same command again"
    assert re.search(told, stopped.sentence)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"minutes": 5.0}, "differs in minutes", id="minutes"),
        pytest.param({"candidates": (GOOD,)}, "differs in candidates", id="candidates"),
        pytest.param({"base": RunSpec(**{**vars(TINY), "learning_rate": 0.5})}, "differs in learning rate", id="rate"),
        pytest.param({"base": RunSpec(dataset_options=SHAPES)}, "differs in arch", id="model"),
        pytest.param(
            {"base": replace(TINY, dataset_options={**SHAPES, "size": 500})},
            "differs in dataset options:",
            id="data options",
        ),
    ],
)
def test_a_folder_of_another_question_is_refused(changes, said, tmp_path):
    asked = {"base": TINY, "candidates": (GOOD, NOTHING)}
    prepare(tmp_path, Question(**asked), PLAN)
    with pytest.raises(UsageError, match=said):
        run_tune(Question(**{**asked, **changes}), store=tmp_path / "runs.sqlite", out=tmp_path)
    assert not (tmp_path / "runs.sqlite").exists()


def test_where_no_race_fitted_the_folder_takes_more_minutes_and_keeps_its_timing(tmp_path):
    asked = Question(TINY, (GOOD, NOTHING), minutes=0.1, seeds=6)
    prepare(tmp_path, asked, RacePlan((), epochs=0, seeds=6, seconds=0.0, needed=3.0))
    more = replace(asked, minutes=10.0, seeds=5)
    result = run_tune(more, store=tmp_path / "runs.sqlite", out=tmp_path)
    assert result.comparison["n"] == 5
    assert result.timing.start >= TIMING.start  # a start that was seen before is not forgotten
    again = run_tune(more, store=tmp_path / "runs.sqlite", out=tmp_path)  # everything is stored
    assert again.timing == result.timing
    with pytest.raises(UsageError, match="differs in minutes"):
        run_tune(asked, store=tmp_path / "runs.sqlite", out=tmp_path)


def test_a_folder_whose_plan_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "tune.json").write_text("{")
    with pytest.raises(UsageError, match=r"tune\.json cannot be read"):
        run_tune(Question(TINY, (GOOD,)), store=tmp_path / "runs.sqlite", out=tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 60}, r"of 60 training images a fifth, 12, .* at least 100"),
        ({"test_size": 19}, "confirmed on 19 test images, and 20 or more"),
    ],
)
def test_too_few_images_are_refused(options, said, tmp_path):
    few = replace(TINY, dataset_options={**SHAPES, **options})
    with pytest.raises(UsageError, match=said):
        run_tune(Question(few, (GOOD,)), store=tmp_path / "runs.sqlite", out=tmp_path)


def test_a_folder_is_free_after_a_tune_though_a_fork_of_its_process_lives_on(tmp_path, monkeypatch):
    """Such as a worker that loads data: it has a copy of whatever was open."""
    opened, copies = os.open, []

    def open_and_copy(*arguments):
        copies.append(os.dup(folder := opened(*arguments)))
        return folder

    monkeypatch.setattr(os, "open", open_and_copy)
    try:
        with _alone_in(tmp_path), pytest.raises(UsageError, match="another tune"), _alone_in(tmp_path):
            pass
        with _alone_in(tmp_path):
            pass
    finally:
        for copy in copies:
            os.close(copy)
