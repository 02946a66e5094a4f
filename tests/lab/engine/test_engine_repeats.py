"""A recorded forward in pieces: what repeats is compiled once, and the numbers stay those of the forward."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from asymtrain.lab.engine.modules import ModuleNetwork
from asymtrain.lab.engine.repeats import in_pieces
from asymtrain.lab.engine.tracing import record_evaluation


class Block(nn.Module):
    def __init__(self, width, scale=1.0):
        super().__init__()
        self.first, self.second, self.norm = (
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
            nn.LayerNorm(width),
        )
        self.scale = scale

    def forward(self, values):
        inner = F.gelu(self.first(self.norm(values)) * self.scale).sigmoid() + 1
        return values + self.second(inner.tanh().exp().cos())


class Deep(nn.Module):
    def __init__(self, widths=(6, 6, 6, 6), scales=None, in_place=False):
        super().__init__()
        scales = scales or [1.0] * len(widths)
        self.blocks = nn.ModuleList(Block(width, scale) for width, scale in zip(widths, scales, strict=True))
        self.turns = nn.ModuleList(
            nn.Linear(a, b) if a != b else nn.Identity() for a, b in zip(widths, [*widths[1:], widths[-1]], strict=True)
        )
        self.head, self.in_place = nn.Linear(widths[-1], 3), in_place

    def forward(self, values):
        """Logits, and what two layers read beside them."""
        values, read = values * 2, []
        for number, (block, turn) in enumerate(zip(self.blocks, self.turns, strict=True)):
            values = turn(block(values))
            if self.in_place:
                values = values.add_(1)
            if number % 2:
                read.append(values.square().mean(1))
        return self.head(values), read


def pieces_of(model, width):
    """The model's graph as a function and in pieces, and the operations of each piece that was compiled."""
    torch.manual_seed(0)
    parameters = dict(model.named_parameters())
    inputs = [*(value.detach().clone().requires_grad_() for value in parameters.values()), torch.randn(5, width)]

    def forward(*inputs):
        state = dict(zip(parameters, inputs, strict=False))
        logits, read = torch.func.functional_call(model, state, (inputs[-1],))
        return [logits, *read]

    graph, sizes = make_fx(forward)(*inputs), []

    def compiled(piece, given):
        sizes.append(sum(node.op == "call_function" for node in piece.graph.nodes))
        return piece

    return graph, in_pieces(graph, compiled), inputs, sizes


def results_of(form, inputs):
    outputs = form(*inputs)
    loss = sum((number + 1) * value.sin().sum() for number, value in enumerate(outputs))
    return [*outputs, *torch.autograd.grad(loss, inputs[:-1])]


@pytest.mark.parametrize("widths", [(6, 6, 6, 6), (6, 6, 6, 4, 4, 4)], ids=["one stretch", "two stretches"])
def test_equal_blocks_are_compiled_once_and_give_the_same_numbers(widths):
    graph, pieces, inputs, sizes = pieces_of(Deep(widths), widths[0])
    operations = sum(node.op == "call_function" for node in graph.graph.nodes)
    assert sum(sizes) < (0.6 if len(widths) == 4 else 0.7) * operations
    for expected, found in zip(results_of(graph, inputs), results_of(pieces, inputs), strict=True):
        # A gradient's parts are added up in another order.
        assert torch.allclose(expected, found, rtol=1e-5, atol=1e-6)
    assert all(map(torch.equal, graph(*inputs), pieces(*inputs)))


@pytest.mark.parametrize(
    "model",
    [Deep((6, 5, 4, 3)), Deep(scales=[1.0, 2.0, 3.0, 4.0]), Deep(in_place=True), Deep((6,))],
    ids=["of other widths", "of other constants", "changed in place", "a single one"],
)
def test_blocks_that_differ_are_not_taken_for_one(model):
    assert pieces_of(model, 6)[1] is None


class Tokens(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.embed, self.blocks = nn.Conv2d(3, 6, 4, stride=4), nn.ModuleList(Block(6) for _ in range(4))
        self.head = nn.Linear(6, classes)
        self.register_buffer("shift", torch.randn(6))

    def forward(self, images):
        tokens = self.embed(images).flatten(2).mT + self.shift
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(tokens.mean(1))


def test_evaluation_in_pieces_is_that_of_the_module():
    torch.manual_seed(0)
    network, calls = ModuleNetwork(Tokens(5), 5, torch.randn(4, 3, 8, 8), at=["blocks.1"], layout="BTD"), []
    parameters = {name: value.detach()[None] + 0.1 for name, value in network.named_parameters()}
    buffers = {name: value[None] - 0.1 for name, value in network.buffers().items()}
    images = torch.randn(1, 7, 3, 8, 8)

    def counted(function):
        calls.append(function)
        return function

    logits = record_evaluation(network, parameters, images, buffers, counted)
    assert len(calls) == 3  # before the blocks, one of them, after them
    other = {name: 2 * value for name, value in parameters.items()}
    for values in (parameters, other):
        assert torch.equal(logits(values, images, buffers), network.stacked(values, images, buffers=buffers)[0])
