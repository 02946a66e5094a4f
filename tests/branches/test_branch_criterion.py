"""`branches.criterion` and `WithLoss`: the sum that a loop by hand takes, soft targets."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain import UsageError, WithBranches, attach
from asymtrain.branches import GradientRatio, WithLoss

CLASSES, WIDTH = 3, 8


class Net(nn.Module):
    """Returns its own loss where it is given targets, as nanoGPT's model does."""

    def __init__(self, returns: str = "tuple") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(2))
        self.head, self.returns = nn.Linear(WIDTH, CLASSES), returns

    def forward(self, x: Tensor, targets: Tensor | None = None) -> object:
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        loss = None if targets is None else F.cross_entropy(logits, targets)
        if self.returns == "logits":
            return logits
        return (logits, loss) if self.returns == "tuple" else {"logits": logits, "loss": loss}


def batch() -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(1)
    return torch.randn(16, WIDTH, generator=drawn), torch.randint(0, CLASSES, (16,), generator=drawn)


def gradients(loss: Tensor, *modules: nn.Module) -> list[Tensor]:
    values = [value for module in modules for value in module.parameters()]
    return list(torch.autograd.grad(loss, values))


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_the_criterion_is_the_sum_that_a_loop_by_hand_takes(soft: bool, wrapped: bool) -> None:
    x, y = batch()
    if soft:  # as mixup makes them
        mixed = F.one_hot(y, CLASSES).float()
        y = 0.7 * mixed + 0.3 * mixed.flip(0)
    model = Net("logits")
    branches = attach(model, x, CLASSES, at="blocks.*")
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
    expected = gradients(loss_fn(model(x), y) + branches.loss(y), model, branches)
    criterion = branches.criterion(loss_fn)
    net = WithBranches(model, branches) if wrapped else model
    loss = criterion(net(x), y)
    for found, wanted in zip(gradients(loss, model, branches), expected, strict=True):
        torch.testing.assert_close(found, wanted)
    parts = criterion.parts
    assert list(parts) == ["main_loss", "auxiliary_loss", "auxiliary_loss/blocks.0", "auxiliary_loss/blocks.1"]
    assert not any(value.requires_grad for value in parts.values())
    assert float(parts["main_loss"] + parts["auxiliary_loss"]) == pytest.approx(loss.item())
    by_layer = parts["auxiliary_loss/blocks.0"] + parts["auxiliary_loss/blocks.1"]
    assert float(parts["auxiliary_loss"]) == pytest.approx(0.5 * float(by_layer) / 2)


def test_without_gradients_at_strength_0_and_after_strip_it_is_the_loss_function() -> None:
    x, y = batch()
    model = Net("logits")
    branches = attach(model, x, CLASSES, at="blocks.*")
    criterion = branches.criterion(F.cross_entropy)
    own = F.cross_entropy(model(x), y)
    assert criterion(model(x), y) > own
    with torch.no_grad():
        assert torch.equal(criterion(model(x), y), own)
    assert criterion.parts == {}
    branches.strip()
    assert torch.equal(criterion(model(x), y), own)
    branches = attach(model, x, CLASSES, at="blocks.*", strength=0)
    loss = branches.criterion(F.cross_entropy)(model(x), y)
    assert torch.equal(loss, own)
    loss.backward()
    assert all(value.grad is None for value in branches.parameters())


@pytest.mark.parametrize("returns", ["tuple", "dict"])
def test_a_model_that_returns_its_own_loss(returns: str) -> None:
    x, y = batch()
    model = Net(returns)
    branches = attach(model, (x, y), CLASSES, at="blocks.*")
    place = 1 if returns == "tuple" else "loss"
    expected = gradients(model(x, y)[place] + branches.loss(y), model, branches)
    net = WithLoss(model, branches)
    for output in (net(x, y), net(x, targets=y)):
        assert type(output) is (tuple if returns == "tuple" else dict)
        for found, wanted in zip(gradients(output[place], model, branches), expected, strict=True):
            torch.testing.assert_close(found, wanted)
    parts = net.criterion.parts
    assert list(parts) == ["main_loss", "auxiliary_loss", "auxiliary_loss/blocks.0", "auxiliary_loss/blocks.1"]
    assert float(parts["main_loss"] + parts["auxiliary_loss"]) == pytest.approx(net(x, y)[place].item())
    assert net(x)[place] is None
    own = model(x, y)[place]
    with torch.no_grad():
        assert torch.equal(net(x, y)[place], own)
    branches.strip()
    assert torch.equal(net(x, y)[place], own)


@pytest.mark.parametrize("own_loss", [False, True])
def test_a_strength_that_follows_gradients_is_given_the_main_loss(own_loss: bool) -> None:
    x, y = batch()
    model = Net("tuple" if own_loss else "logits")
    branches = attach(model, (x, y), CLASSES, at="blocks.*", strength=GradientRatio(0.25, every=1))
    optimizer = torch.optim.SGD([*model.parameters(), *branches.parameters()], lr=0.1)
    criterion, net = branches.criterion(F.cross_entropy), WithLoss(model, branches)
    (net(x, y)[1] if own_loss else criterion(model(x), y)).backward()
    assert branches.strength == 0
    optimizer.step()
    assert branches.strength > 0
    branches.strip(optimizer)


def test_at_strength_0_a_model_that_returns_its_own_loss_gives_branches_no_gradient() -> None:
    """Not one of zeros, which would count where gradients are clipped."""
    x, y = batch()
    model = Net()
    branches = attach(model, (x, y), CLASSES, at="blocks.*", strength=0)
    _, loss = WithLoss(model, branches)(x, y)
    assert torch.equal(loss, model(x, y)[1])
    loss.backward()
    assert all(value.grad is None for value in branches.parameters())


def test_a_model_that_returns_no_loss_is_refused() -> None:
    x, y = batch()
    model = Net("logits")
    branches = attach(model, (x, y), CLASSES, at="blocks.*")
    with pytest.raises(UsageError, match=r"a Tensor without a loss: .*branches.criterion\(loss_fn\)"):
        WithLoss(model, branches)(x, y)


def test_a_model_whose_targets_would_not_be_found_is_refused() -> None:
    class Gold(nn.Sequential):
        def forward(self, x: Tensor, gold: Tensor | None = None) -> Tensor:
            return super().forward(x)

    class PassedOn(nn.Sequential):
        def forward(self, x: Tensor, **others: Tensor) -> Tensor:
            return super().forward(x)

    def net_of(model: nn.Sequential) -> WithLoss:
        return WithLoss(model, attach(model, torch.randn(2, 4), 3, at="0"))

    with pytest.raises(UsageError, match=r"no argument labels, .* or y, .*: rename its argument"):
        net_of(Gold(nn.Linear(4, 5), nn.Linear(5, 3)))
    assert net_of(PassedOn(nn.Linear(4, 5), nn.Linear(5, 3)))  # its keywords may have them
