import functools
import math

import pytest
import torch
import torch.nn.functional as F
from gradient_examples import small
from torch import nn

from asymtrain import Alignment, UsageError, alignment
from asymtrain.gradients import backward_with_alignment, cosine


class Plane(nn.Module):
    """Two parameters, so that a loss `direction . parameters` has any gradient one likes."""

    def __init__(self):
        super().__init__()
        self.x, self.y = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.tensor(-0.25))

    def along(self, degrees, length=1.0):
        angle = math.radians(degrees)
        return length * (math.cos(angle) * self.x + math.sin(angle) * self.y)


@pytest.mark.parametrize("degrees", [0, 10, 45, 89, 90, 91, 135, 180])
@pytest.mark.parametrize(("length", "other"), [(1.0, 1.0), (1e-12, 1e10), (1e15, 1e-15)])
def test_the_cosine_is_that_of_the_angle(degrees, length, other):
    plane = Plane()
    found = alignment(plane.along(30, length), plane.along(30 + degrees, other), plane)
    assert found.cosine == pytest.approx(math.cos(math.radians(degrees)), abs=1e-6)
    assert -1 <= found.cosine <= 1
    assert found.main_norm == pytest.approx(length, rel=1e-6)
    assert found.auxiliary_norm == pytest.approx(other, rel=1e-6)


def test_each_parameter_has_its_own_cosine():
    plane = Plane()
    found = alignment(plane.along(45), plane.along(135), plane)
    assert found.by_parameter == {"x": -1.0, "y": 1.0}


@pytest.mark.parametrize(("main", "auxiliary"), [(0.0, 2.0), (3.0, 0.0), (0.0, 0.0)])
def test_a_zero_gradient_has_no_cosine(main, auxiliary):
    plane = Plane()
    found = alignment(plane.along(20, main), plane.along(50, auxiliary), plane)
    assert found.cosine is None
    assert found.by_parameter == {"x": None, "y": None}
    assert (found.main_norm, found.auxiliary_norm) == pytest.approx((main, auxiliary))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_has_no_cosine(bad):
    plane = Plane()
    assert alignment(plane.along(20), plane.x * bad + plane.y, plane).cosine is None


def test_only_parameters_that_both_reach_count():
    plane = Plane()
    found = alignment(plane.x + 5 * plane.y, 2 * plane.x, plane)
    assert found == Alignment(1.0, 1.0, 2.0, {"x": 1.0})
    plane.y.requires_grad_(False)
    assert alignment(plane.x + 5 * plane.y, 2 * plane.x, plane) == found


@pytest.mark.parametrize("arch", ["mlp", "vit"])
def test_it_agrees_with_backward_and_leaves_everything_as_it_was(arch):
    model, branches, x, y = small(arch)
    parts = {}
    for name in ("main", "auxiliary"):
        model.zero_grad()
        losses = {"main": F.cross_entropy(model(x), y), "auxiliary": branches.loss(y)}
        losses[name].backward()
        parts[name] = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
    shared = parts["main"].keys() & parts["auxiliary"].keys()
    assert shared < parts["main"].keys()
    flat = [torch.cat([part[name].flatten() for name in sorted(shared)]) for part in parts.values()]

    branches.zero_grad()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    marks = {name: torch.full_like(p, 7.0) for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        p.grad = marks[name]
    logits = model(x)
    main, auxiliary = F.cross_entropy(logits, y), branches.loss(y)
    found = alignment(main, auxiliary, model)
    assert found.cosine == pytest.approx(F.cosine_similarity(*flat, dim=0).item(), abs=1e-6)
    assert found.main_norm == pytest.approx(flat[0].norm().item(), rel=1e-5)
    assert found.auxiliary_norm == pytest.approx(flat[1].norm().item(), rel=1e-5)
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
        assert p.grad is marks[name]
        assert (p.grad == 7).all()
    assert all(p.grad is None for p in branches.parameters())
    (main + auxiliary).backward()  # the graph is still there


def test_errors_say_what_is_missing():
    plane = Plane()
    with pytest.raises(UsageError, match="reached by both"):
        alignment(plane.x * 2, plane.y * 2, plane)
    loss = plane.x * 2
    with pytest.raises(UsageError, match="requires a gradient"):
        alignment(loss, loss, plane.requires_grad_(False))


BAD_LOSSES = {
    "a number": (lambda plane: 0.0, "must be a tensor, got float"),
    "nothing": (lambda plane: None, "must be a tensor, got NoneType"),
    "one for each sample": (lambda plane: plane.x * torch.ones(6), r"has shape \(6,\): reduce it to one number"),
    "none for no sample": (lambda plane: plane.x * torch.ones(0), r"has shape \(0,\): reduce it to one number"),
    "a constant": (lambda plane: torch.tensor(0.0), "is a constant and does not depend on the model"),
    "detached": (lambda plane: plane.along(20).detach(), "is a constant and does not depend on the model"),
}


@pytest.mark.parametrize("measure", [alignment, functools.partial(backward_with_alignment, alpha=0.5)])
@pytest.mark.parametrize("which", ["main", "auxiliary"])
@pytest.mark.parametrize("bad", BAD_LOSSES)
def test_a_loss_without_a_gradient_is_refused_by_name(bad, which, measure):
    plane = Plane()
    make, said = BAD_LOSSES[bad]
    losses = {"main": plane.along(20), "auxiliary": plane.along(50), which: make(plane)}
    with pytest.raises(UsageError, match=f"^the {which} loss {said}"):
        measure(**losses, model=plane)
    assert plane.x.grad is None


@pytest.mark.parametrize("measure", [alignment, functools.partial(backward_with_alignment, alpha=0.5)])
@pytest.mark.parametrize("which", ["main", "auxiliary"])
def test_a_graph_that_backward_freed_is_refused(which, measure):
    plane = Plane()
    losses = {"main": plane.x**2, "auxiliary": plane.x**3}
    losses[which].backward(retain_graph=True)
    alignment(**losses, model=plane)
    losses[which].backward()
    with pytest.raises(UsageError, match=rf"freed the graph of the {which} loss: measure before .*retain_graph=True"):
        measure(**losses, model=plane)


def test_another_error_of_torch_keeps_its_words():
    plane = Plane()
    loss = plane.x**2
    with torch.no_grad():
        plane.x += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        alignment(loss, plane.along(20), plane)


def test_a_loss_of_one_element_may_have_any_shape():
    plane = Plane()
    wanted = alignment(plane.along(20), plane.along(50), plane)
    assert alignment(plane.along(20).view(1, 1), plane.along(50).view(1), plane) == wanted


@pytest.mark.parametrize("parts", [1, 3])
def test_a_cosine_does_not_depend_on_how_a_gradient_is_cut(parts):
    first, second = torch.randn(2, 30, generator=torch.Generator().manual_seed(parts))
    wanted = torch.nn.functional.cosine_similarity(first, second, dim=0).item()
    assert cosine(first.chunk(parts), second.chunk(parts)) == pytest.approx(wanted, abs=1e-6)
    assert cosine(first.chunk(parts), (second * 0).chunk(parts)) is None
