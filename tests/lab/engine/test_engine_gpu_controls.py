"""The controls on a GPU: small networks, compiled and captured, against the reference on the same device."""

import pytest
import torch
from equivalence import assert_near_the_reference_together, measure_distances, mixed_specs
from small_runs import compiles, stack_of
from test_engine_controls import CONTROLS, KINDS, fifty_steps

from asymtrain.lab.engine import Stack

pytestmark = [pytest.mark.gpu, compiles]


@pytest.mark.parametrize(
    "control",
    [CONTROLS[name] for name in ("noise", "gated", "detached", "bias", "frozen", "distill", "ratio of gradients")],
    ids=str,
)
def test_a_captured_stack_does_what_the_reference_does(control, dataset):
    specs = mixed_specs(fifty_steps("mlp", **control), runs=6)
    found = measure_distances(specs, dataset, device="cuda", strategy="batched")
    assert_near_the_reference_together(found)


@pytest.mark.parametrize("strategy", ["batched", "side_by_side"])
def test_a_captured_stack_of_several_kinds_does_what_the_reference_does(strategy, dataset):
    specs = [fifty_steps("mlp", weight_decay=0.5, **fields) for fields in KINDS]
    assert_near_the_reference_together(measure_distances(specs, dataset, device="cuda", strategy=strategy))


@pytest.mark.parametrize("objective", ["softmax", "distill"])
def test_captured_towers_on_maps_do_what_the_reference_does(objective, dataset):
    specs = mixed_specs(fifty_steps("cnn", head="tower", objective=objective), runs=6)
    found = measure_distances(specs, dataset, device="cuda", strategy="side_by_side", steps=12)
    assert_near_the_reference_together(found)


def test_a_captured_ratio_of_gradients_goes_on_from_one_step_to_the_next(dataset):
    """A graph reads it from the device, where the graph of another step wrote it."""
    spec = fifty_steps("mlp", balance="norms", alpha=0.5, cosine_every=5)
    stack = Stack([spec, spec.plain()], dataset, device="cuda", strategy="batched")
    seen = []
    while not stack.finished:
        stack.advance(pause=lambda: seen.append(stack.scale[0].item()))
    assert len(set(seen)) > 2
    assert min(seen) > 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_detached_branches_leave_plain_in_the_same_stack(precision, dataset):
    """One captured program for both, so equal to the bit."""
    spec = fifty_steps("mlp", signal="detached", precision=precision)
    stack = stack_of([spec.plain(), spec], dataset, device="cuda")
    views = stack.parameters.views(stack.weights)
    for name, value in views.items():
        if not name.startswith("branch."):
            assert torch.equal(value[0], value[1]), name
    assert not torch.equal(*views["branch.0"])
