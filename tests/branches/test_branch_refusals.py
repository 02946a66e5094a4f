"""Bad input: each gives one clear line, and nothing stays behind."""

import copy
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from branch_zoo import CLASSES, assert_same_bits, attached, bits_of, hooks_in, mlp, rows
from torch import nn

from asymtrain.branches import Dense, Linear, Parallel, WithBranches, attach, clean
from asymtrain.errors import UsageError
from asymtrain.objectives import Huber, Mse, Sigmoid


def nan() -> torch.Tensor:
    x = rows()
    x[1, 2] = float("nan")
    return x


def endless() -> list[object]:
    held: list[object] = []
    held.append(held)
    return held


def nested(layout: torch.layout = torch.strided) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype, and still met
        return torch.nested.nested_tensor([torch.randn(2, 7), torch.randn(3, 7)], layout=layout)


# By what is wrong: the options, and key words of the error.
OPTIONS = {
    "redundancy 0": (lambda: {"head": Parallel(0)}, "redundancy must be .* got 0"),
    "redundancy -1": (lambda: {"head": Parallel(-1)}, "redundancy must be .* got -1"),
    "redundancy 1.5": (lambda: {"head": Parallel(1.5)}, "redundancy must be .* got 1.5"),
    "redundancy True": (lambda: {"head": Parallel(True)}, "redundancy must be"),
    "classes 0": ({"classes": 0}, "classes must be .* got 0"),
    "classes text": ({"classes": "5"}, "classes must be .* got '5'"),
    "a choice of one": ({"classes": 1, "objective": "softmax"}, "Softmax of one output is always 0"),
    "mask": ({"mask": "padding"}, "`mask` 'padding': write one of input"),
    "ignore_index": (lambda: {"objective": Sigmoid(ignore_index=1.5)}, "ignore_index must be .* got 1.5"),
    "objective": ({"objective": 3}, "objective must be .* got 3"),
    "class of objectives": (
        {"objective": nn.CrossEntropyLoss},
        r"instance of it, such as CrossEntropyLoss\(\)",
    ),
    "neither classes nor outputs": ({"classes": None}, r"objective=Mse\(outputs=2\)"),
    "classes and outputs": ({"objective": Mse(outputs=2)}, "give either classes="),
    "outputs": (lambda: {"classes": None, "objective": Huber(outputs=0)}, "outputs must be .* got 0"),
    "class of heads": ({"head": Linear}, r"head is a class: give an instance of it, such as Linear\(...\)"),
    "class of pools": ({"pool": Dense}, r"pool is a class: give an instance of it, such as Dense\(...\)"),
    "head of one layer": ({"head": {"1": Parallel(2)}}, "Parallel is for all layers"),
    "activation": (lambda: {"head": Parallel(2, activation="lsat")}, "unknown activation 'lsat': did you mean 'last'"),
    "reduction": (lambda: {"head": Parallel(2, reduction="max")}, "unknown reduction 'max'"),
    "class_reduction": (lambda: {"objective": Sigmoid("none")}, "unknown class_reduction 'none'"),
    "resize": (lambda: {"pool": Dense("none")}, "unknown resize 'none'"),
    "layout": ({"layout": "XY"}, "layout 'XY' is not one letter an axis"),
    "layout number": ({"layout": 3}, "layout 3 is not one letter an axis"),
    "number": ({"at": 0}, "there are none; .* 0, 1, 2, 3"),
    "NaN": ({"sample": nan()}, "`sample` contains NaN"),
    "NaN in a tuple": ({"sample": (nan(),)}, "`sample` contains NaN"),
    "NaN in a dict": ({"sample": {"input": nan()}}, "`sample` contains NaN"),
    "nothing in the batch": ({"sample": nan()[:0]}, "`sample` holds an empty tensor"),
    "meta": ({"sample": rows().to("meta")}, "`sample` is on the meta device"),
    "meta in a dict": ({"sample": {"input": rows().to("meta")}}, "`sample` is on the meta device"),
    "holds itself": ({"sample": endless()}, "`sample` holds itself"),
    "weights without end": (
        lambda: {"head": Parallel(2**62)},
        "redundancy=4611686018427387904 .* more than .* weights",
    ),
    "classes without end": ({"classes": 10**30}, "makes more than .* weights"),
    "bias on meta": ({"head": Linear(torch.zeros(CLASSES, device="meta"))}, "bias must be a tensor with one value"),
    "complex bias": (
        {"head": Linear(torch.zeros(CLASSES, dtype=torch.complex64))},
        "bias must be a tensor with one value",
    ),
    "nested bias": ({"head": Linear(nested())}, "bias must be a tensor with one value"),
    "pool fails": ({"pool": lambda f: 1 / 0}, r"'1' cannot be pooled \(ZeroDivisionError: "),
    "pool of no features": ({"pool": lambda f: f[:, :0]}, r"'1' gives a tensor of shape \(3, 0\)"),
    "pool of no rows": ({"pool": lambda f: f[:0]}, r"'1' gives a tensor of shape \(0, 8\)"),
    "pool on meta": ({"pool": lambda f: f.to("meta")}, "'1' gives a tensor on the meta device"),
    "sparse pool": ({"pool": lambda f: f.to_sparse()}, "does not return a tensor of shape"),
    "complex pool": ({"pool": lambda f: f * 1j}, "does not return a tensor of shape"),
    "shape": ({"sample": torch.randn(3, 9)}, r"cannot be called on `sample` \(RuntimeError: "),
    "too many": ({"sample": (rows(), rows())}, r"cannot be called on `sample` \(TypeError: .* x, _ = next"),
    "a batch of a loader": ({"sample": [rows(), rows()]}, "the inputs of one batch: x, _ = next"),
    "nothing": ({"sample": None}, "cannot be called on `sample`"),
    "output key": ({"output": {"7": 0}}, "unknown layer in `output` '7'"),
    "pool key": ({"pool": {"7": "mean"}}, "unknown layer in `pool` '7'"),
    "module as key": ({"pool": {nn.ReLU(): "mean"}}, "the keys of `pool` are .* got a ReLU"),
}


