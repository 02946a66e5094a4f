"""Compiled forms of a module: what a record of its forward holds, and what stacks share."""

import dataclasses
import gc
import weakref
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from equivalence import patterns
from torch import nn

from asymtrain.lab.devices import compiler_settings
from asymtrain.lab.engine import Stack, programs
from asymtrain.lab.engine.modules import ModuleNetwork, Training
from asymtrain.lab.engine.tracing import needs_record, record
from asymtrain.lab.runs import RunSpec


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.across = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, maps):
        return maps + F.dropout(torch.relu(self.across(self.norm(maps))), 0.2, self.training)


class Small(nn.Module):
    """Depthwise convolutions on maps of 2 x 2, batch normalisation, and dropout."""

    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 4, stride=4)
        self.blocks = nn.Sequential(*(Block(6) for _ in range(3)))
        self.head = nn.Linear(6, classes)

    def forward(self, images):
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


class PartlyFixed(Small):
    """No gradient goes through a part of it."""

    def forward(self, images):
        with torch.no_grad():
            maps = self.blocks[0](self.stem(images))
        return self.head(self.blocks[1:](maps + self.stem(images)).mean((2, 3)))


class Through(torch.autograd.Function):
    """Signs, whose gradient is that of what they are the signs of."""

    @staticmethod
    def forward(ctx, values):
        return values.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Signs(Small):
    def forward(self, images):
        return self.head(Through.apply(self.blocks(self.stem(images))).mean((2, 3)))


def small(classes):
    return Small(classes)


def network_of(model):
    torch.manual_seed(0)
    return ModuleNetwork(model(5), 5, torch.randn(4, 3, 8, 8))


def given_to(network):
    """Parameters, images and training of a stack of one run."""
    parameters = {name: value.detach()[None].clone().requires_grad_() for name, value in network.named_parameters()}
    buffers = {name: value[None].clone() for name, value in network.buffers().items()}
    torch.manual_seed(1)
    return parameters, torch.randn(1, 12, 3, 8, 8), Training(buffers, torch.tensor([7]), torch.tensor(3))


def test_a_record_gives_outputs_buffers_and_gradients_of_the_forward():
    network = network_of(Small)
    assert needs_record(network)
    given = given_to(network)
    recorded = record(network, *given)
    kept = given_to(network)[2].buffers
    assert all(torch.equal(value, kept[name]) for name, value in given[2].buffers.items())  # recording changes nothing
    results = []
    for form in (lambda p, x, t: network.stacked(p, x, training=t), recorded):
        parameters, images, training = given_to(network)
        logits, features = form(parameters, images, training)
        loss = logits.square().sum() + sum(feature.square().sum() for feature in features)
        results.append([logits, *features, *training.buffers.values(), *torch.autograd.grad(loss, parameters.values())])
    for value, own in zip(*results, strict=True):
        assert torch.allclose(value.double(), own.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", [PartlyFixed, Signs], ids=lambda model: model.__name__)
def test_what_a_record_cannot_hold_is_not_recorded(model):
    network = network_of(model)
    assert record(network, *given_to(network)) is None


CASES = {"any_models:mixer": {"layout": "BTD"}, "test_engine_tracing:small": {}, "any_models:resnet": {}}


@pytest.mark.slow
@pytest.mark.parametrize("arch", CASES)
def test_stacks_of_other_kinds_and_sizes_share_the_compiled_forward(arch, monkeypatch):
    """And compiled they train as they do without it."""
    graphs, kept = [], []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    monkeypatch.setattr(programs, "_COMPILED", {})
    data = patterns(size=80)
    base = RunSpec(arch=arch, batch=16, epochs=1, redundancy=1, cosine_every=2, test="never", **CASES[arch])
    kinds = {"objective": "softmax", "branch_bias": "prior"}
    for specs in (
        [base, base.plain(), dataclasses.replace(base, seed=1)],
        [dataclasses.replace(base, seed=2, **kinds), dataclasses.replace(base, seed=2)],
    ):
        alone, compiled = (Stack(specs, data, strategy="side_by_side") for _ in range(2))
        compiled.programs = compiled.compiled(compiled.programs)
        kept.append(weakref.ref(compiled))
        alone.advance()
        with compiler_settings():
            compiled.advance()
        for name, value in alone.state().items():
            assert torch.allclose(value.double(), compiled.state()[name].double(), atol=1e-3), name
        assert [epochs[0].validation_accuracy for epochs in alone.histories] == [
            epochs[0].validation_accuracy for epochs in compiled.histories
        ]
    del alone, compiled
    gc.collect()
    assert [stack() for stack in kept] == [None, None]  # compiled programs stay, and would keep a stack's tensors
    convolved = [graph for graph in graphs if any("conv" in str(node.target) for node in graph.graph.nodes)]
    assert len(convolved) == 2  # in training and in evaluation
