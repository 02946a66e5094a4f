"""Trajectories of invented runs, against numbers worked out by hand, numpy and scipy."""

import dataclasses
import json
import math

import numpy as np
import pytest
from scipy import stats

from asymtrain.errors import UsageError
from asymtrain.lab.instruments.curves import gap
from asymtrain.lab.instruments.trajectory.measure import (
    compare_trajectories,
    convergence_epoch,
    gap_epochs,
    parting,
    trajectory,
)
from asymtrain.lab.runs import Epoch, Run, RunSpec
from asymtrain.lab.statistics.estimates import estimate

BASE = RunSpec(epochs=5, redundancy=1)


def epoch(number, validation, train=0.5, main_loss=1.0, **more):
    values = {"auxiliary_loss": 0.5, "test_accuracy": None, "cosine": 0.1, "cosine_min": 0.0, "cosine_max": 0.2}
    values |= {"epoch": number, "main_loss": main_loss, "train_accuracy": train, "validation_accuracy": validation}
    return Epoch(seconds=1.0, **values | more)


def run(validations, seed=42, plain=False, outcome="finished", trains=None, **fields):
    spec = dataclasses.replace(BASE, seed=seed, epochs=5 if outcome == "diverged" else len(validations), **fields)
    trains = trains or [0.5] * len(validations)
    numbers = range(1, len(validations) + 1)
    history = tuple(epoch(n, v, t) for n, v, t in zip(numbers, validations, trains, strict=True))
    return Run(spec.plain() if plain else spec, history, outcome=outcome)


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([0.1, 0.2, 0.3, 0.4], 4),
        ([0.1, 0.396, 0.4, 0.2], 2),  # 0.396 is 99% of the best, to rounding
        ([0.1, 0.395, 0.4, 0.2], 3),
        ([0.4, 0.1], 1),
        ([0.0, 0.0], 1),
    ],
)
def test_convergence_is_the_first_epoch_near_the_best(accuracies, expected):
    assert convergence_epoch(accuracies) == expected


@pytest.mark.parametrize(
    ("epochs", "expected"), [(100, (10, 50, 100)), (200, (20, 100, 200)), (6, (1, 3, 6)), (1, (1,))]
)
def test_gaps_are_reported_early_in_the_middle_and_at_the_end(epochs, expected):
    assert gap_epochs(epochs) == expected


def test_the_gap_is_training_less_validation():
    assert gap(epoch(1, validation=0.25, train=0.75)) == 0.5
    assert gap(epoch(1, validation=None)) is None


def test_an_estimate_is_scipy_s_t_interval():
    values = np.random.default_rng(0).normal(size=7)
    found = estimate([*values[:3].tolist(), None, *values[3:].tolist()], confidence=0.9)
    low, high = stats.t.interval(0.9, 6, values.mean(), stats.sem(values))
    assert found.n == 7
    assert (found.mean, found.std) == pytest.approx((values.mean(), values.std(ddof=1)))
    assert (found.low, found.high) == pytest.approx((low, high))


def test_a_cut_interval_holds_the_mean_as_often_as_the_whole_one():
    """Of a skewed positive quantity whose mean is 1, three values at a time."""
    rng, whole, cut = np.random.default_rng(1), 0, 0
    for values in rng.exponential(size=(500, 3)):
        free, positive = estimate(values), estimate(values, within=(0, math.inf))
        assert positive.low == max(free.low, 0)
        assert (positive.mean, positive.std, positive.high) == (free.mean, free.std, free.high)
        whole, cut = whole + (free.low <= 1 <= free.high), cut + (positive.low <= 1 <= positive.high)
    assert whole == cut > 400


def test_an_estimate_of_too_little_says_so():
    assert dataclasses.astuple(estimate([])) == (0, None, None, None, None)
    assert dataclasses.astuple(estimate([None, 0.5])) == (1, 0.5, None, None, None)


