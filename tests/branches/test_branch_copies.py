"""Copies and pickles of model, branches and both."""

import copy
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from branch_zoo import CLASSES, assert_same_bits, attached, bits_of, hooks_in, mlp, rows, targets
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from asymtrain.branches import Parallel, WithBranches, attach, clean
from asymtrain.errors import UsageError

AT = ["1", "3"]


class Decorated(nn.Module):
    """Its forward has another name than it is kept under, as decorators leave it."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(7, 8), nn.Linear(8, CLASSES))

    def _run(self, x: Tensor, *, scale: float = 2.0) -> Tensor:
        return self.part(x) * scale

    forward = _run
    del _run


def deep_copy(model: nn.Module, folder: Path) -> nn.Module:
    return copy.deepcopy(model)


def average(model: nn.Module, folder: Path) -> nn.Module:
    return AveragedModel(model).module


def saved(model: nn.Module, folder: Path) -> nn.Module:
    torch.save(model, folder / "model.pt")
    return torch.load(folder / "model.pt", weights_only=False)


@pytest.mark.parametrize("way", [deep_copy, average, saved])
def test_clean_takes_dead_hooks_off_a_copy(way: Callable[[nn.Module, Path], nn.Module], tmp_path: Path) -> None:
    """Until then torch.jit.script fails on the copy."""
    never, x = mlp().eval(), rows()
    model = copy.deepcopy(never)
    theirs: list[int] = []
    branches = attach(model, x, CLASSES, at=[*AT, "(model)"])
    twin = way(model, tmp_path)
    twin[1].register_forward_hook(lambda *_: theirs.append(1))
    assert clean(twin) is twin
    assert [vars(module).keys() for module in twin.modules()] == [vars(module).keys() for module in never.modules()]
    assert len(hooks_in(twin)) == 1
    assert not any(module._forward_pre_hooks_with_kwargs for module in twin.modules())
    twin(x)
    assert theirs == [1]
    twin[1]._forward_hooks.clear()
    assert torch.jit.script(twin).code == torch.jit.script(never).code
    exported, expected = torch.export.export(twin, (x,)), torch.export.export(never, (x,))
    assert [node.name for node in exported.graph.nodes] == [node.name for node in expected.graph.nodes]
    model(x)
    branches.loss(targets())  # the original has its branches


@pytest.mark.parametrize("options", [{}, {"pool": "none"}, {"preset": "probe"}], ids=str)
def test_an_export_of_an_attached_model_is_that_of_the_model(options: dict[str, object]) -> None:
    model, x = mlp().eval(), rows()
    expected = torch.export.export(model, (x,))
    branches = attach(model, x, CLASSES, at=AT, **options)
    model(x)
    losses = branches.losses(targets())
    exported = torch.export.export(model, (x,))
    assert str(exported.graph) == str(expected.graph)
    assert branches.losses(targets()) == losses  # of the forward before
    with pytest.raises(UsageError, match=r"export the model itself.* branches.exits\(\)"):
        torch.export.export(WithBranches(model, branches), (x,))


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
def test_an_attached_model_can_be_traced() -> None:
    """torch.jit.trace calls the model several times, and compares what it did."""
    model, x, branches = attached(mlp().eval())
    model(x)  # tells that outputs with gradients can be held; the trace is compared with one without gradients
    assert torch.equal(torch.jit.trace(model, (x,))(x), model(x))
    branches.strip()


def test_clean_takes_live_hooks_off() -> None:
    model, x, branches = attached()
    model(x)
    clean(nn.Sequential(model))
    assert not hooks_in(model)
    model(x)
    with pytest.raises(UsageError, match=r"no forward has reached .* asymtrain.clean"):
        branches.loss(targets())  # not that of the forward before
    assert not any("forward" in vars(module) for module in model.modules())
    branches.strip()
    with pytest.raises(UsageError, match=r"clean takes an nn.Module, got a dict"):
        clean({})


def test_copies_of_a_model_whose_forward_has_another_name(tmp_path: Path) -> None:
    model, x = Decorated(), rows()
    branches = attach(model, x, CLASSES, at="part.0")
    expected = model(x, scale=3.0)
    for twin in (copy.deepcopy(model), saved(model, tmp_path)):
        assert twin.forward.__self__ is twin
        assert torch.equal(twin(x, scale=3.0), expected)
    branches.strip()
    assert "forward" not in vars(model)


def test_a_saved_model_loads_where_asymtrain_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, branches = attached(mlp().eval())
    torch.save((model, x, model(x)), tmp_path / "model.pt")
    with monkeypatch.context() as patch:
        for name in [name for name in sys.modules if name.partition(".")[0] == "asymtrain"]:
            patch.setitem(sys.modules, name, None)  # to import it is an error
        loaded, inputs, outputs = torch.load(tmp_path / "model.pt", weights_only=False)
        assert torch.equal(loaded(inputs), outputs)
    branches.strip()


def test_a_copy_of_branches_is_on_no_model() -> None:
    model, x, branches = attached(head=Parallel(3))
    model(x)
    for twin in (copy.deepcopy(branches), pickle.loads(pickle.dumps(branches))):
        assert_same_bits(bits_of(twin), bits_of(branches))
        assert not {id(p) for p in twin.parameters()} & {id(p) for p in branches.parameters()}
        with pytest.raises(UsageError, match="a copy and on no model: attach to the model, then load_state_dict"):
            twin.loss(targets())
        twin.strip()
    branches.loss(targets()).backward()  # the original is as it was


def test_connecting_to_another_model_leaves_the_first() -> None:
    first, second, x = mlp(), mlp(), rows()
    branches = attach(first, x, CLASSES, at=AT)
    branches.connect(second)
    assert not hooks_in(first)
    second(x)
    branches.loss(targets()).backward()
    assert all(parameter.grad is None for parameter in first.parameters())
    branches.strip()
    assert not hooks_in(second)


def test_copies_of_the_pair_are_whole() -> None:
    model, x = mlp().eval(), rows()
    net = WithBranches(model, attach(model, x, CLASSES, at=AT, head=Parallel(3)))
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), AveragedModel(net).module):
        output, logits = twin(x)
        expected, theirs = copy.deepcopy(net)(x)
        assert torch.equal(output, expected)
        assert all(torch.equal(logits[name], theirs[name]) for name in theirs)
        (F.cross_entropy(output, targets()) + twin.branches.loss(targets(), logits=logits)).backward()
        assert all(parameter.grad is not None for parameter in twin.parameters())
        twin.branches.strip()
        twin.model(x)
    assert all(parameter.grad is None for parameter in net.parameters())
    net(x)


def test_a_copy_of_a_stripped_pair_stays_stripped() -> None:
    model, _, branches = attached()
    net = WithBranches(model, branches)
    branches.strip()
    twin = copy.deepcopy(net)
    assert not any(module._forward_hooks for module in twin.modules())
    assert isinstance(twin.model, nn.Sequential)
