"""The dry run on a model that leaves traces wherever it can."""

import random
from collections import UserDict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from branch_zoo import CLASSES, assert_same_bits, bits_of, rows
from torch import Tensor, nn
from torch.ao import quantization

from asymtrain.branches import attach
from asymtrain.errors import UsageError


class Restless(nn.Module):
    """Draws in eval mode, changes one buffer in place, resizes one and puts another object in the place of a third."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, CLASSES)
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("last", torch.zeros(3, CLASSES))
        self.register_buffer("grown", torch.zeros(0))
        self.modes: list[tuple[bool, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append((self.training, torch.is_grad_enabled()))
        x = self.layer(x) + torch.rand(1) + random.random() + np.random.rand()
        self.count += 1
        self.grown.resize_(len(x)).fill_(1)
        self.last = x.detach()
        return x


@pytest.mark.parametrize("width", [7, 9], ids=["", "after a failure"])
def test_everything_is_put_back(width: int) -> None:
    model, x = Restless(), torch.ones(3, width)
    before, last = bits_of(model), model.last
    state, python_state, drawn = torch.get_rng_state(), random.getstate(), np.random.get_state()[2]
    with nullcontext() if width == 7 else pytest.raises(UsageError, match="cannot be called"):
        attach(model, x, CLASSES, at="layer")
    assert set(model.modes) == {(False, False)}  # every run in eval mode, without gradients
    assert_same_bits(bits_of(model), before)
    assert model.last is last
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python_state
    assert np.random.get_state()[2] == drawn
    assert model.training


class Caching(nn.Module):
    """Keeps tensors of its input's size in plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(30, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)
        self.length, self.scale = 0, None

    def forward(self, x: Tensor) -> Tensor:
        if self.length != x.shape[1]:
            self.length, self.scale = x.shape[1], torch.linspace(0, 1, x.shape[1])[:, None]
        return self.head(self.block(self.embed(x).cumsum(1) * self.scale).mean(1))


def test_caches_hold_what_the_sample_left_there() -> None:
    model = Caching()
    attach(model, torch.randint(0, 30, (4, 9)), CLASSES, at="block")
    assert model.length == 9
    assert model.scale is not None
    assert len(model.scale) == 9


class Graph(nn.Module):
    """Rows are nodes; the integers are numbers of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.embed(x)
        return self.head(x.index_add(0, edges[1], x[edges[0]]))


def test_a_sample_whose_rows_belong_together_is_called_once() -> None:
    edges = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])
    assert attach(Graph(), (torch.randn(5, 4), edges), CLASSES, at="embed").head("embed").width == 6


class OfFixedBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 6), nn.Linear(6, CLASSES)
        self.state = nn.Parameter(torch.randn(3, 7, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.embed(x) + self.state).mean(1))


def test_a_model_of_one_batch_size_is_read_by_what_one_call_tells() -> None:
    assert attach(OfFixedBatch(), torch.randn(3, 7, 4), CLASSES, at="embed").readers["embed"].layout == "BTD"


@dataclass(frozen=True)
class Batch:
    words: Tensor
    labels: Tensor | None = None


class Parts(nn.Module):
    """Takes and gives tensors inside containers."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(
        self, views: list[Tensor] | Batch, extra: dict[str, Tensor] | None = None, scale: float = 1.0
    ) -> object:
        if isinstance(views, Batch):
            return Batch(self.head(self.block(views.words.cumsum(1)).mean(1)))
        assert extra is not None
        x = self.block(views[0].cumsum(1) + views[1] * extra["mask"][:, :, None]) * scale
        return self.head(x), x


NESTED = ([torch.randn(4, 4, 4), torch.randn(4, 4, 4)], {"mask": torch.ones(4, 4)}, 2.0)


@pytest.mark.parametrize("sample", [NESTED, Batch(torch.randn(4, 4, 4))], ids=["nested", "dataclass"])
def test_samples_of_several_tensors_are_varied_as_a_whole(sample: object) -> None:
    """They have as many tokens as samples and features."""
    assert attach(Parts(), sample, CLASSES, at="block").readers["block"].layout == "BTD"


def test_an_output_that_no_sample_changes_is_refused() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions, self.head = nn.Embedding(3, 4), nn.Linear(4, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head((x + self.positions(torch.arange(3))).cumsum(1).mean(1))

    # Three positions for a batch of three: the shape alone looks like rows.
    with pytest.raises(UsageError, match="3 rows that are not those of the batch: pass layout='BD'"):
        attach(Positions(), torch.randn(3, 3, 4), CLASSES, at="positions")


class Parted(nn.Module):
    """Gives a mask that is no feature beside the features."""

    def __init__(self, kind: str = "dict") -> None:
        super().__init__()
        self.layer, self.kind = nn.Linear(7, 7), kind
        self.register_buffer("seen", torch.zeros(3, 7))

    def forward(self, x: Tensor | dict[str, Tensor] | tuple[object, ...]) -> object:
        if isinstance(x, dict):
            x = x["h"]
        elif isinstance(x, tuple):
            x = x[-1][-1] if isinstance(x[-1], tuple) else x[-1]
        assert isinstance(x, Tensor)
        mask, h = torch.ones(len(x), 1), self.layer(x).relu()
        self.seen.copy_(h)
        return {"dict": {"mask": mask, "h": h, "double": h + h}, "tuple": (mask, h), "nested": ((mask, h),)}[self.kind]


class OfParts(nn.Module):
    def __init__(self, kind: str = "dict") -> None:
        super().__init__()
        self.b = nn.ModuleList(Parted(kind) for _ in range(2))

    def forward(self, x: object) -> Tensor:
        for block in self.b:
            x = block(x)
        x = x["h"] if isinstance(x, dict) else x[-1]  # type: ignore[index]
        return x[-1] if isinstance(x, tuple) else x


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("dict", "output='h' or output='double', or output='mask' if"),
        ("tuple", "output=1, or output=0 if"),
        ("nested", "output=, a function .*, or output=0 if"),
    ],
)
def test_a_first_tensor_without_gradient_is_refused_where_others_have_one(kind: str, told: str) -> None:
    model, x = OfParts(kind), rows()
    with pytest.raises(UsageError, match=f"'b.0' gives several .* no gradient .*: pass {told}"):
        attach(model, x, CLASSES, at="b.*")
    assert not any(buffer.requires_grad for buffer in model.buffers())


