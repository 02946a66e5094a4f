"""Copies and pickles of model, branches and both."""

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from branch_zoo import CLASSES, assert_same_bits, bits_of, hooks_in, mlp, rows, targets
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from asymtrain.branches import WithBranches, attach
from asymtrain.errors import UsageError

AT = ["1", "3"]


def test_ema_of_the_model() -> None:
    model, x = mlp(), rows()
    branches = attach(model, AT, x, CLASSES)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    optimizer = torch.optim.SGD([*model.parameters(), *branches.parameters()], lr=0.1)
    for _ in range(3):
        loss = F.cross_entropy(model(x), targets()) + branches.loss(targets())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update_parameters(model)
        logits = branches.logits()
        ema(rows())  # an evaluation between forward and the next step must not reach the branches
        assert all(torch.equal(one, logits[name]) for name, one in branches.logits().items())
    assert list(ema.module.state_dict()) == list(model.state_dict())
    branches.strip(optimizer)
    model.load_state_dict(ema.module.state_dict(), strict=True)
    assert torch.equal(model.eval()(x), ema.eval()(x))


def test_a_saved_model_loads_where_asymtrain_is_not_installed(tmp_path: Path) -> None:
    model, x = mlp().eval(), rows()
    branches = attach(model, AT, x, CLASSES)
    torch.save((model, x, model(x)), tmp_path / "model.pt")
    code = (
        "import sys, torch; sys.modules['asymtrain'] = None\n"
        "model, x, y = torch.load(sys.argv[1], weights_only=False)\n"
        "assert torch.equal(model(x), y)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "model.pt")], check=True)
    branches.strip()


def test_a_copy_of_branches_is_on_no_model() -> None:
    model, x = mlp(), rows()
    branches = attach(model, AT, x, CLASSES, 3)
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
    branches = attach(first, AT, x, CLASSES)
    branches.connect(second)
    assert not hooks_in(first)
    second(x)
    branches.loss(targets()).backward()
    assert all(parameter.grad is None for parameter in first.parameters())
    branches.strip()
    assert not hooks_in(second)


def test_copies_of_the_pair_are_whole() -> None:
    model, x = mlp().eval(), rows()
    net = WithBranches(model, attach(model, AT, x, CLASSES, 3, "cycle"))
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), AveragedModel(net).module):
        output, logits = twin(x)
        expected, theirs = copy.deepcopy(net)(x)
        assert torch.equal(output, expected)
        assert all(torch.equal(logits[name], theirs[name]) for name in theirs)
        (F.cross_entropy(output, targets()) + twin.branches.loss(targets(), logits=logits)).backward()
        assert int(twin.branches.step) == 1
        assert all(parameter.grad is not None for parameter in twin.parameters())
        twin.branches.strip()
        twin.model(x)
    assert int(net.branches.step) == 0
    assert all(parameter.grad is None for parameter in net.parameters())
    net(x)


def test_a_copy_of_a_stripped_pair_stays_stripped() -> None:
    model, x = mlp(), rows()
    branches = attach(model, AT, x, CLASSES)
    net = WithBranches(model, branches)
    branches.strip()
    twin = copy.deepcopy(net)
    assert not any(module._forward_hooks for module in twin.modules())
    assert isinstance(twin.model, nn.Sequential)
