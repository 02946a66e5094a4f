"""Questions that are answered by training."""

import json
import os
import signal
import threading
import time
from dataclasses import replace

import pytest
from tune_examples import GOOD, NOTHING, Cut, points, prepare

from asymtrain import UsageError
from asymtrain.lab.api.tune import make_question
from asymtrain.lab.candidates import RECOMMENDED, RECOMMENDED_ON_CONVOLUTIONS, Candidate
from asymtrain.lab.data.own import load_arrays
from asymtrain.lab.data.registry import kept_dataset
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.sources import Inputs, kept_function
from asymtrain.lab.store import Store
from asymtrain.lab.tune import Plan, Question, Timing, run_tune, without_equals, write_tuned
from asymtrain.lab.tune.question import PAIR_SEED, RACE_SEED
from asymtrain.lab.tune.running import Stopwatch, _alone_in, read_plan

pytestmark = pytest.mark.usefixtures("one_core")
SHAPES = {"classes": 3, "size": 120, "test_size": 40, "image_size": 8}
TINY = RunSpec(arch="mlp", arch_options={"widths": (8, 8, 8)}, dataset_options=SHAPES, batch=16, epochs=2)


@pytest.fixture(scope="module")
def cut():
    """The training of a network that only branches teach."""
    with kept_dataset(load_arrays(points())) as data:
        inputs = Inputs((20,), "vectors")
        with kept_function(Cut, (), classes=3, inputs=inputs) as arch:
            yield RunSpec(arch=arch, dataset=data, at=("trunk",), epochs=3, batch=32, learning_rate=0.1)


@pytest.fixture(scope="module")
def undisturbed(cut, tmp_path_factory):
    """A question, its answer in one call, the stages of that call, and the folder of both."""
    asked, stages = Question(cut, (GOOD, NOTHING), minutes=None), []
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)  # as `one_core`, which is of a test
        result = run_tune(asked, store=folder / "runs.sqlite", out=folder, on_stage=stages.append)
    return asked, result, stages, folder


def test_branches_that_help_are_advised(undisturbed, tmp_path):
    asked, result, stages, folder = undisturbed
    assert result.verdict == "helps", result
    assert result.candidate == GOOD
    assert result.pairs.points > 10
    assert result.layers == ("trunk",)
    assert result.sentence.startswith("Helps: +")
    assert "3 epochs and fp32" in result.sentence
    assert result.next_step == "Next: attach them by the code."
    assert [stage.partition(":")[0] for stage in stages] == ["Pairs", "Race"]
    again = run_tune(asked, store=folder / "runs.sqlite", out=folder, on_stage=stages.append)
    assert len(stages) == 2  # nothing is trained again
    assert again.to_dict() == result.to_dict()
    pages = [write_tuned(tmp_path / name, one) for name, one in (("one", result), ("two", again))]
    one, two = ({name: path.read_bytes() for name, path in files.items()} for files in pages)
    assert one == two


def test_a_call_with_minutes_times_plans_and_uses_its_time(tmp_path):
    """Branches without weight are the baseline, bit for bit: equal accuracies are an answer after eight pairs."""
    learns = replace(TINY, learning_rate=0.02, epochs=6)
    asked, stages = Question(learns, (NOTHING,), minutes=10.0), []
    result = run_tune(asked, store=tmp_path / "runs.sqlite", out=tmp_path, on_stage=stages.append)
    assert [stage.partition(":")[0] for stage in stages] == ["Timing", "Plan", "Pairs"]
    assert result.timing.epoch > 0
    assert result.pairs.epochs == 6
    assert set(result.pairs.differences) == {0.0}
    assert not result.snippet or result.verdict == "inconclusive"
    with Store(tmp_path / "runs.sqlite", read_only=True) as store:
        seeds = {run.spec.seed for run in store.runs()}
    assert seeds <= {RACE_SEED, *range(PAIR_SEED, PAIR_SEED + 8)}
    assert Plan(**json.loads((tmp_path / "tune.json").read_bytes())["plan"]) == result.race.plan


class Stop(Exception):
    """Ends a call in its middle, as a kill would."""


@pytest.mark.parametrize("count", [1, 4, 9], ids=["in the first pair", "in the pairs", "in the race"])
def test_after_a_kill_the_same_call_ends_with_the_same_answer(count, tmp_path, undisturbed):
    (asked, alone, *_), left = undisturbed, [count]

    def stop(*_):
        left[0] -= 1
        if not left[0]:
            raise Stop

    with pytest.raises(Stop):
        run_tune(asked, store=tmp_path / "runs.sqlite", out=tmp_path, on_run=stop)
    trained = []
    result = run_tune(asked, store=tmp_path / "runs.sqlite", out=tmp_path, on_run=lambda run, *_: trained.append(run))
    assert 0 < len(trained) < len(result.runs)
    assert result.to_dict() | {"measured": None} == alone.to_dict() | {"measured": None}