def test_a_tensor_without_gradient_may_be_meant() -> None:
    model, x, y = OfParts(), rows(), torch.tensor([0, 1, 2])
    for given in ({"output": "mask"}, {"preset": "probe"}):
        with attach(model, x, CLASSES, at="b.*", **given) as branches:
            model(x)
            branches.loss(y).backward()
    with attach(model, x, CLASSES, at="b.*", output="h") as branches:
        model(x)
        branches.loss(y).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.requires_grad_(False)  # nothing has a gradient, so its absence tells nothing
    assert attach(model, x, CLASSES, at="b.*").head("b.0").width == 1


def test_the_look_for_gradients_is_no_forward_of_other_branches() -> None:
    model, x = OfParts(), rows()
    first = attach(model, x, CLASSES, at="b.*", output="h")
    with pytest.raises(UsageError, match="several floating-point tensors"):
        attach(model, x, CLASSES, at="b.*", layout="BD")
    with pytest.raises(UsageError, match="no forward has reached the branches"):
        first.loss(torch.tensor([0, 1, 2]))


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Please use quant_min:UserWarning")
@pytest.mark.parametrize("version", [0, 1], ids=["observer", "fused observer"])
@pytest.mark.parametrize("backend", ["fbgemm", "qnnpack"])
def test_models_that_are_prepared_for_quantisation(backend: str, version: int) -> None:
    """Their ranges follow every batch, in eval mode too, by which rows are rounded; some have no size before it."""
    first, second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
    rest = [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)]
    model = nn.Sequential(quantization.QuantStub(), first, nn.BatchNorm2d(8), nn.ReLU(), second, *rest).train()
    model.qconfig = quantization.get_default_qat_qconfig(backend, version)
    quantization.prepare_qat(model, inplace=True)
    x, before = torch.randn(4, 3, 8, 8), bits_of(model)
    branches = attach(model, x, CLASSES, at=["1", "3"])
    assert {reader.layout for reader in branches.readers.values()} == {"BCHW"}
    assert_same_bits(bits_of(model), before)
    model(x)
    branches.loss(torch.arange(4) % CLASSES).backward()
    after = bits_of(model)
    assert any(not torch.equal(after[name], before[name]) for name in before if "min_val" in name)  # measured again


class Ragged(nn.Module):
    """Pools rows of different lengths, one by one, and gives the layer before it as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.head = nn.Linear(7, 6), Norm(6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(self.layer(x))
        return x, self.head(torch.stack([row.mean(0) for row in x.unbind()]))


class Norm(nn.LayerNorm):
    """A derived norm, which tells its axis by sizes."""


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_before_a_pooling_layer(layout: torch.layout) -> None:
    model = Ragged()
    x = torch.nested.nested_tensor([torch.randn(2, 7), torch.randn(5, 7)], layout=layout)
    branches = attach(model, x, CLASSES, at="head")
    model(x)
    branches.loss(torch.tensor([0, 1])).backward()
    assert branches.head("head").live.grad.any()
    for layer in ("layer", "norm"):
        with pytest.raises(UsageError, match="gives a nested tensor"):
            attach(model, x, CLASSES, at=layer)


class Odd(nn.Module):
    """Has a layer whose output is no feature, beside the model's way."""

    def __init__(self, make: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.layer, self.odd, self.head = nn.Linear(7, 6), Made(make), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        self.odd(x)
        return self.head(x)


class Made(nn.Module):
    def __init__(self, make: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> object:
        return self.make(x * 1)


class Lenient(dict[str, Tensor]):
    """Has every attribute."""

    def __getattr__(self, name: str) -> None:
        return None


@pytest.mark.parametrize("pool", ["mean", "class_token", "none"])
def test_a_layer_that_gives_a_scalar(pool: str) -> None:
    with pytest.raises(UsageError, match="a single number"):
        attach(Odd(torch.mean), rows(), CLASSES, at="odd", pool=pool)


@pytest.mark.parametrize("kind", [dict, Lenient, UserDict])
def test_mappings_of_any_class(kind: Callable[..., object]) -> None:
    model, x = Odd(lambda value: kind(feature=value, count=value.long())), rows()
    attach(model, x, CLASSES, at="odd", output="feature").strip()
    for output, fault in (
        ("features", "at output='features' .* parts feature, count"),
        ("count", "no floating-point tensor"),
    ):
        with pytest.raises(UsageError, match=fault):
            attach(model, x, CLASSES, at="odd", output=output)
