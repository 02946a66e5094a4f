"""Losses, accuracies, targets."""

import pytest
import torch
from branch_zoo import CLASSES, attached, mlp, rows, targets
from torch import Tensor, nn

from asymtrain.branches import Branches, Parallel, attach
from asymtrain.errors import UsageError
from asymtrain.objectives import Huber, Mse


def after_a_forward(activation: str = "last", **options: object) -> tuple[nn.Module, Branches]:
    model, x, branches = attached(mlp().eval(), head=Parallel(2, activation=activation), **options)
    model(x)
    return model, branches


@pytest.mark.parametrize("activation", ["last", "all"])
def test_ignored_targets_count_nowhere(activation: str) -> None:
    _, branches = after_a_forward(activation)
    y = torch.tensor([1, -100, 3])
    kept = {name: logits[..., [0, 2], :] for name, logits in branches.logits().items()}
    assert torch.allclose(branches.loss(y), branches.loss(y[[0, 2]], logits=kept))
    accuracies, expected = branches.accuracies(y), branches.accuracies(y[[0, 2]], logits=kept)
    assert all(torch.allclose(accuracies[name], expected[name]) for name in kept)
    nothing = branches.loss(torch.full((3,), -100))
    assert nothing == 0


def test_accuracies_by_hand() -> None:
    _, branches = after_a_forward("all")
    right, wrong = torch.eye(CLASSES)[targets()], torch.eye(CLASSES)[(targets() + 1) % CLASSES]
    logits = {"1": torch.stack([right, wrong]) * 2 - 1, "3": torch.stack([right, right]) * 2 - 1}
    assert branches.accuracies(targets(), logits=logits) == {"1": 0.5, "3": 1.0}
    # One value a class: each of the other classes is also an answer, wrong ones miss two of five.
    found = branches.accuracies(right, logits=logits)
    assert found["1"] == pytest.approx((1 + 3 / 5) / 2)
    assert found["3"] == 1.0


@pytest.mark.parametrize("activation", ["last", "all"])
def test_another_objective(activation: str) -> None:
    def squared(logits: Tensor, y: Tensor) -> Tensor:
        assert logits.shape == (3, CLASSES)
        return (logits.mean(-1) - y).square().mean()

    _, branches = after_a_forward(activation, objective=squared)
    y = torch.randn(3)  # targets of its own kind
    logits = branches.logits()
    each = [squared(one, y) for two in logits.values() for one in (two if activation == "all" else [two])]
    assert torch.allclose(branches.loss(y), 0.5 * sum(each) / 2)


@pytest.mark.parametrize("activation", ["last", "all"])
@pytest.mark.parametrize("given", [torch.ones(3), 2.0])
def test_another_objective_must_give_a_scalar(activation: str, given: object) -> None:
    _, branches = after_a_forward(activation, objective=lambda logits, y: given)
    with pytest.raises(
        UsageError, match=r"the objective must return a scalar tensor, got (shape \(3,\)|float): take the mean"
    ):
        branches.loss(targets())


def test_logits_of_unknown_layers_are_refused() -> None:
    _, branches = after_a_forward()
    with pytest.raises(UsageError, match=r"`logits` must be what WithBranches returned, .* got a Tensor"):
        branches.loss(targets(), logits=torch.randn(3, CLASSES))
    with pytest.raises(UsageError, match="unknown layer in `logits` '2'"):
        branches.loss(targets(), logits={"2": torch.randn(3, CLASSES)})


