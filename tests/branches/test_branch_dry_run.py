"""The dry run on a model that leaves traces wherever it can."""

import random

import torch
from branch_zoo import CLASSES, assert_same_bits, bits_of, rows
from torch import Tensor, nn

from asymtrain.branches import attach


class Restless(nn.Module):
    """Draws in eval mode, changes one buffer in place and puts another object in the place of a second."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, CLASSES)
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("last", torch.zeros(3, CLASSES))
        self.modes: list[tuple[bool, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append((self.training, torch.is_grad_enabled()))
        x = self.layer(x) + torch.rand(1) + random.random()
        self.count += 1
        self.last = x.detach()
        return x


def test_everything_is_put_back() -> None:
    model, x = Restless(), rows()
    before, last = bits_of(model), model.last
    state, python_state = torch.get_rng_state(), random.getstate()
    attach(model, "layer", x, CLASSES)
    assert model.modes == [(False, False)]  # one run, in eval mode, without gradients
    assert_same_bits(bits_of(model), before)
    assert model.last is last
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python_state
    assert model.training


def test_everything_is_put_back_after_a_failure() -> None:
    model = Restless()
    model.last = torch.zeros(2)
    before, state = bits_of(model), torch.get_rng_state()
    try:
        attach(model, "layer", torch.ones(3, 9), CLASSES)
    except ValueError:
        assert_same_bits(bits_of(model), before)
        assert torch.equal(torch.get_rng_state(), state)
        assert model.training
    else:
        raise AssertionError("a sample of the wrong width was accepted")
