"""Types and devices."""

import copy

import pytest
import torch
import torch.nn.functional as F
from branch_zoo import CLASSES, Cnn, attached, images, mlp, rows, targets
from torch import nn

from asymtrain.branches import Parallel, attach
from asymtrain.errors import UsageError

pytestmark = pytest.mark.usefixtures("bfloat16_on_any_cpu")


def test_the_loss_is_the_same_inside_and_outside_autocast() -> None:
    model, x = Cnn().eval(), images()
    branches = attach(model, x, CLASSES, at="convs.*", head=Parallel(2, activation="all"))
    with torch.autocast("cpu", torch.bfloat16):
        output = model(x)
        inside = branches.loss(targets())
    outside = branches.loss(targets())
    assert output.dtype == torch.bfloat16
    assert inside.dtype == torch.float32
    assert torch.equal(inside, outside)
    (F.cross_entropy(output.float(), targets()) + inside).backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in [*model.parameters(), *branches.parameters()])


@pytest.mark.parametrize(
    ("model_type", "asked", "expected"),
    [
        (torch.float32, None, torch.float32),
        (torch.float64, None, torch.float64),
        (torch.bfloat16, None, torch.float32),
        (torch.bfloat16, torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.float64, torch.float64),
    ],
)
def test_features_are_cast_to_the_branches_type(
    model_type: torch.dtype, asked: torch.dtype | None, expected: torch.dtype
) -> None:
    model, x = mlp().to(model_type), rows().to(model_type)
    branches = attach(model, x, CLASSES, at=["1", "3"], head=Parallel(2))
    branches.to(asked)
    assert {parameter.dtype for parameter in branches.parameters()} == {expected}
    assert {buffer.dtype for buffer in branches.buffers()} == {expected}
    model(x)
    loss = branches.loss(targets())
    assert loss.dtype == torch.promote_types(expected, torch.float32)
    loss.backward()
    assert model[0].weight.grad.dtype == model_type


def test_the_loss_of_many_tokens_is_finite_in_half_precision() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(30, 4), "block": nn.Linear(4, 4), "head": nn.Linear(4, 30)})
    model.forward = lambda tokens: model["head"](model["block"](model["embed"](tokens)))
    model, tokens = model.half(), torch.randint(0, 30, (2, 16384))
    branches = attach(model, tokens, 30, at="block", preset="early_exit", layout="BTD", shift=1)
    output = model(tokens)
    loss = branches.loss(tokens)
    torch.testing.assert_close(loss, F.cross_entropy(output[:, :-1].float().mT, tokens[:, 1:]))
    loss.backward()
    assert model["embed"].weight.grad.isfinite().all()


def test_branches_on_another_device_are_explained() -> None:
    model, x, branches = attached(at="1")
    branches.to("meta")
    model(x)
    with pytest.raises(UsageError, match=r"'1' is on cpu, its branches on meta: .* branches.to\(device\)"):
        branches.loss(targets())


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["last", "all"])
def test_branches_follow_the_model_to_its_device(activation: str) -> None:
    model, x = Cnn(), images()
    here = attach(copy.deepcopy(model), x, CLASSES, at="convs.*", head=Parallel(3, activation=activation))
    model, x = model.cuda(), x.cuda()
    before = torch.cuda.get_rng_state()
    branches = attach(model, x, CLASSES, at="convs.*", head=Parallel(3, activation=activation))
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert {p.device.type for p in [*branches.parameters(), *branches.buffers()]} == {"cuda"}
    # The draw is the CPU's on every device.
    assert all(torch.equal(a.cpu(), b) for a, b in zip(branches.parameters(), here.parameters(), strict=True))
    with torch.autocast("cuda", torch.bfloat16):
        output = model(x)
        loss = F.cross_entropy(output, targets().cuda()) + branches.loss(targets().cuda())
    loss.backward()
    assert all(parameter.grad is not None for parameter in branches.parameters())
