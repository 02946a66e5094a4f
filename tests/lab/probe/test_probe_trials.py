"""Paired runs, their budget, and the batches they share."""

import pytest
import torch
import torch.nn.functional as F
from probe_models import CLASSES, build, learnable

from asymtrain import attach
from asymtrain.lab.probe import probe
from asymtrain.lab.probe.budget import Clock, Plan, ShadowLimit, notes_on_time, plan_trials
from asymtrain.lab.probe.inputs import gather
from asymtrain.lab.probe.training import Settings, paired_trials

PLACES = ["blocks.1", "blocks.2"]


def slow_accuracy(batches, seed, alpha, steps):
    model = build()
    parameters = list(model.parameters())
    branches = None
    if alpha:
        branches = attach(model, PLACES, batches.items[0][0], CLASSES, seed=seed)
        parameters += branches.parameters()
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    torch.manual_seed(seed)
    for number in batches.order(seed, steps):
        x, y = batches.items[number]
        loss = F.cross_entropy(model(x), y) + (0 if branches is None else alpha * branches.loss(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    right = [(model(batches.items[n][0]).argmax(1) == batches.items[n][1]) for n in batches.held_out_numbers]
    return torch.cat(right).float().mean().item()


def test_a_trial_is_what_a_plain_loop_gives():
    batches = gather(learnable(), 100)
    (found,) = paired_trials(build(), batches, Settings(CLASSES), PLACES, Plan(30, (1, 2), (2.0,)))
    assert found.seeds == (1, 2)
    assert found.held_out == 4 * 16  # every fifth of twenty batches
    for seed, plain, asymmetric in zip(found.seeds, found.plain, found.asymmetric, strict=True):
        for row, alpha in ((plain, 0.0), (asymmetric, 2.0)):
            assert row[1] == pytest.approx(slow_accuracy(batches, seed, alpha, 30))
            assert row[0] == pytest.approx(slow_accuracy(batches, seed, alpha, 15))
    assert found.plain != found.asymmetric


def test_a_vanishing_alpha_gives_equal_pairs_dropout_included():
    batches = gather(learnable(), 100)
    made = paired_trials(lambda: build(dropout=0.5), batches, Settings(CLASSES), PLACES, Plan(20, (1, 2), (1e-30,)))
    assert made[0].plain == made[0].asymmetric


def test_a_function_gives_each_seed_its_own_weights_and_a_module_one_start():
    batches = gather(learnable(), 100)
    settings = Settings(CLASSES, learning_rate=1e-12)

    def plain_rows(source):
        return paired_trials(source, batches, settings, PLACES, Plan(2, (1, 2, 3), (1.0,)))[0].plain

    from probe_models import Blocks

    assert len(set(plain_rows(Blocks))) > 1
    assert len({row[0] for row in plain_rows(build(dropout=0.0))}) <= 2  # batch norm's statistics follow the order


def test_time_that_ends_leaves_whole_seeds():
    left = iter([True] * 25 + [False] * 100)
    batches = gather(learnable(), 100)
    plan = Plan(10, (1, 2, 3), (1.0,))
    (found,) = paired_trials(build(), batches, Settings(CLASSES), PLACES, plan, go_on=lambda: next(left))
    assert found.seeds == (1,)
    assert paired_trials(build(), batches, Settings(CLASSES), PLACES, plan, go_on=lambda: False) == []


def test_orders_are_permutations_and_leave_the_held_out_batches_alone():
    batches = gather(learnable(20), 100)
    assert len(batches.held_out_numbers) == 4
    first, second = batches.order(1, 16), batches.order(2, 16)
    assert sorted(first) == sorted(second) == sorted(set(range(20)) - set(batches.held_out_numbers))
    assert first != second
    assert batches.order(1, 40)[:16] == first
    assert batches.order(1, 40)[16:32] != first


def test_an_iterator_is_kept_and_a_list_is_read_by_number():
    given = learnable(6)
    kept = gather((batch for batch in given), 100)
    assert len(kept.items) == 6
    assert gather(given, 4).items is given
    assert max(gather(given, 4).train_numbers) <= 3
    assert len(gather((batch for batch in given), 3).items) == 3


def test_a_last_batch_of_one_sample_is_left_out():
    x, y = learnable(1)[0]
    found = gather([*learnable(6), (x[:1], y[:1])], 100)
    assert 6 not in [*found.train_numbers, *found.held_out_numbers]


@pytest.mark.parametrize(
    ("seconds", "steps", "seeds", "alphas"),
    [
        (float("inf"), 300, 3, 2),
        (0.9 * 9 * 300 * 1.3, 300, 3, 2),
        (9 * 100 / 0.9, 100, 3, 2),  # shorter
        (9 * 60 / 0.9 - 1, 89, 2, 2),  # a seed less
        (6 * 60 / 0.9 - 1, 89, 2, 1),  # an alpha less
        (3, 0, 0, 0),
    ],
)
def test_what_fits_into_the_time(seconds, steps, seeds, alphas):
    plan = plan_trials(300, range(3), (0.1, 1.0), 1.0, seconds)
    assert (len(plan.seeds), len(plan.alphas)) == (seeds, alphas)
    assert abs(plan.steps - steps) <= 30 if 0 < steps < 300 else plan.steps == steps
    assert bool(plan.note) == ((steps, seeds, alphas) != (300, 3, 2))
    if plan.alphas and seconds != float("inf"):
        assert plan.steps * len(plan.seeds) * (1 + len(plan.alphas)) <= seconds


def test_a_single_pair_is_run_where_one_is_asked_for():
    assert plan_trials(100, [7], (0.1, 1.0), 1.0, float("inf")) == Plan(100, (7,), (0.1, 1.0))
    none = plan_trials(100, [7], (1.0,), 1.0, 10.0)
    assert none.alphas == ()
    assert "does not hold a pair of runs of 60 steps" in none.note


def test_what_the_time_did_not_hold_is_said():
    plan = Plan(100, (1, 2, 3), (1.0,), "A note.")
    assert notes_on_time(Plan(100, (1, 2, 3), (1.0,)), 3, 100, 100) == ()
    first, second, third = notes_on_time(plan, 1, 90, 100)
    assert first == "A note."
    assert "90 of 100 steps" in second
    assert third == "The time held 1 of 3 planned pairs at each alpha: give more minutes."


def test_time_beside_the_steps_is_planned_for():
    plan = plan_trials(300, range(2), (1.0,), 1.0, 4 * 200 / 0.9, seconds_a_run=50.0)
    assert plan.steps == pytest.approx(150, abs=1)


class Ticks:
    """A clock on which every look at it takes a twentieth of a second, whatever this machine is doing."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 0.05
        return self.now


@pytest.fixture
def ticks(monkeypatch):
    clock = Ticks()
    monkeypatch.setattr("time.perf_counter", clock)
    return clock


@pytest.mark.slow
def test_a_limit_is_kept_and_said(ticks):
    found = probe(build(), learnable(), steps=10_000, seeds=2, alphas=(1.0,), minutes=0.5)
    # Three looks at the clock in a step of the shadow training, which has a quarter of the time.
    assert found.shadow.steps == pytest.approx(0.25 * 30 / 0.15, rel=0.1)
    assert len(found.trials[0].seeds) == 2
    assert 60 <= found.trials[0].steps < 10_000
    assert 20 < found.seconds <= 30
    assert any("steps: its time was over" in note for note in found.notes)
    assert any("To keep within the time" in note for note in found.notes)
    assert Clock(None).left() == float("inf")


@pytest.mark.parametrize("alphas", [(1.0,), ()])
def test_time_that_no_pairs_fill_is_the_shadow_trainings(ticks, alphas):
    found = probe(build(), learnable(), steps=10_000, seeds=2, alphas=alphas, minutes=0.2)
    assert found.trials == ()
    assert found.seconds == pytest.approx(12, rel=0.1)
    # Three looks at the clock in each step of the first quarter, four in the others.
    assert found.shadow.steps == pytest.approx(0.25 * 12 / 0.15 + 0.7 * 12 / 0.2, rel=0.1)
    assert any("there were no paired runs. Give more minutes" in note for note in found.notes) == bool(alphas)


def test_the_shadow_training_asks_once_whether_pairs_fit():
    asked = []
    clock = Clock(None)
    clock.limit, passed = 100.0, [0.0]
    clock.passed = lambda: passed[0]

    def fits(each):
        asked.append(each)
        return Plan(60, (1, 2), (1.0,)) if len(asked) == 1 else Plan(0, (), ())

    limit = ShadowLimit(clock, 3, fits)
    assert limit(10, [2.0])
    passed[0] = 26.0
    assert limit(2, [])  # the least number of steps is taken in any case
    assert not limit(10, [1.0, 3.0, 2.0])
    assert not limit(11, [1.0])
    assert asked == [2.0]
