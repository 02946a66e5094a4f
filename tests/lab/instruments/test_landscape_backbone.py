"""The fast path of the backbones against modules with loaded weights, one grid point at a time."""

import numpy as np
import pytest
import torch
from landscape_examples import moved, slow_loss, spec_of, states_of, tiny_dataset

from asymtrain import models
from asymtrain.lab.engine.setup import build_backbone
from asymtrain.lab.instruments.landscape.backbone import main_score, plane, points_that_fit
from asymtrain.lab.instruments.landscape.states import draw_sample, subjects_of
from asymtrain.lab.instruments.landscape.surface import evaluate, gaussian_direction, grid_coordinates

every_arch = pytest.mark.parametrize("arch", models.BACKBONES)
# With tf32 a CNN is followed by differences from the center. A CPU rounds nothing, so the answers are the same.
every_path = pytest.mark.parametrize(
    ("arch", "tf32"), [*((arch, False) for arch in models.BACKBONES), ("cnn", True)], ids=str
)
GRID = (grid_coordinates(3, 0.05), grid_coordinates(4, 0.03))
CPU = torch.device("cpu")


def plane_of(state, loss="main", tf32=False):
    """Losses around a state, what moves, the sample and the directions."""
    (subject,), (network,) = subjects_of([state], tiny_dataset(), 20, [loss], CPU)
    directions = tuple(gaussian_direction(subject.counted, 0, 0, axis) for axis in (0, 1))
    backbone = build_backbone(state.spec, tiny_dataset())
    along = plane(backbone, network.sample.images, network.score, network.center, directions, tf32=tf32)
    assert (along.differences is not None) == tf32
    return lambda points: subject.surface(along(points), loss), network.center, network.sample, directions


@every_path
@pytest.mark.parametrize("loss", ["main", "total"])
def test_against_loaded_weights(arch, tf32, loss):
    (state,) = states_of(arch, (3,), alpha=0.7)
    along, center, sample, directions = plane_of(state, loss, tf32)
    found = evaluate(along, GRID, chunk=5)
    assert np.ptp(found) > 0.01
    for i, a in enumerate(GRID[0]):
        for j, b in enumerate(GRID[1]):
            weights = moved(center, directions, float(a), float(b))
            slow = slow_loss(state.spec, weights, sample.images, sample.targets, total=loss == "total")
            assert found[i, j] == pytest.approx(slow, rel=3e-6)


@pytest.mark.parametrize("activation", ["last", "all"])
def test_the_total_loss_moves_every_live_branch(activation):
    (state,) = states_of("mlp", (3,), alpha=2.0, activation=activation)
    along, center, sample, directions = plane_of(state, "total")
    assert center["branch.0"].shape[0] == (3 if activation == "all" else 1)
    weights = moved(center, directions, 0.05, -0.03)
    slow = slow_loss(state.spec, weights, sample.images, sample.targets, total=True)
    found = along(torch.tensor([[0.05, -0.03]], dtype=torch.float64)).item()
    assert found == pytest.approx(slow, rel=3e-6)


def test_label_smoothing_and_random_branch_labels_are_those_of_training():
    """Against the engine's own losses of the same batch."""
    from asymtrain.lab.engine.losses import Batch, stack_loss

    (state,) = states_of("mlp", (1,), alpha=2.0, label_smoothing=0.2, branch_labels="random", bias="prior")
    along, _, sample, _ = plane_of(state, "total")
    backbone = build_backbone(state.spec, tiny_dataset())
    stacked = {name: value[None] for name, value in state.parameters.items()}
    batch = Batch(
        sample.images[None],
        sample.targets[None],
        torch.ones(20),
        None,
        sample.branch_targets[None],
        torch.tensor([0.2]),
    )
    expected = stack_loss([state.spec], backbone)(stacked, batch, torch.tensor([2.0])).total.item()
    assert not torch.equal(sample.targets, sample.branch_targets)
    assert along(torch.zeros(1, 2, dtype=torch.float64)).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("tf32", [False, True])
def test_a_cnn_whose_head_sees_the_maps(tf32):
    """Without hidden layers."""
    images, targets = torch.randn(6, 3, 8, 8), torch.arange(6) % 4
    backbone = models.build("cnn", classes=4, widths=(4, 4), pool_after=(1,), image_size=8, hidden=(), dropout=0.0)
    center = {name: value.detach() for name, value in backbone.named_parameters()}
    directions = tuple(gaussian_direction(center, 0, 0, axis) for axis in (0, 1))
    along = plane(backbone, images, main_score(targets), center, directions, tf32=tf32)
    weights = moved(center, directions, 0.05, -0.03)
    logits = torch.func.functional_call(backbone, weights, (images,))
    found = along(torch.tensor([[0.05, -0.03]], dtype=torch.float64)).item()
    assert found == pytest.approx(torch.nn.functional.cross_entropy(logits, targets).item(), rel=3e-6)