@pytest.mark.parametrize(("options", "message"), OPTIONS.values(), ids=OPTIONS)
def test_wrong_options(options: object, message: str) -> None:
    model = mlp()
    before, state = bits_of(model), torch.get_rng_state()

    def attach_so() -> None:
        given = options() if callable(options) else options  # a value may be refused where it is made
        attach(model, **{"at": ["1", "3"], "sample": rows_like(), "classes": CLASSES, **given})

    with pytest.raises(UsageError, match=message) as caught:
        attach_so()
    assert "\n" not in str(caught.value)
    assert not hooks_in(model)
    assert_same_bits(bits_of(model), before)
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)


def rows_like() -> torch.Tensor:
    """A batch that draws nothing."""
    return torch.linspace(-1, 1, 21).reshape(3, 7)


def test_counts_of_numpy_and_torch_are_whole_numbers() -> None:
    model, x = mlp(), rows()
    branches = attach(model, x, torch.tensor([1, CLASSES - 1]).max() + 1, at="1", head=Parallel(np.int64(3)))
    assert branches.head("1").weights.shape == (3, CLASSES, 8)
    model(x)
    branches.loss(torch.arange(len(x))).backward()


def test_two_sets_at_one_layer_do_not_know_of_each_other() -> None:
    model, x = mlp(), rows()
    first, second = attach(model, x, CLASSES, at=["1", "3"]), attach(model, x, at="3", objective=Mse(outputs=2))
    model(x)
    alone, depth = first.losses(torch.arange(len(x)))["3"], torch.randn(3, 2)
    torch.testing.assert_close(second.losses(depth)["3"], F.mse_loss(second.logits()["3"], depth))
    (first.loss(torch.arange(len(x))) + second.loss(depth)).backward()
    assert not first.state_dict().keys() & model.state_dict().keys()
    second.strip()
    model(x)
    assert torch.equal(first.losses(torch.arange(len(x)))["3"], alone)
    first.strip()
    assert not hooks_in(model)


@pytest.mark.parametrize("allowed", ["1", 1, {"1": True}])
def test_skipped_layers_are_allowed_for_all_or_none(allowed: object) -> None:
    branches = attach(mlp(), rows(), CLASSES, at=["1", "3"])
    with pytest.raises(UsageError, match="allow_skipped is True or False for all layers"):
        branches.allow_skipped = allowed


def compiled() -> object:
    return torch.compile(mlp(), backend="eager")


