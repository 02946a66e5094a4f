"""What tune makes of its time, on machines that are invented: a clock that training alone moves."""

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from tune_examples import BASE, FAIR, GOOD, invented

from asymtrain.lab import devices, executors, machine
from asymtrain.lab.engine import Progress
from asymtrain.lab.tune import ALTERNATIVES, Question, run_tune, running
from asymtrain.lab.tune.rule import RULE
from asymtrain.lab.tune.running import Stopwatch


@dataclass
class Machine:
    """Seconds; a GPU trains one stack, a CPU a run on each core."""

    epoch: float  # of one run, where as many train as the machine takes
    start: float  # of a stack, of a size that was not trained before
    again: float = 1.0  # of any other
    cores: int = 0  # none: a GPU
    slower_from: float = math.inf  # the time from which others use it too, and an epoch takes
    slower: int = 2  # times as long
    now: float = 0.0

    def execute(self, specs, minutes, progress, gains, sizes, **_):
        end = self.now + 60 * minutes
        size = self.cores or len(specs)
        self.now += self.again if size in sizes else self.start
        sizes.add(size)
        done = 0
        for first in range(0, len(specs), size):
            members = specs[first : first + size]
            for epoch in range(1, members[0].epochs + 1):
                for _ in range(10):  # reports come within an epoch too
                    progress(Progress(len(specs), 0, 0, done, 0.0, None, epochs_here=done))
                    self.now += self.epoch * len(members) / 10 * (self.slower if self.now >= self.slower_from else 1)
                for _ in members:
                    done += 1
                    progress(Progress(len(specs), 0, 0, done, 0.0, None, epochs_here=done))
                if self.now > end and epoch < members[0].epochs:
                    return
            yield from (invented(spec, gains) for spec in members)


GPU = Machine(epoch=0.8, start=100.0, again=8.0)


@pytest.fixture
def tune_on(monkeypatch):
    """Answer a question on a machine: the answer, what was begun, and the share of the time that it took."""

    def tune(where, minutes, gains, *others):
        sizes, stages = set(), []
        monkeypatch.setattr(
            Stopwatch.__init__, "__defaults__", (lambda: where.now, *Stopwatch.__init__.__defaults__[1:])
        )
        monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=lambda: where.now))
        monkeypatch.setattr(machine, "cores", lambda: where.cores)
        monkeypatch.setattr(devices, "default_device", lambda _: torch.device("cpu" if where.cores else "cuda"))
        monkeypatch.setattr(
            executors, "execute", lambda specs, **options: where.execute(specs, gains=gains, sizes=sizes, **options)
        )
        asked = Question(replace(BASE, epochs=30), (GOOD, *others), minutes)
        result = run_tune(asked, on_stage=lambda words: stages.append(words.partition(":")[0]), begun=0.0)
        return result, stages, where.now / (60 * minutes)

    return tune


def test_eight_minutes_on_a_gpu_decide_whole_pairs_and_leave_a_race(tune_on):
    """Compiling takes 100 s, and so does each size of stack that is new; eight runs of the 30 epochs take 192 s."""
    result, stages, used = tune_on(replace(GPU), 8, {GOOD: 0.06}, *ALTERNATIVES)
    assert stages == ["Timing", "Plan", "Pairs", "Race"]
    assert result.verdict == "helps"
    assert result.pairs.epochs == 30
    assert len(result.race.rungs) == 1  # the second would be compiled anew
    assert used < 1
    assert "not confirmed" in result.more[0] or result.race.winner is None


@pytest.mark.parametrize("minutes", [2, 8])
@pytest.mark.parametrize(
    "where",
    [
        GPU, replace(GPU, epoch=0.2, start=60.0), Machine(1.0, 5.0, cores=1), Machine(0.5, 8.0, cores=2),
        Machine(0.1, 8.0, cores=16),
    ],
    ids=["a GPU", "a fast GPU", "one core", "two cores", "16 cores"],
)  # fmt: skip
def test_while_the_answer_is_open_at_least_nine_tenths_are_used_and_never_more_than_there_is(
    where, minutes, tune_on, monkeypatch
):
    monkeypatch.setattr("asymtrain.lab.tune.race.is_decided", lambda pairs: False)
    result, _, used = tune_on(replace(where), minutes, {GOOD: 0.0}, FAIR)
    assert 0.9 <= used <= 1, (used, result.timing, result.race.plan)
    assert result.race.missing


@pytest.mark.parametrize(
    "others", [{"slower_from": 120}, {"slower_from": 160, "slower": 4}], ids=["from the first epoch on", "later"]
)
def test_a_gpu_that_others_use_too_answers_with_shorter_pairs(others, tune_on):
    result, stages, used = tune_on(replace(GPU, **others), 8, {GOOD: 0.06})
    assert stages[:5] == ["Timing", "Plan", "Pairs", "Slower than timed", "Plan"]
    assert RULE.timing_epochs < result.pairs.epochs < 30
    assert result.pairs.n >= 3
    assert result.race.plan.epochs == result.pairs.epochs
    assert used <= 1


def test_pairs_that_are_slower_and_still_end_in_time_go_on(tune_on):
    result, stages, _ = tune_on(replace(GPU, slower_from=300), 8, {GOOD: 0.06})
    assert "Slower than timed" not in stages
    assert result.pairs.epochs == 30


def test_an_epoch_that_takes_longer_than_there_is_does_not_hold_up_the_answer(tune_on):
    result, _, used = tune_on(Machine(200.0, 5.0, cores=2), 5, {GOOD: 0.1})
    assert used < 1.2  # to the next report
    assert result.next_step == "Next: call it again with more minutes, and it continues."


@pytest.mark.parametrize("cores", [0, 1, 2, 16])
def test_the_plan_knows_what_a_pair_takes(cores, tune_on):
    result, _, _ = tune_on(Machine(0.5, 9.0, cores=cores), 10, {GOOD: 0.1})
    assert result.timing.epoch == pytest.approx(0.5, rel=0.05)
