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


class Hooked(Small):
    """Large gradients have a limit."""

    def forward(self, images):
        maps = self.blocks(self.stem(images))
        if maps.requires_grad:
            maps.register_hook(lambda gradient: gradient.clamp(-100, 100))
        return self.head(maps.mean((2, 3)))


class Full(Small):
    """Whose forward has no room once `full` is set."""

    full = False

    def forward(self, images):
        if self.full:
            raise torch.OutOfMemoryError
        return super().forward(images)


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


@pytest.mark.parametrize("model", [PartlyFixed, Signs, Hooked], ids=lambda model: model.__name__)
def test_what_a_record_cannot_hold_is_not_recorded(model):
    network = network_of(model)
    assert record(network, *given_to(network)) is None


def test_a_record_without_room_is_no_answer():
    """The stack is halved and asks again."""
    network = network_of(Full)
    network.module.full = True
    with pytest.raises(torch.OutOfMemoryError):
        record(network, *given_to(network))


def test_fewer_images_than_a_batch_are_recorded_as_a_whole_one():
    """Another stack, which has more images, gets the same record."""
    spec = RunSpec(arch="test_engine_tracing:small", batch=16, epochs=1, redundancy=1, per_class=1)
    stack = Stack([spec], patterns(size=80), strategy="side_by_side")
    assert stack.data.size < spec.batch
    _, images, training = given_to(stack.network)
    logits, _ = stack._record(1)(stack.parameters.views(stack.weights), images.repeat(1, 2, 1, 1, 1)[:, :16], training)
    assert logits.shape[:2] == (1, 16)


class Layer(nn.Module):
    def __init__(self, rate, act):
        super().__init__()
        self.linear, self.rate, self.act = nn.Linear(4, 4), rate, act

    def forward(self, x):
        return F.dropout(self.act(self.linear(x)), self.rate, self.training)


class Other(Layer):
    def forward(self, x):
        return x + super().forward(x)


def relu_layer(rate, kind=Layer):
    return kind(rate, lambda x: x.relu())


@pytest.mark.parametrize(
    ("layer", "same"),
    [
        pytest.param(relu_layer(0.1), True, id="same"),
        pytest.param(relu_layer(0.2), False, id="rate"),
        pytest.param(Layer(0.1, torch.tanh), False, id="activation"),
        pytest.param(relu_layer(0.1, Other), False, id="forward"),
    ],
)
def test_models_of_one_name_share_a_program_only_where_they_compute_the_same(layer, same):
    """A function that builds models may read what its user changes, or be defined anew in a notebook."""
    keys = {
        ModuleNetwork(nn.Sequential(part, nn.Linear(4, 5)), 5, torch.randn(4, 4), at=["0"]).settings
        for part in (relu_layer(0.1), layer)
    }
    assert (len(keys) == 1) == same


class Tokens(nn.Module):
    """Patches, dropout, and a buffer that changes: nothing that runs cannot share a call for."""

    def __init__(self, classes):
        super().__init__()
        self.embed = nn.Conv2d(3, 6, 4, stride=4)
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.head = nn.Linear(6, classes)
        self.register_buffer("centre", torch.zeros(6))

    def forward(self, images):
        tokens = self.embed(images).flatten(2).mT - self.centre
        if self.training:
            self.centre.lerp_(tokens.detach().mean((0, 1)), 0.1)
        for block in self.blocks:
            tokens = tokens + F.dropout(torch.relu(block(tokens)), 0.2, self.training)
        return self.head(tokens.mean(1))


class Normalised(Tokens):
    """Statistics that several runs cannot change in one call."""

    def __init__(self, classes):
        super().__init__(classes)
        self.embed = nn.Sequential(self.embed, nn.BatchNorm2d(6))


@pytest.mark.parametrize(("model", "batched"), [(Tokens, True), (Normalised, False)], ids=["tokens", "normalised"])
def test_what_several_runs_are_recorded_for(model, batched):
    network = ModuleNetwork(model(5), 5, torch.randn(4, 3, 8, 8), at=["blocks.1"], layout="BTD")
    assert (record(network, *given_to(network), runs=2) is not None) == batched


def tokens(classes):
    return Tokens(classes)


# With dropout in its attention, which is then computed by operations that a CPU can batch too.
DROPPED = {"drop_path_rate": 0.2, "attn_drop_rate": 0.1}
VIT = {"img_size": 32, "patch_size": 8, "depth": 3, "embed_dim": 24, **DROPPED}
TOGETHER = {
    "test_engine_tracing:tokens": (8, {"layout": "BTD", "at": ("blocks.0", "blocks.2")}),
    "any_models:mixer": (8, {"layout": "BTD"}),
    "timm:vit_tiny_patch16_224": (32, {"arch_options": VIT}),
}


def descend(weights, gradient, moments, rate, decay):
    """Plain gradient descent."""
    weights.sub_(rate * gradient)
    moments.updates.add_(1)


@pytest.mark.slow
@pytest.mark.parametrize("arch", TOGETHER)
def test_runs_that_share_a_call_train_as_they_do_alone(arch, monkeypatch):
    """In calls of two and of three; the second stack has other branches, and takes the first one's program."""
    if arch.startswith("timm:"):
        pytest.importorskip("timm")
    for name, value in {"_COMPILED": {}, "RUNS_IN_A_CALL": 3, "_FEW_RUNS": 1}.items():
        monkeypatch.setattr(programs, name, value)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    size, fields = TOGETHER[arch]
    base = RunSpec(arch=arch, batch=16, epochs=1, redundancy=1, cosine_every=2, **fields)
    mixed = [dataclasses.replace(base, seed=seed, objective=["sigmoid", "softmax"][seed % 2]) for seed in range(4)]
    for specs in ([*mixed, base.plain()], [dataclasses.replace(spec, bias="prior") for spec in mixed[:2]]):
        alone, together = (Stack(specs, patterns(image_size=size, size=80), strategy="side_by_side") for _ in range(2))
        together.programs = together.compiled(together.programs)
        assert len(together.programs.losses) == -(-len(specs) // 3)
        # AdamW would make steps of what is zero but for rounding, such as the gradient of a key's bias.
        alone.programs.update = together.programs.update = descend
        alone.advance()
        with compiler_settings():
            together.advance()
        for name, value in alone.state().items():
            assert torch.allclose(value.double(), together.state()[name].double(), atol=1e-4), name
    batched = [graph for graph in graphs if any("vmap_increment" in str(node.target) for node in graph.graph.nodes)]
    assert len(batched) == 2  # of two and of three runs, whatever their branches


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
    kinds = {"objective": "softmax", "bias": "prior"}
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