def script(module: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and still met
        return torch.jit.script(module)


def test_a_script_of_a_model_with_branches_says_what_to_do() -> None:
    model, _, branches = attached(mlp().eval())
    with pytest.raises(UsageError, match=r"while branches are attached: strip them first, or script asymtrain\.clean"):
        script(model)
    assert not any(hasattr(hook, "__name__") for hook in model._forward_hooks.values())
    script(clean(copy.deepcopy(model)))
    branches.strip()
    script(model)


def sharded() -> nn.Module:
    # Sharding for real needs a process group; what is looked at is the name of the class that FSDP mixes in.
    model = mlp()
    kind = type("FSDPModule", (), {})
    model[0].__class__ = type("FSDPLinear", (kind, nn.Linear), {})
    return model


def with_buffer(buffer: torch.Tensor) -> nn.Module:
    model = mlp()
    model[3].register_buffer("odd", buffer)
    return model


WRAPPED: dict[str, tuple[Callable[[], object], str]] = {
    "compiled": (compiled, "attach first, then torch.compile"),
    "data parallel": (lambda: nn.DataParallel(mlp()), "nn.DataParallel: use Distributed.*WithBranches"),
    "sharded": (sharded, r"sharded by FSDP already: .*fully_shard\(WithBranches"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU()), "lazy layers without weights: call it once"),
    "meta": (lambda: mlp().to("meta"), "the model has values on the meta device"),
    "meta buffer": (lambda: with_buffer(torch.zeros(2, device="meta")), "the model has values on the meta device"),
    "script": (lambda: script(mlp()), "TorchScript module, .*: attach to the model it was made from"),
    "script inside": (lambda: nn.Sequential(nn.Linear(7, 7), script(nn.ReLU())), "layer '1' is a TorchScript module"),
    "function": (lambda: torch.relu, "attach takes an nn.Module, got a builtin"),
}


@pytest.mark.parametrize(("build", "message"), WRAPPED.values(), ids=WRAPPED)
def test_wrapped_models(build: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        attach(build(), rows(), CLASSES, at="1")


def test_a_scripted_part_beside_the_layer_does_not_matter() -> None:
    model, x = (
        nn.Sequential(nn.Linear(7, 7), script(nn.Sequential(nn.Linear(7, 7), nn.ReLU())), nn.Linear(7, CLASSES)),
        rows(),
    )
    branches = attach(model, x, CLASSES, at="0")
    model(x)
    branches.loss(torch.arange(len(x))).backward()


def test_inference_mode_is_refused() -> None:
    with torch.inference_mode(), pytest.raises(UsageError, match=r"inside torch.inference_mode, .*: call it outside"):
        attach(mlp(), rows(), CLASSES, at="1")


def test_data_parallel_replicas_are_refused_in_the_forward() -> None:
    model, x, branches = attached(at="1")
    model._is_replica = True  # what nn.DataParallel sets on the copies that share our hooks
    with pytest.raises(UsageError, match=r"branches do not work in nn.DataParallel"):
        model(x)
    branches.strip()


def test_with_branches_wants_its_own_model() -> None:
    model, _, branches = attached(at="1")
    for others in ((mlp(), branches), (branches, model)):
        with pytest.raises(UsageError, match="these branches are not on this model"):
            WithBranches(*others)
    branches.strip()
    with pytest.raises(UsageError, match="these branches are not on this model"):
        WithBranches(model, branches)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_sample_is_called_and_a_nested_feature_refused(layout: torch.layout) -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(7, 7), nn.Linear(7, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.nested.to_padded_tensor(self.first(x), 0.0))

    model, x = Padded(), nested(layout)
    with pytest.raises(UsageError, match="layer 'first' gives a nested tensor") as caught:
        attach(model, x, CLASSES, at="first")
    assert "\n" not in str(caught.value)
    assert not hooks_in(model)
    branches = attach(model, x, CLASSES, at="second", layout="BTD")
    model(x)
    branches.loss(torch.arange(2)).backward()


@pytest.mark.parametrize("kind", ["nested", "sparse", "complex", "NaN"])
def test_buffers_of_any_kind_stay(kind: str) -> None:
    buffers = {"nested": nested, "sparse": lambda: torch.eye(2).to_sparse(), "complex": lambda: torch.ones(2) * 1j}
    buffer = buffers.get(kind, lambda: torch.full((2,), float("nan")))()
    model = with_buffer(buffer)
    attach(model, rows(), CLASSES, at="1").strip()
    assert model[3].odd is buffer


def test_a_sparse_feature_is_refused() -> None:
    class Sparse(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to_sparse()

    with pytest.raises(UsageError, match=r"layer '0' gives a tensor of layout torch.sparse_coo"):
        attach(nn.Sequential(Sparse()), rows(), CLASSES, at="0")
