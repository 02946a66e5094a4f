"""The probe of our own backbones, whose paired runs are specs of the engine."""

import dataclasses

import numpy as np
import pytest
import torch

from asymtrain.errors import UsageError
from asymtrain.lab.data import Dataset, Examples, load
from asymtrain.lab.engine import train
from asymtrain.lab.engine.setup import build_backbone, run_data
from asymtrain.lab.probe.sources import ImageBatches
from asymtrain.lab.probe.stacks import probe_backbone, read_trials, shadow_of, trial_specs, with_places
from asymtrain.lab.runs import RunSpec

OPTIONS = {"classes": 4, "size": 400, "test_size": 100}
BASE = RunSpec(
    dataset="shapes", dataset_options=OPTIONS, arch="mlp", arch_options={"widths": (24, 24, 24)}, batch=16, epochs=9
)
DATA = load("shapes", **OPTIONS)


def test_paired_specs_have_the_steps_asked_for_and_touch_no_test_image():
    specs = trial_specs(BASE, DATA, alphas=(0.1, 1.0), seeds=(7, 8), steps=100)
    assert len(specs) == 6  # Plain is shared by the alphas
    assert {(spec.seed, spec.alpha if spec.redundancy else 0) for spec in specs} == {
        (seed, alpha) for seed in (7, 8) for alpha in (0, 0.1, 1.0)
    }
    assert {(spec.epochs, spec.per_class, spec.test, spec.validation) for spec in specs} == {
        (5, None, "never", "split")
    }
    dropping = dataclasses.replace(BASE, batch=200, last_batch="drop")  # one step of each epoch is left
    assert trial_specs(dropping, DATA, alphas=(1.0,), seeds=(7,), steps=6)[0].epochs == 6
    short = trial_specs(BASE, DATA, alphas=(1.0,), seeds=(7, 8), steps=10)
    for spec in short:
        assert spec.epochs == 2
        assert 2 * -(-len(run_data(spec, DATA).train) // spec.batch) == pytest.approx(10, abs=2)


def test_trials_are_the_validation_accuracies_halfway_and_at_the_end():
    runs = list(train(trial_specs(BASE, DATA, alphas=(1.0,), seeds=(7, 8), steps=80), device="cpu"))
    (found,) = read_trials(runs, (1.0,), DATA, 80)
    assert found.seeds == (7, 8)
    by_key = {(run.spec.variant, run.spec.seed): run.history for run in runs}
    for seed, plain, asymmetric in zip(found.seeds, found.plain, found.asymmetric, strict=True):
        for variant, row in (("plain", plain), ("asymmetric", asymmetric)):
            history = by_key[variant, seed]
            assert row == (history[1].validation_accuracy, history[3].validation_accuracy)
    lost = [dataclasses.replace(runs[0], outcome="diverged"), *runs[1:]]
    side = "plain" if runs[0].spec.redundancy == 0 else "asymmetric"
    assert (0.25, 0.25) in getattr(read_trials(lost, (1.0,), DATA, 80)[0], side)
    assert read_trials(runs[:1], (1.0,), DATA, 80) == []


def test_places_become_points():
    spec = with_places(BASE, ["blocks.1"])
    assert build_backbone(spec, DATA).points == ("blocks.1",)
    assert dict(spec.arch_options)["widths"] == (24, 24, 24)


@pytest.mark.slow
def test_a_backbone_is_probed_in_a_few_seconds():
    found = probe_backbone(BASE, DATA, alphas=(1.0,), seeds=2, steps=60, device="cpu")
    assert [one.place for one in found.shadow.places] == list(build_backbone(BASE, DATA).points)
    assert len(found.trials) == 1
    assert len(found.trials[0].seeds) == 2
    assert found.advice.verdict in ("attach", "leave", "cannot tell")
    assert shadow_of(BASE, DATA, steps=60, device="cpu").together == found.shadow.together


def test_image_batches_are_normalised_and_disjoint():
    indices = run_data(BASE, DATA).train
    batches = ImageBatches(DATA, 16, seed=3, indices=indices)
    assert len(batches) == len(indices) // 16
    seen = torch.cat([batches[i][0] for i in range(len(batches))])
    assert seen.mean((0, 2, 3)).abs().max() < 0.1
    assert (seen.std((0, 2, 3)) - 1).abs().max() < 0.1
    used = np.concatenate([batches.order[i * 16 : (i + 1) * 16] for i in range(len(batches))])
    assert len(set(used)) == len(used)
    assert set(used) <= set(indices)
    first = DATA.train.images[batches.order[0]].astype(np.float64) / 255
    expected = (first - batches.mean.numpy()[:, None, None]) / batches.std.numpy()[:, None, None]
    np.testing.assert_allclose(batches[0][0][0].numpy(), expected, atol=1e-5)
    with pytest.raises(IndexError):
        batches[len(batches)]
    with pytest.raises(UsageError, match="fewer than two batches"):
        ImageBatches(DATA, 300)
    with pytest.raises(UsageError, match="too small"):
        ImageBatches(DATA, 1)
    vectors = Examples(np.zeros((99, 4), np.float32), np.arange(99) % 3)
    with pytest.raises(UsageError, match="works on images, and the dataset holds vectors"):
        ImageBatches(Dataset("vectors", vectors, vectors, ("a", "b", "c")), 16)
