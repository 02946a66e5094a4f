"""The loss on a grid: closed forms, a user's module, chunks, bad grids."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from landscape_examples import surface
from torch import nn

from asymtrain.errors import UsageError
from asymtrain.lab.instruments.landscape.result import surface_statistics
from asymtrain.lab.instruments.landscape.surface import (
    evaluate,
    gaussian_direction,
    grid_coordinates,
    module_losses,
)

CENTER = {"weight": torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64), "bias": torch.ones(3).double()}
FIRST = {"weight": torch.tensor([[2.0, 0.0], [0.0, 0.0]]).double(), "bias": torch.zeros(3).double()}
SECOND = {"weight": torch.zeros(2, 2).double(), "bias": torch.tensor([0.0, 3.0, 4.0]).double()}


def bowl(points):
    return sum(value.square().flatten(1).sum(1) for value in points.values())


def test_a_quadratic_bowl_in_closed_form():
    """|c + x d + y e|² = |c|² + 2 x c.d + 2 y c.e + x² |d|² + y² |e|² where d and e are orthogonal."""
    x, y = grid_coordinates(5, 0.1), grid_coordinates(7, 0.2)
    found = surface(bowl, CENTER, (FIRST, SECOND), (x, y))
    squared, along, across = 14.25 + 3, 2 * 1.0, 3 + 4
    expected = squared + 2 * x[:, None] * along + 2 * y * across + x[:, None] ** 2 * 4 + y**2 * 25
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    assert found.shape == (5, 7)


def test_a_linear_loss_is_a_plane():
    x = grid_coordinates(9, 0.5)
    found = surface(lambda p: 3 * p["weight"][:, 0, 0] - 2 * p["bias"][:, 1], CENTER, (FIRST, SECOND), (x, x))
    np.testing.assert_allclose(found, 1 + 6 * x[:, None] - 6 * x, atol=1e-12)
    assert surface_statistics(found).plane_r2 == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("chunk", [1, 2, 7, 100])
def test_the_chunk_changes_nothing(chunk):
    x = grid_coordinates(4, 0.3)
    assert np.array_equal(
        surface(bowl, CENTER, (FIRST, SECOND), (x, x), chunk=chunk), surface(bowl, CENTER, (FIRST, SECOND), (x, x))
    )


def user_module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Tanh(), nn.Linear(6, 3))


def test_an_own_module_against_loaded_weights_and_left_as_it_was():
    module = user_module().train()
    module[2].eval()  # modes differ inside, and come back
    x, y = torch.randn(10, 4), torch.arange(10) % 3
    before, modes = copy.deepcopy(module.state_dict()), [part.training for part in module.modules()]
    center = {name: value.detach() for name, value in module.named_parameters()}
    directions = tuple(gaussian_direction(center, seed=1, draw=0, axis=axis) for axis in (0, 1))
    grid = (grid_coordinates(3, 0.2), grid_coordinates(5, 0.1))
    found = surface(module_losses(module, x, y, F.cross_entropy), center, directions, grid, chunk=4)

    slow = user_module().eval()
    for i, a in enumerate(grid[0]):
        for j, b in enumerate(grid[1]):
            weights = {n: v + float(a) * directions[0][n] + float(b) * directions[1][n] for n, v in center.items()}
            slow.load_state_dict({**before, **weights})
            assert found[i, j] == pytest.approx(F.cross_entropy(slow(x), y).item(), rel=2e-6)
    assert [part.training for part in module.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(value.grad is None for value in module.parameters())


def test_a_chunk_that_does_not_fit_is_halved():
    asked = []

    def losses(coordinates):
        asked.append(len(coordinates))
        if len(coordinates) > 3:
            raise torch.OutOfMemoryError("full")
        return coordinates.sum(1)

    x = grid_coordinates(3, 1.0)
    assert np.array_equal(evaluate(losses, (x, x), chunk=9), x[:, None] + x)
    assert asked[:2] == [9, 5]
    assert max(asked[2:]) == 3


def test_a_point_that_does_not_fit_is_said():
    def losses(coordinates):
        raise torch.OutOfMemoryError("full")

    x = grid_coordinates(3, 1.0)
    with pytest.raises(UsageError, match="smaller sample"):
        evaluate(losses, (x, x), chunk=2)


def test_the_middle_of_a_grid_is_the_state():
    assert grid_coordinates(51, 0.04)[25] == 0
    assert grid_coordinates(51, 0.04)[-1] == pytest.approx(1)
    np.testing.assert_allclose(grid_coordinates(4, 2.0), [-3, -1, 1, 3])
