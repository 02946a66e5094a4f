"""The landscape of any module: against closed forms, against one call a point, and for leaving the module alone."""

import copy
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from landscape_examples import surface
from torch import nn

from asymtrain.errors import UsageError
from asymtrain.lab.instruments import LandscapeSettings, measure_module_landscape
from asymtrain.lab.instruments.landscape.surface import (
    filter_normalised,
    gaussian_direction,
    grid_coordinates,
    module_losses,
    squared_norm,
)

SMALL = LandscapeSettings(grid=5, draws=2, step=0.05, norm_step=0.5, directions=("all", "filter"))
X, Y = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 4


class Bowl(nn.Module):
    """A loss of w . A w / 2: every surface is known in closed form."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64))

    def forward(self, x):
        return (x * self.w**2).sum() / 2


class Network(nn.Module):
    """Batch norm, dropout, and a child that has the name of our branches."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.branch = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(6 * 36, 4))

    def forward(self, x):
        return self.head(self.branch(x))


class Choosy(Network):
    """Its way depends on a number: nothing that can be vectorised."""

    def forward(self, x):
        features = self.branch(x)
        return self.head(features if features.mean().item() > 100 else 2 * features)


def trained(network):
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(network(X), Y).backward()
        optimizer.step()
    return network, optimizer


def one_by_one(network, directions, scaling, draw):
    """The same surface by hand: one call a point."""
    center = {name: value.detach() for name, value in network.named_parameters()}
    both = [gaussian_direction({f"own.{n}": v for n, v in center.items()}, 7, draw, axis) for axis in (0, 1)]
    steps = [SMALL.step_of(scaling) / (squared_norm(one) ** 0.5 if scaling == "norm" else 1) for one in both]
    if directions == "filter":
        both = [filter_normalised(one, {f"own.{n}": v for n, v in center.items()}) for one in both]
    grid = tuple(grid_coordinates(SMALL.grid, step) for step in steps)
    plain = [{name.removeprefix("own."): value for name, value in one.items()} for one in both]
    return surface(module_losses(network, X, Y, F.cross_entropy), center, plain, grid)


@pytest.mark.parametrize("make", [Network, Choosy])
def test_many_points_in_a_call_are_what_each_gives_by_itself(make):
    network, _ = trained(make())
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = measure_module_landscape(network, X, Y, settings=SMALL, seed=7, chunk=8)
    assert [str(one.message).startswith("Choosy cannot be vectorised") for one in seen] == [True] * (make is Choosy)
    assert set(found.surfaces) == {(0, 0, "all", "variance"), (0, 0, "all", "norm"), (0, 0, "filter", "filter")}
    for (_, _, directions, scaling), losses in found.surfaces.items():
        expected = one_by_one(network, directions, scaling, 0)
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        assert losses.std() > 1e-4
    assert len(found.rows) == 2 * 3
    assert {(one.draws, one.seeds, one.non_finite) for one in found.summaries()} == {(2, 1, 0)}
    first, second = (row.statistics.std for row in found.rows if row.scaling == "norm")
    summary = next(one for one in found.summaries() if one.scaling == "norm")
    assert summary.statistics["std"].mean == pytest.approx((first + second) / 2)
    assert first != second


@pytest.mark.gpu
def test_on_a_gpu_as_on_the_cpu():
    network, _ = trained(Network())
    expected = measure_module_landscape(network, X, Y, settings=SMALL, seed=7)
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    found = measure_module_landscape(network.cuda(), X.cuda(), Y.cuda(), settings=SMALL, seed=7)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before
    for key, losses in expected.surfaces.items():
        # cuDNN may convolve in TF32: a module is measured with its owner's settings.
        np.testing.assert_allclose(found.surfaces[key], losses, atol=2e-2 * losses.std())


def test_a_bowl_has_the_surface_of_its_formula():
    bowl, weights = Bowl(), torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)
    found = measure_module_landscape(bowl, weights, torch.zeros(1), lambda out, _: out, SMALL, seed=3)
    u, v = (gaussian_direction({"own.w": bowl.w}, 3, 0, axis)["own.w"].double() for axis in (0, 1))
    x = grid_coordinates(5, 0.05)
    points = bowl.w.detach() + torch.tensor(x)[:, None, None] * u + torch.tensor(x)[None, :, None] * v
    expected = (weights * points**2).sum(-1) / 2
    np.testing.assert_allclose(found.surfaces[0, 0, "all", "variance"], expected, rtol=1e-6)
    assert found.rows[0].statistics.center == pytest.approx(float((weights * bowl.w.detach() ** 2).sum() / 2))


def test_a_call_computes_many_points():
    calls = []
    network = Network()
    network.register_forward_hook(lambda *_: calls.append(1))
    settings = LandscapeSettings(grid=9, draws=1, directions=("all",))
    measure_module_landscape(network, X, Y, settings=settings, chunk=27)
    assert len(calls) == 2 + 2 * 3  # two trials, then 81 points of two surfaces, 27 at a time
    calls.clear()
    measure_module_landscape(network, X, Y, settings=settings)
    assert len(calls) == 1 + 2 * 81  # convolutions on a CPU: one by one is faster
    calls.clear()
    linear = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    linear.register_forward_hook(lambda *_: calls.append(1))
    measure_module_landscape(linear, X, Y, settings=settings)
    assert len(calls) == 2 + 2 * 3


def test_the_next_training_step_is_the_one_that_would_have_been():
    (network, optimizer), (untouched, other) = (trained(Network()) for _ in range(2))
    network.branch.eval()
    untouched.branch.eval()
    before, modes = copy.deepcopy(network.state_dict()), [part.training for part in network.modules()]
    state = torch.get_rng_state()
    measure_module_landscape(network, X, Y, settings=SMALL)
    assert torch.equal(torch.get_rng_state(), state)
    assert [part.training for part in network.modules()] == modes
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
    for one, its_optimizer in ((network, optimizer), (untouched, other)):
        torch.manual_seed(5)
        its_optimizer.zero_grad()
        F.cross_entropy(one(X), Y).backward()
        its_optimizer.step()
    for mine, theirs in zip(network.parameters(), untouched.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_frozen_parameters_stay():
    network = Network().requires_grad_(False)
    with pytest.raises(UsageError, match="nothing to move"):
        measure_module_landscape(network, X, Y, settings=SMALL)
    network.head.requires_grad_(True)
    found = measure_module_landscape(network, X, Y, settings=SMALL)
    assert found.rows[0].level.parameters == 6 * 36 * 4 + 4


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"loss_fn": lambda out, y: F.cross_entropy(out, y, reduction="none")}, "one number"),
        ({"targets": Y[:5]}, "the loss cannot be computed"),
        ({"chunk": 0}, "chunk must be 1 or more"),
        ({"settings": LandscapeSettings(loss="total")}, "leave both out"),
    ],
)
def test_bad_input(options, text):
    given = {"targets": Y, "settings": SMALL, **options}
    with pytest.raises(UsageError, match=text):
        measure_module_landscape(Network(), X, given.pop("targets"), **given)
