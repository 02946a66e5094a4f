"""Alignment of invented runs, against numpy and scipy."""

import dataclasses
import json

import numpy as np
import pytest
from scipy import stats

from asymtrain.errors import UsageError
from asymtrain.lab.instruments.alignment.measure import VARIANTS, conflicts, run_conflict, variant_of
from asymtrain.lab.instruments.curves import in_variants
from asymtrain.lab.runs import Epoch, Run, RunSpec


def epoch(number, cosine, **more):
    width = None if cosine is None else 0.25
    values = {
        "epoch": number, "main_loss": 1.0, "auxiliary_loss": 0.5, "train_accuracy": 0.5, "validation_accuracy": 0.5,
        "test_accuracy": None, "cosine": cosine, "cosine_min": width and cosine - width,
        "cosine_max": width and cosine + width, "seconds": 1.0,
    }  # fmt: skip
    return Epoch(**values | more)


def run(cosines, seed=42, more=None, **fields):
    spec = RunSpec(epochs=len(cosines), seed=seed, **fields)
    more = more or [{}] * len(cosines)
    return Run(spec, tuple(epoch(i, c, **m) for i, (c, m) in enumerate(zip(cosines, more, strict=True), start=1)))


def test_the_numbers_of_one_run():
    details = [{"conflict": 0.5, "main_norm": 2.0, "auxiliary_norm": 1.0}, {"conflict": 0.0, "main_norm": 4.0}, {}]
    found = run_conflict(run([0.5, -0.25, 0.125], more=details))
    assert (found.final, found.mean) == (0.125, 0.125)
    assert (found.min, found.max) == (-0.5, 0.75)  # of single steps
    assert (found.epoch_min, found.epoch_max) == (-0.25, 0.5)
    assert (found.conflict, found.main_norm, found.auxiliary_norm) == (0.25, 3.0, 1.0)
    assert (found.epochs, found.undefined) == (3, 0)


def test_undefined_epochs_enter_no_number():
    found = run_conflict(run([0.5, None, 0.25, None]))
    assert (found.mean, found.final, found.undefined) == (0.375, None, 2)
    nothing = run_conflict(run([None, None]))
    for name in ("final", "mean", "min", "max", "conflict", "low", "high", "main_norm"):
        assert getattr(nothing, name) is None
    assert nothing.undefined == 2


@pytest.mark.parametrize(("epochs", "blocks"), [(6, 6), (20, 20), (43, 20), (200, 20)])
def test_the_interval_over_batches_is_that_of_blocks_of_epochs(epochs, blocks):
    cosines = np.random.default_rng(epochs).normal(0.1, 0.05, epochs)
    found = run_conflict(run(cosines.tolist()))
    length = epochs // blocks
    means = cosines[epochs - blocks * length :].reshape(blocks, length).mean(1)
    half = stats.t.ppf(0.975, blocks - 1) * stats.sem(means)
    assert found.blocks == blocks
    assert (found.low, found.high) == pytest.approx((cosines.mean() - half, cosines.mean() + half))


def test_one_epoch_has_no_interval():
    found = run_conflict(run([0.5]))
    assert (found.mean, found.low, found.high, found.blocks) == (0.5, None, None, 0)


def test_seeds_come_together_with_an_interval_over_them():
    means = [0.1, 0.3, 0.2]
    runs = [run([value, value], seed=seed) for seed, value in zip((3, 1, 2), means, strict=True)]
    (found,) = conflicts([*runs, Run(runs[0].spec.plain(), ())])
    assert [one.seed for one in found.runs] == [1, 2, 3]
    low, high = stats.t.interval(0.95, 2, 0.2, stats.sem(means))
    assert (found.mean.mean, found.mean.low, found.mean.high) == pytest.approx((0.2, low, high))
    assert (found.min.mean, found.max.mean) == pytest.approx((-0.05, 0.45))
    json.dumps(found.to_dict(), allow_nan=False)


def test_intervals_end_at_what_there_can_be():
    details = [{"conflict": c, "main_norm": n, "auxiliary_norm": 1.0} for c, n in ((0.0, 0.1), (0.5, 3.0))]
    runs = [
        run([value], seed=seed, more=[more]) for seed, value, more in zip((1, 2), (-0.5, 0.9), details, strict=True)
    ]
    (found,) = conflicts(runs)
    assert (found.mean.low, found.mean.high) == (-1, 1)
    assert (found.conflict.low, found.conflict.high) == (0, 1)
    assert found.main_norm.low == 0
    assert found.main_norm.high == pytest.approx(stats.t.interval(0.95, 1, 1.55, stats.sem([0.1, 3.0]))[1])
    cosines = [0.99, 0.2, 0.99]
    low, high = stats.t.interval(0.95, 2, np.mean(cosines), stats.sem(cosines))
    within = run_conflict(run(cosines))
    assert high > 1
    assert (within.low, within.high) == (pytest.approx(low), 1)


def test_a_run_that_diverged_is_in_and_named():
    whole, broken = run([0.5, 0.5], seed=1), dataclasses.replace(run([0.1, 0.1], seed=2), outcome="diverged")
    (found,) = conflicts([whole, dataclasses.replace(broken, history=broken.history[:1])])
    assert [(one.outcome, one.epochs) for one in found.runs] == [("finished", 2), ("diverged", 1)]
    assert found.mean.mean == pytest.approx(0.3)


def test_the_variants_are_specs_and_are_told_apart():
    spec = RunSpec(epochs=1)
    names = ["trained", "frozen", "detached"]
    specs = in_variants(spec, names, VARIANTS)
    assert specs[0] == spec
    assert [variant_of(one) for one in specs] == names
    assert variant_of(dataclasses.replace(spec, signal="noise")) == "noise"
    found = conflicts([Run(one, (epoch(1, 0.1),)) for one in specs])
    assert [one.variant for one in found] == names
    with pytest.raises(UsageError, match="unknown variant of the branches 'frosen': did you mean 'frozen'"):
        in_variants(spec, ["frosen"], VARIANTS)


def test_runs_without_a_cosine_are_refused():
    plain = Run(RunSpec(epochs=1, redundancy=0), (epoch(1, None),))
    with pytest.raises(UsageError, match="is Plain"):
        run_conflict(plain)
    with pytest.raises(UsageError, match="needs Asymmetric runs"):
        conflicts([plain])
    with pytest.raises(UsageError, match="cosine_every"):
        run_conflict(run([None], cosine_every=0))
