"""Heads of every kind: what they compute, whose their weights are, and what is refused."""

import copy
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from branch_zoo import CLASSES, Cnn, assert_same_bits, attached, bits_of, hooks_in, images, mlp, rows, targets
from test_branch_dense import VOCABULARY, Language
from torch import Tensor, nn

from asymtrain.branches import PRESETS, Dense, Linear, Parallel, WithBranches, attach, prior
from asymtrain.branches._heads import NAMED_HEADS
from asymtrain.errors import UsageError
from asymtrain.objectives import Mse, Sigmoid


def wide(width: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 9), nn.Tanh(), nn.Linear(9, outputs))


@pytest.fixture(autouse=True)
def _entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head by name is one entry."""
    monkeypatch.setitem(NAMED_HEADS, "wide", lambda positions, width, outputs: wide(width, outputs))


HEADS = {"mlp": "mlp", "function": wide, "entry": "wide"}


@pytest.mark.parametrize("activation", ["last", "all"])
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_a_step_reaches_model_and_live_heads(head: object, activation: str) -> None:
    model, x = mlp(), rows()
    before = torch.get_rng_state()
    branches = attach(model, x, CLASSES, at=["1", "3"], head=Parallel(3, head, activation))
    assert torch.equal(torch.get_rng_state(), before)
    model(x)
    shape = (3, 3, CLASSES) if activation == "all" else (3, CLASSES)
    assert {tuple(logits.shape) for logits in branches.logits().values()} == {shape}
    branches.loss(targets()).backward()
    assert all(parameter.grad is not None for parameter in branches.parameters())
    assert model[0].weight.grad.any()
    live = 1 if activation == "last" else 3
    each = sum(p.numel() for layer in branches.layers for p in branches.head(layer).as_module().parameters())
    assert sum(parameter.numel() for parameter in branches.parameters()) == live * each


SHARED = {"tied": lambda: "tied", "module": lambda: nn.Linear(6, VOCABULARY)}
KINDS = {
    "linear": lambda: "linear",
    "conv": lambda: "conv",
    **{name: lambda h=h: h for name, h in HEADS.items()},
    **SHARED,
}


@pytest.mark.parametrize("kind", KINDS)
def test_heads_of_every_kind_are_outside_of_the_model_and_leave_nothing_behind(kind: str) -> None:
    ends = []
    for redundancy in (1,) if kind in SHARED else (1, 5):
        torch.manual_seed(0)
        model, tokens = Language(), torch.randint(VOCABULARY, (3, 5))
        keys = list(model.state_dict())
        branches = attach(
            model,
            tokens,
            VOCABULARY,
            at="blocks.*",
            head=Parallel(redundancy, KINDS[kind]()),
            pool="none",
            layout="BTD",
            shift=1,
        )
        own = {value.data_ptr() for value in model.state_dict().values()}
        assert own.isdisjoint(value.data_ptr() for value in branches.state_dict().values())
        optimizer = torch.optim.AdamW([*model.parameters(), *branches.parameters()], lr=1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            (F.cross_entropy(model(tokens)[:, :-1].mT, tokens[:, 1:]) + branches.loss(tokens)).backward()
            optimizer.step()
        assert list(model.state_dict()) == keys
        branches.strip(*([optimizer] if list(branches.parameters()) else []))
        assert not hooks_in(model)
        assert optimizer.param_groups[0]["params"] == list(optimizer.state) == list(model.parameters())
        never = Language()
        never.load_state_dict(model.state_dict(), strict=True)
        assert torch.equal(model(tokens), never(tokens))
        ends.append(bits_of(model))
    assert_same_bits(ends[0], ends[-1])  # idle branches change nothing


@pytest.mark.parametrize("activation", ["last", "all"])
def test_states_of_module_heads_load(activation: str) -> None:
    model, x = mlp(), rows()
    options = {"head": Parallel(2, wide, activation)}
    branches = attach(model, x, CLASSES, at=["1", "3"], **options)
    with torch.no_grad():
        for value in (*branches.parameters(), *branches.buffers()):
            value.add_(1)
    again = attach(copy.deepcopy(model), x, CLASSES, at=["1", "3"], seed=9, **options)
    again.load_state_dict(branches.state_dict(), strict=True)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in branches.state_dict().items())


def test_branches_of_a_layer_differ() -> None:
    branches = attach(mlp(), rows(), CLASSES, at="1", head=Parallel(3, "mlp", "all"))
    first, second, third = (module[0].weight for module in branches.head("1").live)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


@pytest.mark.parametrize("head", ["conv", "mlp", "linear"])
def test_heads_that_keep_positions(head: str) -> None:
    model, x = Cnn(), images()
    branches = attach(model, x, CLASSES, at="convs.0", objective="softmax", head=Parallel(2, head), pool="none")
    model(x)
    for name, logits in branches.logits().items():
        assert logits.shape == (3, CLASSES, *branches._attached().rows(False)[name].shape[2:])
    exits = branches.exits()
    output = model.convs[0](x)
    branches.eval()
    exits["convs.0"].eval()
    model.eval()(x)
    assert torch.allclose(exits["convs.0"](output), branches.logits()["convs.0"], atol=1e-6)


@pytest.mark.parametrize("activation", ["last", "all"])
def test_a_tower_reads_maps_and_gives_rows(activation: str) -> None:
    model, x = Cnn().eval(), images()
    branches = attach(model, x, CLASSES, at="convs.0", head=Parallel(2, "tower", activation))
    optimizer = torch.optim.SGD([*model.parameters(), *branches.parameters()], lr=0.1)
    model(x)
    shape = (2, 3, CLASSES) if activation == "all" else (3, CLASSES)
    assert {tuple(logits.shape) for logits in branches.logits().values()} == {shape}
    (F.cross_entropy(model(x), targets()) + branches.loss(targets())).backward()
    assert model.convs[0].weight.grad.any()
    assert all(parameter.grad.any() for parameter in branches.parameters())
    assert not [name for name, _ in branches.named_buffers() if "idle" not in name]
    feature = model.convs[0](x)
    model(x)
    expected = branches.logits()["convs.0"][-1] if activation == "all" else branches.logits()["convs.0"]
    torch.testing.assert_close(branches.exits()["convs.0"](feature), expected)
    again = attach(Cnn(), x, CLASSES, at="convs.0", head=Parallel(2, "tower", activation), seed=3)
    again.load_state_dict(branches.state_dict(), strict=True)
    branches.strip(optimizer)


def test_a_tower_by_hand() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.Flatten(), nn.LazyLinear(CLASSES)), images()
    model(x)
    branches = attach(model, x, CLASSES, at="0", head="tower")
    model(x)
    first, norm, _, second, other, _, product = branches.head("0").live[0]
    maps = F.gelu(F.group_norm(F.conv2d(model[0](x), first.weight, stride=2, padding=1), 8, norm.weight, norm.bias))
    maps = F.gelu(F.group_norm(F.conv2d(maps, second.weight, stride=2, padding=1), 8, other.weight, other.bias))
    torch.testing.assert_close(branches.logits()["0"], maps.mean((2, 3)) @ product.weight.T + product.bias)


def test_towers_beside_other_heads() -> None:
    model, x = Cnn(), images()
    branches = attach(model, x, CLASSES, at="convs.*", head={"convs.0": "tower", "convs.1": "mlp"})
    model(x)
    assert [tuple(logits.shape) for logits in branches.logits().values()] == [(3, CLASSES)] * 2
    branches.loss(targets()).backward()


def test_where_a_tower_has_nothing_to_stand_on() -> None:
    with pytest.raises(UsageError, match=r"head='tower' reads maps \(B, D, H, W\): at layers without them"):
        attach(mlp(), rows(), CLASSES, at="1", head="tower")
    with pytest.raises(UsageError, match="head='tower' pools maps itself: leave pool= out"):
        attach(Cnn(), images(), CLASSES, at="convs.0", head="tower", pool="mean")
    small = nn.Sequential(nn.Conv2d(3, 6, 8, stride=8), nn.Flatten(), nn.LazyLinear(CLASSES))
    told = "layer '0': head='tower' needs maps of 2 positions or more along each axis, and got 1 x 2: leave the layer"
    wide = torch.randn(3, 3, 8, 16)
    small(wide)
    with pytest.raises(UsageError, match=told):
        attach(small, wide, CLASSES, at="0", head="tower")


def test_a_head_that_pools_does_not_count_padding() -> None:
    class Last(nn.Module):
        def __init__(self, width: int, outputs: int) -> None:
            super().__init__()
            self.layer = nn.Linear(width, outputs)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.layer(tokens[:, -1])

    model, tokens = Language(), torch.randint(VOCABULARY, (3, 5))
    options = {"at": "blocks.0", "head": Last, "pool": "none", "layout": "BTD"}
    branches = attach(model, tokens, CLASSES, **options)
    model(tokens)
    assert branches.logits()["blocks.0"].shape == (3, CLASSES)
    branches.loss(targets()).backward()
    with pytest.raises(UsageError, match="pools positions itself and would count padding: attach with mask=None"):
        attach(model, tokens, CLASSES, mask="padding", **options)


def test_the_models_own_output_layer() -> None:
    model, tokens = Language(), torch.randint(VOCABULARY, (3, 5))
    branches = attach(model, tokens, VOCABULARY, at="blocks.*", layout="BTD", preset="early_exit", shift=1)
    assert not list(branches.parameters())
    assert not branches.state_dict()
    assert branches.num_weights() == 0
    model(tokens)
    feature = model.blocks[0](model.words(tokens))
    assert torch.equal(branches.logits()["blocks.0"], model.head(model.norm(feature)))
    branches.loss(tokens).backward()
    assert model.head.weight.grad.any()
    assert model.norm.weight.grad.any()
    exit_ = branches.exits()["blocks.1"]
    branches.strip()
    assert torch.equal(exit_(feature), model.head(model.norm(feature)))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class Stacked(nn.Module):
    """Blocks one after the other, and what makes the output of them."""

    def __init__(self, blocks: int, norm: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(blocks)))
        self.norm, self.head = norm, nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(x)))


@pytest.mark.parametrize("norm", [nn.LayerNorm(6), nn.Identity()], ids=["norm", "none"])
def test_by_default_no_tied_head_is_where_its_answer_is_the_model_s(norm: nn.Module) -> None:
    model, x, options = Stacked(4, norm), torch.randn(3, 5, 6), {"preset": "early_exit", "layout": "BTD"}
    branches = attach(model, x, CLASSES, **options)
    assert branches.layers == ("blocks.0", "blocks.1", "blocks.2")
    named = attach(model, x, CLASSES, at="blocks.*", **options)
    output = model(x)
    assert torch.equal(named.logits()["blocks.3"], output)
    assert not any(torch.equal(logits, output) for logits in branches.logits().values())
    mixed = attach(model, x, CLASSES, head={"blocks.3": "linear", "blocks.*": "tied"}, **options)
    assert len(mixed.layers) == 4
    with pytest.raises(UsageError, match=r"the only layer found, 'blocks', is .* name earlier layers with at="):
        attach(Stacked(1, nn.Identity()), x, CLASSES, **options)


def test_layers_of_the_model_that_are_given() -> None:
    model, tokens = Language(), torch.randint(VOCABULARY, (3, 5))
    options = {"layout": "BTD", "pool": "none", "objective": "softmax", "shift": 1}
    told = attach(model, tokens, VOCABULARY, at="blocks.*", head=nn.Sequential(model.norm, model.head), **options)
    found = attach(model, tokens, VOCABULARY, at="blocks.*", head="tied", **options)
    assert not list(told.parameters())
    model(tokens)
    assert torch.equal(told.loss(tokens), found.loss(tokens))
    mixed = nn.Sequential(nn.Linear(6, 6), model.head)
    with pytest.raises(UsageError, match="weights of the model and others"):
        attach(model, tokens, VOCABULARY, at="blocks.*", head=mixed, **options)


def test_copies_of_a_tied_pair_are_tied_to_the_copy() -> None:
    model, tokens = Language(), torch.randint(VOCABULARY, (3, 5))
    branches = attach(model, tokens, VOCABULARY, at="blocks.*", layout="BTD", preset="early_exit", shift=1)
    twin = copy.deepcopy(WithBranches(model, branches))
    with torch.no_grad():
        twin.model.head.weight.zero_()
    assert not twin(tokens)[1]["blocks.0"].any()
    assert WithBranches(model, branches)(tokens)[1]["blocks.0"].any()


class Averaged(nn.Module):
    """A mean over tokens stands between the norm and the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.norm, self.head = nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.block(x)).mean(1))


