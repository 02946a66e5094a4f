"""What the auxiliary signal is made of: each control does what its name says, and every strategy does the same."""

import dataclasses

import numpy as np
import pytest
import torch
from equivalence import distance, mixed_specs
from near_reference import assert_stack_is_near, few_steps_or_all
from small_runs import (
    STRATEGIES,
    TRAINERS,
    assert_same_bits,
    differ,
    every_arch,
    spec_of,
    stack_of,
    trained,
)

from asymtrain.lab.engine import Stack, reference
from asymtrain.lab.engine.parameters import FlatParameters, alignment_sums, layer_sums, layers_of
from asymtrain.lab.engine.schedule import alpha_at
from asymtrain.lab.engine.setup import build_backbone, prior_bias, random_labels, run_data
from asymtrain.lab.engine.signals import noise_like, update_gradient
from asymtrain.lab.runs import RunSpec
from small_backbones import SMALL

CONTROLS = {
    "softmax": {"objective": "softmax"},
    "distill": {"objective": "distill", "bias": "prior", "mixup": 0.4},
    "random labels": {"branch_labels": "random"},
    "bias": {"bias": "prior", "decay": "matrices", "weight_decay": 0.5},
    "bias, softmax, all live": {"bias": "prior", "objective": "softmax", "activation": "all"},
    "frozen": {"branch_weights": "frozen", "weight_decay": 0.5},
    "detached": {"signal": "detached", "cosine_every": 3},
    "detached and frozen": {"signal": "detached", "branch_weights": "frozen"},
    "noise": {"signal": "noise"},
    "gated": {"signal": "gated"},
    "layers averaged": {"class_reduction": "sum", "layer_reduction": "mean"},
    "ratio of gradients": {"balance": "norms", "cosine_every": 5, "clip": 1.0},
    "ratio of gradients, falling": {"balance": "norms", "cosine_every": 0, "alpha_schedule": "linear"},
    "linear": {"alpha_schedule": "linear"},
    "early": {"alpha_schedule": "early"},
    "smoothing": {"label_smoothing": 0.2},
}


def fifty_steps(arch, **fields):
    defaults = {"per_class": 15, "batch": 16, "epochs": 13, "redundancy": 2, "arch_options": SMALL[arch]}
    return RunSpec(arch=arch, **{**defaults, **fields})


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_cosine_is_over_what_branches_at_the_chosen_layers_reach(trainer, dataset):
    """The middle one of points 0 to 2, and of points 0 and 1, is point 1 with the same initial weights."""
    spec = RunSpec(arch_options={"widths": (8, 8, 8, 8)}, layers="middle", batch=16, epochs=1, cosine_every=1)
    short = dataclasses.replace(spec, arch_options={**dict(spec.arch_options), "points": (0, 1)})
    (ours,), (theirs,) = (trained(asked, dataset, trainer)[0].history for asked in (spec, short))
    assert ours.cosine == pytest.approx(theirs.cosine, rel=1e-6)
    assert ours.main_norm == pytest.approx(theirs.main_norm, rel=1e-6)


