"""torch.compile: attached before, one graph, no recompilation from step to step."""

import copy
import os
import shutil
import sysconfig
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from branch_zoo import CLASSES, Cnn, Tied, images, mlp, rows, targets, vit
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._functorch.aot_autograd import make_boxed_func
from torch.utils.checkpoint import checkpoint

from asymtrain.branches import Branches, Parallel, WithBranches, attach
from asymtrain.errors import UsageError, UsageWarning

# torch._dynamo looks at `.grad` of tensors that enter a graph in the middle of a model.
MIDDLE = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
BACKEND = "aot_eager"  # traces and differentiates as the default backend does, and generates no code
MODELS = {
    "mlp": (mlp, ["1", "3"], rows),
    "cnn": (Cnn, "convs.*", images),
    "tied": (Tied, "block", rows),
    "hf_vit": (vit, "vit.**.[01]", images),
}


ACTIVATIONS = ["last", "all"]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def pair(name: str, activation: str = "last") -> tuple[nn.Module, Branches, Tensor]:
    build, at, sample = MODELS[name]
    torch.manual_seed(0)
    model, x = build(), sample()
    return model.eval(), attach(model, x, CLASSES, at=at, head=Parallel(3, activation=activation)), x


def step(call: object, branches: Branches, x: Tensor) -> Tensor:
    output = call(x)
    output = getattr(output, "logits", output)
    loss = F.cross_entropy(output, targets()) + branches.loss(targets())
    loss.backward()
    return loss.detach()


def assert_same_gradients(one: nn.Module, other: nn.Module) -> None:
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        assert mine.grad is None or torch.allclose(mine.grad, theirs.grad, atol=1e-5)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "hf_vit" else []) for name in MODELS]
)
def test_a_compiled_model_feeds_its_branches(name: str) -> None:
    model, branches, x = pair(name)
    eager, reference, _ = pair(name)
    net = torch.compile(model, backend=BACKEND)
    for _ in range(2):
        assert torch.allclose(step(net, branches, x), step(eager, reference, x), atol=1e-5)
    assert_same_gradients(model, eager)
    assert_same_gradients(branches, reference)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


@MIDDLE
def test_a_compiled_loss_of_a_model_that_is_not_says_so() -> None:
    model, branches, x = pair("mlp")
    model(x)
    with pytest.raises(UsageError, match=r"layer '1' ran outside of torch\.compile, which is to compile"):
        torch.compile(branches.loss, backend=BACKEND)(targets())
    branches.loss(targets()).backward()


@MIDDLE
def test_in_place_and_part_by_part() -> None:
    for parts in (False, True):
        model, branches, x = pair("mlp")
        eager, reference, _ = pair("mlp")
        for module in model.children() if parts else [model]:
            module.compile(backend=BACKEND)
        for _ in range(2):
            step(model, branches, x)
            step(eager, reference, x)
        with torch.compiler.set_stance("fail_on_recompile"):
            step(model, branches, x)
        step(eager, reference, x)
        assert_same_gradients(model, eager)
        assert_same_gradients(branches, reference)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_model_and_branches_in_one_graph(activation: str) -> None:
    model, branches, x = pair("cnn", activation)
    eager, reference, _ = pair("cnn", activation)
    net = torch.compile(WithBranches(model, branches), backend=BACKEND, fullgraph=True)
    plain = WithBranches(eager, reference)
    for turn in range(4):
        with torch.compiler.set_stance("default" if turn == 0 else "fail_on_recompile"):
            output, logits = net(x)
        (F.cross_entropy(output, targets()) + branches.loss(targets(), logits=logits)).backward()
        expected, theirs = plain(x)
        (F.cross_entropy(expected, targets()) + reference.loss(targets(), logits=theirs)).backward()
        assert all(torch.allclose(logits[name], theirs[name], atol=1e-5) for name in theirs)
    assert_same_gradients(model, eager)
    assert_same_gradients(branches, reference)