@every_path
def test_batched_is_one_by_one(arch, tf32):
    (state,) = states_of(arch, (0,))
    along, *_ = plane_of(state, tf32=tf32)
    np.testing.assert_allclose(evaluate(along, GRID, chunk=12), evaluate(along, GRID, chunk=1), rtol=1e-6)


@every_path
def test_every_parameter_moves_the_loss_as_in_the_module(arch, tf32):
    """A direction along one tensor alone, for each tensor: none is left out or taken for another."""
    (state,) = states_of(arch, (0,))
    _, center, sample, _ = plane_of(state)
    backbone, score = build_backbone(state.spec, tiny_dataset()), main_score(sample.targets)
    noise = gaussian_direction(center, 1, 0, 0)
    still = {name: torch.zeros_like(value) for name, value in center.items()}
    for name in center:
        direction = {**still, name: noise[name]}
        along = plane(backbone, sample.images, score, center, (direction, still), tf32=tf32)
        weights = moved(center, (direction, still), 0.3, 0.0)
        slow = slow_loss(state.spec, weights, sample.images, sample.targets)
        assert along(torch.tensor([[0.3, 0.0]], dtype=torch.float64)).item() == pytest.approx(slow, rel=3e-6), name


def test_rounded_products_do_not_roughen_the_surface_of_a_cnn(monkeypatch):
    """Steps as small as along directions of unit norm in a large network, with products rounded as TF32 does.

    Rounded maps instead of rounded differences would be off by more than the surface's deviation.
    """
    rounded = []

    def in_tf32(product):
        def rounding(values, weight, bias=None, **options):
            if bias is None:  # at a point; with a bias it is the center's, which is computed in full
                rounded.append(product)
                values, weight = as_tf32(values), as_tf32(weight)
            return product(values, weight, bias, **options)

        return rounding

    exactly = torch.nn.functional.conv2d, torch.nn.functional.linear
    for product in exactly:
        monkeypatch.setattr(torch.nn.functional, product.__name__, in_tf32(product))
    (state,) = states_of("cnn", (0,))
    along, middle, sample, directions = plane_of(state, tf32=True)
    grid = grid_coordinates(5, 2e-5), grid_coordinates(5, 2e-5)
    found = evaluate(along, grid, chunk=25)
    assert set(rounded) == set(exactly)
    monkeypatch.undo()
    exact = build_backbone(state.spec, tiny_dataset()).double().eval()
    center, first, second = ({n: v.double() for n, v in one.items()} for one in (middle, *directions))

    def loss(a, b):
        weights = {name: value + a * first[name] + b * second[name] for name, value in center.items()}
        logits = torch.func.functional_call(exact, weights, (sample.images.double(),))
        return torch.nn.functional.cross_entropy(logits, sample.targets).item()

    true = np.array([[loss(a, b) for b in grid[1]] for a in grid[0]])
    assert np.abs((found - found[2, 2]) - (true - true[2, 2])).max() < 1e-2 * true.std()


@every_arch
def test_branches_are_computed_in_full(arch):
    """What they make of features is no difference from the center: TF32 would roughen it."""
    (state,) = states_of(arch, (1,))
    _, center, sample, directions = plane_of(state, "total")
    seen = []

    def score(logits, features, parameters):
        seen.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
        return logits.sum((1, 2))

    along = plane(build_backbone(state.spec, tiny_dataset()), sample.images, score, center, directions, tf32=True)
    along(torch.zeros(1, 2, dtype=torch.float64))
    assert seen == [(False, False)]


def as_tf32(values):
    """Ten bits after the leading one, rounded to the nearest."""
    return ((values.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def test_more_images_leave_room_for_fewer_points():
    spec = spec_of("cnn", redundancy=0)
    backbone = build_backbone(spec, tiny_dataset())
    center = dict(backbone.named_parameters())
    sizes = []
    for size in (4, 40):
        sample = draw_sample(spec, tiny_dataset(), size, CPU)
        along = plane(backbone, sample.images, main_score(sample.targets), center, (center, center))
        sizes.append(points_that_fit(along))
    assert sizes[0] > sizes[1] >= 1


@pytest.mark.gpu
@every_path
def test_on_a_gpu_as_on_the_cpu(arch, tf32):
    (state,) = states_of(arch, (0,))
    along, center, sample, directions = plane_of(state, tf32=tf32)
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    backbone = build_backbone(state.spec, tiny_dataset())
    images, targets = sample.images.cuda(), sample.targets.cuda()
    there = plane(backbone, images, main_score(targets), center, directions, tf32=tf32)
    expected, found = evaluate(along, GRID, chunk=5), evaluate(there, GRID, chunk=5)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3 * expected.std() if tf32 else 0.0)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before
