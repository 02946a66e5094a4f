"""Layers of an alignment, and the backward pass that measures: against plain backward, numpy, finite differences."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gradient_examples import small
from torch import nn

from asymtrain import UsageError, alignment
from asymtrain.gradients import backward_with_alignment


def losses(model, branches, x, y):
    return F.cross_entropy(model(x), y), branches.loss(y)


def flat_gradients(model, branches, x, y):
    """Main and auxiliary gradient of each parameter, by `backward` on each alone."""
    found = []
    for i in range(2):
        model.zero_grad()
        losses(model, branches, x, y)[i].backward()
        found.append({n: p.grad.double().numpy().ravel() for n, p in model.named_parameters() if p.grad is not None})
    model.zero_grad()
    branches.zero_grad()
    return found


@pytest.mark.parametrize("arch", ["mlp", "vit"])
def test_layers_are_sums_over_their_parameters(arch):
    model, branches, x, y = small(arch)
    mains, auxiliaries = flat_gradients(model, branches, x, y)
    found = alignment(*losses(model, branches, x, y), model)
    expected = {}
    for name in found.by_parameter:
        expected.setdefault(name.rsplit(".", 1)[0], []).append(name)
    assert found.by_layer.keys() == expected.keys()
    assert len(expected) < len(found.by_parameter)
    for layer, names in expected.items():
        g, h = (np.concatenate([side[name] for name in names]) for side in (mains, auxiliaries))
        assert found.by_layer[layer].main_norm == pytest.approx(np.linalg.norm(g), rel=1e-6)
        assert found.by_layer[layer].auxiliary_norm == pytest.approx(np.linalg.norm(h), rel=1e-6)
        cosine = g @ h / np.linalg.norm(g) / np.linalg.norm(h)
        assert found.by_layer[layer].cosine == pytest.approx(cosine, abs=1e-6)
    whole = math.sqrt(sum(layer.main_norm**2 for layer in found.by_layer.values()))
    assert whole == pytest.approx(found.main_norm, rel=1e-9)


def test_a_parameter_of_the_model_itself_is_a_layer_of_its_own():
    model = nn.Linear(2, 1)
    found = alignment(model.weight.sum() + model.bias.sum(), model.weight.sum() - model.bias.sum(), model)
    assert {name: layer.cosine for name, layer in found.by_layer.items()} == pytest.approx(
        {"weight": 1.0, "bias": -1.0}
    )


def test_an_undefined_layer_has_no_cosine():
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    first, second = (layer.weight.sum() for layer in model)
    found = alignment(0 * first + 0 * second, first + second, model)
    assert {name: layer.cosine for name, layer in found.by_layer.items()} == {"0": None, "1": None}
    assert found.by_layer["0"].auxiliary_norm == 1.0


def test_norm_and_cosine_agree_with_finite_differences():
    """Along the auxiliary gradient the main loss falls at the rate cosine * main_norm."""
    model, branches, x, y = (thing.double() if isinstance(thing, nn.Module) else thing for thing in small())
    x = x.double()
    found = alignment(*losses(model, branches, x, y), model)
    _, auxiliaries = flat_gradients(model, branches, x, y)
    shared = {name: torch.from_numpy(auxiliaries[name]) for name in found.by_parameter}
    length = math.sqrt(sum(float(g.square().sum()) for g in shared.values()))
    values = []
    for step in (-1e-5, 1e-5):
        moved = copy.deepcopy(model)
        with torch.no_grad():
            for name, parameter in moved.named_parameters():
                if name in shared:
                    parameter += step / length * shared[name].view_as(parameter)
            values.append(F.cross_entropy(moved(x), y).item())
    assert (values[1] - values[0]) / 2e-5 == pytest.approx(found.cosine * found.main_norm, rel=1e-5)


@pytest.mark.parametrize("arch", ["mlp", "vit"])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 10.0])
def test_two_passes_give_what_three_give(arch, alpha):
    model, branches, x, y = small(arch)
    main, auxiliary = losses(model, branches, x, y)
    expected = alignment(main, auxiliary, model)
    (main + alpha * auxiliary).backward()
    everything = [*model.named_parameters(), *branches.named_parameters()]
    ordinary = [None if p.grad is None else p.grad.clone() for _, p in everything]
    model.zero_grad()
    branches.zero_grad()
    found = backward_with_alignment(*losses(model, branches, x, y), alpha, model, branches)
    assert found == expected
    assert found.by_layer == expected.by_layer
    for (name, p), wanted in zip(everything, ordinary, strict=True):
        torch.testing.assert_close(p.grad, wanted, rtol=1e-4, atol=1e-6 * max(1, alpha), msg=name)


def test_gradients_accumulate_as_backward_does():
    model, branches, x, y = small()
    for _ in range(2):
        backward_with_alignment(*losses(model, branches, x, y), 0.5, model, branches)
    twice = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    backward_with_alignment(*losses(model, branches, x, y), 0.5, model, branches)
    for p, both in zip(model.parameters(), twice, strict=True):
        torch.testing.assert_close(both, 2 * p.grad)


def test_two_parameters_never_share_one_gradient():
    """`a + b` gives both the same gradient tensor; adding to one must not change the other."""

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Parameter(torch.ones(3)) for _ in range(3))

    model = Sum()
    backward_with_alignment((model.a + model.b + model.c).sum(), model.c.sum(), 1.0, model)
    model.a.grad.add_(5)
    assert model.b.grad.tolist() == [1, 1, 1]


def test_the_graph_is_freed_after_the_second_pass():
    model, branches, x, y = small()
    main, auxiliary = losses(model, branches, x, y)
    backward_with_alignment(main, auxiliary, 0.5, model, branches)
    with pytest.raises(RuntimeError, match="second time"):
        auxiliary.backward()


def test_a_branch_that_is_part_of_the_model_counts_once():
    model, branches, x, y = small()
    whole = nn.ModuleDict({"model": model, "branches": branches})
    backward_with_alignment(*losses(model, branches, x, y), 0.5, whole, branches)
    once = [p.grad.clone() for p in branches.parameters()]
    model.zero_grad()
    branches.zero_grad()
    backward_with_alignment(*losses(model, branches, x, y), 0.5, model, branches)
    for p, other in zip(branches.parameters(), once, strict=True):
        assert torch.equal(p.grad, other)


@pytest.mark.usefixtures("bfloat16_on_any_cpu")
def test_it_works_compiled_and_under_autocast():
    model, branches, x, y = small()
    exact = backward_with_alignment(*losses(model, branches, x, y), 0.5, model, branches)
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    compiled = torch.compile(model, backend="aot_eager")
    found = backward_with_alignment(F.cross_entropy(compiled(x), y), branches.loss(y), 0.5, compiled, branches)
    assert found.cosine == pytest.approx(exact.cosine, abs=1e-6)
    assert found.by_layer.keys() == exact.by_layer.keys()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, wanted[name], rtol=1e-4, atol=1e-6)
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        main, auxiliary = losses(model, branches, x, y)
    rounded = backward_with_alignment(main, auxiliary, 0.5, model, branches)
    assert rounded.cosine == pytest.approx(exact.cosine, abs=0.1)
    assert rounded.cosine != exact.cosine


def test_sparse_gradients_have_a_cosine():
    model = nn.Embedding(5, 2, sparse=True)
    row = torch.tensor([1, 1])
    found = alignment(model(row).sum(), (model(row) * torch.tensor([1.0, 0.0])).sum(), model)
    assert found.cosine == pytest.approx(math.sqrt(0.5))


def test_a_data_parallel_model_is_refused():
    # Without a process group, which would need a network: what it is a model of makes no difference here.
    model = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(model)
    loss = torch.ones(1, requires_grad=True).sum()
    with pytest.raises(UsageError, match="inside backward"):
        backward_with_alignment(loss, loss, 1.0, model)


def test_measuring_leaves_the_next_steps_bit_identical():
    results = []
    for measured in (False, True):
        model, branches, x, y = small("vit")
        net = nn.Sequential(nn.Dropout(0.5), model)  # random numbers must not be drawn either
        optimizer = torch.optim.AdamW([*model.parameters(), *branches.parameters()], lr=0.01)
        torch.manual_seed(0)
        for _ in range(3):
            optimizer.zero_grad()
            main, auxiliary = losses(net, branches, x, y)
            if measured:
                alignment(main, auxiliary, net)
            (main + 0.5 * auxiliary).backward()
            optimizer.step()
        results.append(torch.cat([p.detach().flatten() for p in (*model.parameters(), *branches.parameters())]))
    assert torch.equal(*results)