@pytest.mark.parametrize("activation", ["last", "all"])
def test_logits_of_one_product_are_brought_together_once(activation: str) -> None:
    """A compiler makes a kernel of each part that is copied: rows and weights are, and then nothing."""
    model, x = nn.Sequential(*[nn.Linear(7, 7) for _ in range(3)], nn.Linear(7, CLASSES)), rows()
    branches = attach(model, x, CLASSES, at=["0", "1", "2"], head=Parallel(2, activation=activation))
    net, graphs = WithBranches(model, branches), []

    def keep(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return make_boxed_func(graph.forward)

    def loss() -> Tensor:
        output, logits = net(x)
        return F.cross_entropy(output, targets()) + branches.loss(targets(), logits=logits)

    compiled = torch.compile(loss, fullgraph=True, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep))
    expected = torch.autograd.grad(loss(), list(branches.parameters()))
    compiled().backward()
    forward, backward = ([name for name in names if name in ("aten.stack.default", "aten.cat.default")]
                         for names in graphs)  # fmt: skip
    assert (len(forward), len(backward)) == (2, 0)
    for gradient, parameter in zip(expected, branches.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.usefixtures("bfloat16_on_any_cpu")
def test_autocast_inside_a_compiled_pair() -> None:
    model, branches, x = pair("cnn")
    net = torch.compile(WithBranches(model, branches), backend=BACKEND, fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        output, logits = net(x)
    assert output.dtype == torch.bfloat16
    assert all(one.dtype == torch.float32 for one in logits.values())


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = nn.Sequential(nn.Linear(7, 7), nn.Tanh()), nn.Linear(7, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.block, x, use_reentrant=False))


@MIDDLE
def test_checkpointing_inside_a_compiled_model() -> None:
    model, x = Checkpointed(), rows()
    eager = copy.deepcopy(model)
    branches, reference = attach(model, x, CLASSES, at="block"), attach(eager, x, CLASSES, at="block")
    net = torch.compile(model, backend=BACKEND)
    for _ in range(2):
        assert torch.allclose(step(net, branches, x), step(eager, reference, x), atol=1e-5)
    assert_same_gradients(model, eager)


class Broken(Cnn):
    """With a graph break between its layers."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.convs[0](x)))
        torch._dynamo.graph_break()
        return self.head(self.convs[1](x).mean((2, 3)))


class Outer(nn.Module):
    """A model inside another module's forward."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Tensor) -> Tensor:
        return self.model(*args)


def compiled_whole(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")


def compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


def compiled_parts(model: nn.Module) -> nn.Module:
    for part in model.convs:
        part.compile(backend="eager")
    return model


def replaced_parts(model: nn.Module) -> nn.Module:
    for index, part in enumerate(model.convs):
        model.convs[index] = torch.compile(part, backend="eager")
    return model


def compiled_outside(model: nn.Module) -> nn.Module:
    return torch.compile(Outer(model), backend="eager")


@MIDDLE
@pytest.mark.parametrize(
    ("way", "build"),
    [
        (compiled_whole, Cnn),
        (compiled_whole, Broken),
        (compiled_in_place, Cnn),
        (compiled_parts, Cnn),
        (compiled_outside, Cnn),
    ],
)
def test_plain_and_branched_models_of_one_class(way: Callable[[nn.Module], nn.Module], build: type[nn.Module]) -> None:
    """Plain first: torch shares compiled code between instances, and must not where one has branches."""
    models = [build().eval() for _ in range(3)]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    plain, model, eager = models
    x, layers = images(), ["convs.0", "convs.1"]
    plain_net = way(plain)
    F.cross_entropy(plain_net(x), targets()).backward()
    branches, reference = attach(model, x, CLASSES, at=layers), attach(eager, x, CLASSES, at=layers)
    branches.allow_skipped = True
    net = way(model)
    assert torch.allclose(step(net, branches, x), step(eager, reference, x), atol=1e-5)
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(2):
            step(net, branches, x)
            F.cross_entropy(plain_net(x), targets()).backward()
    step(eager, reference, x)
    step(eager, reference, x)
    assert_same_gradients(model, eager)
    assert_same_gradients(branches, reference)
    branches.strip()
    with torch.compiler.set_stance("fail_on_recompile"):  # the plain model's code does for the stripped model too
        net(x)


def test_a_compiled_pair_beside_a_compiled_plain_model() -> None:
    plain, model, x = Cnn().eval(), Cnn().eval(), images()
    plain_net = torch.compile(Outer(plain), backend="eager")
    plain_net(x)
    branches = attach(model, x, CLASSES, at="convs.*")
    pair_net = torch.compile(WithBranches(model, branches), backend="eager", fullgraph=True)
    outer_net = torch.compile(Outer(model), backend="eager", fullgraph=True)
    _, logits = pair_net(x)
    outer_net(x)
    assert all(torch.allclose(branches.logits()[name], rows, atol=1e-5) for name, rows in logits.items())
    graphs = counters["stats"]["unique_graphs"]
    for _ in range(3):
        plain_net(x)
        pair_net(x)
        outer_net(x)
    assert list(logits) == list(branches.logits())
    assert counters["stats"]["unique_graphs"] == graphs == 3


@MIDDLE
@pytest.mark.parametrize("way", [compiled_whole, compiled_in_place, compiled_parts, replaced_parts])
def test_attach_strip_and_attach_again_reach_a_model_that_is_compiled(way: Callable[[nn.Module], nn.Module]) -> None:
    """Compiled and called before attach; other layers each time."""
    model, x = Cnn().eval(), images()
    twin = copy.deepcopy(model)
    net = way(model)
    net(x)
    for chosen in ([0], [1], [0, 1]):
        layers = [model.convs[index] for index in chosen]
        branches = attach(model, x, CLASSES, at=layers)
        reference = attach(twin, x, CLASSES, at=[twin.convs[index] for index in chosen])
        assert torch.allclose(step(net, branches, x), step(twin, reference, x), atol=1e-5)
        assert len(branches.logits()) == len(chosen)
        branches.strip()
        reference.strip()
        assert not any("forward" in vars(module) for module in twin.modules())
    assert_same_gradients(model, twin)


def test_a_layer_that_compiled_code_passes_by_is_told() -> None:
    """A `forward` of its own keeps torch from telling an instance with branches from one without."""
    plain, model, x = Cnn(), Cnn(), images()

    def forward(conv: nn.Conv2d, x: Tensor) -> Tensor:
        return nn.Conv2d.forward(conv, x)

    for one in (plain, model):
        one.convs[0].forward = types.MethodType(forward, one.convs[0])
    torch.compile(plain, backend="eager")(x)
    branches = attach(model, x, CLASSES, at="convs.0")
    net = torch.compile(model, backend="eager")
    net(x)
    with pytest.raises(UsageError, match=r"1 of 1 layers did not run .* call torch.compiler.reset\(\) once"):
        branches.loss(targets())
    branches.allow_skipped = True
    net(x)
    with pytest.warns(UsageWarning, match=r"so its auxiliary loss is 0: .* call torch.compiler.reset\(\) once"):
        assert branches.loss(targets()) == 0
    torch.compiler.reset()
    net(x)
    assert branches.loss(targets()) > 0
    branches.strip()
    assert vars(model.convs[0])["forward"].__func__ is forward


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_strip_reaches_a_compiled_model(name: str) -> None:
    """The compiled graph gives features out while attached, and does not once stripped."""
    outputs: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        outputs.append(len(graph.graph.output_node().args[0]))
        return graph.forward

    model, branches, x = pair(name)
    layers = len(branches.layers)
    net = torch.compile(model, backend=backend)
    step(net, branches, x)
    branches.strip()
    output = net(x)
    assert outputs == [1 + layers, 1]
    assert torch.allclose(output, model(x))


@pytest.mark.parametrize("way", [compiled_whole, compiled_in_place, compiled_outside])
def test_masks_and_tokens_do_not_recompile(way: Callable[[nn.Module], nn.Module]) -> None:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.block = nn.Embedding(11, 6), nn.Linear(6, 6)

        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            return self.block(self.embed(input_ids)).tanh()

    model, rule = Language(), lambda input_ids, attention_mask=None: attention_mask
    sample = torch.randint(0, 11, (2, 5))
    branches = attach(model, sample, 11, at="block", pool="none", layout="BTD", mask=rule)
    net = way(model)
    for turn in range(3):
        tokens, mask = torch.randint(0, 11, (2, 5)), torch.tensor([[1] * 5, [1] * (turn + 1) + [0] * (4 - turn)])
        with torch.compiler.set_stance("default" if turn == 0 else "fail_on_recompile"):
            net(tokens, mask)
        assert torch.equal(branches._capture.forward.mask, mask)
        assert torch.equal(branches._capture.forward.tokens, tokens)
        expected = {"block": branches.head("block")(model.block(model.embed(tokens)))}
        y = (tokens + 1) % 11
        torch.testing.assert_close(branches.loss(y), branches.loss(y, logits=expected))
        assert not torch.equal(branches.loss(y), branches.loss(y, mask=torch.ones_like(mask)))
        branches.loss(y).backward()


def test_a_copy_made_while_attached_compiles() -> None:
    model, branches, x = pair("mlp")
    twin = torch.compile(copy.deepcopy(model), backend=BACKEND, fullgraph=True)
    assert torch.allclose(twin(x), model(x))
    assert not branches.stripped


def no_compiler() -> str:
    """Why torch's default backend cannot work on this machine; empty where it can."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        return "there is no C++ compiler"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "there are no headers of Python"
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        return "torch 2.13 writes C++ that does not compile for processors without vector instructions that it knows"
    return ""


@pytest.mark.slow
@pytest.mark.skipif(bool(no_compiler()), reason=no_compiler() or "not skipped")
def test_the_default_backend() -> None:
    ends = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model, x = nn.Sequential(nn.Linear(7, 6), nn.Linear(6, CLASSES)), rows()
        branches = attach(model, x, CLASSES, at="0", head=Parallel(3))
        net = WithBranches(model, branches)
        # A pool of compilers and precompiled headers take longer to make than these two kernels.
        with torch._inductor.config.patch(compile_threads=1, cpp_cache_precompile_headers=False):
            call = torch.compile(net, fullgraph=True) if compiled else net
            for _ in range(3):
                output, logits = call(x)
                (F.cross_entropy(output, targets()) + branches.loss(targets(), logits=logits)).backward()
        ends.append(net)
    assert_same_gradients(*ends)