@few_steps_or_all
@pytest.mark.parametrize("control", CONTROLS.values(), ids=CONTROLS)
def test_every_strategy_does_what_the_reference_does(control, steps, dataset):
    specs = mixed_specs(fifty_steps("mlp", epochs=-(-steps // 4), **control), runs=3)
    assert_stack_is_near(specs, dataset, *STRATEGIES, steps=steps)


KINDS = [
    {"redundancy": 0},
    {"class_reduction": "sum"},
    {"layer_reduction": "mean"},
    {"objective": "softmax", "branch_labels": "random"},
    {"bias": "prior"},
    {"objective": "distill", "layer_reduction": "mean"},
    {"branch_weights": "frozen"},
    {"signal": "detached"},
]


@few_steps_or_all
def test_runs_of_a_stack_have_losses_of_their_own(steps, dataset):
    specs = [fifty_steps("mlp", weight_decay=0.5, **fields) for fields in KINDS]
    assert_stack_is_near(specs, dataset, *STRATEGIES, steps=steps)


@pytest.mark.parametrize("strategy", ["batched", pytest.param("side_by_side", marks=pytest.mark.slow)])
@pytest.mark.parametrize("fields", KINDS, ids=str)
def test_a_run_beside_other_kinds_records_what_it_does_alone(fields, strategy, dataset):
    specs = [spec_of("cnn", weight_decay=0.5, **{"redundancy": 1, **other}) for other in KINDS]
    chosen = KINDS.index(fields)
    together = stack_of(specs, dataset, strategy).results()[chosen]
    alone = stack_of([specs[chosen]], dataset, strategy).results()[0]
    for first, second in zip(together.history, alone.history, strict=True):
        seen = [
            {name: value for name, value in epoch._asdict().items() if name != "seconds" and value is not None}
            for epoch in (first, second)
        ]
        assert seen[0] == pytest.approx(seen[1], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(
    ("arch", "signal"),
    [
        pytest.param(arch, signal, id=f"{arch}-{signal}", marks=() if quick else pytest.mark.slow)
        for signal, quicker in {"noise": "cnn", "gated": "cnn", "detached": "vit"}.items()
        for arch, quick in (("cnn", quicker == "cnn"), ("vit", quicker == "vit"))
    ],
)
def test_with_convolutions_and_attention(arch, signal, dataset):
    fields = {"signal": signal, "objective": "softmax", "branch_labels": "random", "bias": "prior"}
    specs = mixed_specs(fifty_steps(arch, **fields), runs=3)
    # Not fifty: noise soon brings some maximum so near a tie that rounding decides it.
    assert_stack_is_near(specs, dataset, "batched", steps=12)


# Detached features, and alpha going to zero.


@pytest.mark.parametrize("trainer", TRAINERS)
@every_arch
def test_branches_on_detached_features_leave_the_backbone_of_plain(arch, trainer, dataset):
    spec = spec_of(arch, signal="detached", alpha=50.0, cosine_every=3)
    run, backbone = trained(spec, dataset, trainer)
    assert_same_bits(backbone, trained(spec.plain(), dataset, trainer)[1])
    assert differ(backbone, trained(dataclasses.replace(spec, signal="gradient"), dataset, trainer)[1])
    frozen = trained(dataclasses.replace(spec, branch_weights="frozen"), dataset, trainer)
    assert run.history[-1].auxiliary_loss < frozen[0].history[-1].auxiliary_loss, "the branches learn"
    assert run.history[-1].cosine is not None


@pytest.mark.parametrize("trainer", TRAINERS)
def test_alpha_going_to_zero_goes_to_plain(trainer, dataset):
    base = spec_of(epochs=1, learning_rate=1e-4)
    plain = trained(base.plain(), dataset, trainer)[1]
    far = [
        distance(plain, trained(dataclasses.replace(base, alpha=alpha), dataset, trainer)[1])
        for alpha in (1.0, 1e-2, 1e-4, 0.0)
    ]
    assert far[0] > far[1] > far[2] > far[3] == 0.0


# Frozen branches, other labels, a bias.


@pytest.mark.parametrize("bias", ["none", "prior"])
def test_frozen_branches_stay_what_they_were(bias, dataset):
    spec = spec_of(branch_weights="frozen", bias=bias, weight_decay=0.5)
    before = Stack([spec], dataset)
    after = stack_of([spec], dataset)
    pairs = zip(
        before.parameters.views(before.weights).items(), after.parameters.views(after.weights).values(), strict=True
    )
    seen = {name: torch.equal(one, two) for (name, one), two in pairs}
    assert all(same == name.startswith("branch.") for name, same in seen.items()), seen
    assert ("branch.0.bias" in seen) == (bias == "prior")


def test_random_labels_are_fixed_uniform_and_of_the_seed_alone(dataset):
    labels = random_labels(7, 40_000, 10)
    assert torch.equal(labels[:100], random_labels(7, 100, 10))
    assert not torch.equal(labels, random_labels(8, 40_000, 10))
    counts = labels.bincount(minlength=10).numpy()
    assert ((counts - 4000) ** 2 / 4000).sum() < 27.9  # chi-square with 9 degrees, one in a thousand is above
    stack = Stack([spec_of(branch_labels="random", seed=7), spec_of(seed=8).plain()], dataset)
    stack.data.start_epoch(0)
    batch = stack.data.next_batch()
    images = stack.data.order[0, :24]
    assert torch.equal(batch.branch_targets[0], random_labels(7, 100, 4)[images])
    assert torch.equal(batch.targets[0], torch.from_numpy(dataset.train.labels)[images])


def test_the_bias_begins_at_the_classes_shares(dataset):
    spec = spec_of(label_noise=0.3)
    data = run_data(spec, dataset)
    shares = np.bincount(data.labels[data.train], minlength=4) / len(data.train)
    assert prior_bias(spec, data, 4).sigmoid().numpy() == pytest.approx(shares, abs=0.01)
    softmax = dataclasses.replace(spec, objective="softmax")
    assert prior_bias(softmax, data, 4).softmax(0).numpy() == pytest.approx(shares, abs=0.01)


def test_the_share_of_alpha_in_each_epoch():
    for schedule, wanted in {
        "constant": [2.0, 2.0, 2.0, 2.0],
        "linear": [2.0, 1.5, 1.0, 0.5],
        "cosine": [2.0, 1 + 0.5**0.5, 1.0, 1 - 0.5**0.5],
        "early": [2.0, 2.0, 0.0, 0.0],
    }.items():
        spec = RunSpec(alpha=2.0, epochs=4, alpha_schedule=schedule)
        assert [alpha_at(spec, epoch) for epoch in range(4)] == pytest.approx(wanted), schedule


# Layers of a flat gradient.


@pytest.fixture(scope="module")
def flat(dataset):
    """A layout with layers, the slow sums over them, and two gradients of three runs."""
    backbone = build_backbone(spec_of("vit"), dataset)
    parameters = {name: value.detach() for name, value in backbone.named_parameters()}
    shared = [name for name in parameters if not name.startswith(("norm", "head"))]
    layout = FlatParameters.of({**parameters, "branch.0": torch.zeros(2, 4, 8)})
    layers = layers_of(layout, shared, torch.device("cpu"))
    drawn = torch.Generator().manual_seed(0)
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    rows = [{name: torch.randn(shape, generator=drawn) for name, shape in shapes.items()} for _ in range(6)]

    names = list(dict.fromkeys(name.rpartition(".")[0] or name for name in shared))
    assert {"blocks.0.attention.qkv", "positions"} <= set(names)

    def slow_sums(gradient):
        views = layout.views(gradient)
        return torch.stack([
            torch.stack([views[name].double().flatten(1).sum(1) for name in shared
                         if (name.rpartition(".")[0] or name) == layer]).sum(0)
            for layer in names
        ], 1)  # fmt: skip

    return layers, slow_sums, layout.pack(rows[:3]), layout.pack(rows[3:])


def test_layer_sums_are_sums_over_the_parameters_of_a_layer(flat):
    layers, slow_sums, first, second = flat
    assert torch.allclose(layer_sums(first, layers.members), slow_sums(first), atol=1e-4)
    applied = torch.tensor([[0.0], [1.0], [3.0]])
    main = first - applied * second
    wanted = [slow_sums(product) for product in (main * second, main * main, second * second)]
    assert torch.allclose(
        alignment_sums(first, second, applied, layers.members), torch.stack(wanted), rtol=1e-4, atol=1e-3
    )


def test_noise_is_as_large_as_the_gradient_in_each_layer_and_keyed(flat):
    layers, slow_sums, total, auxiliary = flat
    keys = torch.tensor([5, 6, 7])
    noise = noise_like(auxiliary, keys, 3, layers.members, layers.inside)
    assert torch.allclose(slow_sums(noise.square()), slow_sums(auxiliary.square()), rtol=1e-4)
    within = noise[noise != 0]
    assert abs(within.mean()) < 0.05
    assert abs((noise * auxiliary).sum() / (noise.norm() * auxiliary.norm())) < 0.05
    assert torch.equal(
        noise[1:2], noise_like(auxiliary[1:2], keys[1:2], torch.tensor(3), layers.members, layers.inside)
    )
    assert not noise[(layers.inside == 0).expand_as(noise)].any(), "the gaps stay zero"
    assert not torch.equal(noise, noise_like(auxiliary, keys, 4, layers.members, layers.inside))
    alpha = torch.tensor([[0.5]])
    noisy = update_gradient("noise")
    replaced = noisy(total, auxiliary, alpha, keys, 3, layers.members, layers.inside)
    assert torch.allclose(replaced - 0.5 * noise, total - 0.5 * auxiliary, atol=1e-5)


@pytest.mark.parametrize("cosine", [-0.8, 0.0, 0.6, 1.0])
def test_the_gate_opens_by_the_positive_cosine(cosine, flat):
    layers, _, _, auxiliary = flat
    ones = torch.ones_like(auxiliary)
    inside = noise_like(ones, torch.tensor([1, 2, 3]), 0, layers.members, layers.inside) != 0
    auxiliary = auxiliary * inside  # as in a stack: zero where only the main loss reaches
    other = torch.randn(auxiliary.shape, generator=torch.Generator().manual_seed(1)) * inside
    other = other - auxiliary * (other * auxiliary).sum(1, True) / auxiliary.square().sum(1, True)
    main = cosine * auxiliary / auxiliary.norm(dim=1, keepdim=True)
    main = main + (1 - cosine**2) ** 0.5 * other / other.norm(dim=1, keepdim=True)
    alpha, gated = torch.full((3, 1), 3.0), update_gradient("gated")
    found = gated(main + 3 * auxiliary, auxiliary, alpha, torch.zeros(3), 0, layers.members, layers.inside)
    assert torch.allclose(found, main + 3 * max(0.0, cosine) * auxiliary, atol=1e-3)


def test_a_gradient_of_zero_leaves_the_ratio_of_gradients_as_it_was(dataset, monkeypatch):
    spec = spec_of(balance="norms", cosine_every=0)
    stack = Stack([spec], dataset)
    for before in (0.0, 0.5):
        stack.scale.fill_(before)
        stack._balance(torch.zeros(3, 1, 2, dtype=torch.float64))
        assert stack.scale == before
    monkeypatch.setattr(reference, "_norm", lambda gradient: 0.0)
    silent, plain = (trained(one, dataset, "reference")[0].history for one in (spec, spec.plain()))
    assert [epoch.main_loss for epoch in silent] == [epoch.main_loss for epoch in plain]