def test_a_trajectory_over_seeds():
    first = run([0.1, 0.3, 0.5, 0.5, 0.4], seed=1, trains=[0.2, 0.4, 0.6, 0.8, 1.0])
    second = run([0.1, 0.2, 0.3, 0.4, 0.6], seed=2, trains=[0.1, 0.2, 0.3, 0.4, 0.5])
    found = trajectory([second, first])
    assert found.seeds == (1, 2)
    assert (found.convergence.mean, found.convergence.n) == (4.0, 2)  # epochs 3 and 5
    assert found.convergence_of_mean == 5  # of 0.1, 0.25, 0.4, 0.45, 0.5
    assert found.final.mean == pytest.approx(0.5)
    assert found.best.mean == pytest.approx(0.55)
    assert [number for number, _ in found.gaps] == [1, 2, 5]
    assert [point.mean for _, point in found.gaps] == pytest.approx([0.05, 0.05, (0.6 - 0.1) / 2])
    low, high = stats.t.interval(0.95, 1, 0.25, stats.sem([0.6, -0.1]))
    assert low < -1  # which is no gap: the interval ends at what a gap can be
    assert (found.gaps[-1][1].low, found.gaps[-1][1].high) == (-1, 1) != (low, high)
    assert (found.final.low, found.final.high) == (0, 1)
    assert (found.convergence.low, found.convergence.high) == (1, 5)
    assert found.curves["validation_accuracy"].seeds[0] == (0.1, 0.3, 0.5, 0.5, 0.4)
    assert [point.mean for point in found.curves["main_loss"].points] == [1.0] * 5
    assert "main_norm" not in found.curves  # these runs recorded none
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_diverged_run_is_left_out_and_counted():
    found = trajectory([run([0.1, 0.2, 0.3, 0.4, 0.5], seed=1), run([0.1], seed=2, outcome="diverged")])
    assert (found.seeds, found.diverged, found.final.n) == ((1,), 1, 1)
    with pytest.raises(UsageError, match="all 1 runs diverged"):
        trajectory([run([0.1], outcome="diverged")])


def test_a_run_without_validation_is_refused():
    lost = run([None, None], validation="none")
    with pytest.raises(UsageError, match=rf"{lost.spec.id} has no validation accuracy"):
        trajectory([lost])


def noisy(levels, plain):
    """Four seeds whose accuracies are the levels and a noise that Plain and Asymmetric do not share."""
    rng = np.random.default_rng(7 + plain)
    return [run([x + rng.normal(0, 0.01) for x in levels], seed=seed, plain=plain) for seed in range(4)]


def test_curves_part_where_the_difference_stays_clear():
    plain, asymmetric = noisy([0.5] * 6, plain=True), noisy([0.5, 0.7, 0.5, 0.6, 0.7, 0.8], plain=False)
    found = parting(plain, asymmetric)
    # Clear in epoch 2 as well, but not from there to the end.
    assert (found.epoch, found.side, found.pairs) == (4, "above", 4)
    for number in range(6):
        differences = [b.history[number].validation_accuracy - a.history[number].validation_accuracy
                       for a, b in zip(plain, asymmetric, strict=True)]  # fmt: skip
        expected = stats.ttest_1samp(differences, 0).confidence_interval()
        point = found.difference.points[number]
        assert (point.low, point.high) == pytest.approx((expected.low, expected.high))


def test_curves_that_cross_part_after_the_crossing():
    found = parting(noisy([0.5] * 4, plain=True), noisy([0.7, 0.7, 0.3, 0.3], plain=False))
    assert (found.epoch, found.side) == (3, "below")


def test_curves_that_meet_at_the_end_do_not_part():
    assert parting(noisy([0.5] * 4, plain=True), noisy([0.7, 0.7, 0.7, 0.5], plain=False)).epoch is None


def test_one_pair_cannot_tell():
    found = parting([run([0.1, 0.2], plain=True)], [run([0.3, 0.4])])
    assert (found.epoch, found.side, found.pairs) == (None, None, 1)
    assert parting([run([0.1], seed=1, plain=True)], [run([0.1], seed=2)]).pairs == 0


def test_plain_is_the_partner_of_every_setting_of_the_branches():
    runs = [*noisy([0.1, 0.2], plain=True), *noisy([0.3, 0.4], plain=False)]
    runs += [run([0.2, 0.3], seed=seed, alpha=5.0) for seed in range(3)]
    runs += [run([0.2, 0.3], arch="cnn")]
    found = compare_trajectories(runs)
    assert [(one.plain.spec.arch, one.asymmetric.spec.alpha) for one in found.comparisons] == [
        ("mlp", 1.0),
        ("mlp", 5.0),
    ]
    assert [one.parting.pairs for one in found.comparisons] == [4, 3]
    assert [one.spec.arch for one in found.alone] == ["cnn"]
    assert found.lost == ()
    json.dumps(found.comparisons[0].to_dict(), allow_nan=False)


def test_a_setting_that_always_diverges_is_named():
    lost = run([0.1], arch="cnn", outcome="diverged")
    found = compare_trajectories([run([0.1, 0.2]), lost])
    assert [spec.id for spec in found.lost] == [lost.spec.id]
    with pytest.raises(UsageError, match="diverged"):
        compare_trajectories([lost])
    with pytest.raises(UsageError, match="no run to follow"):
        compare_trajectories([])