class Wrapped(nn.Module):
    """The same with the norm in a part of the model; the blocks before it have norms too."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6)), nn.Linear(6, CLASSES)
        self.end = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.end(self.block(x)).mean(1))


class NoHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x).softmax(-1)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Averaged(), r"cannot infer how the model's final norm and its output layer belong together: .*nn.Sequential"),
        (Wrapped(), "cannot infer how the model's final norm and its output layer belong together"),
        (NoHead(), r"needs a model whose output is that of a linear layer, and none was found"),
    ],
)
def test_models_without_a_head_to_tie(model: nn.Module, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        attach(model, torch.randn(3, 5, 6), CLASSES, at="block", head="tied", pool="none", layout="BTD")


def test_a_tied_layer_reads_no_maps() -> None:
    """A linear layer would take a width of the image for the features, and where sizes agree without a word."""
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 8))
    images = torch.randn(2, 3, 8, 8)
    with pytest.raises(UsageError, match=r"'0' keeps maps, and the model's output layer, .*pool='mean'"):
        attach(model, images, 8, at="0", preset="early_exit")
    branches = attach(model, images, 8, at="0", preset="early_exit", pool="mean")
    assert torch.allclose(model(images), branches.logits()["0"], atol=1e-6)


def test_a_norm_inside_the_blocks_is_not_the_models_last() -> None:
    layers = [nn.TransformerEncoderLayer(6, 2, 8, batch_first=True) for _ in range(2)]
    model = nn.Sequential(nn.Sequential(*layers), nn.Flatten(), nn.Linear(5 * 6, 6), nn.ReLU(), nn.Linear(6, CLASSES))
    branches = attach(model, torch.randn(3, 5, 6), CLASSES, at="0.0", head="tied", pool="none")
    assert [*branches.exits()["0.0"].head] == [model[-1]]


def test_a_shared_module_is_trained_once() -> None:
    model, x = nn.Sequential(nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, CLASSES)), rows()
    shared = nn.Linear(8, CLASSES)
    branches = attach(model, x, CLASSES, at=["0", "2"], head=shared)
    assert [id(parameter) for parameter in branches.parameters()] == [id(p) for p in shared.parameters()]
    assert len(branches.state_dict()) == 2
    model(x)
    assert torch.equal(branches.logits()["2"], shared(model[:3](x)))
    branches.loss(targets()).backward()
    assert shared.weight.grad.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head": "lienar"}, "unknown head 'lienar': did you mean 'linear'"),
        ({"head": "conv"}, r"head='conv' needs positions to look at: attach with pool='none'"),
        ({"head": lambda width, outputs: 3}, r"`head` returned a int for layer '1': return an nn.Module"),
        (
            {"head": lambda width: nn.Linear(width, 3)},
            r"head of layer '1' cannot be built \(TypeError.*\(width, outputs\)",
        ),
        (
            {"head": lambda w, o: nn.Linear(w, o + 1)},
            r"gives \(3, 6\) for features of shape \(3, 8\), where \(3, 5\) is",
        ),
        ({"head": lambda w, o: nn.Linear(w + 1, o)}, r"cannot be called on features of shape \(3, 8\)"),
        ({"head": lambda w, o: nn.LazyLinear(o)}, "the head of layer '1' has lazy layers .*: build it for the width"),
        ({"head": nn.LazyLinear(CLASSES)}, "the head of layer '1' has lazy layers without weights"),
        ({"head": Parallel(2, nn.Linear(8, CLASSES))}, "a head that is shared has one branch"),
        ({"head": {"7": "mlp"}}, "unknown layer in `head` '7'"),
        ({"weights": {"1": -1}}, "the weight of layer '1' must be a finite number of 0 or more, got -1"),
        ({"head": Linear("flat")}, "unknown bias 'flat'"),
        ({"head": Linear(prior(torch.tensor([0, 9])))}, r"class indices in 0\.\.4"),
        ({"head": Linear(prior([0, 1]))}, r"labels must be a tensor .* of shape \(N, 5\)"),
        ({"head": Linear(prior(torch.rand(8)))}, "labels must be a tensor"),
        ({"head": Linear(prior(torch.full((2, CLASSES), 1.5)))}, "labels must be a tensor"),
        ({"head": Linear(prior(torch.full((2,), -100)))}, "labels must be a tensor"),
        ({"head": Linear(prior(torch.eye(CLASSES).long()))}, r"class as floats \(labels.float\(\)\)"),
        ({"head": Linear("prior"), "objective": F.cross_entropy}, "needs an objective by name"),
        ({"preset": "probes"}, "unknown preset 'probes': did you mean 'probe'"),
        ({"objective": "softmux"}, "unknown objective 'softmux': did you mean 'softmax'"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        attach(mlp(), rows(), CLASSES, at="1", **options)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("at", ["1", ["1", "3"]])
def test_probes_read_and_leave_no_gradient(at: str | list[str], mode: type[torch.no_grad]) -> None:
    model, x, branches = attached(mlp().eval(), at=at, preset="probe")
    with mode():
        model(x)
    branches.loss(targets()).backward()
    assert all(parameter.grad.any() for parameter in branches.parameters())
    model(x)
    branches.loss(targets()).backward()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_guide_has_the_values_of_every_preset() -> None:
    page = (Path(__file__).parents[2] / "docs" / "attaching.md").read_text()
    rows = re.findall(r'^\| `"(\w+)"` \| `((?:\w+=[^`]*))` \|$', page, re.MULTILINE)
    values = {"Parallel": Parallel, "Linear": Linear, "Dense": Dense, "Sigmoid": Sigmoid}
    assert {name: eval(f"dict({options})", values) for name, options in rows} == PRESETS


def test_the_bias_begins_at_the_class_shares() -> None:
    model, x = mlp(), rows()
    labels = torch.tensor([0, 0, 0, 1, 2, 3, 4, 4])
    branches = attach(model, x, CLASSES, at="1", head=Linear(prior(labels)))
    shares = (torch.bincount(labels) + 0.5) / (8 + 2.5)
    assert torch.allclose(branches.head("1").bias.sigmoid(), shares)
    equal = attach(model, x, CLASSES, at="1")
    assert torch.allclose(equal.head("1").bias.sigmoid(), torch.full((CLASSES,), 1 / CLASSES))
    ignored = torch.cat([labels, torch.tensor([255])]).byte()
    ignoring = attach(model, x, CLASSES, at="1", objective=Sigmoid(ignore_index=255), head=Linear(prior(ignored)))
    assert torch.equal(ignoring.head("1").bias, branches.head("1").bias)


@pytest.mark.parametrize("classes", [1, CLASSES])
def test_the_bias_of_classes_that_do_not_exclude_each_other(classes: int) -> None:
    labels = torch.rand(20, classes) > 0.7
    shares = (labels.sum(0) + 0.5) / 21
    for given in (labels, labels.float(), labels[:, 0]) if classes == 1 else (labels, labels.float()):
        branches = attach(mlp(), rows(), classes, at="1", head=Linear(prior(given)))
        assert torch.allclose(branches.head("1").bias.sigmoid(), shares)


def test_a_class_alone_begins_at_one_half() -> None:
    assert attach(mlp(), rows(), 1, at="1").head("1").bias == 0
    with pytest.raises(UsageError, match=r"class as floats \(labels.float\(\)\)"):
        attach(mlp(), rows(), 1, at="1", head=Linear(prior(torch.tensor([0, 1]))))


def test_quantities_have_no_class_shares() -> None:
    with pytest.raises(UsageError, match="a prior is of classes: give the bias itself"):
        attach(mlp(), rows(), at="1", objective=Mse(outputs=2), head=Linear("prior"))


def test_exits_leave_padding_out_as_branches_do() -> None:
    model, tokens = Language(), torch.randint(VOCABULARY, (3, 5))
    branches = attach(model, tokens, CLASSES, at="blocks.*", layout="BTD", mask="padding")
    padding = torch.arange(5) < torch.tensor([[2], [5], [4]])
    model(tokens, padding)
    output = model.blocks[0](model.words(tokens))
    assert torch.allclose(branches.exits()["blocks.0"](output, padding), branches.logits()["blocks.0"], atol=1e-6)
    assert not torch.allclose(branches.exits()["blocks.0"](output), branches.logits()["blocks.0"])


def test_exits_need_no_branches() -> None:
    model, x = Cnn().eval(), images()
    branches = attach(model, x, CLASSES, at="convs.*", head=Parallel(2, Linear("prior")))
    model(x)
    logits, exits = branches.logits(), branches.exits()
    branches.strip()
    output = model.convs[0](x)
    assert torch.allclose(exits["convs.0"](output), logits["convs.0"], atol=1e-6)
    assert isinstance(exits["convs.0"].head, nn.Linear)


def test_tied_heads_of_a_model_that_reads_jagged_rows() -> None:
    """A jagged tensor has no memory by which the output layer could be recognised; its values have."""

    class Jagged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.norm, self.out = nn.Linear(4, 4), nn.RMSNorm(4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.norm(torch.stack([row.mean(0) for row in self.inner(x).unbind()])))

    x = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged)
    model = Jagged()
    branches = attach(model, x, 3, at="norm", head="tied", layout="BD")
    logits = model(x)
    assert branches.logits()["norm"].shape == logits.shape
    branches.loss(torch.tensor([0, 1])).backward()
    branches.strip()