def test_ctrl_c_gives_the_answer_so_far_within_two_seconds(tmp_path, cut):
    slow = replace(cut, epochs=400)
    asked, pressed = Question(slow, (GOOD,), minutes=None), []

    def press():
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    def on_stage(_):
        threading.Timer(1.5, press).start()

    result = run_tune(asked, store=tmp_path / "runs.sqlite", out=tmp_path, on_stage=on_stage)
    assert time.monotonic() - pressed[0] < 2 + 2  # twice the promise, for a machine that does other things
    assert result.interrupted
    assert result.verdict == "inconclusive"
    assert result.reason == "no pair is finished yet"


def test_time_that_is_over_keeps_what_was_measured(tmp_path):
    asked = Question(TINY, (GOOD,), minutes=1e-6)
    result = run_tune(asked, store=tmp_path / "runs.sqlite", out=tmp_path)
    assert (result.verdict, result.race.ruling.because) == ("inconclusive", "few pairs")
    assert result.next_step == "Next: call it again with more minutes, and it continues."


def test_the_default_is_weaker_on_convolutions():
    def default_of(base):
        return make_question(base, None, 1.0, {}, None, "cpu")[0].default

    assert default_of(TINY) == RECOMMENDED
    assert default_of(RunSpec(arch="vit", dataset_options={"image_size": 32})) == RECOMMENDED
    assert default_of(RunSpec(arch="cnn", dataset_options={"image_size": 32})) == RECOMMENDED_ON_CONVOLUTIONS


@pytest.mark.parametrize(
    ("layers", "kept"),
    [(1, ["all"]), (2, ["all", "later"]), (3, ["all", "later", "middle"])],
    ids=["one", "two", "three"],
)
def test_candidates_that_few_layers_make_equal_race_once(layers, kept):
    base = replace(TINY, arch_options={"widths": (8,) * (layers + 1)})  # the last has no place
    asked = Question(base, tuple(Candidate(layers=words) for words in ("all", "later", "middle")))
    assert [candidate.layers for candidate in without_equals(asked).candidates] == kept


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"candidates": (GOOD,)}, "differs in candidates", id="candidates"),
        pytest.param({"base": RunSpec(**{**vars(TINY), "learning_rate": 0.5})}, "differs in learning rate", id="rate"),
        pytest.param({"base": RunSpec(dataset_options=SHAPES)}, "differs in arch", id="model"),
    ],
)
def test_a_folder_of_another_question_is_refused(changes, said, tmp_path):
    asked = {"base": TINY, "candidates": (GOOD, NOTHING)}
    prepare(tmp_path, Question(**asked), Plan(2, 4))
    with pytest.raises(UsageError, match=said):
        run_tune(Question(**{**asked, **changes}), store=tmp_path / "runs.sqlite", out=tmp_path)
    assert not (tmp_path / "runs.sqlite").exists()


def test_more_minutes_go_on_and_far_more_plan_longer_pairs(tmp_path):
    asked = Question(replace(TINY, epochs=100), (GOOD,), minutes=1.0)
    prepare(tmp_path, asked, Plan(40, 4))  # timed at a tenth of a second an epoch
    assert read_plan(tmp_path, asked) == (Timing(0.1, 1.0), Plan(40, 4))
    assert read_plan(tmp_path, replace(asked, minutes=0.01))[1].epochs == 40
    assert read_plan(tmp_path, replace(asked, minutes=1.1))[1].epochs == 40
    assert read_plan(tmp_path, replace(asked, minutes=30.0))[1].epochs == 100
    assert read_plan(tmp_path, replace(asked, minutes=None))[1] == Plan(100)


def test_a_folder_whose_plan_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "tune.json").write_text("{")
    with pytest.raises(UsageError, match=r"tune\.json cannot be read"):
        run_tune(Question(TINY, (GOOD,)), store=tmp_path / "runs.sqlite", out=tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 60}, r"of 60 training images a fifth, 12, .* at least 100"),
        ({"test_size": 19}, "compared on 19 test images, and 20 or more"),
    ],
)
def test_too_few_images_are_refused(options, said, tmp_path):
    few = replace(TINY, dataset_options={**SHAPES, **options})
    with pytest.raises(UsageError, match=said):
        run_tune(Question(few, (GOOD,)), store=tmp_path / "runs.sqlite", out=tmp_path)


def test_the_stopwatch_leaves_the_start_out():
    now = [0.0]
    watch = Stopwatch(lambda: now[0])
    assert watch.timing(2) is None
    for seconds, epochs in ((12, 2), (14, 4), (15, 4), (16, 6)):
        now[0] = float(seconds)
        watch.update(epochs)
    assert watch.timing(2) == Timing(epoch=1.0, start=10.0)


def test_what_an_epoch_takes_is_of_all_workers():
    """Four train at a time, and their reports come one by one: only from the first of the last on is it seen."""
    now = [10.0]
    watch = Stopwatch(lambda: now[0])
    for epochs in range(1, 9):
        now[0] = 10.0 + 4.0 * ((epochs + 3) // 4) + 0.01 * epochs
        watch.update(epochs)
    assert watch.timing(4).epoch == pytest.approx(1.0, rel=0.02)


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
