"""Gradient surgery in a stack: the closed forms against TorchJD, and every strategy against the reference."""

import dataclasses
import math
from typing import get_args, get_type_hints

import pytest
import torch
from equivalence import assert_near_the_reference_together, measure_distances, mixed_specs
from near_reference import assert_stack_is_near, few_steps_or_all
from small_runs import (
    STRATEGIES,
    TRAINERS,
    assert_same_bits,
    compiles,
    differ,
    every_strategy,
    spec_of,
    stack_of,
    trained,
    weights_of,
)
from test_engine_controls import fifty_steps

from asymtrain.lab.engine.parameters import FlatParameters, layers_of
from asymtrain.lab.engine.reference import _aggregate as aggregate
from asymtrain.lab.engine.signals import WEIGHTS, aggregated, needs_both_gradients
from asymtrain.lab.runs import RunSpec

SURGERY = [name for name in WEIGHTS if name != "sum"]
every_surgery = pytest.mark.parametrize("name", SURGERY)


def two_gradients(cosine, ratio=1.0, size=50):
    """Two vectors at an angle, the second `ratio` times as long."""
    drawn = torch.randn(2, size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    first = drawn[0] / drawn[0].norm()
    across = drawn[1] - (drawn[1] @ first) * first
    return 2.0 * first, 2.0 * ratio * (cosine * first + math.sqrt(1 - cosine**2) * across / across.norm())


def closed_form(name, main, part):
    gram = main @ main, main @ part, part @ part
    first, second = WEIGHTS[name](*(value[None] for value in gram))
    return first * main + second * part


ANGLES = pytest.mark.parametrize("cosine", [-0.999, -0.5, 0.0, 0.3, 0.95])
RATIOS = pytest.mark.parametrize("ratio", [0.01, 1.0, 30.0])


def test_the_list_is_that_of_the_spec():
    assert list(WEIGHTS) == list(get_args(get_type_hints(RunSpec)["aggregator"]))


@ANGLES
@RATIOS
@every_surgery
def test_closed_forms_and_definitions_are_what_torchjd_computes(name, cosine, ratio):
    aggregation = pytest.importorskip("torchjd.aggregation")
    from torchjd.linalg import QuadprogProjector

    # Without its regularisation, which moves the projections by 1e-4 of their length.
    exact = QuadprogProjector(reg_eps=1e-12)
    oracles = {
        "pcgrad": aggregation.PCGrad(),
        "upgrad": aggregation.UPGrad(projector=exact),
        "mgda": aggregation.MGDA(),
        "imtl_g": aggregation.IMTLG(),
        "aligned_mtl": aggregation.AlignedMTL(),
    }
    main, part = two_gradients(cosine, ratio)
    wanted = oracles[name](torch.stack([main, part]))
    scale = wanted.norm().clamp(min=1e-3)
    assert (closed_form(name, main, part) - wanted).norm() < 1e-6 * scale
    found = aggregate({"a": (main[:20], part[:20]), "b": (main[20:].view(5, 6), part[20:].view(5, 6))}, name)
    assert (torch.cat([value.flatten() for value in found.values()]) - wanted).norm() < 1e-6 * scale


@every_surgery
def test_no_surgery_lets_a_loss_grow(name):
    """What they are for: to first order, neither loss grows along the step."""
    main, part = two_gradients(-0.8, 5.0)
    step = closed_form(name, main, part)
    assert step @ main >= -1e-9
    assert step @ part >= -1e-9
    total = main + part
    assert total @ main < 0, "the plain sum does here"


@pytest.fixture(scope="module")
def flat():
    """Layout and layers of a small network, a main and an auxiliary gradient of three runs in its gaps and all."""
    shapes = {"one.weight": (5, 7), "one.bias": (5,), "head.weight": (3, 5), "branch.0": (2, 3, 5)}
    layout = FlatParameters.of({name: torch.zeros(shape) for name, shape in shapes.items()})
    drawn = torch.Generator().manual_seed(0)
    mains = [{n: torch.randn(s, generator=drawn) * (n != "branch.0") for n, s in shapes.items()} for _ in range(3)]
    parts = [{n: torch.randn(s, generator=drawn) * n.startswith("one") for n, s in shapes.items()} for _ in range(3)]
    own = [{n: torch.randn(s, generator=drawn) * (n == "branch.0") for n, s in shapes.items()} for _ in range(3)]
    layers = layers_of(layout, ["one.weight", "one.bias"], torch.device("cpu"))
    return layout, layers, layout.pack(mains), layout.pack(parts), layout.pack(own)


@every_surgery
def test_parameters_of_one_loss_alone_keep_its_gradient(name, flat):
    layout, layers, main, part, own = flat
    part = part * torch.tensor([[0.5], [-2.0], [0.0]])  # the last run is Plain
    found = layout.views(aggregated(name)(main + part + own, part, layers.members))
    mains, parts, owns = layout.views(main), layout.views(part), layout.views(own)
    assert torch.equal(found["head.weight"], mains["head.weight"])
    assert torch.equal(found["branch.0"], owns["branch.0"])
    shared = ["one.weight", "one.bias"]
    for run in range(3):
        wanted = aggregate({n: (mains[n][run], parts[n][run]) for n in shared}, name)
        for n in shared:
            assert torch.allclose(found[n][run], wanted[n], atol=1e-5), (run, n)
    assert torch.equal(found["one.weight"][2], mains["one.weight"][2])


@pytest.mark.parametrize("side", [0, 1])
@every_surgery
def test_where_one_gradient_is_zero_the_sum_is_taken(name, side, flat):
    _, layers, main, part, _ = flat
    if side:
        part = torch.zeros_like(part)
    else:
        main = torch.zeros_like(main)
    assert torch.equal(aggregated(name)(main + part, part, layers.members), main + part)


def test_equal_gradients_have_a_shortest_vector(flat):
    _, layers, _, part, _ = flat
    assert torch.allclose(aggregated("mgda")(2 * part, part, layers.members), part, atol=1e-6)


@few_steps_or_all
@every_surgery
def test_every_strategy_does_what_the_reference_does(name, steps, dataset):
    specs = mixed_specs(fifty_steps("mlp", aggregator=name), runs=3)
    assert_stack_is_near(specs, dataset, *STRATEGIES, steps=steps)


@few_steps_or_all
@pytest.mark.parametrize("signal", ["noise", "gated"])
def test_surgery_on_another_signal(signal, steps, dataset):
    specs = mixed_specs(fifty_steps("mlp", aggregator="mgda", signal=signal), runs=3)
    assert_stack_is_near(specs, dataset, "batched", steps=steps)


@pytest.mark.parametrize("arch", ["cnn", "vit"])
def test_with_convolutions_and_attention(arch, dataset):
    specs = mixed_specs(fifty_steps(arch, aggregator="pcgrad", branch_labels="random"), runs=3)
    assert_stack_is_near(specs, dataset, "batched", steps=12)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_detached_features_leave_nothing_to_combine(trainer, dataset):
    spec = spec_of(signal="detached", aggregator="mgda", epochs=1)
    assert not needs_both_gradients(spec)
    assert_same_bits(trained(spec, dataset, trainer)[1], trained(spec.plain(), dataset, trainer)[1])


@every_strategy
def test_plain_and_a_silent_alpha_train_as_if_alone(strategy, dataset):
    """Plain beside surgery, and surgery with alpha 0, are Plain bit for bit; at alpha 1 it is neither Plain nor sum."""
    surgery = spec_of(aggregator="mgda", epochs=1)
    silent = dataclasses.replace(surgery, alpha=0.0)
    stack = stack_of([surgery.plain(), silent, surgery], dataset, strategy)
    alone = weights_of(stack_of([surgery.plain(), dataclasses.replace(silent, aggregator="sum"),
                                 dataclasses.replace(surgery, aggregator="sum")], dataset, strategy))  # fmt: skip
    assert_same_bits(weights_of(stack, 0), alone)
    assert_same_bits(weights_of(stack, 1), alone)
    summed = trained(dataclasses.replace(surgery, aggregator="sum"), dataset, strategy)[1]
    assert differ(weights_of(stack, 2), alone)
    assert differ(weights_of(stack, 2), summed)


@pytest.mark.gpu
@compiles
@every_surgery
def test_a_captured_stack_does_what_the_reference_does(name, dataset):
    specs = mixed_specs(fifty_steps("mlp", aggregator=name), runs=6)
    assert_near_the_reference_together(measure_distances(specs, dataset, device="cuda", strategy="batched"))
