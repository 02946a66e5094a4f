"""Pooling against the sum written out, and what in-place operations must not do."""

from dataclasses import dataclass

import pytest
import torch
from branch_zoo import CLASSES, images, mlp, resnet, rows
from torch import Tensor, nn

from asymtrain.branches import attach
from asymtrain.branches._pooling import Reader, pool_features
from asymtrain.errors import UsageError

LAYOUTS = ["BD", "DB", "BCHW", "BHWC", "CHWB", "BTD", "TBD", "BCT", "TDB", "BCTHW"]


def naive(feature: Tensor, layout: str) -> Tensor:
    """Row by row, feature by feature."""
    batch, features = layout.index("B"), next(axis for axis, letter in enumerate(layout) if letter in "CD")
    samples = feature.movedim((batch, features), (0, 1))
    return torch.stack([torch.stack([channel.mean() for channel in sample]) for sample in samples])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_mean_is_the_mean_over_every_position(layout: str) -> None:
    feature = torch.randn(*range(2, 2 + len(layout)), dtype=torch.float64)
    assert torch.allclose(pool_features(feature, layout, "mean"), naive(feature, layout))


@pytest.mark.parametrize("layout", ["BTD", "TBD", "BDT", "TDB"])
def test_the_class_token_is_position_zero(layout: str) -> None:
    feature = torch.randn(3, 4, 5)
    first = feature.movedim([layout.index(letter) for letter in "TBD"], (0, 1, 2))[0]
    assert torch.equal(pool_features(feature, layout, "class_token"), first)


