"""Heads from the outside: a function needs nothing, a name needs one entry in `NAMED_HEADS`."""

import pytest
import torch
from torch import nn

from asymtrain import UsageError, attach
from asymtrain.branches import _heads


def gated(width: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GLU(), nn.Linear(width, outputs))


@pytest.mark.parametrize("by_name", [False, True])
def test_a_head_is_attached_trained_and_stripped(by_name: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_name:
        monkeypatch.setitem(_heads.NAMED_HEADS, "gated", lambda positions, width, outputs: gated(width, outputs))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    x, y = torch.randn(5, 6), torch.tensor([0, 1, 2, 0, 1])
    before, keys = model(x), list(model.state_dict())
    head = "gated" if by_name else gated
    branches = attach(model, at=["1", "3"], sample=x, classes=3, layout="BD", head=head)
    (nn.functional.cross_entropy(model(x), y) + branches.loss(y)).backward()
    for parameter in [*model.parameters(), *branches.parameters()]:
        assert parameter.grad is not None
    branches.strip()
    assert torch.equal(model(x), before)
    assert list(model.state_dict()) == keys


def test_an_unknown_name_is_an_error_that_lists_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_heads.NAMED_HEADS, "gated", lambda positions, width, outputs: gated(width, outputs))
    with pytest.raises(UsageError, match=r"conv.*gated.*linear.*mlp.*tied"):
        attach(nn.Sequential(nn.Linear(6, 8)), at=["0"], sample=torch.randn(2, 6), classes=3, head="none")  # type: ignore[arg-type]
