"""What units do in the first steps: the numbers, and the steps they are of."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from asymtrain.errors import UsageError
from asymtrain.lab.data import load
from asymtrain.lab.data.normalise import normalise
from asymtrain.lab.engine.reference import train_reference
from asymtrain.lab.engine.schedule import steps_of
from asymtrain.lab.engine.setup import run_data
from asymtrain.lab.instruments import feature_statistics
from asymtrain.lab.instruments.features.measure import VARIANTS, feature_variants, follow_features, variant_of
from asymtrain.lab.instruments.features.show import WORDS, group_features
from asymtrain.lab.scales import get_scale, scaled_spec
from asymtrain.models import BACKBONES


@pytest.fixture(scope="module")
def dataset():
    return load("shapes", **dict(quick("cnn").dataset_options))


def quick(arch):
    return scaled_spec(get_scale("quick"), arch)


def test_silent_units_scale_and_directions_of_features_that_are_known():
    line = torch.tensor([[1.0, 2.0, 0.0, 5.0], [2.0, 4.0, 0.0, 5.0], [3.0, 6.0, 0.0, 5.0]])
    found = feature_statistics(line)
    assert (found.units, found.silent) == (4, 0.5)  # 0 for all, and 5 for all
    assert found.scale == pytest.approx(math.sqrt(line.square().mean()))
    assert found.directions == pytest.approx(1)
    plane = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 3.0], [0.0, -3.0]]) + 7
    assert feature_statistics(plane).directions == pytest.approx(2)
    flat = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])  # nine tenths of the variance, and one
    assert feature_statistics(flat).directions == pytest.approx(math.exp(-0.9 * math.log(0.9) - 0.1 * math.log(0.1)))
    same = feature_statistics(torch.ones(3, 2))
    assert (same.silent, same.scale, same.directions) == (1, 1, None)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (torch.zeros(3), "images, units"),
        (torch.zeros(1, 3), "two images or more"),
        (torch.zeros(2, 3, 4), "images, units"),
        (torch.tensor([[1.0], [torch.nan]]), "has diverged"),
    ],
)
def test_what_are_no_features_is_refused(wrong, said):
    with pytest.raises(UsageError, match=said):
        feature_statistics(wrong)


@pytest.mark.parametrize("arch", BACKBONES)
def test_the_steps_are_those_of_the_run(arch, dataset):
    spec = dataclasses.replace(quick(arch), epochs=1, batch=64, per_class=20, test="never")  # three steps
    data = run_data(spec, dataset)
    images = normalise(torch.from_numpy(dataset.test.images[:30]), data.mean, data.std)
    whole = {}

    def look(step, model):
        with torch.no_grad():
            whole[step + 1] = [f.numpy().copy() for f in model.features(images)[1]]

    train_reference(spec, dataset, on_step=look)
    last = max(whole)
    found = follow_features(spec, dataset, [last, 0, 1, 1], images=30)
    assert list(found) == [0, 1, last]
    for step in (1, last):
        for point, values in zip(found[step], whole[step], strict=True):
            assert point.units == values.shape[1]
            assert point.silent == pytest.approx(np.mean(values.std(0) == 0))
            assert point.scale == pytest.approx(np.sqrt((values.astype(float) ** 2).mean()), rel=1e-5)
            variances = np.linalg.eigvalsh(np.cov(values.astype(float).T))
            shares = variances[variances > 1e-12 * variances.max()] / variances.sum()
            assert point.directions == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-3)


def test_before_the_first_step_all_kinds_of_branches_see_the_same(dataset):
    specs = feature_variants(quick("cnn"), ["trained", "prior"])
    assert len({follow_features(spec, dataset, [0], images=20)[0] for spec in specs}) == 1


@pytest.mark.slow
def test_branches_without_a_bias_silence_and_blow_up_units_of_the_cnn(dataset):
    """The reason that the pages give for what small alphas cost the CNN: it shows in six narrow convolutions too."""
    options = {"widths": (12, 24, 24, 24, 24, 16), "hidden": (64, 32), "pool_after": (0, 1)}
    base = dataclasses.replace(quick("cnn"), arch_options=options)
    plain, trained, prior = (
        follow_features(spec, dataset, [10])[10][-1] for spec in feature_variants(base, ["trained", "prior"])
    )
    assert trained.scale > 10 * plain.scale
    assert trained.directions < 1.1 < plain.directions
    assert prior.scale < 2 * plain.scale
    assert trained.silent > 2 * max(plain.silent, 0.05)


def test_variants_are_told_apart():
    spec = quick("cnn")
    specs = feature_variants(spec, VARIANTS)
    assert [variant_of(one) for one in specs] == list(VARIANTS) == list(WORDS)
    assert feature_variants(spec, ["trained", "trained", "plain"]) == [spec.plain(), spec]
    with pytest.raises(UsageError, match=r"'trainde'.*trained"):
        feature_variants(spec, ["trainde"])


@pytest.mark.parametrize(
    ("steps", "images", "said"),
    [([], 10, "steps"), ([-1], 10, "steps"), ([10**6], 10, "steps"), ([0], 10**6, "images")],
)
def test_steps_and_images_that_are_not_there_are_refused(steps, images, said, dataset):
    with pytest.raises(UsageError, match=f"{said} must lie in"):
        follow_features(quick("mlp"), dataset, steps, images=images)


def test_a_batch_that_is_dropped_is_no_step(dataset):
    spec = dataclasses.replace(quick("mlp"), batch=99, epochs=1)
    steps, _ = steps_of(spec, len(run_data(spec, dataset).train))
    with pytest.raises(UsageError, match=rf"steps must lie in 0\.\.{steps - 1}, "):
        follow_features(dataclasses.replace(spec, last_batch="drop"), dataset, [steps])


def test_groups_are_named_by_what_differs(dataset):
    base = quick("mlp")
    specs = [base.plain(), base, dataclasses.replace(base, alpha=7.0), dataclasses.replace(base, seed=5)]
    seen = {spec: follow_features(spec, dataset, [0], images=10) for spec in specs}
    groups = group_features(seen)
    assert [(group.label, group.variant, tuple(spec.seed for spec in group.specs)) for group in groups] == [
        ("MLP", "plain", (base.seed,)),
        (f"MLP, alpha {base.alpha}", "trained", (base.seed, 5)),
        ("MLP, alpha 7.0", "trained", (base.seed,)),
    ]
