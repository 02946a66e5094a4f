"""The loss in one node of autograd against the general way: values, gradients, second derivatives, and who gets it."""

from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from branch_zoo import CASES, CLASSES, Case, build, call, mlp, rows, targets
from torch import Tensor, nn

from asymtrain.branches import Branches, _core, attach
from asymtrain.errors import UsageError

SOFT = torch.softmax(torch.arange(15.0).view(3, CLASSES) % 4, 1)
TARGETS = {"indices": targets(), "ignored": torch.tensor([1, -100, 3]), "values": SOFT}
OPTIONS = {
    "sigmoid": {},
    "class sum": {"class_reduction": "sum"},
    "softmax": {"objective": "softmax"},
    "bias": {"bias": torch.linspace(-1, 1, CLASSES)},
    "mse": {"objective": "mse"},
}


def both_ways(branches: Branches, loss_of: object, inputs: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The loss and its gradients: by one node, and by the sum of the places' losses."""
    answers = []
    for general in (False, True):
        patch = mock.patch.object(_core.Branches, "_fused_loss", (lambda *_: None) if general else Branches._fused_loss)
        with patch:
            loss = loss_of()
        answers.append([loss.detach(), *torch.autograd.grad(loss, inputs, allow_unused=True)])
    return answers[0], answers[1]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_node_gives_the_general_numbers(case: Case, kind: str, options: dict[str, object]) -> None:
    model, sample = build(case)
    model.double()
    sample = torch.utils._pytree.tree_map(lambda v: v.double() if v.is_floating_point() else v, sample)
    weights = {case.places[0]: 0.5}
    branches = attach(model, case.at, sample, CLASSES, 2, weights=weights, **{**case.options, **options})
    inputs = [*branches.parameters(), *(p for p in model.parameters() if p.requires_grad)]

    def loss() -> Tensor:
        call(model.eval(), sample)
        return branches.loss(TARGETS[kind])

    for _ in range(2):  # the second forward is held from its beginning
        for mine, general in zip(*both_ways(branches, loss, inputs), strict=True):
            assert (mine is None) == (general is None)
            if mine is not None:
                torch.testing.assert_close(mine, general, rtol=1e-9, atol=1e-12)


def test_bfloat16_features(bfloat16_on_any_cpu: None) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1)).bfloat16(), torch.randn(3, 3, 8, 8)
    branches = attach(model, "*", x.bfloat16(), CLASSES, layout="BCHW")

    def loss() -> Tensor:
        model(x.bfloat16())
        return branches.loss(targets())

    mine, general = both_ways(branches, loss, [*branches.parameters(), *model.parameters()])
    for one, other in zip(mine, general, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one.float(), other.float(), rtol=2e-2, atol=1e-3)


def test_second_derivatives() -> None:
    model, x = mlp().double().eval(), rows().double()
    branches = attach(model, ["1", "3"], x, CLASSES, bias=torch.zeros(CLASSES))
    weight = model[0].weight

    def curvature() -> Tensor:
        model(x)
        (gradient,) = torch.autograd.grad(branches.loss(targets()), weight, create_graph=True)
        return gradient.square().sum()

    mine, general = both_ways(branches, curvature, [weight, branches.head("1").live, branches.head("3").bias])
    assert all(torch.allclose(one, other) for one, other in zip(mine, general, strict=True))


def test_a_graph_that_is_kept_can_be_used_again() -> None:
    model, x = mlp().eval(), rows()
    branches = attach(model, ["1", "3"], x, CLASSES)
    model(x)
    loss = branches.loss(targets())
    first = torch.autograd.grad(loss, model[0].weight, retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(loss, model[0].weight)[0])
    # What is asked after the loss is still there.
    assert torch.allclose(sum(branches.losses(targets()).values()), loss)
    with torch.no_grad():
        assert branches.accuracies(targets())


def test_huge_logits_stay_finite() -> None:
    model, x = mlp().eval(), 1e6 * rows()
    branches = attach(model, ["1", "3"], x, CLASSES)
    model(x)
    loss = branches.loss(targets())
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in branches.parameters())


def counted(loss: Tensor) -> int:
    """Nodes between a loss and the model's features."""
    names, todo = [], [loss.grad_fn]
    while todo:
        node = todo.pop()
        names.append(type(node).__name__)
        if not names[-1].startswith("_FusedLoss"):
            todo += [parent for parent, _ in node.next_functions if parent is not None]
    return sum(name.startswith("_FusedLoss") for name in names)


@pytest.mark.parametrize(
    ("options", "one_node"),
    [
        ({}, True),
        ({"redundancy": 5}, True),
        ({"objective": "dice"}, True),
        ({"activation": "all"}, False),
        ({"head": "mlp"}, False),
        ({"objective": F.cross_entropy}, False),
        ({"dtype": torch.float64}, False),
    ],
)
def test_which_branches_take_one_node(options: dict[str, object], one_node: bool) -> None:
    model, x = mlp(), rows()
    branches = attach(model, ["1", "3"], x, CLASSES, **options)
    model(x)
    assert counted(branches.loss(targets())) == one_node


class Doubling(nn.Module):
    """Changes what its place gives in place, in training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.drop, self.head = nn.Linear(7, 8), nn.Dropout(0.5, inplace=True), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.place(x)))


def test_a_layer_that_works_in_place_in_training_alone() -> None:
    model, x = Doubling(), rows()
    branches = attach(model, "place", x, CLASSES)
    for training in (False, True, True):
        model.train(training)
        model(x)
        expected = model.place(x) @ branches.head("place").live.T
        assert torch.allclose(
            branches.loss(targets()), sum(branches.losses(targets(), logits={"place": expected}).values())
        )


def test_a_change_in_place_that_comes_late_is_told() -> None:
    model, x = nn.Sequential(nn.Linear(7, 8), nn.Identity(), nn.Linear(8, CLASSES)), rows()
    branches = attach(model, "0", x, CLASSES)
    model(x)
    branches.loss(targets()).backward()
    model[1] = nn.ReLU(inplace=True)
    model(x)
    with pytest.raises(UsageError, match="'0' gives a feature that the model changes in place afterwards"):
        branches.loss(targets())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("objective", ["sigmoid", "softmax"])
def test_one_node_on_a_gpu(objective: str, autocast: bool) -> None:
    layers = [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Conv2d(16, 8, 3)]
    model, x = nn.Sequential(*layers).cuda(), torch.randn(32, 3, 12, 12, device="cuda")
    branches = attach(model, ["1", "2", "3"], x, CLASSES, layout="BCHW", objective=objective)
    y = torch.randint(CLASSES, (32,), device="cuda")
    y[:4] = -100

    def loss() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            model(x)
            return branches.loss(y)

    for _ in range(2):
        mine, general = both_ways(branches, loss, [*branches.parameters(), *model.parameters()])
        for one, other in zip(mine, general, strict=True):
            torch.testing.assert_close(one, other, rtol=3e-2 if autocast else 1e-4, atol=1e-3 if autocast else 1e-6)