@pytest.mark.parametrize("activation", ["last", "all"])
@pytest.mark.parametrize("method", ["loss", "losses", "accuracies"])
@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.tensor([0, 1, CLASSES]), rf"targets must lie in 0..{CLASSES - 1}.*got {CLASSES}: check `classes`"),
        (torch.tensor([0, -1, 1]), "targets must lie in 0..4"),
        (torch.tensor([0, 1]), r"targets must have shape \(3,\) for class indices or \(3, 5\)"),
        (torch.zeros(3, CLASSES + 1), r"targets must have shape \(3,\)"),
        ([0, 1, 2], r"targets must be a tensor, got a list: call torch.as_tensor"),
        (torch.zeros(3), "class indices must be integers"),
        (torch.zeros(3, dtype=torch.complex64), "targets must be real numbers, got torch.complex64: call targets.real"),
        (torch.zeros(3, CLASSES, dtype=torch.complex64), "targets must be real numbers"),
        (torch.tensor([0, 1, 2]).to_sparse(), r"targets must be dense, got .*sparse_coo: call targets.to_dense\(\)"),
        (torch.zeros(3, dtype=torch.int64, device="meta"), "targets are on the meta device, .*: make them on cpu"),
        (torch.zeros(3, 1, dtype=torch.int64), r"targets must have shape \(3,\) .*: call targets.squeeze\(-1\)$"),
        (torch.zeros(3, 2, 2, dtype=torch.int64), r"'1': .* shape \(3,\) .*\(3, 2, 2\): for one a pos"),
        (torch.zeros(3, 7, dtype=torch.int64), r"'1': .* shape \(3,\) .*\(3, 7\): for one a position"),
    ],
)
def test_wrong_targets_are_explained(activation: str, method: str, y: object, message: str) -> None:
    _, branches = after_a_forward(activation)
    with pytest.raises(UsageError, match=message):
        getattr(branches, method)(y)


@pytest.mark.parametrize("objective", ["sigmoid", Mse(outputs=1), Huber(outputs=1), "dice"], ids=str)
def test_whole_numbers_are_no_class_indices_of_one_output(objective: str | Mse) -> None:
    """All of them would be class 0, the target 1: a label of 0 would be learned as its opposite."""
    model, x = mlp().eval(), rows()
    classes = None if isinstance(objective, Mse) else 1
    branches = attach(model, x, classes, at=["1", "3"], objective=objective)
    model(x)
    for method in (branches.loss, branches.losses, branches.accuracies):
        with pytest.raises(UsageError, match=r"with one output, targets are its values .*: call targets.float\(\)"):
            method(torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_several_quantities_need_a_value_each(dtype: torch.dtype) -> None:
    """Whole numbers would be class indices, and train one-hot rows."""
    model, x = mlp().eval(), rows()
    branches = attach(model, x, at=["1", "3"], objective=Mse(outputs=2))
    model(x)
    for method in (branches.loss, branches.losses, branches.accuracies):
        with pytest.raises(UsageError, match=r"shape \(3, 2\), one value an output, got \(3,\)"):
            method(torch.zeros(3, dtype=dtype))


@pytest.mark.parametrize("outputs", [1, 2])
def test_accuracies_of_another_objective_of_quantities(outputs: int) -> None:
    model, x = mlp().eval(), rows()
    branches = attach(model, x, outputs, at=["1", "3"], objective=lambda logits, y: (logits - y).abs().mean())
    model(x)
    y = torch.randn(3, outputs)
    for layer, logits in branches.logits().items():
        expected = 1 - (logits - y).square().sum() / (y - y.mean(0)).square().sum()
        assert torch.allclose(branches.accuracies(y)[layer], expected)
        if outputs == 1:
            assert torch.allclose(branches.accuracies(y[:, 0])[layer], expected)


def test_a_mask_that_is_no_tensor_is_refused() -> None:
    _, branches = after_a_forward()
    with pytest.raises(UsageError, match=r"the mask must be a tensor, got a list: call torch.as_tensor\(mask\)"):
        branches.loss(targets(), mask=[1, 1, 0])


@pytest.mark.parametrize("options", [{"at": "1"}, {"classes": CLASSES + 1}, {"head": Parallel(3)}], ids=str)
def test_a_state_of_other_branches_is_refused_in_one_line(options: dict[str, object]) -> None:
    _, branches = after_a_forward()
    other = attach(mlp(), **{"at": ["1", "3"], "sample": rows(), "classes": CLASSES, "head": Parallel(2)} | options)
    with pytest.raises(UsageError, match=r"not like those attached now \(.*heads.*\): attach with the layers") as error:
        other.load_state_dict(branches.state_dict())
    assert "\n" not in str(error.value)