@pytest.mark.parametrize(
    ("layout", "pool"), [*((one, "mean") for one in LAYOUTS), ("BTD", "class_token"), ("TDB", "class_token")]
)
def test_the_result_shares_no_memory(layout: str, pool: str) -> None:
    feature = torch.randn(*range(2, 2 + len(layout)))
    pooled = pool_features(feature, layout, pool)
    before = pooled.clone()
    feature.zero_()
    assert torch.equal(pooled, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shape", "layout"), [((2, 3, 9, 9), "BCHW"), ((2, 9, 9, 3), "BHWC"), ((2, 81, 3), "BTD")])
def test_the_gradient_of_a_mean_is_no_copy_of_the_feature(
    shape: tuple[int, ...], layout: str, dtype: torch.dtype
) -> None:
    feature = torch.randn(shape, dtype=dtype, requires_grad=True)
    pooled = pool_features(feature, layout, "mean")
    assert pooled.dtype == torch.float32
    (gradient,) = torch.autograd.grad(pooled.square().sum(), feature)
    assert gradient.shape == feature.shape
    assert gradient.untyped_storage().nbytes() == 2 * 3 * dtype.itemsize


@pytest.mark.parametrize("pool", [lambda f: f, lambda f: None, lambda f: f.mean()])
def test_a_function_must_give_rows(pool: object) -> None:
    with pytest.raises(UsageError, match=r"`pool` function that does not return a tensor of shape \(rows, features\)"):
        attach(resnet(), images(), CLASSES, at="2", pool=pool)


def test_pools_that_do_not_exist_or_fit() -> None:
    with pytest.raises(UsageError, match="unknown pool 'clas_token': did you mean 'class_token'"):
        attach(resnet(), images(), CLASSES, at="2", pool="clas_token")
    for token in ("class_token", "last_token"):
        with pytest.raises(UsageError, match=f"layout 'BCHW', which has no single token axis for pool='{token}'"):
            attach(resnet(), images(), CLASSES, at="2", pool=token)
    with pytest.raises(UsageError, match=r"pool is a module \(Linear\), whose weights would never be trained"):
        attach(mlp(), rows(), CLASSES, at="1", pool=nn.Linear(8, 8))


class Summing(nn.Module):
    """Tokens see those before them, or all."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(9, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)
        self.causal = causal

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.head(self.block(x.cumsum(1) if self.causal else x + x.sum(1, keepdim=True)).mean(1))


def test_the_first_token_of_a_causal_model_is_no_class_token() -> None:
    tokens = torch.arange(12).reshape(3, 4) % 9
    with pytest.raises(UsageError, match=r"'block'.*causal.*pool='last_token'"):
        attach(Summing(causal=True), tokens, CLASSES, at="block", pool="class_token")
    both = {"pool": {"block": "class_token"}, "layout": "BTD"}
    assert (
        attach(Summing(causal=False), tokens, CLASSES, at=["embed", "block"], **both).readers["block"].pooled.token == 1
    )


@dataclass
class Parts:
    narrow: Tensor
    wide: Tensor


class Pair(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.narrow, self.wide = kind, nn.Linear(7, 3), nn.Linear(7, 6)

    def forward(self, x: Tensor) -> object:
        parts = {"narrow": self.narrow(x), "wide": self.wide(x)}
        kinds = {"dict": parts, "dataclass": Parts(**parts), "tuple": tuple(parts.values()), "ids": torch.arange(3)}
        return kinds.get(self.kind)


class Two(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.pair, self.head = Pair(kind), nn.Linear(7, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        self.pair(x)
        return self.head(x)


@pytest.mark.parametrize(
    ("kind", "output", "width"),
    [
        ("dict", None, 3),
        ("dict", "wide", 6),
        ("dict", {"pair": "wide"}, 6),
        ("dataclass", None, 3),
        ("dataclass", "wide", 6),
        ("tuple", None, 3),
        ("tuple", 1, 6),
        ("tuple", -1, 6),
        ("tuple", lambda output: output[1][:, :2], 2),
    ],
)
def test_a_part_of_an_output_can_be_chosen(kind: str, output: object, width: int) -> None:
    model = Two(kind)
    branches = attach(model, rows(), CLASSES, at="pair", output=output)
    model(rows())
    assert branches.head("pair").width == width
    assert branches.logits()["pair"].shape == (3, CLASSES)


@pytest.mark.parametrize("kind", ["ids", "none"])
def test_a_layer_without_a_tensor_is_refused(kind: str) -> None:
    with pytest.raises(UsageError, match=r"layer 'pair' gives no floating-point tensor \(its output is a"):
        attach(Two(kind), rows(), CLASSES, at="pair")


@pytest.mark.parametrize(
    ("kind", "output", "message"),
    [
        ("dict", "Wide", "at output='Wide' .*a dict with the parts narrow, wide"),
        ("dict", 1, "at output=1 "),
        ("dataclass", "wid", "a Parts with the parts narrow, wide"),
        ("tuple", 2, "at output=2 .*a tuple with the parts 0, 1"),
        ("tuple", -3, "at output=-3 "),
        ("tuple", "wide", "a tuple with the parts 0, 1"),
        ("none", "wide", r"output='wide' \(its output is a NoneType\): leave output= out there"),
    ],
)
def test_an_unknown_part_of_an_output_is_explained(kind: str, output: object, message: str) -> None:
    with pytest.raises(UsageError, match=f"'pair'.*{message}"):
        attach(Two(kind), rows(), CLASSES, at="pair", output=output)


class Padded(Summing):
    """A causal reader of padded sentences."""

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        keep = torch.ones_like(tokens) if attention_mask is None else attention_mask
        return self.head(self.block((self.embed(tokens) * keep.unsqueeze(-1)).cumsum(1)).mean(1))


def test_the_last_token_of_a_row_that_counts_nothing_is_the_first() -> None:
    tokens, mask = torch.randn(2, 3, 4), torch.tensor([[0, 0, 0], [1, 1, 0]])
    assert torch.equal(Reader("BTD", "last_token").read(tokens, mask), torch.stack([tokens[0, 0], tokens[1, 1]]))


@pytest.mark.parametrize("given", ["last_token", "function"])
@pytest.mark.parametrize("side", ["left", "right", "none"])
def test_the_last_token_is_the_last_that_the_mask_counts(side: str, given: str) -> None:
    torch.manual_seed(0)
    model, tokens = Padded(causal=True), torch.randint(9, (3, 5))
    lengths = torch.tensor([[2], [5], [3]])
    right = torch.arange(5) < lengths
    keep = {"left": right.flip(1), "right": right, "none": torch.ones(3, 5, dtype=torch.bool)}[side].long()
    last = {"left": [4, 4, 4], "right": [1, 4, 2], "none": [4, 4, 4]}[side]

    def last_by_mask(feature: Tensor, mask: Tensor | None) -> Tensor:
        ends = torch.full((len(feature),), 4) if mask is None else (mask * torch.arange(1, 6)).amax(1) - 1
        return feature[torch.arange(len(feature)), ends]

    pool = last_by_mask if given == "function" else given
    sample = {"tokens": tokens, "attention_mask": keep}
    branches = attach(model, sample, CLASSES, at="block", pool=pool, layout="BTD")
    seen = {}
    model.block.register_forward_hook(lambda module, args, output: seen.update(block=output))
    model(tokens, keep)
    rows = seen["block"][torch.arange(3), last]
    assert torch.equal(branches.logits()["block"], branches.head("block")(rows))
    model(tokens)  # without a mask nothing is padding
    assert torch.equal(branches.logits()["block"], branches.head("block")(seen["block"][:, -1]))


@pytest.mark.parametrize("beside", [{}, {"embed": "last_token"}], ids=["alone", "beside another"])
def test_a_function_has_the_mask_of_the_sample_while_attach_tries_it(beside: dict[str, str]) -> None:
    model, sample = Padded(causal=True), {"tokens": torch.randint(9, (2, 5)), "attention_mask": torch.ones(2, 5)}
    masks = []

    def mean_of_counted(feature: Tensor, mask: Tensor) -> Tensor:
        masks.append(mask)
        return (feature * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)

    pool = {"block": mean_of_counted, **beside}
    branches = attach(model, sample, CLASSES, at=["block", *beside], pool=pool, layout="BTD")
    assert [mask is sample["attention_mask"] for mask in masks] == [True]
    model(sample["tokens"], other := torch.ones(2, 5))
    branches.logits()
    assert masks[1] is other
    branches.strip()
    with pytest.raises(UsageError, match=r"layer 'block' cannot be pooled \(.*NoneType.*mend its `pool` function"):
        attach(model, {"tokens": sample["tokens"]}, CLASSES, at="block", pool=mean_of_counted)
